"""gpt/tokens/stream.py: several files are one stream of tokens, and each id of a file is checked."""

import itertools

import numpy as np

from gpt.common.errors import Exit
from gpt.tokens.layouts import LAYOUTS, Part
from gpt.tokens.stream import TokenStream
from tests.helpers.refusals import refused
from tests.helpers.token_files import write_llmc


def test_a_slice_of_a_stream_is_that_of_the_tokens(tmp_path):
    cuts = [0, 1, 7, 8, 40, 41, 64]
    values = np.arange(64)
    parts = [LAYOUTS["llmc"].read(write_llmc(tmp_path / f"{low}.bin", values[low:high]), None, 64)
             for low, high in itertools.pairwise(cuts)]
    whole = TokenStream(tuple(parts), 2**16)
    assert (whole.length, whole.num_bytes, whole.dtype, whole.name) == (64, 128, "uint16", "0.bin and 5 more")
    for start in range(64):
        for length in range(1, 65 - start):
            piece = whole.slice(start, length)
            found = [np.fromfile(part.path, "<u2", part.length, offset=part.offset_bytes) for part in piece.parts]
            assert np.concatenate(found).tolist() == list(range(start, start + length))
            assert piece.length == length


def test_a_stream_of_two_types_is_refused(tmp_path):
    with refused(r"a holds uint16, b int32", Exit.DATA):
        TokenStream((Part(tmp_path / "a", "uint16", 4), Part(tmp_path / "b", "int32", 4)), 2**16)
