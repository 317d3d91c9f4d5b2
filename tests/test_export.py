"""export.py: other programs open its exports and compute the same."""

import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import export
from gpt.architectures.table import ARCHITECTURES, architecture_of
from gpt.checkpoint import folder as checkpoint_folder
from gpt.checkpoint.load import load_model
from gpt.common.errors import Exit, UserError
from gpt.ops.rotary import RotaryScaling, rotary_frequencies
from gpt.tokens.chat import END, START, Turn, segments_of, special_names
from gpt.tokens.tokenizer import vocab_size_of
from tests.helpers.models import conversing_checkpoint, replaced_meanwhile
from tests.helpers.refusals import refused

SCALING = RotaryScaling(4.0, 1.0, 4.0, 32)


@pytest.fixture(scope="module")
def folder(make_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "out"
    make_checkpoint(folder, 3)
    return folder


def run(folder: Path, output: Path, *flags: str) -> None:
    assert export.main(["--ckpt", str(folder), "--output", str(output), *flags]) == 0


# ---------------------------------------------------------------- GGUF


@pytest.mark.parametrize(("arch", "changes"), [
    ("gpt2", {}), ("gpt2", {"tie_weights": False}), ("gpt2", {"bias": False, "vocab_size": 410}), ("qwen3", {}),
    ("llama", {"tie_weights": False}), ("llama", {"vocab_size": 410, "n_kv_head": 6})], ids=str)
def test_transformers_reads_the_gguf_and_computes_the_same(make_any, write_folder, tokenizer, texts, tmp_path, arch,
                                                           changes):
    pytest.importorskip("gguf")
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    model = make_any(arch, **changes)
    path = write_folder(tmp_path / "out", model)
    run(path, tmp_path / "model.gguf")
    theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path)).eval()
    tensors = load_gguf_checkpoint(str(tmp_path / "model.gguf"), return_tensors=True, model_to_load=theirs)["tensors"]
    missing, unexpected = theirs.load_state_dict(tensors, strict=False)
    assert missing == ([] if "tie_weights" in changes else ["lm_head.weight"])  # a tied head is the embedding
    assert not unexpected
    ids = torch.randint(0, 400, (4, 16))
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, model(ids), rtol=0, atol=1e-5)
    if arch != "gpt2":  # their reader of these names guesses the tokenizer
        return
    their_tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for content in texts:
        assert their_tokenizer(content, add_special_tokens=False)["input_ids"] == tokenizer.encode(content).ids


