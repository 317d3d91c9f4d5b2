"""checkpoint.py: what is saved comes back bit for bit, Hugging Face reads it, and no damage goes unseen."""

import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint.find import (
    check_same,
    find_resume,
    load_training,
    newest_sound,
    not_leading_to,
    read,
    resolve,
    steps_in,
    verify,
)
from checkpoint.folder import REPLACED, owned, prune
from checkpoint.huggingface import Damaged, load_model, load_weights, read_config, to_hf_config, to_hf_tensors
from checkpoint.save import NotFinite, Saver, Snapshot, Tensors, _write_bytes, bytes_needed, save
from common.errors import Exit, UserError
from model import GPT, GPTConfig

CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent
FILES = ["README.md", "config.json", "generation_config.json", "manifest.json", "model.safetensors",
         "optimizer.safetensors", "tokenizer.json", "tokenizer_config.json", "trainer_state.json"]


@pytest.fixture(scope="module")
def sound(make_checkpoint, tmp_path_factory):
    """A folder with checkpoint-900 and checkpoint-1000, both sound; not to be changed."""
    folder = tmp_path_factory.mktemp("sound")
    make_checkpoint(folder, 900)
    make_checkpoint(folder, 1000)
    return folder


@pytest.fixture
def folder(sound, tmp_path):
    """A copy of sound, to be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "out"))


def no_warning(message: str) -> None:
    raise AssertionError(message)


def edit(path: Path, **fields) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def refused(match: str):
    return pytest.raises(UserError, match=match)


# ---------------------------------------------------------------- there and back


def test_everything_comes_back_bit_for_bit(make_checkpoint, make_model, tmp_path):
    path, model, optimizer = make_checkpoint(tmp_path)
    noise = torch.rand(5)  # the next numbers after the save
    state = verify(path)
    assert state["step"] == 1
    assert state["data"] == {"train_sha256": "a", "tokenizer_sha256": "b"}
    other = make_model(99)
    restored = torch.optim.AdamW(other.parameters(), 1e-3)
    assert load_training(path, other, restored) == []
    assert torch.equal(torch.rand(5), noise)
    for (name, here), there in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(here, there), name
        assert optimizer.state[here].keys() == restored.state[there].keys()
        for key, value in optimizer.state[here].items():
            assert torch.equal(value, restored.state[there][key]), (name, key)
            assert value.dtype == restored.state[there][key].dtype


def test_an_optimizer_can_start_anew(make_checkpoint, make_model, tmp_path):
    path, model, _ = make_checkpoint(tmp_path)
    other = make_model(99)
    restored = torch.optim.AdamW(other.parameters(), 1e-3)
    assert load_training(path, other, restored, anew=True) == [
        "the optimizer starts anew (--reset_optimizer)"]
    assert not restored.state
    for here, there in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(here, there)


def test_a_random_state_that_does_not_fit_is_refused(folder, make_model):
    path, other = folder / "checkpoint-900", make_model(99)
    tensors = load_file(path / "optimizer.safetensors")
    save_file({**tensors, "rng.cpu": torch.zeros(3)}, path / "optimizer.safetensors")
    with refused(r"rng\.cpu or rng\.cuda is no generator's state"):
        load_training(path, other, torch.optim.AdamW(other.parameters()))


def test_a_model_without_biases_comes_back_too(make_checkpoint, make_model, tmp_path):
    path, model, _ = make_checkpoint(tmp_path, bias=False, tie_weights=False)
    other = make_model(99, bias=False, tie_weights=False)
    load_training(path, other, torch.optim.AdamW(other.parameters()))
    for here, there in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(here, there)


def test_a_folder_holds_the_named_files_and_no_pickle(sound):
    for path in (sound / "checkpoint-900", sound / "checkpoint-1000"):
        assert sorted(file.name for file in path.iterdir()) == FILES
        for file in path.iterdir():
            assert not file.read_bytes().startswith((b"PK", b"\x80"))
            if file.suffix == ".json":
                assert isinstance(json.loads(file.read_text(encoding="utf-8")), dict)
    assert sorted(path.name for path in sound.iterdir()) == ["checkpoint-1000", "checkpoint-900"]


def test_a_step_saved_again_replaces_the_older(make_checkpoint, tmp_path):
    make_checkpoint(tmp_path, 5, stays=False)
    path, _, _ = make_checkpoint(tmp_path, 5, stays=True)
    assert verify(path)["stays"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


# ---------------------------------------------------------------- Hugging Face


def test_transformers_opens_a_checkpoint_as_its_own(sound, texts):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = sound / "checkpoint-1000"
    ours, theirs = load_model(path, CPU).eval(), AutoModelForCausalLM.from_pretrained(path).eval()
    ids = torch.randint(0, 400, (2, 16))
    with torch.no_grad():
        expected = theirs(ids).logits
        assert (ours(ids) - expected).abs().max() < 1e-5 * expected.abs().max()
    assert theirs.generation_config.eos_token_id == theirs.config.eos_token_id == 0
    tokenizer, reader = checkpoint_tokenizer(path), AutoTokenizer.from_pretrained(path)
    assert reader.eos_token_id == 0
    assert reader.model_max_length == 16
    rng = random.Random(0)
    for _ in range(300):
        line = "".join(rng.choices("".join(texts), k=rng.randint(0, 80)))
        ids = tokenizer.encode(line).ids
        assert reader(line)["input_ids"] == ids
        assert reader.decode(ids) == line


def test_transformers_pipeline_continues_a_text(sound):
    from transformers import pipeline

    [found] = pipeline("text-generation", str(sound / "checkpoint-1000"))("the cat", max_new_tokens=4, do_sample=False)
    assert found["generated_text"].startswith("the cat")
    assert len(found["generated_text"]) > len("the cat")


def checkpoint_tokenizer(path: Path):
    from tokens.tokenizer import load_tokenizer

    return load_tokenizer(path / "tokenizer.json")


def hugging_face_folder(folder: Path, tie: bool = True):
    """What save_pretrained writes, and the model."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                                        bos_token_id=0, eos_token_id=0, tie_word_embeddings=tie)).eval()
    theirs.save_pretrained(folder)
    return theirs


