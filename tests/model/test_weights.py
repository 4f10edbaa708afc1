"""Checkpoints that cannot be served are refused at load, naming the file, the tensor and the remedy."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

import checkpoints
from qwen3lab import LLM
from qwen3lab.model.weights import resolve
from qwen3lab.model_config import CheckpointError, ModelConfig


def edit_config(path, **changes):
    file = path / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def edit_tensors(path, edit):
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors")


def refusal(path, **options) -> str:
    with pytest.raises(CheckpointError) as caught:
        LLM(path, num_kv_blocks=4, **options)
    return str(caught.value)


@pytest.fixture
def one(tmp_path):
    return checkpoints.chaotic(tmp_path / "model")


@pytest.fixture
def sharded(tmp_path):
    return checkpoints.chaotic(tmp_path / "model", shards=3)


@pytest.mark.parametrize("shard", [1, 2, 3])
def test_a_missing_shard_is_named(sharded, shard):
    name = f"model-{shard:05}-of-00003.safetensors"
    (sharded / name).unlink()
    assert re.search(rf"{name}: named by model.safetensors.index.json and missing", refusal(sharded))


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_shard_is_named(sharded, keep):
    shard = sharded / "model-00002-of-00003.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[: int(len(data) * keep)])
    assert "model-00002-of-00003.safetensors: cannot be read" in refusal(sharded)


def test_an_index_that_lists_what_no_shard_holds(sharded):
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.layers.9.mlp.up_proj.weight"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(content))
    assert "model.layers.9.mlp.up_proj.weight, which is in no shard" in refusal(sharded)


def test_an_index_cannot_point_outside_its_directory(sharded):
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["x"] = "../../etc/passwd"
    index.write_text(json.dumps(content))
    assert "not a plain file name" in refusal(sharded)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weight_map": 3}', "{}"])
def test_an_unreadable_index(sharded, text):
    (sharded / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in refusal(sharded)


def test_a_missing_tensor_is_named(one):
    edit_tensors(one, lambda t: t.pop("model.layers.1.self_attn.k_norm.weight"))
    assert "tensor model.layers.1.self_attn.k_norm.weight is missing" in refusal(one)


def test_an_untied_checkpoint_without_a_head_is_refused(one):
    edit_tensors(one, lambda t: t.pop("lm_head.weight"))
    assert "tensor lm_head.weight is missing" in refusal(one)


def test_a_tied_checkpoint_may_carry_its_head_twice(tmp_path):
    path = checkpoints.echo(tmp_path / "m")
    edit_tensors(path, lambda t: t.update({"lm_head.weight": torch.randn(512, 64)}))
    (c,) = LLM(path, num_kv_blocks=4).generate([[9]], use_tqdm=False)
    assert set(c.token_ids) == {9}


def test_a_wrong_shape_is_told_with_both_shapes(one):
    edit_tensors(one, lambda t: t.update({"model.layers.0.self_attn.q_proj.weight": torch.zeros(64, 64)}))
    assert "q_proj.weight has shape [64, 64], config.json says [128, 64]" in refusal(one)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(one, value):
    edit_tensors(one, lambda t: t["model.layers.1.mlp.up_proj.weight"].__setitem__((3, 4), value))
    assert "model.layers.1.mlp.up_proj.weight holds NaN or infinity" in refusal(one)


def test_weights_that_overflow_the_asked_dtype_are_named(one):
    edit_tensors(one, lambda t: t["model.layers.1.mlp.up_proj.weight"].__setitem__((3, 4), 1e6))
    assert "holds NaN or infinity (as torch.float16)" in refusal(one, dtype="float16")


def test_a_tensor_qwen3_has_no_place_for(one):
    edit_tensors(one, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(128)}))
    assert "model.layers.0.self_attn.q_proj.bias" in refusal(one)


def test_quantised_weights_are_refused(one):
    edit_tensors(one, lambda t: t.update({"model.norm.weight": torch.zeros(64, dtype=torch.int8)}))
    assert "torch.int8; quantised weights" in refusal(one)


def test_pickle_is_never_opened(one):
    (one / "model.safetensors").rename(one / "pytorch_model.bin")
    assert "pytorch_model.bin, which is pickle and could run code; convert it to safetensors" in refusal(one)


def test_no_weights_at_all(one):
    (one / "model.safetensors").unlink()
    assert "no model.safetensors and no model.safetensors.index.json" in refusal(one)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "llama"}, "model_type='llama', supported: 'qwen3'"),
        ({"model_type": "qwen3_moe"}, "model_type='qwen3_moe'"),
        ({"model_type": ...}, "model_type=None"),
        ({"hidden_size": ...}, "key 'hidden_size' is missing"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 does not divide by num_key_value_heads=3"),
        ({"head_dim": 33}, "head_dim=33, must be even"),
        ({"num_hidden_layers": 0}, "num_layers=0"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_theta": ...}, "rope_theta is missing"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "rope_type='longrope'"),
        ({"dtype": "float8_e4m3fn"}, "dtype='float8_e4m3fn'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised checkpoints"),
        ({"vocab_size": "many"}, "a value of the wrong kind"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_config_that_cannot_be_served(one, changes, told):
    edit_config(one, **changes)
    assert told in refusal(one)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_a_config_that_is_not_json(one, text):
    (one / "config.json").write_text(text)
    assert "config.json" in refusal(one)


def test_a_config_of_each_transformers_generation(one):
    flat = ModelConfig.from_dir(one)
    edit_config(one, rope_theta=..., rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})
    nested = ModelConfig.from_dir(one)
    edit_config(one, dtype=..., torch_dtype="float32")
    assert flat == nested == ModelConfig.from_dir(one)


def test_paths_that_are_no_checkpoint(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="no such directory, and not a hub id"):
        resolve(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        LLM(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file; a checkpoint is a directory"):
        resolve(tmp_path / "file")


def test_a_hub_id_without_network_says_so(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="nobody/nothing: no such directory here, and the hub did not give it"):
        resolve("nobody/nothing")


def test_sizes_are_counted_from_the_config(one):
    config = ModelConfig.from_dir(one)
    tensors = load_file(one / "model.safetensors")
    assert config.num_params == sum(t.numel() for t in tensors.values())
    assert config.decode_params == config.num_params - tensors["model.embed_tokens.weight"].numel()
    assert config.kv_bytes_per_token() == 2 * 2 * 2 * 32 * 4
