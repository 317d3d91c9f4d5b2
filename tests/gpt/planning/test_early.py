"""Texts on the command line of train.py: made tokens once, and found again as long as they are the same; trackers."""

import importlib.util
import json
import os
import shutil
import signal

import pytest

import train
from gpt.common import children
from gpt.common.errors import Exit, UserError, warn_once
from gpt.common.flags import with_values
from gpt.planning.early import before_torch, requested_trackers
from gpt.pretokenization.sources import identity_of
from tests.helpers.refusals import refused
from tests.helpers.training import TINY

MAKE = "pretokenize.py texts --output_dir texts.tokens"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py", "texts"])
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("the cat sat on the mat and the dog ran to the sea\n" * 400)
    return tmp_path


def refusal(line: str):
    with pytest.raises(UserError) as caught:
        train.answer_early(line.split())
    return caught.value.code, str(caught.value)


def test_a_warning_about_the_flags_comes_once_though_they_are_read_twice(place, capsys):
    warn_once.cache_clear()
    (place / "b.tokens").mkdir()
    for name in ("metadata.json", "train.bin"):
        (place / "b.tokens" / name).touch()
    for _ in range(2):
        train.read_flags(["texts", "b.tokens"])
    assert capsys.readouterr().err.count("warning: without b.tokens: tokens are given by --data_dir.") == 1


def test_texts_become_tokens_once_and_the_run_trains_on_them(place, capfd, monkeypatch, forks):
    done = forks.run(["train.py", "texts", *TINY, "--max_steps", "2", "--no-use_gpu"], cwd=place)
    assert done.code == 0, done.stderr
    assert [done.stdout.count(words) for words in ("reading a.txt", "step 2/2", "\nnext: ")] == [1, 1, 1]
    assert 'data_dir = "texts.tokens"' in (place / "out/config.toml").read_text()
    train.answer_early(["texts/"])
    train.answer_early(["texts.tokens"])
    assert capfd.readouterr().out == "texts       their tokens: texts.tokens\n"

    text, other, kept = place / "texts/a.txt", place / "texts/b.txt", place / "kept"
    (place / "texts/link.txt").symlink_to("a.txt")
    shutil.copy2(text, kept)
    text.unlink()
    shutil.copy2(kept, text)
    train.answer_early(["texts"])  # a copy with its time, and a link to a text, are no other texts

    go_on = (f"    python {MAKE} --tokenizer_file texts.tokens/tokenizer.json --overwrite\n"
             "    python train.py texts --resume_from auto --max_steps 4 --allow_new_data")
    other.write_text("more")
    os.utime(other, (1, 1))
    assert refusal("texts")[0] == Exit.DATA
    assert refusal("texts")[1].endswith(f"Type:\n{go_on}")
    monkeypatch.setattr("sys.argv", ["/elsewhere/train.py", "texts", "--max_steps", "2"])  # as the finished run
    longer = go_on.replace("texts --resume_from auto", "texts --max_steps 2 --resume_from auto")
    assert refusal("texts --max_steps 2")[1].endswith(f"Type:\n{longer}")
    for flags, more in (("--overwrite", ""),
                        ("--max_minutes 2", " --resume_from auto --max_minutes 4 --allow_new_data"),
                        ("--epochs 500000", " --resume_from auto --epochs 1000000 --allow_new_data"),
                        ("--resume_from out --epochs 7", " --allow_new_data")):
        monkeypatch.setattr("sys.argv", ["train.py", "texts", *flags.split()])
        assert refusal(f"texts {flags}")[1].endswith(f"\n    python train.py texts {flags}{more}")
    other.rename(text)  # an older text of the same name
    assert refusal("texts")[0] == Exit.DATA
    text.write_text("x" * kept.stat().st_size)
    os.utime(text, (1, 1))
    assert refusal("texts")[0] == Exit.DATA
    text.unlink()
    assert refusal("texts")[0] == Exit.DATA


