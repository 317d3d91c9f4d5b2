"""checkpoint/find.py: the folder that is meant is found, and anything else is refused with its name and the cure."""

import os
import pickle
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpt.checkpoint.commands import flags_of_another_run, more_text_commands
from gpt.checkpoint.find import (
    check_same,
    checkpoints_of_other_runs,
    find_resume,
    read_checkpoint,
    resolve,
    steps_in,
    wait_until_here,
)
from gpt.checkpoint.load import load_model
from gpt.checkpoint.stored import FoundCheckpoint, TrainState, verify
from gpt.common.config import Layer
from gpt.common.errors import Exit, UserError
from gpt.common.files import sha256_of
from gpt.common.names import MANIFEST
from model import GPTConfig
from tests.helpers.checkpoints import edit, no_warning, seal
from tests.helpers.refusals import refused

CPU = torch.device("cpu")


def test_checkpoints_are_ordered_by_number_and_strangers_are_not_among_them(folder):
    for name in ("checkpoint-1000 (1)", "checkpoint-01", "checkpoint-", "checkpoint-x", ".tmp-checkpoint-7-1", "notes"):
        shutil.copytree(folder / "checkpoint-900", folder / name)
    (folder / "checkpoint-2000").mkdir()  # without a manifest
    (folder / "checkpoint-3000").write_text("a file")
    assert list(steps_in(folder)) == [1000, 900]
    assert steps_in(folder / "nowhere") == {}
    assert resolve(folder, no_warning).name == "checkpoint-1000"


def test_a_folder_of_hugging_faces_trainer_means_its_newest_checkpoint(tmp_path):
    for step in (6, 12):
        (tmp_path / f"checkpoint-{step}").mkdir()
        for name in ("config.json", "trainer_state.json", "training_args.bin"):
            (tmp_path / f"checkpoint-{step}" / name).write_text("{}")
    for path in (tmp_path, tmp_path / "last"):
        assert resolve(path, no_warning).name == "checkpoint-12"
    for path in (tmp_path, tmp_path / "checkpoint-12"):
        with refused(f"{path}/best does not exist, and .* Give {path} alone", Exit.CHECKPOINT):
            resolve(path / "best", no_warning)
    with refused("", Exit.CHECKPOINT):
        find_resume(str(tmp_path), tmp_path / "out", False, no_warning)


# ---------------------------------------------------------------- best and last


@pytest.fixture
def ranked(sound, tmp_path):
    """A function: checkpoints of these steps, each recording the best step and loss that the run knew of by then."""

    def make(records, name="out"):
        for step, (best_step, best_val_loss) in records.items():
            path = tmp_path / name / f"checkpoint-{step}"
            shutil.copytree(sound / "checkpoint-900", path)
            edit(path / "trainer_state.json", step=step, best_step=best_step, best_val_loss=best_val_loss)
            seal(path)
        return tmp_path / name

    return make


THREE = {300: (300, 3.5), 600: (600, 3.4), 900: (600, 3.4)}


def test_best_is_what_the_newest_sound_checkpoint_records_and_last_is_that_one(ranked, monkeypatch):
    folder = ranked(THREE)
    assert resolve(folder / "best", no_warning).name == "checkpoint-600"
    assert resolve(folder / "last", no_warning).name == resolve(folder, no_warning).name == "checkpoint-900"
    with refused("checkpoint-900/last does not exist", Exit.CHECKPOINT):
        resolve(folder / "checkpoint-900/last", no_warning)
    monkeypatch.chdir(folder.parent)  # a bare name means the folder out
    assert resolve(Path("best"), no_warning) == Path("out/checkpoint-600")
    assert resolve(Path("out/best/"), no_warning) == Path("out/checkpoint-600")
    monkeypatch.chdir(folder)  # or the folder one is in, where it holds checkpoints and no folder out
    assert resolve(Path("best"), no_warning) == Path("checkpoint-600")
    said: list[str] = []
    (folder / "checkpoint-900/trainer_state.json").write_text("damaged")
    assert resolve(folder / "best", said.append).name == "checkpoint-600"
    assert len(said) == 1
    assert said[0].startswith(str(folder / "checkpoint-900"))


def test_a_checkpoint_of_another_machine_is_waited_for_until_all_of_it_is_here(folder, tmp_path):
    newest = max(folder.iterdir(), key=lambda path: int(path.name.split("-")[1]))
    sha256, away = sha256_of(newest / MANIFEST), tmp_path / "away"
    newest.rename(away)
    threading.Timer(0.2, away.rename, [newest]).start()
    wait_until_here(newest, sha256, seconds=5.0)
    with refused("after 0 s"):
        wait_until_here(newest, sha256[::-1], seconds=0.05)


