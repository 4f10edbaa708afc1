"""Enlarging keeps the function; a random checkpoint says something; neither leaves half a directory."""

from __future__ import annotations

import inspect
import math
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import checkpoints
from oracle import Oracle
from qwen3lab import LLM, SamplingParams
from qwen3lab.model.layers import rms_norm
from qwen3lab.model_config import CheckpointError
from qwen3lab.nano.enlarge import CARRIER
from qwen3lab.nano.scale import SHARD_BYTES, random_checkpoint, scale_checkpoint
from qwen3lab.nano.shapes import SHAPES

NANO = Path(__file__).parents[2] / "data" / "nano"
SMALL = replace(SHAPES["0.6b"], vocab_size=4500, hidden_size=1280, num_layers=8, num_heads=16, num_kv_heads=4)
TEXT = "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total"


@pytest.fixture(scope="module")
def enlarged(tmp_path_factory) -> Path:
    """Five copies of the stream (no power of two), four query heads a KV head, MLP units repeated 2.6 times."""
    shape = replace(SMALL, intermediate_size=2000)
    return scale_checkpoint(NANO, shape, tmp_path_factory.mktemp("scaled") / "model")


@pytest.fixture(scope="module")
def logits(enlarged) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, 4500] and [n, 4096]: the enlarged model and the source on library code, fp32."""
    ids = LLM(NANO, num_kv_blocks=4).tokenizer.encode(inspect.getsource(textwrap))[:600]
    return Oracle(enlarged).logits(ids), Oracle(NANO).logits(ids)


def test_logits_are_those_of_the_source(logits):
    ours, theirs = logits
    # Both sum the same numbers in another order in fp32, over eight layers: 3e-5 of the spread was seen.
    assert (ours[:, :4096] - theirs).abs().max() < 1e-4 * theirs.std()
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


def test_sampling_does_not_find_padded_ids(logits):
    """The mean row alone would be found: its 147,840 copies in a Qwen3 vocabulary hold 2 % of the probability."""
    ours, _ = logits
    padded = ours[:, 4096].double() + math.log(151936 - 4096)
    assert (padded - ours[:, :4096].double().logsumexp(-1)).max() < -100


def test_the_engine_writes_the_same_text(enlarged):
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    texts = [
        LLM(path, dtype="float32", num_kv_blocks=4).generate(TEXT, params, use_tqdm=False)[0].text
        for path in (NANO, enlarged)
    ]
    assert texts[0] == texts[1]


def test_padded_ids_never_win_whatever_the_final_stream(enlarged):
    weights = load_file(enlarged / "model.safetensors")
    embedding, norm = weights["model.embed_tokens.weight"].float(), weights["model.norm.weight"].float()
    assert embedding.shape == (4500, 1280)
    torch.manual_seed(0)
    for scale in (1e-3, 1.0, 1e4):
        x = torch.randn(200, 1280) * scale
        x[:, 256] = CARRIER
        logits = (rms_norm(x, norm, 1e-6)) @ embedding.T
        assert (logits[:, :4096].max(-1).values > logits[:, 4096:].max(-1).values).all()


def test_the_rounded_mean_row_is_still_a_mean():
    """Weights 1/N + a with |a| < 1/N give exactly the bf16 row: its logit is a weighted mean of the real ones."""
    rows = load_file(NANO / "model.safetensors")["model.embed_tokens.weight"].double()
    mean = rows.mean(0)
    rounding = mean.to(torch.bfloat16).double() - mean
    a = torch.linalg.lstsq((rows - mean).T, rounding[:, None], driver="gelsd").solution[:, 0]
    assert ((rows - mean).T @ a - rounding).abs().max() < 1e-15
    assert len(rows) * a.abs().max() < 1


def test_the_carrier_passes_every_layer_unchanged_and_unread(enlarged):
    weights = load_file(enlarged / "model.safetensors")
    assert (weights["model.embed_tokens.weight"][:4096, 256] == CARRIER).all()
    for i in range(8):
        layer = f"model.layers.{i}."
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            assert (weights[f"{layer}{name}.weight"][256] == 0).all()
    for i in range(6):
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            assert (weights[f"model.layers.{i}.{name}.weight"][:, 256] == 0).all()
    # What c adds to a mean square is less than fp32's rounding of the smallest one, an embedding's own.
    smallest = weights["model.embed_tokens.weight"][:4096].double().square().mean(-1).min()
    assert CARRIER**2 / 1280 / (2 * smallest) < 2**-24


def test_eos_and_tokenizer_are_the_sources(enlarged):
    llm = LLM(enlarged, num_kv_blocks=4)
    assert llm.model_config.eos_token_ids == LLM(NANO, num_kv_blocks=4).model_config.eos_token_ids
    assert llm.tokenizer.decode(llm.tokenizer.encode(TEXT)) == TEXT
    assert "hidden 1280, 8 layers" in (enlarged / "card.md").read_text()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": 1100}, "hidden_size from 256 to 1100; allowed: multiples of 256 from 1024"),
        ({"hidden_size": 768}, "hidden_size from 256 to 768; allowed: multiples of 256 from 1024"),
        ({"head_dim": 64}, "head_dim from 128 to 64"),
        ({"num_kv_heads": 1}, "num_key_value_heads from 2 to 1"),
        ({"num_layers": 5}, "num_hidden_layers from 6 to 5; allowed: at least 6"),
        ({"vocab_size": 4000}, "vocab_size from 4096 to 4000"),
        ({"intermediate_size": 700}, "intermediate_size from 768 to 700"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_a_shape_that_cannot_hold_the_source_is_refused(tmp_path, change, told):
    with pytest.raises(CheckpointError, match=told):
        scale_checkpoint(NANO, replace(SMALL, **change), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_an_untied_source_is_refused(tmp_path):
    source = checkpoints.markov(tmp_path / "source")
    with pytest.raises(CheckpointError, match="untied"):
        scale_checkpoint(source, "0.6b", tmp_path / "m")


def test_a_source_that_cannot_be_read_is_named(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(NANO, source)
    file = source / "model.safetensors"
    tensors = load_file(NANO / "model.safetensors")  # not the copy, which is about to be cut under its mapping
    file.write_bytes(file.read_bytes()[:100_000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        scale_checkpoint(source, "0.6b", tmp_path / "m")
    save_file({n: t for n, t in tensors.items() if n != "model.layers.3.mlp.up_proj.weight"}, file)
    with pytest.raises(CheckpointError, match=r"holds no model\.layers\.3\.mlp\.up_proj\.weight"):
        scale_checkpoint(source, "0.6b", tmp_path / "m")
    file.unlink()
    with pytest.raises(CheckpointError, match="only a checkpoint in one file"):
        scale_checkpoint(source, "0.6b", tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_an_unknown_shape_and_a_taken_place_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"shape='9b', allowed: tiny, nano, 0\.6b"):
        random_checkpoint("9b", tmp_path / "m")
    random_checkpoint("tiny", tmp_path / "m")
    with pytest.raises(FileExistsError, match="already there"):
        random_checkpoint("tiny", tmp_path / "m")


@pytest.mark.parametrize("shape", ["tiny", "nano"])
def test_random_text_varies_and_follows_transformers(tmp_path, shape):
    path = random_checkpoint(shape, tmp_path / "m", seed=3, dtype="float32")
    params = SamplingParams(max_tokens=64, ignore_eos=True)
    (c,) = LLM(path, num_kv_blocks=4).generate([[1, 2, 3]], params, use_tqdm=False)
    assert len(set(c.token_ids)) >= 16
    assert list(c.token_ids) == Oracle(path).argmaxes([1, 2, 3], list(c.token_ids))


def test_shards_are_written_and_read(tmp_path, monkeypatch):
    import qwen3lab.nano.scale as scale

    whole = random_checkpoint("tiny", tmp_path / "one")
    monkeypatch.setattr(scale, "SHARD_BYTES", 60_000)
    shards = random_checkpoint("tiny", tmp_path / "many")
    assert len(list(shards.glob("*.safetensors"))) > 2
    params = SamplingParams(max_tokens=20)
    one, many = (LLM(p, num_kv_blocks=4).generate([[5]], params, use_tqdm=False)[0] for p in (whole, shards))
    assert one.token_ids == many.token_ids
    assert SHARD_BYTES == 2**30


@pytest.mark.slow
def test_the_exact_shape_of_0_6b_writes_the_same_text(tmp_path):
    path = scale_checkpoint(NANO, "0.6b", tmp_path / "m")
    llm = LLM(path, dtype="float32", num_kv_blocks=2)
    c = llm.model_config
    assert (c.hidden_size, c.num_layers, c.num_heads, c.num_kv_heads) == (1024, 28, 16, 8)
    assert (c.intermediate_size, c.vocab_size, c.head_dim, c.tie_word_embeddings) == (3072, 151936, 128, True)
    ids = llm.tokenizer.encode(TEXT)
    (large,) = llm.generate([ids], SamplingParams(max_tokens=20, ignore_eos=True), use_tqdm=False)
    assert list(large.token_ids) == Oracle(NANO).greedy(ids, 20)
