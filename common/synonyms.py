"""Names of other programs for which no flag stands, and flags that are gone: what to do in their place.

The names are those of nanoGPT, litgpt (--train.max_steps is looked up as max_steps), nanochat, Hugging Face's Trainer
and llama.cpp, in lower case with _ for -. What a flag itself is called elsewhere stands where the flag is declared.
"""

from __future__ import annotations

from collections.abc import Mapping

_ON_A_DEVICE = "Give --use_gpu for a GPU, --no-use_gpu for the CPU."
_PRECISION = "Give --use_amp with --amp_dtype bf16 or fp16, or --no-use_amp for fp32."
_A_STEP = "A step is --batch_size x --gradient_accumulation_steps sequences of --seq_length tokens."
_HEAD = "The output layer is computed by the compiler's own kernels."

# For each command, or for "all": names of others for which no single flag stands, and what to do.
ANSWERS = {
    "all": {
        "device accelerator cuda gpu gpus cpu no_cuda use_cpu": _ON_A_DEVICE,
        "dtype precision torch_dtype bf16 fp16 bfloat16 float16 half": _PRECISION,
    },
    "train": {
        "config_file cfg conf": "Give --config FILE, flags in TOML.",
        "wandb wandb_log use_wandb": "Give --tracker wandb.",
        "wandb_project wandb_run_name": "Give --tracker wandb, and set WANDB_PROJECT or WANDB_NAME in the environment.",
        "adam_epsilon eps": "AdamW has --beta1, --beta2 and --weight_decay; its epsilon is 1e-8.",
        "val_split validation_split val_fraction": "Validation tokens are split off before: python pretokenize.py FILE "
                                                   "--val_fraction X",
        "weights data_weights train_data_weights mixture_weights": "Weights stand behind their folders: --data_dir "
                                                                   "a:0.7 b:0.3",
        "start prompt max_new_tokens temperature top_k top_p": "Continue texts with: python generate.py --prompt TEXT",
        "warmup_ratio": "Give --warmup_steps, in steps.",
        "lr_decay_iters lr_decay_steps": "The decay ends with the run, at --max_steps, in --min_lr.",
        "total_batch_size global_batch_size tokens_per_step": _A_STEP,
        "devices num_gpus nproc_per_node ddp fsdp deepspeed strategy": "Start the processes with torchrun; "
                                                                       "--model_parallel says how they share a model.",
        "save_strategy always_save_checkpoint": "Give --checkpoint_interval in epochs, or --checkpoint_every.",
        "max_tokens train_tokens target_tokens": "Give --max_steps or --epochs; the plan says how many tokens that is.",
        "num_workers dataloader_num_workers": "No worker is needed; --preload says where the tokens live.",
        "max_time time_limit max_hours": "Give --max_minutes.",
        "text text_file input corpus": "Make tokens of the text first: python pretokenize.py FILE",
        "push_to_hub hub_model_id": "After the run: python export.py --push OWNER/NAME",
    },
    "pretokenize": {
        "input input_file file text train_file data": "Give the files without a flag: python pretokenize.py FILE",
        "dataset dataset_name repo_id": "Name it in the place of the files: python pretokenize.py "
                                        "hf://datasets/OWNER/NAME",
        "append_eod add_eos append_eos": "An end-of-text id follows every document by itself.",
    },
    "generate": {"do_sample greedy": "Text is sampled unless --temperature is 0.",
                 "num_beams": "Text is sampled: --temperature, --top_k, --top_p."},
    "bench": {
        "model_size seq_length block_size batch_size vocab_size": "Give --shape SIZE,T,B or SIZE,T,B,IDS.",
        "loader": "Give --peer loader.",
        "saving": "Give --peer saving.",
        "own_recipes train_flags": "Give --recipes 'NAME: ours FLAGS'.",
    },
    "evaluate": {"tasks task benchmark": "lm-evaluation-harness opens the checkpoints; here, give --text FILE."},
    "export": {"quantize q8_0": "Give --dtype f16 or bf16; llama.cpp's own llama-quantize makes smaller ones."},
}

