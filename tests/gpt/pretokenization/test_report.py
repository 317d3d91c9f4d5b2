"""report.py: what was found in a text is counted, placed and said; too much that is not UTF-8 ends the run."""

import io
import json
import subprocess

import pytest

from gpt.common.errors import Exit, UserError
from gpt.common.progress import Progress
from gpt.pretokenization.blocks import LIMITS, Limits, Reading
from tests.helpers.pretokenize import refused, run
from tests.helpers.texts import PACK, in_language, lines, read, words, write


@pytest.mark.parametrize("form", ["plain", "lines", "separated", *PACK])
def test_a_text_of_which_more_than_a_hundredth_is_not_utf8_is_refused(form):
    content = in_language("Russian", 3000).encode("cp1251")
    few = words(100 * len(content)).encode()
    reading = Reading(separator="\n\n" if form == "separated" else None)
    names = {"plain": "a.txt", "separated": "a.txt", "lines": "a.jsonl"}
    name = names.get(form, f"a.txt.{form}")
    warnings = []
    for is_too_much, text in ((True, content), (True, few[:20 * len(content)] + content), (False, few + content)):
        if form == "lines":
            text = b"".join(b'{"text": "' + line + b'"}\n' for line in text.split(b"\n"))
        write(name, PACK[form](text) if form in PACK else text)
        if not is_too_much:
            report = read(name, reading=reading)[1]
            assert report.replaced > 1000
            progress = Progress(io.StringIO())
            progress.on_warning = warnings.append
            report.say(progress)
            continue
        with pytest.raises(UserError, match=rf"{name} .*\d,\d+ places.*--encoding") as caught:
            read(name, reading=reading)
        assert caught.value.code == Exit.DATA
    assert "--encoding" in warnings[0]


def test_a_stray_byte_in_a_short_text_and_lone_surrogates_in_json_stop_nothing():
    write("a.txt", b"short \xff text \xff\xff")
    assert read("a.txt")[1].replaced == 3
    write("b.jsonl", lines(["\ud83d" * 9] * 9))
    assert read("b.jsonl")[1].replaced == 81


def table_of(documents: list) -> None:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"text": documents}), "a.parquet")


def chats_of(documents: list) -> str:
    return "".join(json.dumps({"messages": document and [{"role": "assistant", "content": document}]}) + "\n\n"
                   for document in documents)


@pytest.mark.parametrize("kind", ["lines", "chats", "parquet"])
def test_a_file_of_which_more_than_a_hundredth_of_the_records_is_bad_is_refused(kind, tokenizer_file):
    flags = ["--tokenizer_file", str(tokenizer_file), "--val_fraction", "0"]
    name = f"a.{'parquet' if kind == 'parquet' else 'jsonl'}"
    write("0.jsonl", {"lines": lines, "chats": chats_of, "parquet": lines}[kind](["more"] * 400))
    for num_bad, num_good in ((4, 396), (3, 2), (4, 395)):
        documents = ["good", *[None] * num_bad, *["good"] * (num_good - 1)]
        table_of(documents) if kind == "parquet" else write(name, (lines if kind == "lines" else chats_of)(documents))
        for limits in (LIMITS, Limits(block_bytes=100)):
            for names in ([name, "0.jsonl"], ["0.jsonl", name]):
                if num_bad > max(3, 0.01 * (num_bad + num_good)):
                    message = refused(*names, *flags, "--output_dir", "none", limits=limits)
                    first = f"{'row' if kind == 'parquet' else 'line'} {3 if kind == 'chats' else 2} of {name} "
                    assert message.startswith(f"{name} has {num_bad + num_good:,} records, and {num_bad} of them")
                    assert first in message
                    metadata = run(*names, *flags, "--allow_bad_records", limits=limits)
                else:
                    metadata = run(*names, *flags, limits=limits)
                assert metadata["splits"]["train"]["documents"] == num_good + 400


@pytest.mark.parametrize("record", [{"text": "the cat"}, {"messages": [{"role": "assistant", "content": "the cat"}]}])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_array_is_refused_with_the_command_that_makes_lines_of_it(record, indent, tokenizer_file,
                                                                             monkeypatch):
    write("a.json", json.dumps([record] * 9, indent=indent))
    message = refused("a.json", "--tokenizer_file", str(tokenizer_file))
    with open("a.json") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert "array" in refused("-", "--tokenizer_file", str(tokenizer_file))
    subprocess.run(message[message.index("python -c"):message.index(", and give")], shell=True, check=True)
    metadata = run("a.jsonl", "--tokenizer_file", str(tokenizer_file), "--val_fraction", "0")
    assert metadata["splits"]["train"]["documents"] == 9
