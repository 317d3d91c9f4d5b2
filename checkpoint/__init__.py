"""A checkpoint on the disk: a Hugging Face folder plus what resuming needs.

huggingface  config.json and model.safetensors, there and back
save         writing: whole on the disk or not there at all
find         which one is meant, whether it is sound, what it holds
folder       the output folder: its lock, what is deleted
"""
