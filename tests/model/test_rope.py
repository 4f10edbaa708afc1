"""Every form of rotary embedding a Qwen3 checkpoint may ask for, at every position, against transformers' own table."""

from __future__ import annotations

import pytest
import torch

import checkpoints
from oracle import Oracle
from qwen3lab import LLM, SamplingParams
from qwen3lab.model.rope import RotaryEmbedding, rotate
from qwen3lab.model_config import ModelConfig

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
FORMS = {
    "plain": {"rope_theta": 1e6},
    "theta inside": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "yarn beside theta": {"rope_theta": 1e4, "rope_scaling": YARN},
    "yarn, older key": {"rope_theta": 1e4, "rope_scaling": {"type": "yarn"} | {k: YARN[k] for k in list(YARN)[1:]}},
    "yarn, theta inside": {"rope_parameters": YARN | {"rope_theta": 1e6}},
    "yarn, given magnitude": {"rope_parameters": YARN | {"rope_theta": 1e4, "attention_factor": 1.3}},
    "yarn, mscale": {"rope_parameters": YARN | {"rope_theta": 1e4, "mscale": 0.8, "mscale_all_dim": 0.4}},
    "yarn, betas": {"rope_parameters": YARN | {"rope_theta": 1e4, "beta_fast": 16, "beta_slow": 2, "truncate": False}},
}


def config(**changes):
    raw = {k: v for k, v in checkpoints.config().items() if k != "rope_theta"}
    return raw | {"max_position_embeddings": 1024} | changes


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_table_is_that_of_transformers(form):
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    raw = config(**form)
    theirs = Qwen3RotaryEmbedding(Qwen3Config(**{k: v for k, v in raw.items() if k != "architectures"}))
    positions = torch.arange(1024)
    cos, sin = theirs(torch.zeros(1), positions[None])
    ours = RotaryEmbedding(ModelConfig.from_dict(raw).rope, 32, 1024, torch.device("cpu"))
    budget = 1024 * 2**-24  # an angle of up to 1024 radians, rounded once more or less on its way through fp32
    torch.testing.assert_close(ours.cos, cos[0, :, :16], rtol=0, atol=budget)
    torch.testing.assert_close(ours.sin, sin[0, :, :16], rtol=0, atol=budget)


def test_rotation_keeps_lengths_and_depends_on_distance_only():
    rotary = RotaryEmbedding(ModelConfig.from_dict(config(rope_theta=1e4)).rope, 32, 64, torch.device("cpu"))
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 32), torch.randn(1, 1, 32)

    def at(x, position):
        return rotate(x, *rotary.at(torch.tensor([position])))

    assert at(q, 41).norm().item() == pytest.approx(q.norm().item(), rel=1e-6)
    near, far = (at(q, p + 5) * at(k, p) for p in (0, 50))
    assert near.sum().item() == pytest.approx(far.sum().item(), abs=1e-4)


def test_yarn_admits_its_stretched_context_and_follows_transformers_there(tmp_path):
    yarn = {"rope_theta": 1e4, "rope_scaling": YARN | {"original_max_position_embeddings": 64}}
    path = checkpoints.chaotic(tmp_path / "m", **yarn, max_position_embeddings=80)
    llm = LLM(path, num_kv_blocks=30)
    assert llm.facts.max_model_len == 256
    prompt = [i * 7 % checkpoints.VOCAB for i in range(230)]
    (c,) = llm.generate([prompt], SamplingParams(max_tokens=100, ignore_eos=True), use_tqdm=False)
    assert len(c.token_ids) == 26
    assert list(c.token_ids) == Oracle(path).argmaxes(prompt, list(c.token_ids))
    with pytest.raises(ValueError, match="max_model_len=257, allowed: up to 256"):
        LLM(path, num_kv_blocks=30, max_model_len=257)


@pytest.mark.parametrize("rope_type", ["linear", "dynamic", "llama3", "longrope", "su"])
def test_other_types_are_refused_by_name(rope_type):
    with pytest.raises(ValueError, match=f"rope_type='{rope_type}', supported: default, yarn"):
        ModelConfig.from_dict(config(rope_theta=1e4, rope_scaling={"rope_type": rope_type, "factor": 2.0}))
