"""stream.py: which tokens of conversations count in the loss, and a warning where nothing says it."""

import pytest
from tokenizers import Tokenizer, models

from gpt.tokens.chat import END, START
from gpt.tokens.layouts import Part
from gpt.tokens.stream import TokenStream, warn_without_mask


@pytest.mark.parametrize(("names", "num_warnings"), [([START, END], 1), ([END, START], 1), (["a", "b", START, END], 0)])
def test_conversations_without_a_mask_are_warned_of_whatever_the_ids_of_their_marks(names, num_warnings, tmp_path):
    path = tmp_path / "train.bin"
    path.write_bytes(b"\0\0\1\0\1\0\0\0")
    warnings = []
    warn_without_mask(TokenStream((Part(path, "uint16", 4),), len(names)), Tokenizer(models.WordLevel(
        {name: number for number, name in enumerate(names)}, unk_token=END)), warnings.append)
    assert [str(path) in warning for warning in warnings] == [True] * num_warnings
