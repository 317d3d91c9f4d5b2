"""The commands that messages print about a run: with more text, in another folder, for weights that are pickles."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt.checkpoint.stored import TrainState
from gpt.common.names import CONFIG, METADATA, TOKENIZER
from gpt.common.ranks import launcher
from gpt.common.words import shell_line, shell_word
from gpt.tokens.files import beside_tokens, folders_of


def transformers_command(folder: Path) -> str:
    """How to save the pickled weights of a Hugging Face folder, or of litgpt, as safetensors; '' for other folders."""
    if (folder / "lit_model.pth").is_file():
        return ("litgpt wrote it: convert it with litgpt convert_from_litgpt, and save the result as safetensors with "
                "transformers (save_pretrained).")
    if not ((folder / CONFIG).is_file() and any(folder.glob("pytorch_model*.bin"))):
        return ""
    return ("Save the same weights as safetensors, with transformers:\npython -c 'import sys, transformers\n"
            f"transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' "
            f"{shell_word(folder)}")


def more_text_commands(folder: Path | str, tokenizer: Path, state: TrainState, flags: Mapping[str, Any]) -> str:
    """The commands that continue a run with more text, for as long again.

    folder is the run's. flags are the run's too, which name its tokens: those with metadata and this tokenizer
    stay, as others cannot be mixed with the new ones. A cooldown has ended: the run continues from the
    cooldown's beginning.
    """
    new = f"more-{state.step}"
    source = flags.get("cooldown_from")
    tokens = flags.get("bin_file")
    paths = ([tokens if os.path.isdir(tokens) else os.path.dirname(tokens) or "."] if tokens else
             [each.path for each in folders_of(flags.get("data_dir", []))])
    old = [path for path in paths if beside_tokens(Path(path), METADATA) and not _has_another(Path(path), tokenizer)]
    resumed = (f"{shell_word(source)} {flags_of_another_run(folder, 'more', flags.get('mirror_to'))}" if source else
               shell_word(folder))
    return (f"python pretokenize.py MORE --output_dir {new} \\\n    --tokenizer_file {shell_word(tokenizer)}\n"
            f"{launcher()} train.py --resume_from {resumed} \\\n    --data_dir {shell_line([*old, new])} "
            f"--allow_new_data --max_steps {2 * state.step}")


def flags_of_another_run(folder: Path | str, name: str, mirror: str | None) -> str:
    """The flags of another run: a new folder beside this one, and a new mirror if this run has one."""
    folder = Path(folder).resolve() if Path(folder).name in ("", "..") else folder
    names = (name, *(f"{name}-{number}" for number in range(2, 100)))
    name = next((each for each in names if not Path(f"{folder}-{each}").exists()), name)
    return (f"--output_dir {shell_word(f'{folder}-{name}')}"
            + (f" --mirror_to {shell_word(f'{mirror}-{name}')}" if mirror else ""))


def _has_another(folder: Path, tokenizer: Path) -> bool:
    """True if the tokenizer of a folder of tokens is there and differs."""
    theirs = beside_tokens(folder, TOKENIZER)
    if not (theirs and tokenizer.is_file()):
        return False
    with contextlib.suppress(OSError, ValueError):  # a checkpoint's is written without the spaces
        return json.loads(theirs.read_bytes()) != json.loads(tokenizer.read_bytes())
    return True