def test_the_gguf_holds_what_llama_cpp_reads_of_a_gpt2(make_checkpoint, tokenizer, tmp_path):
    gguf = pytest.importorskip("gguf")

    path, _, _ = make_checkpoint(tmp_path / "out", vocab_size=410)
    run(path, tmp_path / "model.gguf")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    expected = {"general.architecture": "gpt2", "gpt2.context_length": 16, "gpt2.embedding_length": 32,
                "gpt2.block_count": 2, "gpt2.feed_forward_length": 128, "gpt2.attention.head_count": 2,
                "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.bos_token_id": 0,
                "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.add_bos_token": False}
    assert {name: fields[name] for name in expected} == expected
    assert fields["gpt2.attention.layer_norm_epsilon"] == pytest.approx(1e-5)
    vocab, added = tokenizer.get_vocab(), vocab_size_of(tokenizer)
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    assert {token: tokens.index(token) for token in vocab} == vocab
    assert kinds == [gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * (added - 1),
                     *[gguf.TokenType.UNUSED] * (410 - added)]
    stored = json.loads(tokenizer.to_str())["model"]["merges"]
    assert fields["tokenizer.ggml.merges"] == [" ".join(merge) for merge in stored]
    assert "output.weight" not in [tensor.name for tensor in reader.tensors]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_not_utf8_is_printable_in_the_gguf(folder, tmp_path):
    gguf = pytest.importorskip("gguf")
    run(folder, tmp_path / "m\udcff.gguf")
    (path,) = tmp_path.iterdir()
    assert gguf.GGUFReader(path.rename(tmp_path / "m.gguf")).fields["general.name"].contents() == "m\\udcff"


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
def test_the_gguf_holds_what_llama_cpp_reads_of_a_rotary_model(make_any, write_folder, tmp_path, arch):
    gguf = pytest.importorskip("gguf")

    model = make_any(arch)
    path = write_folder(tmp_path / "out", model)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 0]}))
    run(path, tmp_path / "model.gguf")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    expected = {"general.architecture": arch, f"{arch}.context_length": 32, f"{arch}.embedding_length": 96,
                f"{arch}.block_count": 2, f"{arch}.feed_forward_length": model.config.n_inner,
                f"{arch}.attention.head_count": 6, f"{arch}.attention.head_count_kv": 2,
                f"{arch}.attention.key_length": 16, f"{arch}.rope.freq_base": 10_000.0,
                "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 7,
                "tokenizer.ggml.add_bos_token": False}
    assert {name: fields[name] for name in expected} == expected
    assert fields[f"{arch}.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-6)


def test_scaled_rotary_frequencies_are_a_tensor_of_a_llama_and_refused_of_a_qwen3(make_any, write_folder, tmp_path):
    gguf = pytest.importorskip("gguf")
    llama = write_folder(tmp_path / "llama", make_any("llama", rope_scaling=SCALING))
    run(llama, tmp_path / "m.gguf", "--dtype", "f16")
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}["rope_freqs.weight"]
    assert found.tensor_type.name == "F32"
    assert np.array_equal(found.data, rotary_frequencies(16, 1e4) / rotary_frequencies(16, 1e4, SCALING))
    assert found.data[0] == 1 < found.data[1] < found.data[2] == 4
    with refused(r"rope_type is llama3.*of a Qwen3. Give --format huggingface", Exit.CHECKPOINT):
        run(write_folder(tmp_path / "qwen3", make_any("qwen3", rope_scaling=SCALING)), tmp_path / "q.gguf")


def test_the_gguf_has_the_template_of_conversations_and_ends_at_the_end_of_an_answer(tokenizer, tmp_path, capsys):
    gguf = pytest.importorskip("gguf")
    jinja2 = pytest.importorskip("jinja2")
    folder = conversing_checkpoint(tmp_path / "out", tokenizer)
    run(folder, tmp_path / "model.gguf")
    fields = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "model.gguf").fields.items()}
    end = tokenizer.token_to_id(END)
    assert (fields["tokenizer.ggml.eos_token_id"], fields["tokenizer.ggml.bos_token_id"]) == (end, 0)
    assert fields["tokenizer.ggml.token_type"][end] == gguf.TokenType.CONTROL
    turns = [Turn("system", " a{{ 7*7 }}"), Turn("user", f"{START} {END}\n"), Turn("assistant", " b ")]
    text = jinja2.Template(fields["tokenizer.chat_template"]).render(
        messages=[turn._asdict() for turn in turns], add_generation_prompt=True)
    segments = segments_of(turns, special_names(tokenizer))
    assert text == "".join(segment.text + segment.special for segment in segments) + f"{START}assistant\n"
    run(folder, tmp_path / "mine", "--format", "huggingface")
    assert f"python generate.py --ckpt {tmp_path / 'mine'} --chat\n" in capsys.readouterr().out
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer_config.json"):
        assert (tmp_path / "mine" / name).read_bytes() == (folder / name).read_bytes()
    (tmp_path / "mine/tokenizer.json").write_text(tokenizer.to_str().replace(START, "<|start|>"))
    run(tmp_path / "mine", tmp_path / "other", "--format", "huggingface")
    assert f"python generate.py --ckpt {tmp_path / 'other'}\n" in capsys.readouterr().out


