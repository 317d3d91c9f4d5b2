"""The command that a run prints for a better model works when it is typed, whatever kind of run it was."""

import re
import shlex

import pytest

import pretokenize
import train
from gpt.watching.improvement import LONGER, MORE_TEXT
from gpt.watching.monitor import Monitor
from tests.helpers.training import QUIET, TINY, trained


def type_all(text: str, capsys) -> str:
    """Runs every command of a text in turn, train.py until step 14 at most; returns what the last one printed."""
    said = ""
    for command in re.findall(r"^python (?:.*\\\n)*.*", text, re.MULTILINE):
        line = re.sub(r"--max_minutes \S+", r"\g<0> --max_steps 14", command.replace("\\\n", ""))
        _, script, *words = shlex.split(line)
        if script == "pretokenize.py":
            assert not pretokenize.main(words)
        elif script == "train.py":
            code, said = trained(words, capsys)
            assert code == 0, f"{command}\n{said}"
    return said


@pytest.mark.parametrize(("kind", "how"), [
    *((kind, how) for kind in ("plain", "wsd", "cooldown") for how in (LONGER, MORE_TEXT)), ("plain", "tiny"),
    *(pytest.param(kind, "tiny", marks=pytest.mark.slow) for kind in ("wsd", "cooldown")),
    *(("init_from", how) for how in (LONGER, MORE_TEXT, "worse"))])
def test_what_a_run_prints_to_improve_can_be_typed(kind, how, corpus, monkeypatch, tmp_path, capsys):
    """Every run has a mirror, which the new run must not share."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpt.watching.monitor.best_improvement", lambda *_: (how, "so it is"))
    (tmp_path / "MORE").write_text("A text of other words, written again and again. " * 200)
    schedule = {"wsd": "wsd", "cooldown": "constant"}.get(kind, "linear")
    shared = ["--data_dir", str(corpus), *QUIET, "--no-use_gpu", "--lr_schedule", schedule]
    length = ["--max_steps", "10"]
    if kind in ("cooldown", "init_from"):
        assert train.main([*shared, *TINY, *length, "--output_dir", "before"]) == 0
    start = {"cooldown": [*TINY, "--cooldown_from", "before"], "init_from": ["--init_from", "before", *length]}
    if how == "worse":
        monkeypatch.setattr(Monitor, "say_loss_before", lambda self, nats: setattr(self, "_loss_before", 0.0))
    code, text = trained([*shared, *start.get(kind, [*TINY, *length]), "--output_dir", "out",
                          "--mirror_to", "mirror"], capsys)
    assert code == 0, text
    said = type_all(text.split("To improve: ")[-1], capsys)
    assert "next: python generate.py --ckpt out" in said, said
    assert "already at step" not in said