def test_a_checkpoint_pruned_while_it_is_read_gives_way_to_the_next(folder):
    def reader(path):
        if path.name == "checkpoint-1000":
            shutil.rmtree(path)
        return load_model(path, CPU)

    assert read_checkpoint(folder, no_warning, reader).config == GPTConfig(400, 16, 2, 2, 32)
    with refused(r"model\.safetensors") as caught:  # the folder that is still there is damaged
        read_checkpoint(folder, no_warning, lambda path: ((path / "model.safetensors").unlink(), reader(path)))
    assert caught.value.code == Exit.CHECKPOINT


# ---------------------------------------------------------------- what is not a checkpoint


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("it-went-off",)


def test_pickles_are_refused_without_being_opened(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = folder / "checkpoint-900"
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (path / name).unlink()
    monkeypatch.setattr("gpt.architectures.gpt2.GPT", None)  # nor is any model built
    for protocol in (2, 4):
        (path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(), protocol))
        with refused(r"model\.safetensors.*pickles", Exit.CHECKPOINT):
            load_model(path, CPU)
        with refused("pickle", Exit.CHECKPOINT):
            resolve(path / "pytorch_model.bin", no_warning)
    torch.save({}, tmp_path / "ckpt.pt")
    for named in (tmp_path / "ckpt.pt", tmp_path):
        with refused(rf"pickle.* export\.py --from_nanogpt {tmp_path}/ckpt\.pt", Exit.CHECKPOINT):
            resolve(named, no_warning)
    (tmp_path / "metadata.json").touch()  # beside it, a .bin is a file of tokens
    with pytest.raises(UserError) as error:
        resolve(tmp_path, no_warning)
    assert "from_nanogpt" not in str(error.value)
    assert not (tmp_path / "it-went-off").exists()


@pytest.mark.parametrize("name", ["", "lit_model.pth"])
def test_a_checkpoint_of_litgpt_leads_to_its_own_converter(tmp_path, name):
    (tmp_path / "lit_model.pth").touch()
    with refused("litgpt convert_from_litgpt", Exit.CHECKPOINT) as caught:
        resolve(tmp_path / name)
    assert "nanoGPT" not in str(caught.value)


def test_a_damaged_optimizer_ends_a_resumed_run_alone(sound):
    path = sound / "checkpoint-900" / "optimizer.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert resolve(path.parent, no_warning) == path.parent
    with refused(r"optimizer\.safetensors .*sha256", Exit.CHECKPOINT):
        find_resume(str(path.parent), sound / "new", False, no_warning)
    path.write_bytes(content)


# ---------------------------------------------------------------- resuming


def test_a_path_is_resumed_where_no_other_run_is_overwritten(folder, sound, tmp_path):
    found = find_resume(str(folder), tmp_path / "new", False, no_warning)
    assert found is not None
    assert found[0] == folder / "checkpoint-1000"
    for requested in (sound / "checkpoint-900", folder / "checkpoint-900"):
        with refused(r"after step 900: checkpoint-1000.*--overwrite") as caught:
            find_resume(str(requested), folder, False, no_warning)
        assert caught.value.code == Exit.CHECKPOINT
        found = find_resume(str(requested), folder, True, no_warning)
        assert found is not None
        assert found[0] == requested
        assert found.stored.state.step == 900
    assert [p.name for p in checkpoints_of_other_runs(folder, folder / "checkpoint-900", 900)] == ["checkpoint-1000"]
    assert len(checkpoints_of_other_runs(folder, sound / "checkpoint-1000", 1000)) == 2
    assert len(checkpoints_of_other_runs(folder, None, 0)) == 2
    (folder / "checkpoint-1000").rename(folder.parent / "another disk")
    (folder / "checkpoint-1000").symlink_to(folder.parent / "another disk")
    (folder.parent / "latest").symlink_to(folder / "checkpoint-900")
    assert checkpoints_of_other_runs(folder, folder / "checkpoint-1000", 1000) == []
    found = find_resume(str(folder.parent / "latest"), folder, True, no_warning)
    assert found
    assert found.folder == folder / "checkpoint-900"
    for step in (1001, 1002, 1003):
        shutil.copytree(folder / "checkpoint-900", folder / f"checkpoint-{step}")
    with refused(r"checkpoint-1003, checkpoint-1002, checkpoint-1001 and 1 more\. .*--overwrite.* 4 checkpoints"):
        find_resume(str(folder / "checkpoint-900"), folder, False, no_warning)


def test_a_run_resumes_from_best_and_last(ranked, tmp_path):
    folder, new = ranked(THREE), tmp_path / "new"
    for requested, output_dir, step in (("last", folder, 900), ("best", folder, 600), (str(folder / "best"), new, 600)):
        found = find_resume(requested, output_dir, True, no_warning)
        assert found is not None
        assert found.stored.state.step == step
    with refused("after step 600: checkpoint-900.*--overwrite"):
        find_resume("best", folder, False, no_warning)
    for named, others in ((new, folder), (folder / "checkpoint-5", f"{folder}/checkpoint-900, {folder}/checkpoint-6")):
        with refused(f"{named} does not exist. Give one of those beside it: {others}[^;]*$", Exit.CHECKPOINT):
            find_resume(str(named), new, False, no_warning)