def assert_same_logits(folder: Path, theirs, tolerance: float = 1e-5) -> None:
    ours, ids = load_model(folder, CPU).eval(), torch.randint(0, 300, (2, 16))
    with torch.no_grad():
        expected = theirs(ids).logits
        assert (ours(ids) - expected).abs().max() < tolerance * expected.abs().max()


@pytest.mark.parametrize("tie", [True, False])
def test_a_folder_of_transformers_opens_here(tmp_path, tie):
    assert_same_logits(tmp_path, hugging_face_folder(tmp_path, tie))
    assert resolve(tmp_path, no_warning) == tmp_path


def test_the_hubs_old_names_and_stored_masks_open(tmp_path):
    theirs = hugging_face_folder(tmp_path)
    new = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in new.items()}
    for layer in range(2):
        old[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
        old[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    old["lm_head.weight"] = old["wte.weight"].clone()  # tied, and stored all the same
    save_file(old, tmp_path / "model.safetensors")
    assert_same_logits(tmp_path, theirs)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-5)])
def test_weights_stored_in_another_precision_open(tmp_path, dtype, tolerance):
    theirs = hugging_face_folder(tmp_path)
    stored = {name: tensor.to(dtype) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(stored, tmp_path / "model.safetensors")
    assert_same_logits(tmp_path, theirs, tolerance)
    model = load_model(tmp_path, CPU)
    assert torch.equal(model.state_dict()["transformer.wpe.weight"], stored["transformer.wpe.weight"].float())


@pytest.mark.parametrize("tie_weights", [True, False])
def test_the_padding_is_zero_after_loading(make_checkpoint, make_model, tmp_path, tie_weights):
    path, _, _ = make_checkpoint(tmp_path, tie_weights=tie_weights)
    model = make_model(tie_weights=tie_weights)
    with torch.no_grad():
        model.get_parameter("transformer.wte.weight")[400:] = 1.0
        model.head_weight[400:] = 1.0
    load_weights(path, model)
    assert model.head_weight.shape[0] == 512
    assert not model.head_weight[400:].any()
    assert not model.get_parameter("transformer.wte.weight")[400:].any()


# ---------------------------------------------------------------- damage


def flip(path: Path) -> None:
    content, rng = bytearray(path.read_bytes()), random.Random(path.name)
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


DAMAGES = {
    "one bit flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "cut to half": lambda path: path.write_bytes(path.read_bytes()[:path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "zeros at the end": lambda path: path.write_bytes(path.read_bytes()[:-64] + bytes(64)),
    "garbage appended": lambda path: path.write_bytes(path.read_bytes() + b"\0garbage"),
    "missing": Path.unlink,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_damage_is_seen_named_and_passed_over(folder, name, damage):
    DAMAGES[damage](folder / "checkpoint-1000" / name)
    with pytest.raises(Damaged, match=re.escape(name) if name != "manifest.json" else None):
        verify(folder / "checkpoint-1000")
    warnings = []
    found = newest_sound(folder, warnings.append)
    assert found is not None
    assert found[0].name == "checkpoint-900"
    assert found[1]["step"] == 900
    if (folder / "checkpoint-1000" / "manifest.json").is_file():
        assert len(warnings) == 1
        assert "checkpoint-1000 is damaged and passed over" in warnings[0]


def test_no_bit_of_the_manifest_is_without_a_meaning(folder):
    path = folder / "checkpoint-1000" / "manifest.json"
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(60):
        content = bytearray(whole)
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        with pytest.raises(Damaged):
            verify(path.parent)


@pytest.mark.parametrize("entries", [
    None, [], {}, {"model.safetensors": {}}, {"../x": {"bytes": 1}}, {"..": {"bytes": 1}}, {"a\0b": {"bytes": 1}},
    {"/etc/passwd": {"bytes": 1}}, {"x": None}, {"x" * 5000: {"bytes": 1}}], ids=str)
def test_a_hostile_manifest_is_damage(folder, entries):
    path = folder / "checkpoint-1000" / "manifest.json"
    if entries and "model.safetensors" not in entries:
        entries = {**json.loads(path.read_text())["files"], **entries}
    edit(path, files=entries)
    with pytest.raises(Damaged):
        verify(path.parent)


def test_a_manifest_of_another_version_says_so(folder):
    edit(folder / "checkpoint-1000" / "manifest.json", version=2)
    with pytest.raises(Damaged, match="version 2, this program reads 1"):
        verify(folder / "checkpoint-1000")


def test_when_all_are_damaged_the_run_ends_with_each_reason(folder):
    for step in (900, 1000):
        flip(folder / f"checkpoint-{step}" / "model.safetensors")
    with refused(r"no sound checkpoint in .*checkpoint-1000: model.safetensors .*; checkpoint-900: .*Nothing was "
                 "deleted") as caught:
        newest_sound(folder, lambda _: None)
    assert caught.value.code == Exit.CHECKPOINT
    with refused("is damaged: model.safetensors") as caught:
        resolve(folder / "checkpoint-900", no_warning)
    assert caught.value.code == Exit.CHECKPOINT


def test_a_folder_with_training_state_but_no_manifest_was_never_finished(folder):
    (folder / "checkpoint-1000" / "manifest.json").unlink()
    with refused("was never finished") as caught:
        resolve(folder / "checkpoint-1000", no_warning)
    assert caught.value.code == Exit.CHECKPOINT
    assert resolve(folder, no_warning).name == "checkpoint-900"


# ---------------------------------------------------------------- hostile and foreign folders


@pytest.mark.parametrize(("fields", "reason"), [
    ({"model_type": "llama"}, "model_type is 'llama', not 'gpt2'"), ({"model_type": None}, "model_type is None"),
    ({"n_layer": 10**9}, "n_layer is 1000000000, not a whole number from 1 to 1,024"),
    ({"n_layer": 0}, "n_layer is 0"), ({"n_head": -1}, "n_head is -1"), ({"n_embd": "32"}, "n_embd is '32'"),
    ({"vocab_size": 400.0}, "vocab_size is 400.0"), ({"vocab_size": 10**400}, "vocab_size is 1000"),
    ({"n_positions": True}, "n_positions is True"), ({"n_positions": [16]}, r"n_positions is \[16\]"),
    ({"n_embd": 33}, "n_embd 33 is no multiple of n_head 2"), ({"n_inner": 64}, "n_inner is 64; only 128"),
    ({"activation_function": "relu"}, "activation_function is 'relu'"),
    ({"activation_function": ["gelu"]}, r"activation_function is \['gelu'\]"),
    ({"layer_norm_epsilon": "small"}, "layer_norm_epsilon is 'small'"),
    ({"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon is nan"), ({"resid_pdrop": -1}, "resid_pdrop is -1"),
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True; only False"),
    ({"add_cross_attention": True}, "add_cross_attention is True"),
    ({"n_layer": 1024, "n_embd": 2**16, "n_head": 1}, "config.json asks for 52,777,"),
    ({"vocab_size": 2**24}, "config.json asks for 5.* parameters, model.safetensors has")], ids=str)
def test_a_hostile_config_is_refused_before_anything_is_built(folder, monkeypatch, fields, reason):
    monkeypatch.setattr(checkpoint, "GPT", None)
    edit(folder / "checkpoint-900" / "config.json", **fields)
    with refused(reason) as caught:
        load_model(folder / "checkpoint-900", CPU)
    assert caught.value.code == Exit.CHECKPOINT
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "\xff", "[" * 10**5])
def test_a_config_that_is_no_object_is_refused(folder, content):
    (folder / "checkpoint-900" / "config.json").write_bytes(content.encode("latin-1"))
    with refused("config.json (cannot be read|holds no JSON object)"):
        load_model(folder / "checkpoint-900", CPU)


def test_missing_extra_and_misshapen_tensors_are_named_and_the_model_stays_as_it_was(folder, make_model):
    path, model = folder / "checkpoint-900", make_model(5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = load_file(path / "model.safetensors")
    del tensors["transformer.wpe.weight"]
    tensors["transformer.ln_f.weight"] = torch.zeros(31)
    tensors["transformer.h.0.attn.c_attn.weight"] = tensors["transformer.h.0.attn.c_attn.weight"].t().contiguous()
    tensors |= {"transformer.h.2.ln_1.weight": torch.zeros(32), "stranger": torch.zeros(32)}
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(Damaged) as caught:
        load_weights(path, model)
    assert str(caught.value) == (
        "transformer.wpe.weight is missing; transformer.h.0.attn.c_attn.weight has shape [32, 96], the config asks for "
        "[96, 32]; transformer.ln_f.weight has shape [31], the config asks for [32]; and 2 more")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_weights_that_are_whole_numbers_are_refused_and_the_model_stays_as_it_was(folder, make_model):
    path, model = folder / "checkpoint-900", make_model(5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = load_file(path / "model.safetensors")
    tensors["transformer.ln_f.weight"] = tensors["transformer.ln_f.weight"].int()
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(Damaged, match=r"transformer.ln_f.weight holds int32, not numbers with a fraction"):
        load_weights(path, model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100, b"\xff\xff\xff\xff\xff\xff\xff\x7f{}"])
def test_weights_that_are_no_safetensors_are_refused(tmp_path, content):
    hugging_face_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    with refused(r"model.safetensors") as caught:
        load_model(tmp_path, CPU)
    assert caught.value.code == Exit.CHECKPOINT


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("it-went-off",)


def test_pickles_are_refused_without_being_opened(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = folder / "checkpoint-900"
    (path / "model.safetensors").unlink()
    for protocol in (2, 4):
        (path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(), protocol))
        monkeypatch.setattr(checkpoint, "GPT", None)  # nor is anything built
        with refused("its weights are a pickle .pytorch_model.bin., which can run code and is never opened"):
            load_model(path, CPU)
        with refused("is a file: a pickle") as caught:
            resolve(path / "pytorch_model.bin", no_warning)
        assert caught.value.code == Exit.CHECKPOINT
    torch.save({}, tmp_path / "ckpt.pt")
    with refused("is a file: a pickle"):
        resolve(tmp_path / "ckpt.pt", no_warning)
    assert not (tmp_path / "it-went-off").exists()


@pytest.mark.parametrize(("content", "what"), [((20240326).to_bytes(4, "little") * 64, "llm.c's format"),
                                               (b"hello", "not one"), (b"", "not one")])
def test_a_file_is_no_checkpoint(tmp_path, content, what):
    (tmp_path / "model.bin").write_bytes(content)
    with refused(f"is a file: {what}. A checkpoint is a folder"):
        resolve(tmp_path / "model.bin", no_warning)


def test_a_folder_without_checkpoints_and_none_at_all_say_which(tmp_path):
    with refused("holds no checkpoint. Train one first: python train.py"):
        resolve(tmp_path, no_warning)
    with refused("does not exist"):
        resolve(tmp_path / "nowhere", no_warning)


def test_the_state_of_another_model_cannot_be_resumed(sound, make_model):
    other = make_model(n_layer=1)
    with refused("is not part of this model") as caught:
        load_training(sound / "checkpoint-900", other, torch.optim.AdamW(other.parameters()))
    assert caught.value.code == Exit.CHECKPOINT


def test_a_checkpoint_of_another_model_tokenizer_or_corpus_is_told_apart(sound, make_model):
    state = verify(sound / "checkpoint-900")
    config = make_model().config
    check_same(state, config, "a", "b", False)
    check_same(state, config, "other", "b", True)
    for args, code in (((make_model(n_layer=1).config, "a", "b", True), Exit.CHECKPOINT),
                       ((config, "other", "b", False), Exit.DATA), ((config, "a", "other", True), Exit.DATA)):
        with pytest.raises(UserError) as caught:
            check_same(state, *args)
        assert caught.value.code == code


# ---------------------------------------------------------------- finding


def test_checkpoints_are_ordered_by_number_and_strangers_are_not_among_them(folder):
    for name in ("checkpoint-1000 (1)", "checkpoint-01", "checkpoint-", "checkpoint-x", ".tmp-checkpoint-7-1", "notes"):
        shutil.copytree(folder / "checkpoint-900", folder / name)
    (folder / "checkpoint-2000").mkdir()  # without a manifest
    (folder / "checkpoint-3000").write_text("a file")
    assert list(steps_in(folder)) == [1000, 900]
    assert steps_in(folder / "nowhere") == {}
    assert resolve(folder, no_warning).name == "checkpoint-1000"


def test_auto_takes_the_newest_or_none(folder, tmp_path):
    assert find_resume("auto", tmp_path / "new", False, no_warning) is None
    for wish in ("auto", str(folder)):
        found = find_resume(wish, folder, False, no_warning)
        assert found is not None
        assert (found[0].name, found[1]["step"]) == ("checkpoint-1000", 1000)


def test_a_path_is_resumed_where_no_other_run_is_overwritten(folder, sound, tmp_path):
    found = find_resume(str(folder), tmp_path / "new", False, no_warning)
    assert found is not None
    assert found[0] == folder / "checkpoint-1000"
    for wish in (sound / "checkpoint-900", folder / "checkpoint-900"):
        with refused(r"holds checkpoints that do not lead to checkpoint-900: checkpoint-1000.*--overwrite") as caught:
            find_resume(str(wish), folder, False, no_warning)
        assert caught.value.code == Exit.CHECKPOINT
        found = find_resume(str(wish), folder, True, no_warning)
        assert found is not None
        assert found[0] == wish
    assert [p.name for p in not_leading_to(folder, folder / "checkpoint-900", 900)] == ["checkpoint-1000"]
    assert len(not_leading_to(folder, sound / "checkpoint-1000", 1000)) == 2
    assert len(not_leading_to(folder, None, 0)) == 2


def test_a_hugging_face_folder_cannot_be_resumed(tmp_path):
    hugging_face_folder(tmp_path / "hf")
    with refused("Only a checkpoint of train.py can be resumed") as caught:
        find_resume(str(tmp_path / "hf"), tmp_path / "out", False, no_warning)
    assert caught.value.code == Exit.CHECKPOINT


# ---------------------------------------------------------------- keeping


def test_prune_keeps_the_last_rolling_the_staying_and_the_protected(make_checkpoint, tmp_path):
    for step in (1, 2, 3, 4, 5, 6, 10):
        make_checkpoint(tmp_path, step, stays=step in (2, 6))
    (tmp_path / "checkpoint-3" / "trainer_state.json").write_text("damaged")
    prune(tmp_path, 2, {1})
    assert sorted(steps_in(tmp_path)) == [1, 2, 3, 5, 6, 10]
    assert not list(tmp_path.glob(".*"))
    for step in (1, 2, 5, 6, 10):
        verify(tmp_path / f"checkpoint-{step}")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("broken", "calls_that_work"), [
    ("sync", 0), ("sync", 1), ("write_tensors", 0), ("write_tensors", 1), ("_write_bytes", 0), ("_write_bytes", 1),
    ("_write_bytes", 5), ("_write_bytes", 8), ("sha256_of", 0), ("sha256_of", 7)])
def test_a_write_that_fails_leaves_the_older_checkpoint_and_nothing_else(make_checkpoint, sound, folder, monkeypatch,
                                                                         broken, calls_that_work):
    works, calls = getattr(checkpoint, broken), []

    def full(*args, **kwargs):
        calls.append(args)
        if len(calls) > calls_that_work:
            raise OSError(28, "No space left on device")
        return works(*args, **kwargs)

    monkeypatch.setattr(checkpoint, broken, full)
    for step in (1000, 1100):  # one over an older checkpoint of the step, one new
        calls.clear()
        with pytest.raises(OSError, match="No space left on device"):
            make_checkpoint(folder, step)
        assert names_in(folder) == ["checkpoint-1000", "checkpoint-900"]
    monkeypatch.undo()
    for step in (900, 1000):
        assert verify(folder / f"checkpoint-{step}") == verify(sound / f"checkpoint-{step}")


def test_a_tensor_that_reads_back_differently_is_a_failed_write(make_checkpoint, tmp_path, monkeypatch):
    writes = _write_bytes

    def faulty(path, content):
        entry = writes(path, content)
        if path.name == "model.safetensors":
            flip(path)
        return entry

    monkeypatch.setattr(checkpoint, "_write_bytes", faulty)
    with pytest.raises(OSError, match=r"reads back differently: model\.safetensors does not have"):
        make_checkpoint(tmp_path)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_never_saved(make_model, tmp_path, value):
    model = make_model()
    tensors = Tensors.of(model, torch.optim.AdamW(model.parameters()))
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight")[0, 0] = value
    with pytest.raises(NotFinite, match=r"transformer\.wpe\.weight"):
        save(tmp_path, 1, model.config, tensors, {}, None, None, "")
    assert names_in(tmp_path) == []


def test_the_bytes_are_those_that_safetensors_writes(make_checkpoint, tmp_path):
    path, model, optimizer = make_checkpoint(tmp_path)
    tensors = Tensors.of(model, optimizer)
    for name, part in (("model", to_hf_tensors(model.config, tensors.model)),
                       ("optimizer", load_file(path / "optimizer.safetensors"))):
        save_file({name: tensor.contiguous() for name, tensor in part.items()}, tmp_path / "theirs", {"format": "pt"})
        assert (path / f"{name}.safetensors").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_snapshot_is_a_copy_that_training_does_not_change(make_model):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.long)).backward()
    optimizer.step()
    live, snapshot = Tensors.of(model, optimizer), Snapshot()
    before = {name: tensor.clone() for name, tensor in {**live.model, **live.training}.items()}
    for _ in range(2):  # the second one takes the same memory
        taken = snapshot.take(live)
        copies = {**taken.model, **taken.training}
        with torch.no_grad():
            for tensor in live.model.values():
                tensor.fill_(7.0)
        assert copies.keys() == before.keys()
        for name, tensor in copies.items():
            assert torch.equal(tensor, before[name]), name
            assert tensor.dtype == before[name].dtype
        model.load_state_dict({name: before[name] for name in live.model})