def test_texts_with_other_names_get_another_folder(place, monkeypatch, forks):
    for name in ("a.txt", "b.txt"):
        shutil.copy(place / "texts/a.txt", name)
    train.answer_early(["a.txt", "b.txt"])
    monkeypatch.setattr("sys.argv", ["train.py", "a.txt", "--max_steps", "2"])
    shutil.copytree("a.txt.tokens", "a.txt-2.tokens")
    lines = ["    python pretokenize.py a.txt --output_dir a.txt-3.tokens",
             "    python train.py --data_dir a.txt-3.tokens --max_steps 2"]
    assert refusal("a.txt --max_steps 2")[1].splitlines()[1:] == lines
    assert forks.run("pretokenize.py a.txt --output_dir a.txt-3.tokens", cwd=place).code == 0
    assert refusal("a.txt --max_steps 2")[1].splitlines()[1:] == lines[1:], "their tokens are there"
    monkeypatch.setattr("sys.argv", ["train.py", "a.txt", "b.txt"])
    (place / "b.txt").write_text("more")
    assert ("a.txt b.txt --output_dir a.txt.tokens --tokenizer_file a.txt.tokens/tokenizer.json --overwrite\n"
            in refusal("a.txt b.txt")[1])


@pytest.mark.skipif(os.name != "posix", reason="no signals")
def test_a_request_to_save_does_not_end_a_run_whose_tokens_are_being_made(place, monkeypatch):
    def asked(*rest, **named):
        os.kill(os.getpid(), signal.SIGUSR1)
        return children.run_child(*rest, **named)

    monkeypatch.setattr("gpt.planning.early.run_child", asked)
    train.answer_early(["texts"])


def test_the_tokens_of_a_text_of_the_hub_are_taken_again(place, monkeypatch):
    train.answer_early(["texts"])
    (place / "texts.tokens").rename(place / "en.tokens")
    path = place / "en.tokens/metadata.json"
    recorded = {**json.loads(path.read_text()), "hub_texts": ["hf://datasets/someone/corpus@v1/en"]}
    path.write_text(json.dumps(recorded))
    train.answer_early(["hf://datasets/someone/corpus@v1/en"])
    for other in ("hf://datasets/someone/corpus@v2/en", "hf://datasets/other/corpus@v1/en"):
        monkeypatch.setattr("sys.argv", ["train.py", other])
        assert "en.tokens holds the tokens of a.txt, and these texts have other" in refusal(other)[1]
    both = ["hf://datasets/someone/corpus@v1/en", "texts"]
    train.answer_early(both)
    (place / "texts/a.txt").write_text("another text")
    assert "en.tokens holds the tokens of a.txt, and these texts have other" in refusal(" ".join(both))[1]


def test_a_tokenizer_that_a_cut_off_run_left_is_taken_again(place):
    train.answer_early(["texts"])
    for path in (place / "texts.tokens").iterdir():
        if path.name != "tokenizer.json":
            path.unlink()
    kept = (place / "texts.tokens/tokenizer.json").read_text()
    (place / "texts/a.txt").write_text("another text, with words of its own\n" * 400)
    train.answer_early(["texts"])
    assert (place / "texts.tokens/tokenizer.json").read_text() == kept


def test_tokens_whose_text_is_gone_are_named(place):
    train.answer_early(["texts"])
    shutil.rmtree(place / "texts")
    assert refusal("texts")[1].endswith("Its tokens are still there: give --data_dir texts.tokens in its place.")


def test_a_text_whose_name_begins_with_a_dash_becomes_tokens(place):
    shutil.copy(place / "texts/a.txt", place / "-a.txt")
    train.answer_early(["./-a.txt"])
    assert (place / "-a.txt.tokens/metadata.json").exists()


@pytest.mark.parametrize(("content", "said"), [
    ('{"vocab_size": 512}', "texts.tokens holds the tokens of another program"), ('{"vocab', "it is not JSON")])