def test_a_checkpoint_that_a_run_replaces_while_it_is_read_gives_way_to_the_next(make_checkpoint, tmp_path,
                                                                               monkeypatch):
    monkeypatch.setattr(export, "open_model", replaced_meanwhile(export.open_model, tmp_path / "out", make_checkpoint))
    run(tmp_path / "out", tmp_path / "mine", "--format", "huggingface")
    assert sorted(os.listdir(tmp_path)) == ["mine", "out"]


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "changes"), [*((arch, {}) for arch in ARCHITECTURES),
                                               ("llama", {"rope_scaling": SCALING})], ids=str)
def test_llama_cpp_writes_the_same_greedily(make_any, write_folder, tokenizer, texts, tmp_path, arch, changes):
    pytest.importorskip("gguf")
    llama_cpp = pytest.importorskip("llama_cpp")
    from gpt.generation.continuation import Sampling
    from gpt.generation.sampling import sample

    model = make_any(arch, seq_length=64, **changes)
    run(write_folder(tmp_path / "out", model), tmp_path / "model.gguf")
    theirs = llama_cpp.Llama(str(tmp_path / "model.gguf"), n_ctx=64, n_batch=64, verbose=False)
    for content in texts:
        ids = tokenizer.encode(content).ids
        assert theirs.tokenize(content.encode(), add_bos=False, special=False) == ids
        ids = ids[:30]
        found = itertools.islice(theirs.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0), 20)
        assert list(found) == sample(model, ids, 20, 0, None, Sampling(temperature=0.0))


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_smaller_type_rounds_only_matrices(folder, tmp_path, dtype, torch_dtype):
    gguf = pytest.importorskip("gguf")

    run(folder, tmp_path / "model.gguf", "--dtype", dtype)
    model = load_model(folder / "checkpoint-3", torch.device("cpu"))
    kinds = set()
    for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors:
        kind, array = tensor.tensor_type, gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        is_matrix = array.ndim == 2 and tensor.name != "position_embd.weight"
        assert kind.name == (dtype.upper() if is_matrix else "F32"), tensor.name
        kinds.add(kind.name)
        if tensor.name == "blk.0.attn_qkv.weight":
            weight = model.get_parameter("transformer.h.0.attn.c_attn.weight").detach()
            assert np.array_equal(array, weight.to(torch_dtype).float().numpy())
    assert kinds == {dtype.upper(), "F32"}


@pytest.mark.parametrize("dtype", ["q8_0", "q5_0", "q4_0"])
@pytest.mark.parametrize(("arch", "width"), [("gpt2", 64), ("llama", 96), ("gpt2", 48)], ids=str)
def test_a_quantized_gguf_is_the_gguf_packages_own_rounding_of_matrices(make_any, write_folder, tmp_path, arch, width,
                                                                        dtype):
    gguf = pytest.importorskip("gguf")
    path = write_folder(tmp_path / "out", make_any(arch, n_embd=width))
    files = {name: tmp_path / f"{name}.gguf" for name in ("f32", dtype)}
    for name, file in files.items():
        run(path, file, "--dtype", name)
    exact, small = ({tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors} for file in files.values())
    for name, tensor in small.items():
        kind, is_matrix = tensor.tensor_type, len(tensor.shape) == 2 and name != "position_embd.weight"
        expected = "f16" if exact[name].data.shape[-1] % 32 else "q8_0" if name in (
            "token_embd.weight", "output.weight") else dtype
        assert kind.name == (expected.upper() if is_matrix else "F32"), name
        assert np.array_equal(tensor.data, gguf.quants.quantize(exact[name].data, kind))
        error = np.abs(gguf.quants.dequantize(tensor.data, kind) - exact[name].data).max()
        assert error <= {"F32": 0, "F16": 2**-11, "Q8_0": 1 / 254, "Q5_0": 1 / 16, "Q4_0": 1 / 8}[
            kind.name] * np.abs(exact[name].data).max() * 1.13  # a scale is an f16
    assert files[dtype].stat().st_size < files["f32"].stat().st_size


