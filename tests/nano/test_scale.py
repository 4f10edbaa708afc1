"""Enlarging keeps the function; a random checkpoint says something; neither leaves half a directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import checkpoints
from oracle import Oracle
from qwen3lab import LLM, SamplingParams
from qwen3lab.config import CheckpointError
from qwen3lab.nano.scale import SHARD_BYTES, random_checkpoint, scale_checkpoint
from qwen3lab.nano.shapes import SHAPES

NANO = Path(__file__).parents[2] / "data" / "nano"
SMALL = replace(SHAPES["0.6b"], vocab_size=4500, hidden_size=768, num_layers=8, num_heads=16, num_kv_heads=4)
TEXT = "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total"


@pytest.fixture(scope="module")
def enlarged(tmp_path_factory) -> Path:
    """Three copies of the stream (no power of two), four query heads a KV head, MLP units repeated 2.6 times."""
    shape = replace(SMALL, intermediate_size=2000)
    return scale_checkpoint(NANO, shape, tmp_path_factory.mktemp("scaled") / "model")


def test_logits_are_those_of_the_source(enlarged):
    ids = LLM(NANO, num_kv_blocks=4).tokenizer.encode(TEXT)
    ours, theirs = Oracle(enlarged).logits(ids), Oracle(NANO).logits(ids)
    spread = theirs.std()
    # Both sum the same numbers in another order in fp32, over eight layers.
    assert (ours[:, :4096] - theirs).abs().max() < 1e-4 * spread
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


def test_the_engine_writes_the_same_text(enlarged):
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    texts = [
        LLM(path, dtype="float32", num_kv_blocks=4).generate(TEXT, params, use_tqdm=False)[0].text
        for path in (NANO, enlarged)
    ]
    assert texts[0] == texts[1]


def test_padded_ids_never_win_whatever_the_hidden_state(enlarged):
    weights = load_file(enlarged / "model.safetensors")
    embedding, norm = weights["model.embed_tokens.weight"].float(), weights["model.norm.weight"].float()
    assert embedding.shape == (4500, 768)
    torch.manual_seed(0)
    for scale in (1e-3, 1.0, 1e3):
        logits = (torch.randn(200, 768) * scale * norm) @ embedding.T
        assert (logits[:, :4096].max(-1).values > logits[:, 4096:].max(-1).values).all()


def test_eos_and_tokenizer_are_the_sources(enlarged):
    llm = LLM(enlarged, num_kv_blocks=4)
    assert llm.model_config.eos_token_ids == LLM(NANO, num_kv_blocks=4).model_config.eos_token_ids
    assert llm.tokenizer.decode(llm.tokenizer.encode(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": 700}, "hidden_size from 256 to 700; allowed: multiples of 256"),
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
    llm = LLM(path, num_kv_blocks=2)
    c = llm.model_config
    assert (c.hidden_size, c.num_layers, c.num_heads, c.num_kv_heads) == (1024, 28, 16, 8)
    assert (c.intermediate_size, c.vocab_size, c.head_dim, c.tie_word_embeddings) == (3072, 151936, 128, True)
    ids = llm.tokenizer.encode(TEXT)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    (large,) = llm.generate([ids], params, use_tqdm=False)
    assert Oracle(NANO).gaps(ids, list(large.token_ids)).max() < 0.25  # bf16: a near tie may fall the other way