# Values that other programs have for a flag of the same meaning.
VALUES = {
    "--lr_schedule": {"wsd": "warmup_stable_decay trapezoidal", "linear": "linear_with_warmup",
                      "cosine": "cosine_with_min_lr cosine_with_warmup", "constant": "constant_with_warmup none"},
    "--model_size": {"gpt2_small": "small 124m gpt2", "gpt2_medium": "medium 350m 355m", "gpt2_large": "large 774m",
                     "gpt2_xl": "xl 1558m 1.5b", "mini": "char gpt_mini", "tiny": "nano micro"},
    "--amp_dtype": {"bf16": "bfloat16", "fp16": "float16 half"},
    "--dtype": {"f32": "float32 fp32", "f16": "float16 fp16 half", "bf16": "bfloat16"},
    "--preload": {"mmap": "memmap disk", "ram": "cpu memory", "gpu": "cuda device"},
}

# Flags, or values, that there were: the default, with which a record says nothing, and what to do in their place.
GONE: dict[str, tuple[object, str]] = {
    "train keep_epochs": (None, "All of epochs' checkpoints stay: a larger --checkpoint_interval makes fewer."),
    "train residual_dtype": ("auto", "The residual stream has the dtype of --amp_dtype."),
    "train loss_chunk_tokens": (None, "The loss takes few logits at a time by itself where that helps."),
    "train loss_kernel": (False, _HEAD),
    "train fp8_head": (False, _HEAD),
    "train embedding_weight_decay": (None, "Embeddings decay as all matrices do, by --weight_decay."),
    "train reset_optimizer": (False, "Give --init_from, which starts from the weights alone."),
    "train budget": (None, "--dry_run with --gpu_cost_per_hour says what the run costs."),
    "train tf32": (True, "Set NVIDIA_TF32_OVERRIDE=0 in the environment to turn TF32 off."),
    **{f"generate {name}": (None, "transformers' own generate() has it: AutoModelForCausalLM opens every checkpoint.")
       for name in ("stop", "repetition_penalty", "no_repeat_ngram_size", "min_p", "prompt_lines", "special_tokens")},
    **{f"{command} tokenizer_file": (None, "Put the model's own tokenizer.json into the folder of --ckpt.")
       for command in ("generate", "evaluate")},
    "generate cuda_graphs": (None, "With --compile a step is one CUDA graph."),
    **{f"evaluate {name}": (None, "lm-evaluation-harness measures it: its model type hf opens every checkpoint.")
       for name in ("hellaswag", "lambada")},
    "evaluate prune": (None, "python export.py --prune writes a pruned folder; measure it."),
    **{f"evaluate {name}": (None, "pretokenize.py reads such text into tokens; measure them by --tokens.")
       for name in ("text_field", "document_separator", "encoding")},
    "plot panels": ("all", "The picture has the losses; trackers such as TensorBoard draw every figure."),
    "plot html": (None, "Give --output plot.svg."),
    "train tracker mlflow": (None, "Give --tracker wandb, trackio or tensorboard."),
}

LONELY_WORDS = {
    "train": "A text is made into tokens first: python pretokenize.py FILE",
    "generate": "Give a text with --prompt, a checkpoint with --ckpt.",
    "evaluate": "Give texts with --text, a checkpoint with --ckpt.",
    "export": "Give a checkpoint with --ckpt, the file to write with --output.",
}


def explain_flag(command: str, name: str, called: Mapping[str, str]) -> str:
    """What a flag of another program, or one that is gone, is here, in a sentence; '' if its name is in no table."""
    plain = name.lstrip("-").lower().replace("-", "_").replace(".", "_")
    if gone := GONE.get(f"{command} {plain.removeprefix('no_')}"):
        return gone[1]
    for word in (plain, plain.removeprefix("train_").removeprefix("eval_")):
        for flag, names in called.items():
            if word in names.split():
                return f"Here it is called --{flag}."
        for table in (ANSWERS.get(command, {}), ANSWERS["all"]):
            for names, answer in table.items():
                if word in names.split():
                    return answer
    return ""


def explain_value(flag: str, value: str) -> str:
    """The end of a sentence about a value of another program; '' if it is in no table."""
    plain = value.lower().replace("-", "_").rpartition("/")[2]
    for meant, names in VALUES.get(flag, {}).items():
        if plain in names.split() or plain == meant:
            return f". Did you mean {meant}?"
    return ""


def explain_word(command: str, word: str) -> str:
    """What to do about a word that belongs to no flag."""
    if word.lower() in ("true", "false"):
        return "A flag that is on or off takes no value: --NAME turns it on, --no-NAME off."
    if command == "train" and word.endswith((".py", ".yaml", ".yml", ".json", ".toml")):
        return "Give flags in a file with --config FILE, in TOML."
    return LONELY_WORDS.get(command, "See --help.")
