"""evaluation/tasks.py: HellaSwag and LAMBADA by their definitions, with transformers' probabilities."""

import json
import math
import re

import numpy as np
import pytest
import torch

from common.errors import Exit, UserError
from evaluation.tasks import measure_hellaswag, measure_lambada
from tests.helpers.scoring import T, log_probabilities

WORDS = ["the", "cat", "sat", "on", "mat", "and", "dog", "ran", "to", "sea"]


def words(rng, low: int, high: int) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(low, high)))


def by_definition(theirs, tokenizer, context: str, continuation: str) -> tuple[float, bool]:
    """lm-evaluation-harness's loglikelihood (api/model.py, models/huggingface.py)."""
    kept = context.rstrip()
    whole, before = tokenizer.encode(context + continuation).ids, tokenizer.encode(kept).ids
    answer = whole[len(before):]
    ids = ((before or [0]) + answer)[-(T + 1):]
    found = log_probabilities(theirs, ids)[-len(answer):]
    return sum(nats for nats, _ in found), all(hit for _, hit in found)


def test_hellaswag_is_that_of_the_definition(scorer, encoder, theirs, tokenizer, tmp_path):
    rng = np.random.default_rng(0)
    items, hits, hits_per_character, lengths = [], [], [], []
    for number in range(24):
        endings = [words(rng, 1, 8) + ("[substeps]  so" if number % 4 == 0 else "") for _ in range(4)]
        items.append({"activity_label": "Cat", "ctx_a": ("[header] [title] " if number % 3 else "") + words(rng, 1, 2),
                      "ctx_b": words(rng, 0, 2), "endings": endings, "label": str(number % 4), "ind": number})
        context = f"Cat: {items[-1]['ctx_a']} {items[-1]['ctx_b'].capitalize()}".strip()
        context, *endings = (re.sub(r"\[.*?\]", "", part.replace(" [title]", ". ")).replace("  ", " ")
                             for part in (context, *endings))
        lengths += [len(tokenizer.encode(context + " " + ending).ids) for ending in endings]
        nats = np.array([by_definition(theirs, tokenizer, context, " " + ending)[0] for ending in endings])
        hits.append(np.argmax(nats) == number % 4)
        hits_per_character.append(np.argmax(nats / [len(ending) for ending in endings]) == number % 4)
    assert hits != hits_per_character
    assert min(lengths) < T + 1 < max(lengths)  # some lose their beginning
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    found = measure_hellaswag(scorer, encoder, str(tmp_path / "h.jsonl")).fields
    assert (found["items"], found["acc"], found["acc_norm"]) == (24, np.mean(hits), np.mean(hits_per_character))
    assert found["acc_stderr"] == pytest.approx(np.std(hits, ddof=1) / math.sqrt(24))


def test_lambada_is_that_of_the_definition(scorer, encoder, theirs, tokenizer, tmp_path):
    rng = np.random.default_rng(1)
    texts = [words(rng, 1, 7) for _ in range(20)]
    for context in [words(rng, 1, 4) for _ in range(100)]:  # some whose last word the model would write
        ids = tokenizer.encode(context).ids
        with torch.no_grad():
            word = tokenizer.decode([int(theirs(torch.tensor([ids])).logits[0, -1].argmax())])
        if re.fullmatch(r" \w+", word) and tokenizer.encode(context + word).ids[:-1] == ids:
            texts.append(context + word)
    pairs = [text.rpartition(" ") for text in texts]
    scores = [by_definition(theirs, tokenizer, context, " " + last) for context, _, last in pairs]
    assert 0 < sum(hit for _, hit in scores) < len(scores)
    assert any(not context for context, _, _ in pairs)
    (tmp_path / "l.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = measure_lambada(scorer, encoder, str(tmp_path / "l.jsonl")).fields
    assert found["acc"] == np.mean([hit for _, hit in scores])
    assert found["perplexity"] == pytest.approx(math.exp(-np.mean([nats for nats, _ in scores])), rel=1e-5)


ENDINGS = '"activity_label": "a", "ctx_a": "b", "ctx_b": "c", "endings": ["d", "e"]'


@pytest.mark.parametrize(("line", "why"), [
    ("{", "it is not JSON"), ("[]", "it is not a JSON object"), ('{"text": 3}', "text is 3, not text"),
    ('{"tex": "a b"}', "text is missing"), ('{"text": ""}', "text is blank"), ('{"text": " \\n "}', "text is blank"),
    ('{"text": "a b "}', "ends with a space, so it has no last word"), ("", "holds no item")])
def test_a_line_that_is_not_an_item_is_named(scorer, encoder, tmp_path, line, why):
    good = '{"text": "a b"}\n\n' if line else ""
    (tmp_path / "l.jsonl").write_text(good + line + "\n")
    with pytest.raises(UserError, match=why) as caught:
        measure_lambada(scorer, encoder, str(tmp_path / "l.jsonl"))
    assert caught.value.code == Exit.DATA
    assert not line or "line 3" in str(caught.value)


def test_an_answer_longer_than_the_window_is_refused(scorer, encoder, tmp_path):
    (tmp_path / "l.jsonl").write_text(json.dumps({"text": "a " + "x\u6f22" * 20}) + "\n")
    with pytest.raises(UserError, match=r"item 1 has an answer of \d+ tokens, the model sees 16") as caught:
        measure_lambada(scorer, encoder, str(tmp_path / "l.jsonl"))
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize(("line", "why"), [
    ('{%s, "label": true}', "label is true, not the number of an ending"), ('{%s, "label": 1.0}', "label is 1.0"),
    ('{%s, "label": "-1"}', 'label is "-1"'), ('{%s, "label": null}', "label is null"), ("{%s}", "label is null"),
    ('{%s, "label": 2}', "label is 2, but there are 2 endings, counted from 0"),
    ('{%s, "label": 0, "endings": "abcd"}', 'endings is "abcd", not a list of texts'),
    ('{%s, "label": 0, "endings": ["a", 3]}', "not a list of texts"), ('{%s, "label": 0, "ctx_b": 3}', "ctx_b is 3")])
def test_a_hellaswag_item_that_would_be_scored_wrongly_is_named(scorer, encoder, tmp_path, line, why):
    (tmp_path / "h.jsonl").write_text(line.replace("%s", ENDINGS))
    with pytest.raises(UserError, match=f"line 1 is not an item of this benchmark: .*{why}") as caught:
        measure_hellaswag(scorer, encoder, str(tmp_path / "h.jsonl"))
    assert caught.value.code == Exit.DATA
