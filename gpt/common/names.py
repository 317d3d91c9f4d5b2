"""The names of the files that several rooms write or read."""

# In a checkpoint, and in a Hugging Face folder.
CONFIG, GENERATION, CARD = "config.json", "generation_config.json", "README.md"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"  # one file, or the index of several
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
OPTIMIZER, STATE, MANIFEST = "optimizer.safetensors", "trainer_state.json", "manifest.json"

# In an output folder, beside the checkpoints.
METRICS, LOG, STARTS, RUN_CONFIG = "metrics.jsonl", "log.txt", "starts.jsonl", "config.toml"
LOCK = ".lock"  # held while a run writes into the folder, and never copied

# In a folder of tokens: it is written last and marks the folder as complete.
METADATA = "metadata.json"
