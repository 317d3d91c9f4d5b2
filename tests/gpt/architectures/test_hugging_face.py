"""gpt/architectures/llama.py, Qwen3 and Llama: folders of transformers, there and back; refusals by the field."""

import json
from dataclasses import replace

import pytest
import torch

from gpt.architectures.llama import NUMBERS
from gpt.architectures.table import ARCHITECTURES
from gpt.checkpoint.load import load_model, open_model
from gpt.common.errors import InvalidCheckpoint, UserError
from gpt.ops.rotary import RotaryScaling
from tests.helpers.models import make_rotary, write_hugging_face_folder

SCALING = RotaryScaling(4.0, 1.0, 4.0, 32)  # of the 8 frequencies of 16 dimensions 1 is kept, 1 between, 6 divided
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
qwen3, llama = ARCHITECTURES["qwen3"], ARCHITECTURES["llama"]
QWEN3 = qwen3.sized((2, 6, 96), 400, 32)
LLAMA = llama.sized((2, 6, 96), 400, 32)


# ---------------------------------------------------------------- config.json


@pytest.mark.parametrize("config", [QWEN3, LLAMA], ids=["qwen3", "llama"])
def test_the_config_comes_back_as_it_was(config):
    config = replace(config, tie_weights=False, rope_theta=5e5, rms_norm_epsilon=1e-5, head_dim=32)
    architecture = qwen3 if config.qk_norm else llama
    assert architecture.from_hf_config(architecture.to_hf_config(config, 7)) == config
    scaled = replace(config, rope_scaling=SCALING)
    assert architecture.from_hf_config(json.loads(json.dumps(architecture.to_hf_config(scaled, 7)))) == scaled


def test_absent_fields_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    for architecture, theirs in ((qwen3, transformers.Qwen3Config()), (llama, transformers.LlamaConfig())):
        fields = {key: value for key, value in theirs.to_dict().items() if value is not None}
        numbers = {key: fields[key] for key in NUMBERS if key not in ("head_dim", "num_key_value_heads")}
        assert architecture.from_hf_config(numbers) == architecture.from_hf_config(fields)


def test_fields_of_transformers_4_and_5_say_the_same():
    fields = {**llama.to_hf_config(LLAMA, 0), "rope_theta": 10_000.0, "rope_parameters": None}
    older = {**fields, "rope_theta": 5e5}
    newer = {**fields, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    del newer["rope_theta"]
    assert llama.from_hf_config(older) == llama.from_hf_config(newer) == replace(LLAMA, rope_theta=5e5)
    older, newer = {**older, "rope_scaling": LLAMA3}, {**newer, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}}
    assert llama.from_hf_config(older) == llama.from_hf_config(newer) == replace(LLAMA, rope_theta=5e5,
                                                                                 rope_scaling=SCALING)
    assert llama.from_hf_config({**fields, "num_key_value_heads": None, "head_dim": None}).n_kv_head == 6


REFUSED_BY_BOTH = [
    ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000, not a whole number from 1 to 1,024"),
    ({"num_attention_heads": 0}, "num_attention_heads is 0"), ({"hidden_size": "96"}, "hidden_size is '96'"),
    ({"num_key_value_heads": 4}, "num_attention_heads is 6, not a multiple of num_key_value_heads 4"),
    ({"num_key_value_heads": True}, "num_key_value_heads is True"), ({"head_dim": 15}, "head_dim is 15"),
    ({"vocab_size": 400.0}, "vocab_size is 400.0"), ({"intermediate_size": []}, r"intermediate_size is \[\]"),
    ({"max_position_embeddings": 2**24, "head_dim": 64}, "not at most 4,194,304"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu', not 'silu'"), ({"hidden_act": ["silu"]}, "hidden_act is"),
    ({"attention_bias": True}, "attention_bias is True, not False"),
    ({"quantization_config": {"bits": 4}}, "quantization_config is"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', not true or false"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
    ({"rope_theta": 10**400, "rope_parameters": None}, "rope_theta is 10,000"),
    ({"rope_theta": float("nan"), "rope_parameters": None}, "rope_theta is nan"),
    *(({"rope_scaling": scaling}, "rope_scaling is .*, not of rope_type 'default' or 'llama3'") for scaling in (
        {"type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 8.0}, LLAMA3 | {"rope_type": "longrope"},
        LLAMA3 | {"rope_type": "default"}, LLAMA3 | {"attention_factor": 2.0}, [2])),
    *(({"rope_parameters": rope}, "rope_parameters is .*, not of rope_type 'default' or 'llama3'") for rope in (
        {"rope_type": "default", "partial_rotary_factor": 0.5}, {"rope_type": "yarn"}, {"full_attention": {}})),
    *(({"rope_scaling": LLAMA3 | change}, "rope_scaling is .*, not three numbers from") for change in (
        {"factor": "8"}, {"factor": 0}, {"low_freq_factor": None}, {"high_freq_factor": float("nan")},
        {"high_freq_factor": 1})),
    ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 32.0}},
     "rope_scaling.original_max_position_embeddings is 32.0, not a whole number"),
    ({"rope_scaling": LLAMA3}, "rope_scaling is .*, not the scaling of rope_parameters"),
    ({"partial_rotary_factor": 0.25}, "partial_rotary_factor is 0.25, not 1.0"),
]