def test_where_memory_cannot_be_pinned_the_copy_is_a_plain_one(monkeypatch):
    asked, empty = [], torch.empty

    def refuse(*shape, pin_memory=False, **kwargs):
        asked.append(pin_memory)
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return empty(*shape, **kwargs)

    snapshot = Snapshot()
    monkeypatch.setattr(torch, "empty", refuse)
    snapshot.reserve(1000, pinned=True)
    assert asked == [True, False]
    tensors = Tensors({"a": torch.arange(5.0)}, {"b": torch.ones(3)})
    assert torch.equal(snapshot.take(tensors).model["a"], torch.arange(5.0))


def test_a_kill_between_two_renames_costs_no_checkpoint(folder):
    aside = folder / f"{REPLACED}checkpoint-1000"
    (folder / "checkpoint-1000").rename(aside)
    shutil.copytree(folder / "checkpoint-900", folder / f"{REPLACED}checkpoint-900")
    with owned(folder):
        assert names_in(folder) == [".lock", "checkpoint-1000", "checkpoint-900"]


def test_one_save_at_a_time_and_its_error_comes_to_the_loop():
    saver, gate = Saver(), threading.Event()
    saver.start(lambda: gate.wait(60))
    assert saver.is_busy
    assert saver.take(wait=False) is None
    assert saver.is_busy
    gate.set()
    assert saver.take(wait=True) is True
    saver.start(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        saver.take(wait=True)
    assert not saver.is_busy
    saver.close()


def test_a_checkpoint_takes_about_the_bytes_foretold(sound):
    config = read_config(sound / "checkpoint-900")
    taken = sum(path.stat().st_size for path in (sound / "checkpoint-900").iterdir())
    assert taken <= bytes_needed(config) <= taken + 2**21
    assert config == GPTConfig(400, 16, 2, 2, 32)


# ---------------------------------------------------------------- the output folder


def test_owning_a_folder_sweeps_what_a_killed_run_left(folder):
    shutil.copytree(folder / "checkpoint-900", folder / ".tmp-checkpoint-1100-123")
    with owned(folder):
        assert names_in(folder) == [".lock", "checkpoint-1000", "checkpoint-900"]
    with owned(folder):
        pass  # the lock ends with its owner


def test_a_folder_in_use_ends_a_second_run_with_the_owners_pid(tmp_path):
    code = ("import sys, pathlib, checkpoint, cli\n"
            "def main(argv):\n"
            "    with checkpoint.owned(pathlib.Path(argv[0])):\n"
            "        return 0\n"
            "cli.guard(main)\n")
    with owned(tmp_path / "out"):
        second = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], cwd=ROOT, capture_output=True,
                                text=True, timeout=120)
    assert second.returncode == Exit.BUSY
    assert f"is in use by another run (pid {os.getpid()}, started" in second.stderr
    assert second.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_made_ends_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("cannot be written") as caught, owned(tmp_path / "file" / "out"):
        pass
    assert caught.value.code == Exit.MACHINE