def test_a_folder_of_tokens_with_foreign_or_damaged_metadata_is_refused(place, content, said):
    (place / "texts.tokens").mkdir()
    (place / "texts.tokens/metadata.json").write_text(content)
    assert refusal("texts")[0] == Exit.DATA
    assert said in refusal("texts")[1]


def test_of_many_texts_each_one_counts(tmp_path):
    files = [(f"{number}.txt", tmp_path / "same") for number in range(1200)]
    assert identity_of(files) == identity_of(files)
    assert identity_of(files) != identity_of([*files[:-1], ("other.txt", tmp_path / "same")])


@pytest.mark.parametrize(("line", "says"), [
    *((f"texts --{name} x", f"texts: not with --{name}. Drop one.") for name in ("data_dir", "bin_file")),
    ("texts --vocab_size 300", "texts: --vocab_size is for pretokenize.py. Run python pretokenize.py texts "
                               "--vocab_size 300; then train without the text and the flag"),
    *((line, f"texts has no tokens yet. Type first:\npython {MAKE}") for line in ("texts", "texts --dry_run")),
    ("texts --dry_run --tokenizer_file t.json",
     f"texts has no tokens yet. Type first:\npython {MAKE} --tokenizer_file t.json")])
def test_texts_that_cannot_be_taken_are_refused(place, monkeypatch, line, says):
    monkeypatch.setattr("gpt.planning.early.is_one_of_several", lambda: line == "texts")  # as under torchrun
    assert refusal(line) == (Exit.FLAGS, says)


def test_an_output_folder_in_use_is_refused_before_the_texts_become_tokens(place):
    (place / "out/checkpoint-3").mkdir(parents=True)
    (place / "out/checkpoint-3/manifest.json").write_text("{}")
    assert refusal("texts")[0] == Exit.CHECKPOINT
    assert not (place / "texts.tokens").exists()


@pytest.mark.parametrize(("flags", "other"), [
    ("--init_from out", "out-tuned"), ("--teacher out/best", "out-taught"),
    ("--teacher out/checkpoint-3 --mirror_to m", "out-taught --mirror_to m-taught")])
def test_a_model_in_the_output_folder_is_refused_with_a_line_for_another_folder(place, monkeypatch, flags, other):
    (place / "out/checkpoint-3").mkdir(parents=True)
    (place / "out/checkpoint-3/manifest.json").write_text("{}")
    monkeypatch.setattr("sys.argv", ["train.py", "texts", *flags.split()])
    code, said = refusal(f"texts {flags}")
    assert (code, said.splitlines()[1:]) == (
        Exit.CHECKPOINT, [f"python train.py texts {flags} --output_dir {other}"])
    assert "--resume_from" not in said
    assert "--overwrite" not in said


def test_the_tokens_for_a_run_that_goes_on_have_its_tokenizer_and_are_not_made_in_vain(place, monkeypatch):
    asked: list[list[str]] = []
    monkeypatch.setattr("gpt.planning.early.run_child", lambda command, *_: (
        asked.append(command) or Exit.MACHINE))
    for flag in ("--resume_from", "--cooldown_from"):
        assert refusal(f"texts {flag} none --output_dir new")[0] == Exit.CHECKPOINT
    assert not asked
    (place / "out/checkpoint-3").mkdir(parents=True)
    (place / "out/checkpoint-3/manifest.json").write_text("{}")
    with pytest.raises(SystemExit):
        train.answer_early(["texts", "--resume_from", "out", "--allow_new_data"])
    assert asked[0][-2:] == ["--tokenizer_file", "out/checkpoint-3/tokenizer.json"]


def test_a_text_whose_name_no_record_can_hold_is_refused(place):
    os.rename(place / "texts", os.fsencode(place) + b"/caf\xe9")
    assert "the name is not UTF-8" in refusal(os.fsdecode(b"caf\xe9"))[1]


