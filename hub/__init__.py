"""Models and datasets of the Hugging Face hub, by names such as hf://openai-community/gpt2. Needs huggingface_hub.

names       what stands behind hf://, and back from a folder of the cache to the name with its commit
corpora     the corpora that have a short name of ours
library     the package huggingface_hub: what a repository holds, and its errors as one line each
files       files into the library's cache: continued where they were cut off, then verified
models      the few files of a repository that are a model
datasets    the files of a dataset repository that are text
publish     a folder of ours into a repository

Nothing here is imported unless a flag names the hub.
"""