def test_for_a_file_of_a_model_its_folder_is_named(sound):
    folder = sound / "checkpoint-900"
    with refused(f"Give the folder that holds it, {folder}\\.", Exit.CHECKPOINT):
        resolve(folder / "model.safetensors", no_warning)


def test_another_run_gets_a_folder_that_is_free(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert flags_of_another_run("out", "longer", "disk/m") == "--output_dir out-longer --mirror_to disk/m-longer"
    for name in ("out-longer", "out-longer-2"):
        Path(name).mkdir()
    assert flags_of_another_run("out", "longer", None) == "--output_dir out-longer-3"
    assert flags_of_another_run(".", "longer", None) == f"--output_dir {tmp_path}-longer"


def test_more_text_joins_the_tokens_that_have_metadata(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data", "raw"):
        (tmp_path / name).mkdir()
    (tmp_path / "data/metadata.json").touch()
    for flags, words in (({"data_dir": "data"}, "data more-5"), ({"data_dir": ["data:0.3", "raw"]}, "data more-5"),
                         ({"data_dir": "gone", "bin_file": "data/train.bin"}, "data more-5"), ({}, "more-5"),
                         ({"bin_file": "data"}, "data more-5"),
                         ({"data_dir": "data", "bin_file": "raw/train.bin"}, "more-5")):
        typed = more_text_commands("out", Path("t.json"), TrainState(step=5), flags)
        assert f"--data_dir {words} --allow_new_data" in typed
        assert " --output_dir more-5 " in typed
        assert typed.endswith(" --max_steps 10")
        assert more_text_commands("out", Path("t.json"), TrainState(step=5), {**flags, "cooldown_from": "c"}).endswith(
            " --max_steps 10")
    (tmp_path / "data/tokenizer.json").write_text("another")
    Path("t.json").write_text("the model's")
    assert "--data_dir more-5 " in more_text_commands("out", Path("t.json"), TrainState(step=5), {"data_dir": "data"})
    (tmp_path / "data/tokenizer.json").write_text('{"model":  {}}')
    Path("t.json").write_text('{"model":{}}')  # as checkpoints have it
    commands = more_text_commands("out", Path("t.json"), TrainState(step=5), {"data_dir": "data"})
    assert "--data_dir data more-5 " in commands


def test_a_checkpoint_of_another_model_tokenizer_or_corpus_is_told_apart(sound, make_model, tmp_path, monkeypatch):
    (tmp_path / "metadata.json").touch()
    monkeypatch.setattr("gpt.checkpoint.find.first_readable", lambda _: Layer("", {"data_dir": str(tmp_path)}, {}))
    found = FoundCheckpoint(sound / "checkpoint-900", verify(sound / "checkpoint-900"))
    config, shallow = make_model().config, make_model(n_layer=1).config
    check_same(found, config, "a", "b", False)
    check_same(found, config, "other", "b", True)
    with refused("drop --resume_from, and give another --output_dir.$", Exit.CHECKPOINT):
        check_same(found, shallow, "a", "b", True)
    (tmp_path / "config.toml").touch()
    with refused("n_layer is 2 in the checkpoint and 1 here(.|\n)* --n_layer 1 --output_dir .*-n_layer-1$",
                 Exit.CHECKPOINT):
        check_same(found._replace(folder=tmp_path / "checkpoint-900"), shallow, "a", "b", True)
    for args, code, why in (
            ((replace(config, vocab_size=999), "a", "b", True), Exit.CHECKPOINT, "999 here. (.|\n)* --tokenizer_file "
             rf"{sound}/checkpoint-900/tokenizer.json\n.* --resume_from {sound} \\\n *--data_dir {tmp_path} more-900 "),
            ((config, "0123456789ab" + 52 * "c", "b", False), Exit.DATA, "a; here 0123456789ab. .*--allow_new_data"),
            ((shallow, "other", "b", False), Exit.DATA, "another text"),  # which may be why the shape differs
            ((config, "a", "other", True), Exit.DATA, "another tokenizer: b; here other(.|\n)*more-900 \\\\\n *--tok")):
        with refused(why, code):
            check_same(found, *args)
    tuned = found._replace(stored=replace(found.stored, state=TrainState(900, init_from="base")))
    with refused("keeps their shape: drop the flag.$", Exit.CHECKPOINT):
        check_same(tuned, shallow, "a", "b", True)


def test_a_name_that_does_not_exist_is_answered_with_how_to_train_or_download_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "someone/gpt2-novels", "out/checkpoint-5", "none"):
        with refused(f"{name} .*hf://.*\npython train.py", Exit.CHECKPOINT):
            resolve(Path(name), no_warning)
        with refused(f"{name} .*Begin a run there:\npython train.py --output_dir ", Exit.CHECKPOINT) as caught:
            find_resume(name, Path("new"), False, no_warning)
        assert "hf://" not in str(caught.value)
