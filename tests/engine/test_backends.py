"""Whatever computes attention, and whether norm and rotation are fused: the same tokens, no wait, and it is said."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import checkpoints
from oracle import Oracle
from qwen3lab import LLM, SamplingParams
from qwen3lab.attention.paged import PagedAttention
from qwen3lab.attention.torch_ref import TorchAttention
from qwen3lab.config import ABLATIONS, ATTN_BACKENDS

PROMPTS = [[(7 * i + 3 * j) % checkpoints.VOCAB for i in range(n)] for j, n in enumerate((1, 15, 16, 17, 40))]
MAX_TOKENS = 20
PARAMS = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """The chaotic checkpoint with heads of 64, which the kernels take."""
    return checkpoints.chaotic(tmp_path_factory.mktemp("wide"), head_dim=64)


@pytest.fixture(scope="module")
def expected(wide):
    oracle = Oracle(wide)
    return [oracle.greedy(prompt, MAX_TOKENS) for prompt in PROMPTS]


def generated(llm):
    return [list(c.token_ids) for c in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.mark.parametrize("block_size", [16, 32, 256])
@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
@pytest.mark.parametrize("backend", ATTN_BACKENDS)
def test_every_backend_gives_transformers_tokens(wide, expected, backend, fused, block_size):
    llm = LLM(wide, attn_backend=backend, enable_fused_ops=fused, block_size=block_size, num_kv_blocks=40)
    assert generated(llm) == expected
    assert llm.facts.attn_backend == backend


@pytest.mark.parametrize("ablate", ABLATIONS)
def test_what_is_ablated_changes_no_token(wide, expected, ablate):
    llm = LLM(wide, attn_backend="hybrid", ablate=ablate, block_size=16, num_kv_blocks=40)
    assert generated(llm) == expected


@pytest.mark.parametrize("backend", ["flash-attn", "hybrid"])
def test_a_pool_that_preempts_changes_no_token(wide, expected, backend):
    llm = LLM(wide, attn_backend=backend, enable_fused_ops=True, block_size=16, num_kv_blocks=7)
    assert generated(llm) == expected
    assert llm._scheduler.num_preemptions > 0, "the pool never ran dry, so this tests nothing"


def test_a_shared_prefix_changes_no_token_when_the_store_is_fused(wide):
    """A whole-prompt hit computes its last token again, and writes it to the padding page."""
    prompt = PROMPTS[-1][:32]
    options = {"attn_backend": "hybrid", "enable_fused_ops": True, "block_size": 16, "num_kv_blocks": 9}
    llm = LLM(wide, enable_prefix_caching=True, **options)
    first, again = (llm.generate([prompt], PARAMS, use_tqdm=False)[0] for _ in range(2))
    assert again.token_ids == first.token_ids == tuple(Oracle(wide).greedy(prompt, MAX_TOKENS))
    assert again.metrics.num_cached_tokens > 0


def test_hybrid_sends_each_kind_its_way_over_the_engine_s_own_pages(wide, monkeypatch):
    seen = []

    def watched(cls, attend):
        def call(self, q, cache, batch):
            seen.append((cls.__name__, batch.kind.value, cache))
            return attend(self, q, cache, batch)

        return call

    for cls in (TorchAttention, PagedAttention):
        monkeypatch.setattr(cls, "attend", watched(cls, cls.attend))
    llm = LLM(wide, attn_backend="hybrid", block_size=16, num_kv_blocks=40)
    generated(llm)
    assert {(who, kind) for who, kind, _ in seen} == {("TorchAttention", "prefill"), ("PagedAttention", "decode")}
    pages = {(layer.k.data_ptr(), layer.v.data_ptr()) for layer in llm._runner.kv}
    for who in ("TorchAttention", "PagedAttention"):
        assert {(c.k.data_ptr(), c.v.data_ptr()) for name, _, c in seen if name == who} == pages, "one cache for both"


def test_what_ran_is_told(wide):
    llm = LLM(wide, attn_backend="hybrid", enable_fused_ops=True, block_size=16, num_kv_blocks=9)
    llm.generate([PROMPTS[-1]], PARAMS, use_tqdm=False)
    sdpa, decode = (
        "torch.nn.functional.scaled_dot_product_attention",
        "qwen3lab_kernels.paged_decode (Triton interpreter)",
    )
    assert llm.stats == {
        "steps": {"prefill": 1, "decode": MAX_TOKENS - 1},
        "tokens": {"prefill": len(PROMPTS[-1]), "decode": MAX_TOKENS - 1},
        "attn_backend": "hybrid",
        "attn_providers": {"prefill": sdpa, "decode": decode},
        "qk_provider": "qwen3lab::rms_norm_rope_store",
    }
    assert LLM(wide, num_kv_blocks=9).facts.qk_provider == "torch, unfused: not asked for"


def test_the_gate_s_reason_is_told_where_the_chain_runs_instead(chaotic):
    llm = LLM(chaotic, enable_fused_ops=True, num_kv_blocks=9)  # heads of 32
    assert llm.facts.qk_provider == "torch, unfused: head_dim=32, supported 64|128"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"attn_backend": "hybrid"}, r"head_dim=32, supported \(64, 128\); use attn_backend='torch'"),
        ({"attn_backend": "paged"}, "attn_backend='paged', allowed: None, 'torch', 'flash-attn', 'paged-attn'"),
        ({"flash_provider": "flash_attn"}, "only 'flash-attn' and 'hybrid' use one"),
        ({"enable_fused_ops": 1}, "enable_fused_ops=1, allowed: True, False"),
    ],
)
def test_options_that_cannot_be_had_are_refused(chaotic, options, told):
    with pytest.raises(ValueError, match=told):
        LLM(chaotic, **options)


class Waits(TorchFunctionMode):
    """Counts what makes the host wait for a tensor's value."""

    NAMES = frozenset({"item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__"})

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in self.NAMES:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Asks(TorchDispatchMode):
    """Counts the operations that read a value on the host, or whose size depends on one."""

    names: tuple[str, ...] = ()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "equal"):
            self.names += (func.overloadpacket.__name__,)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
