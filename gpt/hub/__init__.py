"""Models and datasets of the Hugging Face hub, by names such as hf://openai-community/gpt2. Needs huggingface_hub.

names       what stands behind hf://, and back from a folder of the cache to the name with its commit
library     the package huggingface_hub; its errors as one line each
download    models and datasets, downloaded by the library into its cache

Nothing here but names is imported unless a flag names the hub.
"""
