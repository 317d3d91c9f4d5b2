"""Flags that are gone, and what to give in their place; what a flag is called elsewhere stands where it is declared."""

from collections.abc import Mapping

_OF_TRANSFORMERS = "transformers' own generate() has it: AutoModelForCausalLM opens every checkpoint."
_HEAD = "The output layer is computed by the compiler's own kernels."

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
    **{f"train tracker {name}": (None, "Give --tracker wandb or tensorboard.") for name in ("mlflow", "trackio")},
    **{f"generate {name}": (None, _OF_TRANSFORMERS) for name in (
        "stop", "repetition_penalty", "no_repeat_ngram_size", "min_p", "prompt_lines", "special_tokens")},
    "pretokenize dedup": (False, "Leave duplicates out before: datatrove, or sort -u for lines of JSON."),
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
    return ""
