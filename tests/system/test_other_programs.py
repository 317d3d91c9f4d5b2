"""Checkpoints and GGUF files of all networks in other programs: transformers 4 and 5, llama.cpp, loaders' patterns.

transformers 4 and llama.cpp (xllamacpp) run in an environment of their own, which the test makes.
"""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import export
from gpt.architectures.table import ARCHITECTURES
from gpt.checkpoint.contents import Tensors, tensor_files, text_files
from gpt.checkpoint.load import load_model
from gpt.checkpoint.save import save
from tests.helpers.decoding import take

PACKAGES = ["transformers==4.57.6", "xllamacpp==2026.10.11549"]
TRANSFORMERS = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer, __version__, pipeline

folder, texts = sys.argv[1], json.loads(sys.argv[2])
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)

def greedy(text, **length):
    given = tokenizer(text, return_tensors="pt")
    return model.generate(**given, do_sample=False, **length)[0, given["input_ids"].shape[1]:].tolist()

piped = pipeline("text-generation", model=model, tokenizer=tokenizer, return_full_text=True)
print(json.dumps({
    "version": __version__, "names": sorted(tokenizer(texts[0])),
    "ids": [tokenizer(text)["input_ids"] for text in texts],
    "greedy": [greedy(text, max_new_tokens=12, eos_token_id=-1) for text in texts],
    "lengths": [len(greedy(texts[0], max_length=10, eos_token_id=-1)), len(greedy(texts[0], eos_token_id=-1))],
    "piped": len(piped(texts[0], do_sample=False)[0]["generated_text"]) > len(texts[0])}))
"""
LLAMA_CPP = """
import json, sys, urllib.request, xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.port = sys.argv[1], 64, 1, 0
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(params)

def ask(path, **body):
    request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["tokens"]

print(json.dumps({
    "ids": [ask("/tokenize", content=text) for text in json.loads(sys.argv[2])],
    "greedy": [ask("/completion", prompt=text, n_predict=12, temperature=0, return_tokens=True, ignore_eos=True)
               for text in json.loads(sys.argv[2])]}))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def other_python(tmp_path_factory) -> str:
    """The Python of an environment with PACKAGES, and with the torch of this one."""
    folder = tmp_path_factory.mktemp("other")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin/python")
    done = subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip cannot install {' '.join(PACKAGES)}: {done.stderr.strip().splitlines()[-1]}")
    place = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True)
    (Path(place.strip()) / "torch.pth").write_text(sysconfig.get_path("purelib"))
    return python


def saved(folder: Path, model, tokenizer_file: Path) -> Path:
    """A checkpoint of a model, with training state."""
    tensors = Tensors.of(model, torch.optim.AdamW(model.parameters()))
    content = tokenizer_file.read_text(encoding="utf-8")
    return save(folder, 1, tensor_files(model.config, tensors), text_files(1, model.config, {}, content, 0, "card"))


@pytest.fixture(scope="module", params=ARCHITECTURES)
def checkpoint(request, make_any, tokenizer_file, tmp_path_factory) -> Path:
    """A checkpoint of each network."""
    return saved(tmp_path_factory.mktemp(request.param), make_any(request.param, seq_length=64), tokenizer_file)


@pytest.fixture
def short_texts(texts) -> list[str]:
    """The beginnings of the texts: prompts that leave room in the window."""
    return [text[:12] for text in texts]


def answer(python: str, script: str, path: Path, texts: list[str]) -> dict:
    """What a script prints about a model, as JSON on its last line."""
    done = subprocess.run([python, "-c", script, str(path), json.dumps(texts)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(folder: Path, tokenizer, texts: list[str]) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of the texts, and the 12 ids after each that this program generates greedily."""
    model, ids = load_model(folder, torch.device("cpu")).eval(), [tokenizer.encode(text).ids for text in texts]
    return ids, [take(model, prompt, 12) for prompt in ids]


@pytest.mark.parametrize("version", ["4.57.6", "5."])
def test_transformers_4_and_5_read_the_same_ids_and_write_the_same_text(checkpoint, tokenizer, short_texts, request,
                                                                        version):
    python = request.getfixturevalue("other_python") if version == "4.57.6" else sys.executable
    found = answer(python, TRANSFORMERS, checkpoint, short_texts)
    ids, greedy = ours(checkpoint, tokenizer, short_texts)
    assert found["version"].startswith(version)
    assert found["names"] == ["attention_mask", "input_ids"]
    assert (found["ids"], found["greedy"]) == (ids, greedy)
    assert found["lengths"] == [10 - len(ids[0]), 64 - len(ids[0])]
    assert found["piped"]


def test_loaders_that_take_every_safetensors_file_leave_the_optimizer_out(checkpoint):
    index = checkpoint / "model.safetensors.index.json"  # which vLLM and litgpt read first where it exists
    files = {*json.loads(index.read_text())["weight_map"].values()} if index.exists() else {
        path.name for path in checkpoint.glob("*.safetensors")}
    names = {name for file in files for name in safe_open(checkpoint / file, framework="pt").keys()}  # noqa: SIM118
    assert names == {*json.loads(index.read_text())["weight_map"]}
    assert not any(name.startswith(("exp_avg", "rng")) for name in names)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0", "q5_0", "q4_0"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_llama_cpp_reads_the_same_ids_and_writes_the_same_text(make_any, tokenizer_file, tokenizer, short_texts,
                                                               other_python, tmp_path, arch, dtype):
    gguf = pytest.importorskip("gguf")
    model, architecture = make_any(arch, seq_length=64), ARCHITECTURES[arch]
    for name, weight in model.state_dict().items():  # the matrices get values that the type holds exactly
        if weight.dim() == 2 and name not in architecture.GGUF_KEPT_IN_F32 and dtype != "f32":
            kind = "f16" if dtype == "f16" or weight.shape[1] % 32 else (
                "q8_0" if architecture.has_vocabulary_rows(name) else dtype)
            kind = gguf.GGMLQuantizationType[kind.upper()]
            weight.copy_(torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind)))
    folder, file = saved(tmp_path, model, tokenizer_file), tmp_path / "model.gguf"
    assert export.main(["--ckpt", str(folder), "--output", str(file), "--dtype", dtype]) == 0
    found = answer(other_python, LLAMA_CPP, file, short_texts)
    ids, greedy = ours(folder, tokenizer, short_texts)
    assert found["ids"] == ids
    # Rounding decides between near equals, and with quantized weights llama.cpp rounds activations to 8 bits too.
    num_ids = 1 if dtype.startswith("q") else 12
    same = [mine[:num_ids] == theirs[:num_ids] for mine, theirs in zip(greedy, found["greedy"], strict=True)]
    assert sum(same) >= len(same) - 1
