"""gpt/tokens/llama_cpp.py: a tokenizer is named as llama.cpp knows it, or refused."""

import copy
import json

import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors

from gpt.common.errors import Exit, UserError
from gpt.tokens.llama_cpp import CASED, REST, gguf_vocabulary, pre_tokenizer_name


def split(digits: str) -> pre_tokenizers.PreTokenizer:
    expression = Regex(rf"{CASED}|{digits}|{REST}")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(expression, "isolated"), byte_level])


DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])


@pytest.mark.parametrize(("pre_tokenizer", "normalizer", "whole_words_first", "name"), [
    (pre_tokenizers.ByteLevel(add_prefix_space=False), None, False, "gpt-2"),
    (split(r"\p{N}"), normalizers.NFC(), False, "qwen2"),
    (split(r"\p{N}{1,3}"), None, True, "llama-bpe"),
    (split(r"\p{N}{1,3}"), None, False, None),  # llama.cpp would take whole words first
    (split(r"\p{N}"), None, True, None),
    (split(r"\p{N}{1,2}"), None, False, None),
    (split(r"\p{N}"), normalizers.NFKC(), False, None),
    (DIGITS, None, False, "smollm"),
    (pre_tokenizers.ByteLevel(add_prefix_space=True), None, False, None),
    (pre_tokenizers.Whitespace(), None, False, None)], ids=str)
def test_a_way_of_splitting_has_llama_cpps_name_for_it(tokenizer, pre_tokenizer, normalizer, whole_words_first, name):
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    fields = json.loads(tokenizer.to_str())
    fields["model"]["ignore_merges"] = whole_words_first
    assert pre_tokenizer_name(fields) == name


@pytest.mark.parametrize("change", [
    {"model": {"type": "WordPiece"}}, {"model": {"byte_fallback": True}}, {"model": {"dropout": 0.1}},
    {"model": {"vocab": {"a": 0}}}, {"added": {"lstrip": True}}, {"pre_tokenizer": None}], ids=str)
def test_another_way_of_merging_has_no_name(tokenizer, change):
    fields = json.loads(tokenizer.to_str())
    before = copy.deepcopy(fields)
    fields["model"].update(change.get("model", {}))
    fields["added_tokens"][0].update(change.get("added", {}))
    if "pre_tokenizer" in change:
        fields["pre_tokenizer"] = None
    assert pre_tokenizer_name(before) == "gpt-2"
    assert pre_tokenizer_name(fields) is None


def test_the_ids_that_begin_and_end_a_text_are_the_folders(tokenizer):
    own = gguf_vocabulary(tokenizer, 410)
    assert (own["bos_token_id"], own["eos_token_id"], own["add_bos_token"]) == (0, 0, False)
    assert len(own["token_list"]) == len(own["token_types"]) == 410
    tokenizer.add_special_tokens(["<bos>"])
    tokenizer.add_tokens(["<think>"])
    bos, word = tokenizer.token_to_id("<bos>"), tokenizer.token_to_id("<think>")
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", bos)])
    found = gguf_vocabulary(tokenizer, 410, (5, 0))
    assert (found["bos_token_id"], found["eos_token_id"], found["add_bos_token"]) == (bos, 5, True)
    assert found["eot_token_id"] == 0  # llama.cpp's second end of a text
    assert gguf_vocabulary(tokenizer, 410, (5, 0, 7))["eom_token_id"] == 7
    assert [found["token_types"][index] for index in (bos, word, 5)] == ["CONTROL", "USER_DEFINED", "NORMAL"]


def test_without_an_end_of_text_there_is_no_gguf(tokenizer):
    fields = json.loads(tokenizer.to_str())
    fields["added_tokens"] = []
    fields["model"]["vocab"] = {token.replace("<|endoftext|>", "start"): index
                                for token, index in fields["model"]["vocab"].items()}
    with pytest.raises(UserError, match="no end-of-text token") as caught:
        gguf_vocabulary(Tokenizer.from_str(json.dumps(fields)), 410)
    assert caught.value.code == Exit.DATA
