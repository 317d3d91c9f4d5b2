"""The names of the files that the code of several folders writes or reads."""

# In a checkpoint, and in a Hugging Face folder.
CONFIG, GENERATION = "config.json", "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"  # one file, or the index of several
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"  # of a model that answers
OPTIMIZER, STATE = "optimizer.safetensors", "trainer_state.json"  # what resuming needs
CARD, MANIFEST = "README.md", "manifest.json"
BEST, LAST = "best", "last"  # as in --ckpt out/best: a checkpoint of the folder, and no file

# In an output folder, beside the checkpoints.
METRICS, LOG = "metrics.jsonl", "log.txt"
STARTS, RUN_CONFIG = "starts.jsonl", "config.toml"
# The first line of config.toml, a comment, begins with one of these; the second while the first of two models trains.
RUN_CONFIG_TITLE, TWO_MODELS_TITLE = "The flags of the run in this folder", "The flags of two models"
TRACKERS = "trackers.json"  # the id under which trackers know the run
TOO_LARGE = "out_of_memory.json"  # the number of sequences that did not fit
RUN_FILES = (METRICS, LOG, STARTS, RUN_CONFIG, TRACKERS, TOO_LARGE)
LOCK = ".lock"  # held while a run writes into the folder, and never copied to a mirror
PRETOKENIZE_LOCK = ".pretokenize.lock"  # held while pretokenize.py writes into the folder
FIRST_MODEL = "first_model"  # a folder: the run of the first of two models

TOKENS = ".tokens"  # ends the name of the folder that train.py makes of texts
# In a folder of tokens: it is written last and marks the folder as complete.
METADATA = "metadata.json"
# The old spelling of tokens, tokenizer and metadata.
OLD_TOKENS = "tokens_bpe.bin"
OLD_NAMES = {TOKENIZER: "bpe_tokenizer.json", METADATA: "tokens_bpe_metadata.json"}

# train.py sets this environment variable for a child process that makes tokens or trains a first model: the
# parent trains afterwards. For a first model the value is the line to type after a stop.
TRAINS_NEXT = "TRAINS_NEXT"
