"""vocabulary.py: how many ids a vocabulary gets, and the sample of the text on which its tokenizer is trained."""

import pytest
from tokenizers import Tokenizer, models

from gpt.common.errors import Exit, UserError
from gpt.pretokenization.block_task import PART_SEPARATOR, without_long_runs
from gpt.pretokenization.vocabulary import auto_vocab_size, with_chat_tokens
from gpt.tokens.tokenizer import END, START, parse, vocabulary_of


def test_the_automatic_vocabulary_grows_with_the_text():
    sizes = [auto_vocab_size(num_bytes) for num_bytes in (0, 10**5, 10**6, 11 * 10**6, 10**8, 10**11)]
    assert sizes == [512, 512, 1024, 6144, 32_000, 32_000]


@pytest.mark.parametrize(("length", "num_slices"), [(0, 1), (1, 1), (999, 1), (1000, 1), (1999, 2), (2000, 2),
                                                      (2001, 3)])
def test_long_runs_are_sliced_whatever_they_are_made_of(length, num_slices):
    for char in ("a", " ", "\n", "="):
        content = (char * length).encode()
        parts = without_long_runs(content).split(PART_SEPARATOR)
        assert parts.pop() == b""
        assert b"".join(parts) == content
        assert len(parts) == num_slices


@pytest.mark.parametrize(("last_id", "new_ids"), [(3, (4, 5)), (7, (4, 5)), (4, None), (5, None)])
def test_tokens_of_conversations_get_ids_that_no_other_token_has(last_id, new_ids):
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "<|endoftext|>": 2, "d": last_id}, merges=[]))
    vocabulary = vocabulary_of(tokenizer, 2)
    if new_ids:
        extended = with_chat_tokens(vocabulary, lambda line: None)
        assert tuple(map(extended.tokenizer.token_to_id, (START, END))) == new_ids
        return
    tokenizer = parse(vocabulary.content)
    tokenizer.add_special_tokens([START, END])
    for collided in (vocabulary, vocabulary_of(tokenizer, 2)):  # to be added, or in the file already
        with pytest.raises(UserError, match="have gaps") as caught:
            with_chat_tokens(collided, lambda line: None)
        assert caught.value.code == Exit.DATA
