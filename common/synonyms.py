"""What other programs call things for which no flag stands here, and flags that are gone: what to do in their place.

Names are in lower case with _ for -. What a flag itself is called elsewhere stands where the flag is declared.
"""

from __future__ import annotations

from collections.abc import Mapping

_OF_TRANSFORMERS = "transformers' own generate() has it: AutoModelForCausalLM opens every checkpoint."
_OF_HARNESS = "lm-evaluation-harness measures it: its model type hf opens every checkpoint."
_BY_PRETOKENIZE = "pretokenize.py reads such text into tokens; measure them by --tokens."
_OWN_TOKENIZER = "Put the model's own tokenizer.json into the folder of --ckpt."
_HEAD = "The output layer is computed by the compiler's own kernels."

# By command: names of others, of nanoGPT and Hugging Face's Trainer above all, and what to give.
ANSWERS = {
    "all": {
        "device accelerator cuda gpu gpus cpu no_cuda use_cpu": "Give --use_gpu for a GPU, --no-use_gpu for the CPU.",
        "dtype precision torch_dtype bf16 fp16 bfloat16 float16": "Give --use_amp with --amp_dtype bf16 or fp16, or "
                                                                  "--no-use_amp for fp32.",
    },
    "train": {
        "wandb wandb_log use_wandb wandb_project wandb_run_name": "Give --tracker wandb; it reads WANDB_PROJECT and "
                                                                  "WANDB_NAME from the environment.",
        "val_split val_fraction": "Split validation tokens off before: python pretokenize.py FILE --val_fraction X",
        "start prompt max_new_tokens temperature top_k": "Continue texts with: python generate.py --prompt TEXT",
        "lr_decay_iters lr_decay_steps": "The decay ends with the run, at --max_steps, in --min_lr.",
        "save_strategy always_save_checkpoint": "Give --checkpoint_interval in epochs, or --checkpoint_every.",
        "text text_file input corpus": "Make tokens of a text first: python pretokenize.py FILE",
    },
    "pretokenize": {"input file text train_file data": "Give files without a flag: python pretokenize.py FILE"},
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
    "train tracker mlflow": (None, "Give --tracker wandb, trackio or tensorboard."),
    **{f"generate {name}": (None, _OF_TRANSFORMERS) for name in (
        "stop", "repetition_penalty", "no_repeat_ngram_size", "min_p", "prompt_lines", "special_tokens")},
    "generate cuda_graphs": (None, "With --compile a step is one CUDA graph."),
    "generate tokenizer_file": (None, _OWN_TOKENIZER),
    "evaluate tokenizer_file": (None, _OWN_TOKENIZER),
    **{f"evaluate {name}": (None, _OF_HARNESS) for name in ("hellaswag", "lambada")},
    **{f"evaluate {name}": (None, _BY_PRETOKENIZE) for name in ("text_field", "document_separator", "encoding")},
    "pretokenize corpus": (None, "Name the dataset: hf://datasets/roneneldan/TinyStories."),
    "export activation": (None, "Change activation_function in the config.json of the folder that was written."),
    "plot panels": ("all", "The picture has the losses; trackers such as TensorBoard draw every figure."),
    "plot html": (None, "Give --output plot.svg."),
    "evaluate prune": (None, "python export.py --prune writes a pruned folder; measure it."),
}


def explain_flag(command: str, name: str, called: Mapping[str, str]) -> str:
    """What a flag of another program, or one that is gone, is here, in a sentence; '' if its name is in no table."""
    plain = name.lstrip("-").lower().replace("-", "_").replace(".", "_")
    if gone := GONE.get(f"{command} {plain.removeprefix('no_')}"):
        return gone[1]
    for word in (plain, plain.removeprefix("train_")):  # litgpt's --train.max_steps
        for flag, names in called.items():
            if word in names.split():
                return f"Here it is called --{flag}."
        for names, answer in {**ANSWERS.get(command, {}), **ANSWERS["all"]}.items():
            if word in names.split():
                return answer
    return ""