@pytest.mark.parametrize(("flags", "flag"), [
    (["--output", "x.pt"], "--output"), (["--output", "x"], "--output"),
    (["--output", "x", "--format", "huggingface", "--dtype", "q8_0"], "--dtype")], ids=str)
def test_names_and_types_that_do_not_fit_the_format_are_refused(flags, flag):
    with refused(f"^{flag} ", Exit.FLAGS):
        export.read_flags(flags)


def test_a_tokenizer_that_llama_cpp_would_split_differently_is_refused(folder, tokenizer, tmp_path):
    pytest.importorskip("gguf")
    change = {"pre_tokenizer": {"type": "Whitespace"}}
    (tmp_path / "other.json").write_text(json.dumps(json.loads(tokenizer.to_str()) | change))
    with refused(r"splits text as GPT-2's.* Give --format huggingface", Exit.DATA):
        run(folder, tmp_path / "model.gguf", "--tokenizer_file", str(tmp_path / "other.json"))
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


def test_a_tokenizer_whose_ids_mean_other_text_is_refused(folder, tokenizer, tmp_path):
    pytest.importorskip("gguf")
    fields = json.loads(tokenizer.to_str())
    ids = fields["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (tmp_path / "other.json").write_text(json.dumps(fields))
    with refused("other.json has other ids than the model's own tokenizer. Drop --tokenizer_file.", Exit.DATA):
        run(folder, tmp_path / "model.gguf", "--tokenizer_file", str(tmp_path / "other.json"))


# ---------------------------------------------------------------- a Hugging Face folder


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("f32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_published_folder_opens_in_transformers(folder, texts, tokenizer, tmp_path, dtype, torch_dtype):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run(folder, tmp_path / "mine", "--format", "huggingface", "--dtype", dtype)
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md",
        "model.safetensors"}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "mine", dtype="auto").eval()
    assert theirs.dtype == torch_dtype
    ours = load_model(folder / "checkpoint-3", torch.device("cpu")).to(torch_dtype).eval()
    ids = torch.randint(0, 400, (4, 16))
    with torch.no_grad():
        torch.testing.assert_close(theirs.float()(ids).logits, ours.float()(ids), rtol=0, atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "mine")(texts[1])["input_ids"] == tokenizer.encode(texts[1]).ids
    run(tmp_path / "mine", tmp_path / "again", "--format", "huggingface")  # an export is a --ckpt, too


def test_a_link_out_of_the_folder_is_not_published_but_the_hubs_cache_is(folder, tmp_path):
    snapshot, blobs = tmp_path / "models--a/snapshots/1", tmp_path / "models--a/blobs"
    blobs.mkdir(parents=True)
    shutil.copytree(folder / "checkpoint-3", snapshot)
    (snapshot / "README.md").rename(blobs / "1")
    (snapshot / "README.md").symlink_to("../../blobs/1")
    run(snapshot, tmp_path / "mine", "--format", "huggingface")
    assert (tmp_path / "mine/README.md").read_bytes() == (blobs / "1").read_bytes()
    (tmp_path / "id_rsa").write_text("secret")
    (snapshot / "LICENSE").symlink_to(tmp_path / "id_rsa")
    with refused("LICENSE", Exit.CHECKPOINT):
        run(snapshot, tmp_path / "other", "--format", "huggingface")
    assert not (tmp_path / "other").exists()


# ---------------------------------------------------------------- earlier exports and failures


