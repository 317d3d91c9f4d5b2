"""pretokenize.py's look at the text: each planted fault is found, by its figure, and none is invented."""

import functools
import json
import random
import re
from pathlib import Path

import pytest

from gpt.planning.evidence import copied_in
from gpt.pretokenization import look
from gpt.tokens.corpus import open_corpus
from tests.helpers.pretokenize import run
from tests.helpers.texts import lines, write

LATIN, CYRILLIC, CHINESE = (("a", "z"), ("\u0430", "\u044f"), ("\u4e00", "\u9fa0"))


@functools.cache
def prose(num_words: int, seed: int = 0, script: tuple[str, str] = LATIN, blank: str = " ") -> str:
    """Lines of up to 15 words of 4,000, in this range of characters: no passage occurs twice."""
    rng = random.Random(seed)
    letters = [chr(code) for code in range(ord(script[0]), ord(script[1]) + 1)]
    known = ["".join(rng.choices(letters, k=rng.randint(3, 7))) for _ in range(4000)]
    chosen = [rng.choice(known) + blank for _ in range(num_words)]
    return "".join(word + ("\n" if rng.random() < 1 / 15 else "") for word in chosen)


def articles(number: int) -> list[str]:
    return [prose(150, seed) for seed in range(number)]


def changed(content: str) -> str:
    """A near copy: every 40th word is another one."""
    words = content.split(" ")
    return " ".join("other" if number % 40 == 0 else word for number, word in enumerate(words))


def paged(content: str) -> str:
    pages = [content[start:start + 1500] for start in range(0, len(content), 1500)]
    return "".join(f"{page}\nPrinted for the members of the society, {number} of 99.\n"
                   for number, page in enumerate(pages))


def logged(number: int) -> str:
    rng = random.Random(0)
    whats = ("accepted the connection from", "has finished its job without errors in", "waits for the answer of")
    return "".join(f"2026-01-01 {rng.randint(0, 10**6)} INFO worker {rng.choice(whats)} {rng.randint(0, 10**6)}\n"
                   for _ in range(number))