@pytest.mark.parametrize(("architecture", "fields", "reason"), [
    *((architecture, *row) for architecture in (qwen3, llama) for row in REFUSED_BY_BOTH),
    (qwen3, {"use_sliding_window": True}, "use_sliding_window is True, not False"),
    (qwen3, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is"),
    (qwen3, {"layer_types": 5}, "layer_types is 5"),
    (llama, {"mlp_bias": True}, "mlp_bias is True, not False"),
    (llama, {"head_dim": None, "hidden_size": 100}, "hidden_size is 100, not a multiple of num_attention_heads 6"),
], ids=lambda value: str(value)[:40])
def test_a_config_that_is_not_computed_exactly_is_refused_by_its_field(architecture, fields, reason):
    config = QWEN3 if architecture is qwen3 else LLAMA
    with pytest.raises(InvalidCheckpoint, match=reason) as caught:
        architecture.from_hf_config({**architecture.to_hf_config(config, 0), **fields})
    assert len(str(caught.value)) < 300


# ---------------------------------------------------------------- tensors


@pytest.mark.parametrize("config", [QWEN3, LLAMA, replace(QWEN3, tie_weights=False, n_kv_head=3)], ids=str)
def test_tensors_come_back_as_they_were_without_padding(config):
    arch = "qwen3" if config.qk_norm else "llama"
    model = make_rotary(arch, **{name: getattr(config, name) for name in ("tie_weights", "n_kv_head")})
    tensors, architecture = model.state_dict(), ARCHITECTURES[arch]
    on_disk = architecture.to_hf_tensors(config, tensors)
    assert on_disk["model.layers.0.self_attn.k_proj.weight"].shape == (16 * config.n_kv_head, 96)
    assert not any("qkv" in name or "gate_up" in name for name in on_disk)
    without_prefix = {name.removeprefix("model."): tensor for name, tensor in on_disk.items()}
    stale = {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    for stored in (on_disk, without_prefix, {**on_disk, **stale}):
        found = {name: torch.cat(parts) for name, parts in architecture.from_hf_tensors(config, stored).items()}
        assert {name: list(tensor.shape) for name, tensor in found.items()} == architecture.shapes(config)
        assert all(torch.equal(tensor, tensors[name][:len(tensor)]) for name, tensor in found.items())


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
@pytest.mark.parametrize(("changes", "reason"), [
    ({"num_key_value_heads": 3}, r"k_proj.weight has shape \[32, 96\], the config asks for \[48, 96\]"),
    ({"intermediate_size": 300}, r"gate_proj.weight has shape \[304, 96\]"),
    ({"num_hidden_layers": 3}, "model.layers.2.self_attn.q_proj.weight is missing"),
    ({"num_hidden_layers": 1}, "model.layers.1.* is not part of this model"),
    ({"vocab_size": 401}, r"embed_tokens.weight has shape \[400, 96\], the config asks for \[401, 96\]"),
    ({"tie_word_embeddings": False}, "lm_head.weight is missing")], ids=str)
def test_tensors_of_another_shape_are_refused_by_their_names(arch, tokenizer_file, tmp_path, changes, reason):
    folder = write_hugging_face_folder(tmp_path / "theirs", make_rotary(arch), tokenizer_file)
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, **changes}))
    with pytest.raises(UserError, match=reason):
        open_model(folder)


# ---------------------------------------------------------------- transformers


def logits_of(model, ids):
    with torch.no_grad():
        found = model(ids)
    return getattr(found, "logits", found)


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
@pytest.mark.parametrize(("tied", "rope"), [(True, {"rope_type": "default"}), (False, LLAMA3)])
def test_a_folder_of_transformers_opens_here(arch, tied, rope, tmp_path):
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 150, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
             "tie_word_embeddings": tied, "rope_parameters": {**rope, "rope_theta": 3e4}}
    kind, head_dim = {"qwen3": ("Qwen3", 20), "llama": ("Llama", 12)}[arch]
    config = getattr(transformers, f"{kind}Config")(**shape, head_dim=head_dim)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # norms, too
            parameter += 0.1 * torch.randn(parameter.shape)
    theirs.save_pretrained(tmp_path)
    model = load_model(tmp_path, torch.device("cpu")).eval()
    ids = torch.randint(0, 150, (2, 64))
    expected = logits_of(theirs, ids)
    assert (logits_of(model, ids) - expected).abs().max() < 1e-5 * expected.abs().max()
    assert not model.head_weight[150:].any()