def test_a_step_waits_for_the_device_only_to_read_its_tokens(wide, monkeypatch, fused):
    if fused:  # on a CPU the op stores through its specification, which counts the tokens to keep
        monkeypatch.setattr("qwen3lab_kernels.store_kv.reference", _store_without_counting)
    llm = LLM(wide, attn_backend="flash-attn", enable_fused_ops=fused, block_size=16, num_kv_blocks=40)
    for prompt in PROMPTS:
        llm.add_request(prompt, PARAMS)
    for kind in ("prefill", "decode", "decode"):
        with Waits() as waits, Asks() as asks:
            llm.step()
        assert llm.traces[-1].kind.value == kind
        assert (waits.names, asks.names) == (["tolist"], ())


def _store_without_counting(k, v, k_cache, v_cache, slot_mapping):
    slots = slot_mapping.long()
    k_cache.view(-1, *k.shape[1:])[slots] = k
    v_cache.view(-1, *v.shape[1:])[slots] = v


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: whether a kernel waits, only one can tell")
@pytest.mark.parametrize("backend", ["paged-attn", "hybrid", "flash-attn"])
def test_no_kernel_of_a_step_waits_for_the_device(wide, backend):
    llm = LLM(wide, attn_backend=backend, enable_fused_ops=True, dtype="bfloat16")
    generated(llm)  # every kernel is compiled
    for prompt in PROMPTS:
        llm.add_request(prompt, PARAMS)
    forward = llm._runner.model.forward

    def strictly(*args):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return forward(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    llm._runner.model.forward = strictly
    while llm.has_unfinished:
        llm.step()