def test_the_config_is_what_a_model_of_that_shape_writes(tmp_path, make_model):
    config = make_model(tie_weights=False, activation="gelu", layer_norm_epsilon=1e-6, dropout=0.1).config
    (tmp_path / "config.json").write_text(json.dumps(to_hf_config(config, 7)))
    assert read_config(tmp_path) == config


def test_the_names_on_disk_are_gpt2s_without_any_wrappers(make_model):
    expected = {name for name, _ in GPT(make_model().config).named_parameters()}
    assert set(to_hf_tensors((model := make_model()).config, model.state_dict())) == expected
    assert all(name.startswith("transformer.") for name in expected)


def test_a_checkpoint_pruned_while_it_is_read_gives_way_to_the_next(folder):
    def reader(path):
        if path.name == "checkpoint-1000":
            shutil.rmtree(path)
        return load_model(path, CPU)

    assert read(folder, no_warning, reader).config == GPTConfig(400, 16, 2, 2, 32)
    with refused(r"model\.safetensors") as caught:  # what stays where it is, is damaged
        read(folder, no_warning, lambda path: ((path / "model.safetensors").unlink(), reader(path)))
    assert caught.value.code == Exit.CHECKPOINT


def test_a_reader_of_weights_does_not_read_the_optimizer(folder):
    flip(folder / "checkpoint-1000" / "optimizer.safetensors")
    assert resolve(folder, no_warning, to_train=False).name == "checkpoint-1000"
    flip(folder / "checkpoint-1000" / "model.safetensors")
    assert resolve(folder, lambda _: None, to_train=False).name == "checkpoint-900"