def texts_of(fault: str) -> tuple[str, ...]:
    """Writes a text with this fault; returns the command's words."""
    book = prose(6000)
    if fault == "copies":
        write("a.jsonl", lines(articles(40) + articles(4)))
        return ("a.jsonl", "--val_fraction", "0")
    if fault == "a near copy":
        write("a.jsonl", lines([*articles(30), changed(articles(12)[11])]))
        return ("a.jsonl", "--val_fraction", "0")
    if fault == "short copies":
        write("a.jsonl", lines([f"good morning number {number % 50}" for number in range(1000)]))
        return ("a.jsonl", "--val_fraction", "0")
    if fault == "one file":
        return (write("a.txt", book), write("b.txt", book[::-1][:1200]))
    half = book[:len(book) // 2]
    code = "".join(f"x[{number}]=function(a){{return {number * 7}}};" for number in range(100))
    content = {
        "a footer": paged(book),
        "mojibake": book.replace("e \n", "d\u00e9j\u00e0 l\u2019\u00e9t\u00e9\n".encode().decode("cp1252")),
        "minified": half + code + half[::-1],
        "controls": book.replace("a \n", "\x1b[0ma\n"),
        "Japanese mail": book[:5000] + book[5000:].replace("a \n", "\u65e5 \n".encode("iso2022_jp").decode()),
        "a log": logged(900),
        "validation": book + book[9000:13000],
        "twice": book * 2,
    }[fault]
    return (write("a.txt", content),)


FAULTS = {  # the word that tells the finding, and the bounds of its figure
    "copies": ("documents", 8, 10),
    "a near copy": ("documents", 2.9, 3.6),
    "short copies": ("lines", 94, 100),
    "a footer": ("lines", 1.5, 3.5),
    "mojibake": ("broken", 0.1, 0.5),
    "minified": ("minified", 7, 10),
    "controls": ("control", 20, 60),
    "Japanese mail": ("iso2022_jp", 30, 90),
    "one file": ("file", 95, 98),
    "a log": ("lines", 40, 80),
    "validation": ("validation", 90, 100),
    "twice": ("passages", 40, 50),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("is_sampled", [False, True])
def test_a_planted_fault_is_found(fault, is_sampled, tokenizer_file, capsys, monkeypatch):
    if is_sampled:
        monkeypatch.setattr(look, "CHUNK_TOKENS", 4000)
        monkeypatch.setattr(look, "LEAST_PASSAGES", 6000)
        monkeypatch.setattr(look, "PIECE_TOKENS", 1500)
        monkeypatch.setattr(look, "MOST_PIECES", 16)
    run(*texts_of(fault), "--tokenizer_file", str(tokenizer_file))
    found = re.findall(r"^  .+", capsys.readouterr().out, re.M)
    word, low, high = FAULTS[fault]
    figures = [float(re.findall(r"[\d.]+", line)[0]) for line in found if re.search(rf"\b{word}\b", line)]
    assert len(figures) == 1
    assert low <= figures[0] <= high or is_sampled
    assert len(found) <= {"twice": 2, "a log": 3}.get(fault, 1)
    assert max(map(len, found)) <= look.COLUMNS


@pytest.mark.parametrize("content", [
    prose(6000), prose(6000, 1, CYRILLIC), prose(6000, 2, CHINESE, ""),
    prose(4000).replace("a ", "\u00e9\u00bb ").replace("e ", " \u00ab\u00a0\u00e0\u00a0\u00bb\u00b7 "),
    "".join(f"    {word}.{word[::-1]} = {word[:3]}({number:x}, [])\n"
            for number, word in enumerate(prose(900, 3).split())), "a"])
def test_of_a_clean_text_nothing_is_found(content, tokenizer_file, capsys):
    run(write("a.txt", content + "\n"), "--tokenizer_file", str(tokenizer_file))
    assert not re.search(r"^  ", capsys.readouterr().out, re.M)


def test_short_documents_of_which_each_stands_once_are_no_finding(tokenizer_file, capsys):
    words = prose(6000).split()
    sums = [f"add {number} {7 * number} = {8 * number}" for number in range(2000)]
    write("a.jsonl", lines([*(" ".join(words[start:start + 3]) for start in range(0, 6000, 3)), *sums]))
    run("a.jsonl", "--tokenizer_file", str(tokenizer_file))
    assert not re.search(r"^  ", capsys.readouterr().out, re.M)


def test_documents_of_one_word_each_are_counted_whole():
    assert "  100.0% of it is lines that repeat" in look.about_lines("yes\nno!\n" * 500, True)[0]


def test_training_repeats_nothing_that_was_told_here_but_looks_at_other_files(tokenizer_file):
    recorded = run(*texts_of("validation"), "--tokenizer_file", str(tokenizer_file))["splits"]["val"]["copied"]
    folder = Path("data")
    for val, expected in ((None, 0.0), (folder / "val.bin", recorded)):
        corpus = open_corpus(folder, val, folder / "metadata.json", folder / "tokenizer.json")
        assert copied_in(corpus) == expected
    assert recorded > 0.9


def test_prompts_that_all_conversations_share_are_no_finding(capsys):
    system = {"role": "system", "content": prose(40, 1)}
    write("a.jsonl", "".join(json.dumps({"messages": [system, {"role": "user", "content": prose(30, seed)},
                                                      {"role": "assistant", "content": prose(60, seed + 500)}]}) + "\n"
                             for seed in range(60)))
    run("a.jsonl", "--vocab_size", "300", "--val_fraction", "0.3")
    printed = capsys.readouterr().out
    assert re.search(r"^looked at .*: no broken characters$", printed, re.M)
    assert not re.search(r"^  ", printed, re.M)
