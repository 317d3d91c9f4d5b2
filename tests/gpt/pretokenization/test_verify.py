"""verify.py: a finished folder is verified, whatever was changed in it is named, and its documents are shown."""

import json
import os
from pathlib import Path
from typing import Any

import pretokenize
from gpt.common.errors import Exit
from tests.helpers.pretokenize import corpus, hash_share, metadata_of, refused, run, written
from tests.helpers.terminals import FullDisk
from tests.helpers.texts import lines, write


def test_a_finished_folder_is_verified_and_what_changed_is_named(tokenizer_file, capsys):
    write("a.jsonl", lines(corpus(20)))
    run("a.jsonl", "--val_fraction", "0.2", "--tokenizer_file", str(tokenizer_file))
    assert pretokenize.main(["--verify", "data"]) == 0
    said = capsys.readouterr().out
    for split, told in metadata_of()["splits"].items():
        assert f"{split}: {told['tokens']:,} tokens, {told['documents']:,} document" in said
    for name, content in written().items():
        path = Path("data", name)
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        for place in (0, len(content) // 2, len(content) - 1):
            changed = bytearray(content)
            changed[place] ^= 1
            path.write_bytes(changed)
            os.utime(path, ns=times)  # as a disk changes it: size and time tell nothing
            assert name in refused("--verify", "data"), (name, place)
        for changed in (content[:-2], content[:-1], b"", content + b"\0\0", None):
            path.unlink() if changed is None else path.write_bytes(changed)
            refused("--verify", "data", match="tokenizer" if name == "tokenizer.json" else "")
        path.write_bytes(content)
        os.utime(path, ns=times)
    assert pretokenize.main(["--verify", "data"]) == 0


def test_metadata_with_other_numbers_is_found(tokenizer_file):
    write("a.jsonl", lines(corpus(20)))
    run("a.jsonl", "--val_fraction", "0.2", "--tokenizer_file", str(tokenizer_file))
    whole = metadata_of()

    def changed(*keys: str | int, value: object) -> None:
        fields = json.loads(json.dumps(whole))
        inner: Any = fields
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        write("data/metadata.json", json.dumps(fields))
        refused("--verify", "data")

    for split in ("train", "val"):
        changed("splits", split, "tokens", value=whole["splits"][split]["tokens"] + 1)
        changed("splits", split, value=5)
        changed("splits", split, "documents", value=whole["splits"][split]["documents"] - 1)
        changed("splits", split, "sha256", value="0" * 64)
    changed("tokenizer", "sha256", value="0" * 64)
    changed("vocab_size", value=whole["vocab_size"] + 1)
    changed("dtype", value="int32")
    write("data/metadata.json", json.dumps(whole))
    assert pretokenize.main(["--verify", "data"]) == 0
    Path("data/tokenizer.json").unlink()
    refused("--verify", "data", match="tokenizer.json: it is missing. Run pretokenize.py again")


def test_a_flag_without_a_text_to_act_on_is_named():
    refused("--peek", "2", "--overwrite", code=Exit.FLAGS, match="--overwrite: has no effect without FILE")
    refused("--verify", "data", "--output_dir", "b", code=Exit.FLAGS, match="--output_dir: has no effect with --verify")


def test_documents_are_shown(tokenizer_file, capsys):
    texts = [f"document {number}" for number in range(30)] + ["ends\x1b[31m here"]
    write("a.jsonl", lines(texts[::-1]))
    run("a.jsonl", "--val_fraction", "0.1", "--tokenizer_file", str(tokenizer_file))
    kept = [content for content in texts[::-1] if hash_share(content) >= 0.1]
    capsys.readouterr()
    for argv in (["--peek", "5"], ["--verify", "data", "--peek", "5"]):
        assert pretokenize.main(argv) == 0
        shown = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()
                 if line.startswith("document ")]
        assert shown == [content.replace("\x1b", "\\x1b") for content in kept[:5]]


def test_an_answer_that_cannot_be_printed_is_an_error(tokenizer_file, monkeypatch):
    write("a.jsonl", lines(corpus(20)))
    run("a.jsonl", "--tokenizer_file", str(tokenizer_file))
    monkeypatch.setattr("sys.stdout", FullDisk())
    assert "standard output: No space left" in refused("--verify", "data", code=Exit.MACHINE)


def test_four_hundred_characters_of_a_long_document_are_shown(tokenizer_file, capsys):
    """Also where a character takes several tokens."""
    text = "\u8c93\u5750\u5728\u588a\u5b50\u4e0a" * 200
    write("a.txt", text)
    run("a.txt", "--val_fraction", "0", "--tokenizer_file", str(tokenizer_file))
    capsys.readouterr()
    assert pretokenize.main(["--peek", "1"]) == 0
    shown = capsys.readouterr().out.partition(" tokens: ")[2].strip()
    assert shown == text[:400] + "..."
