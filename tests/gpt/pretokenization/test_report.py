"""report.py: what was found in a text is counted, placed and said; too much that is not UTF-8 ends the run."""

import io
import json
import subprocess
from pathlib import Path

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
    reading = Reading(separator="\n\n" if form == "separated" else "")
    names = {"plain": "a.txt", "separated": "a.txt", "lines": "a.jsonl"}
    name = names.get(form, f"a.txt.{form}")
    warnings = []
    for is_too_much, text in ((True, content), (True, few[:20 * len(content)] + content), (False, few + content)):
        if form == "lines":
            text = b"".join(b'{"text": "' + line + b'"}\n' for line in text.split(b"\n"))
        write(name, PACK[form](text) if form in PACK else text)
        if not is_too_much:
            report = read(name, reading=reading)[1]
            assert report.total.replaced > 1000
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
    assert read("a.txt")[1].total.replaced == 3
    write("b.jsonl", lines(["\ud83d" * 9] * 9))
    assert read("b.jsonl")[1].total.replaced == 81


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
@pytest.mark.parametrize(("indent", "name"), [
    (None, "a.json"), (1, "a.jsonl"), (None, "a.json.gz"), (1, "a.ndjson.xz")])
def test_a_json_array_is_refused_with_the_command_that_makes_lines_of_it(record, indent, name, tokenizer_file,
                                                                             monkeypatch):
    text = json.dumps([record] * 9, indent=indent).encode("utf-8" if indent else "utf-8-sig")
    write(name, PACK.get(name.rpartition(".")[2], bytes)(text))
    with open(name) as file:
        monkeypatch.setattr("sys.stdin", file)
        assert "array" in refused("-", "--tokenizer_file", str(tokenizer_file))
    typed(refused(name, "--tokenizer_file", str(tokenizer_file)))
    metadata = run("lines-a.jsonl", "--tokenizer_file", str(tokenizer_file), "--val_fraction", "0")
    assert metadata["splits"]["train"]["documents"] == 9


def test_the_command_for_a_json_array_reads_the_encoding_that_was_given(tokenizer_file):
    write("a.json", '[\n{"text": "caf\u00e9"}]'.encode("latin-1"))
    message = refused("a.json", "--encoding", "latin-1", "--tokenizer_file", str(tokenizer_file))
    typed(message)
    assert "give lines-a.jsonl without --encoding:" in message
    assert json.loads(Path("lines-a.jsonl").read_text())["text"] == "caf\u00e9"


@pytest.mark.parametrize(("name", "rows", "encoding", "texts"), [
    ("a.csv", ["Critic's text,id", '"the caf\u00e9, sat",7', "", "dog,8", ",9"], "utf-8",
     ["the caf\u00e9, sat", "dog", ""]),
    ("a.csv", ["id;text", '7;"the ""caf\u00e9"";\r\nsat"'], "utf-8-sig", ['the "caf\u00e9";\r\nsat']),
    ("a.csv", ["id,text", "7,caf\u00e9"], "utf-16", ["caf\u00e9"]),
    ("b.tsv", ["id\ttext", '7\t"line one', '8\t"line two\' of it'], "cp1252", ['"line one', '"line two\' of it']),
    ("a.csv", ["text", "Yes, one", "Yes, two, too"], "utf-8", ["Yes, one", "Yes, two, too"]),
    ("a.csv", ["id,text,text", "1,the long text,s"], "utf-8", ["the long text"]),
    ("a.csv", ["id,text", f"1,{'the cat ' * 30_000}"], "utf-8", ["the cat " * 30_000]),
    ("a.csv", ['"id, number";"the text, all"', "1;cat, dog"], "utf-8", ["cat, dog"]),
    ("a.csv", ["id, text", '1, "cat, dog"'], "utf-8", ["cat, dog"]),
    ("a.csv", ["prompt,response,text", "1,2,the cat"], "utf-8", ["the cat"])])
def test_the_command_of_a_table_takes_the_column_with_most_text(name, rows, encoding, texts, tokenizer_file, capsys):
    write(name, "\r\n".join(rows).encode(encoding))
    run(name, "--tokenizer_file", str(tokenizer_file), "--encoding", encoding)
    said = capsys.readouterr().err
    assert "Windows" not in said
    typed(said)
    lines = Path(f"lines-{name[0]}.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == texts


def test_the_command_of_a_table_with_questions_and_answers_makes_conversations(tokenizer_file, capsys):
    write("a.csv", 'id,question,answer\n1,"the cat, or the dog?",the cat\n2,who sat?,"the dog, who sat"\n')
    run("a.csv", "--tokenizer_file", str(tokenizer_file))
    typed(capsys.readouterr().err)
    question, answer = read("lines-a.jsonl")[0][1]
    assert (question, answer) == (("user", "who sat?", True), ("assistant", "the dog, who sat", True))


@pytest.mark.parametrize("content", ["a,b\nthe,cat,sat\n\"x\"y;z", "text"])
def test_a_file_that_is_no_table_gets_no_command(content, tokenizer_file, capsys):
    write("a.csv", content)
    run("a.csv", "--tokenizer_file", str(tokenizer_file), "--val_fraction", "0")
    assert "Its rows differ" in capsys.readouterr().err


def test_the_command_of_a_table_ends_at_a_row_with_other_cells(tokenizer_file, capsys):
    write("a.csv", "id,text\n" + "1,the cat sat\n" * 90_000 + "2,the,dog\n")
    run("a.csv", "--tokenizer_file", str(tokenizer_file))
    with pytest.raises(subprocess.CalledProcessError):
        typed(capsys.readouterr().err)


def typed(message: str) -> None:
    """Runs the last line of a message that makes JSON lines."""
    subprocess.run(next(line for line in message.splitlines() if line.endswith(".jsonl")), shell=True, check=True)