def test_a_pattern_never_means_the_tokens_of_an_earlier_start(place, capfd):
    (place / "texts/b.txt").write_text("and the sea ran to the cat " * 400)
    for line, folder in ((["texts/*"], "texts/texts.tokens"), (["texts/*.txt"], "texts/txt.tokens"),
                         (["texts/a.txt", "texts/b.txt"], "texts/a.txt.tokens"),
                         (["texts/a.txt", "texts/a.txt.tokens", "texts/b.txt"], "texts/a.txt.tokens"),
                         (["texts/a.txt.tokens", "texts/b.txt", "texts/txt.tokens"], "texts/b.txt.tokens")):
        for _ in range(2):
            train.answer_early(line)
            assert capfd.readouterr().out.endswith(f"texts       their tokens: {folder}\n")


def test_settings_given_as_a_text_are_refused_until_its_tokens_are_there(place, capfd, forks):
    (place / "config.py").write_text("max_iters = 200\n" * 99)
    code, said = refusal("config.py")
    assert code == Exit.FLAGS
    assert "--config" in said
    assert not (place / "config.py.tokens").exists()
    assert forks.run(said.partition("\npython ")[2], cwd=place).code == 0
    train.answer_early(["config.py"])
    assert "their tokens: config.py.tokens" in capfd.readouterr().out


def test_a_text_that_is_not_there_is_named(place, capfd):
    with refused("none: No such file", Exit.DATA):
        train.answer_early(["none"])
    with pytest.raises(SystemExit):
        train.answer_early(["https://x.org/a.txt"])
    assert "curl -LO https://x.org/a.txt" in capfd.readouterr().err
    assert not (place / "none.tokens").exists()


# ---------------------------------------------------------------- trackers


def requested(*flags: str) -> list[str]:
    return requested_trackers(train.read_flags(flags))


def test_the_flag_takes_several_names_each_once():
    assert requested() == requested("--tracker", "none") == []
    assert requested("--tracker", "wandb", "tensorboard", "wandb") == ["wandb", "tensorboard"]
    for words, why in ((("none", "wandb"), "--tracker none: not with"), (("comet",), "must be one of tensorboard")):
        with refused(why, Exit.FLAGS):
            requested("--tracker", *words)


def test_a_run_goes_on_with_its_trackers_unless_others_are_named(tmp_path):
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    for name in ("manifest.json", "trainer_state.json"):
        (folder / name).write_text(json.dumps({}))
    for recorded, names in (('tracker = "wandb"', ["wandb"]),
                            ('tracker = ["wandb", "tensorboard"]', ["wandb", "tensorboard"])):
        (tmp_path / "config.toml").write_text(recorded)
        assert requested("--resume_from", str(tmp_path)) == names
        assert requested("--resume_from", str(tmp_path), "--tracker", "none") == []


def test_a_missing_package_ends_the_command_with_the_line_that_installs_it(tmp_path, monkeypatch):
    (tmp_path / "no_such_tracker").mkdir()  # a folder that a run of wandb leaves in the current one looks like this
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("no_such_tracker"), "a folder without files can be imported"
    cure = r"Run: \S+ -m pip install no_such_tracker, or give --tracker none\.$"
    with refused(cure, Exit.MACHINE):
        before_torch(with_values(train.read_flags([]), tracker=["json", "no_such_tracker"]))


def test_texts_that_pretokenize_refuses_end_with_the_line_that_takes_its_flags(place, forks):
    (place / "texts/a.txt").write_text("caf\u00e9 " * 100, encoding="latin-1")
    done = forks.run("train.py texts --no-use_gpu", cwd=place)
    assert done.code == Exit.DATA
    assert f"python {MAKE}" in done.stderr
    assert forks.run(f"{MAKE} --encoding latin-1", cwd=place).code == 0
    assert forks.run(["train.py", "texts", *TINY, "--max_steps", "1", "--no-use_gpu"], cwd=place).code == 0
