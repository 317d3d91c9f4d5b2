"""The commands with a hub: a dataset to tokens, and a model to train on."""

import contextlib
import io
import json
from pathlib import Path

import pytest

from tests.helpers.hub import LocalHub, pretend
from tests.helpers.pretokenize import in_an_empty_folder, metadata_of, run, written
from tests.helpers.texts import lines, words
from tests.helpers.training import QUIET, trained


@pytest.fixture
def hub(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub", reason="the hub is reached through huggingface_hub")
    with LocalHub() as server, contextlib.contextmanager(in_an_empty_folder)(tmp_path, monkeypatch):
        pretend(monkeypatch, server, tmp_path)
        yield server


def table(texts, column="text"):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"id": list(range(len(texts))), column: texts}), file)
    return file.getvalue()


# ---------------------------------------------------------------- datasets


def test_a_dataset_gives_the_tokens_of_its_files_and_its_commit(hub, tmp_path, capsys):
    stories = [words(200, number) for number in range(160)]
    commit = hub.put("dataset", "someone/tales", {
        "README.md": b"# Tales", "data/train-0.parquet": table(stories[:80], "story"),
        "data/train-1.parquet": table(stories[80:], "story"), "data/test-0.parquet": table(["no"], "story")})
    (tmp_path / "both.jsonl").write_text(lines(stories))
    flags = ["--vocab_size", "300", "--val_fraction", "0.1"]
    run("both.jsonl", *flags, output_dir="by-hand")
    metadata = run("hf://datasets/someone/tales", "--text_field", "story", *flags)
    assert written() == written("by-hand")
    assert metadata["origins"] == [f"hf://datasets/someone/tales@{commit}"]
    assert metadata["hub_texts"] == ["hf://datasets/someone/tales"]
    assert metadata["sources"] == ["train-0.parquet", "train-1.parquet"]
    assert "origins" not in metadata_of("by-hand")
    printed = capsys.readouterr().out
    assert "of someone/tales: data/train-0.parquet, data/train-1.parquet; 2 other files left out" in printed


# ---------------------------------------------------------------- models


def test_conversations_by_the_tokenizer_of_a_model_lead_to_its_weights(hub, corpus, capsys):
    commit = hub.put("model", "someone/cat", {"tokenizer.json": (corpus / "tokenizer.json").read_bytes()})
    chat = {"messages": [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]}
    Path("chats.jsonl").write_text(f"{json.dumps(chat)}\n" * 40)
    run("chats.jsonl", "--tokenizer_file", "hf://someone/cat", "--val_fraction", "0.1", output_dir="chats")
    assert (f"next: python train.py --init_from hf://someone/cat@{commit} --data_dir chats --output_dir chats-out"
            in capsys.readouterr().out)


def test_a_model_of_the_hub_is_trained_on_and_its_commit_recorded_for_good(hub, tmp_path, make_checkpoint, make_corpus,
                                                                           capsys):
    path = make_checkpoint(tmp_path / "theirs", 3)[0]
    commit = hub.put("model", "someone/cat", {file.name: file.read_bytes() for file in path.iterdir()})
    recorded = f"hf://someone/cat@{commit}"
    flags = ["--data_dir", str(make_corpus(tmp_path / "data")), "--batch_size", "2", "--max_steps", "2", *QUIET]
    code, printed = trained([*flags, "--init_from", "hf://someone/cat"], capsys)
    assert code == 0, printed
    assert f"start       from the weights of {recorded}" in printed
    assert f'init_from = "{recorded}"' in Path("out/config.toml").read_text()

    code, printed = trained(["--resume_from", "out", "--max_steps", "3"], capsys)
    assert code == 0, printed
    state = json.loads(Path("out/checkpoint-3/trainer_state.json").read_text())
    assert state["init_from"] == recorded
    card = Path("out/checkpoint-3/README.md").read_text()
    assert "base_model:\n- someone/cat\n" in card
    assert f"weights at the start: {recorded}" in card
