"""Downloads models and datasets of the Hugging Face hub, by names such as hf://openai-community/gpt2.

names       parses hf:// names, and turns a folder of the cache back into a name with its commit
download    models and datasets, downloaded by the package into its cache; its errors in one line each

The package huggingface_hub is imported only where a flag names the hub.
"""
