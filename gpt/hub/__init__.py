"""Downloads models and datasets of the Hugging Face hub, by names such as hf://openai-community/gpt2.

names       parses hf:// names, and turns a folder of the cache back into a name with its commit
library     the errors of the package huggingface_hub in one line each
download    models and datasets, downloaded by the package into its cache

Only names is imported by a command whose flags do not name the hub.
"""