def test_an_export_is_replaced_only_on_request_and_nothing_else_ever_is(folder, tmp_path):
    flags = ("--format", "huggingface")
    run(folder, tmp_path / "mine", *flags)
    with refused(r"exists\. Give another name; --overwrite", Exit.FLAGS):
        run(folder, tmp_path / "mine", *flags)
    run(folder, tmp_path / "mine", *flags, "--overwrite")
    inside = sorted(path.name for path in (folder / "checkpoint-3").iterdir())
    for output in (folder, folder / "checkpoint-3"):
        with pytest.raises(UserError, match="a folder that holds nothing but a model"):
            run(folder, output, *flags, "--overwrite")
    assert sorted(path.name for path in (folder / "checkpoint-3").iterdir()) == inside
    for name, form in (("file", flags), ("file.gguf", ())):
        (tmp_path / name).write_text("x")
        with pytest.raises(UserError, match="a folder that holds nothing but a model"):
            run(folder, tmp_path / name, *form, "--overwrite")
    with refused("names a GGUF file, and a folder is written", Exit.FLAGS):
        run(folder, tmp_path / "other.gguf", "--prune", "0.3")


def test_a_new_export_that_cannot_be_renamed_leaves_the_earlier_one(folder, tmp_path, monkeypatch):
    flags, rename = ("--format", "huggingface"), checkpoint_folder.rename
    run(folder, tmp_path / "mine", *flags)
    before = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}

    def refusing(source, target):
        if source.suffix == ".tmp":
            raise OSError(39, "Directory not empty", str(target))
        rename(source, target)

    monkeypatch.setattr(checkpoint_folder, "rename", refusing)
    with refused("Directory not empty", Exit.MACHINE):
        run(folder, tmp_path / "mine", *flags, "--overwrite")
    assert {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("form", ["gguf", "huggingface"])
def test_a_full_disk_is_no_bug_and_the_earlier_export_stays(folder, tmp_path, monkeypatch, form):
    def full(path):
        raise OSError(28, "No space left on device", str(path))

    pytest.importorskip("gguf")
    output = tmp_path / ("mine.gguf" if form == "gguf" else "mine")
    run(folder, output, "--format", form)
    files = [output] if form == "gguf" else sorted(output.iterdir())
    before = [path.read_bytes() for path in files]
    monkeypatch.setattr(export, "sync", full)
    with refused(r"--output .*mine.* cannot be written: .*o space left.* Free some", Exit.MACHINE):
        run(folder, output, "--format", form, "--overwrite")
    assert [path.read_bytes() for path in files] == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("value", "dtype", "code", "why"), [(float("nan"), "f32", Exit.DIVERGED, "holds NaN"),
                                                             (1e5, "f16", Exit.FLAGS, "100,000, which --dtype f16")])
def test_weights_that_the_type_cannot_hold_are_named(make_model, write_folder, tmp_path, value, dtype, code, why):
    model = make_model()
    with torch.no_grad():
        model.get_parameter("transformer.h.0.mlp.c_fc.weight")[0, 0] = value
    path = write_folder(tmp_path / "out", model)
    with refused(rf"transformer.h.0.mlp.c_fc.weight .*{why}", code):
        run(path, tmp_path / "mine", "--dtype", dtype, "--format", "huggingface")


# ---------------------------------------------------------------- pruning


@pytest.mark.parametrize("arch", ["gpt2", "llama"])
def test_a_pruned_folder_has_zeros_for_its_smallest_weights_and_opens_elsewhere(make_any, write_folder, tmp_path, arch):
    from transformers import AutoModelForCausalLM

    source = write_folder(tmp_path / "model", make_any(arch))
    assert export.main(["--ckpt", str(source), "--output", str(tmp_path / "out"), "--prune", "0.3"]) == 0
    before, after = (load_model(folder, torch.device("cpu")).eval() for folder in (source, tmp_path / "out"))
    hidden = architecture_of(before.config).hidden_matrices(before.config)
    for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True):
        zeros = new == 0
        assert torch.equal(new[~zeros], old[~zeros])
        if name in hidden:
            assert int(zeros.sum()) == round(0.3 * new.numel())
            assert old[zeros].abs().max() <= old[~zeros].abs().min()
        else:
            assert torch.equal(new, old)
    assert "30% of the weights" in (tmp_path / "out" / "README.md").read_text()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.arange(32).view(2, 16)
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, after(ids), rtol=0, atol=1e-5)
