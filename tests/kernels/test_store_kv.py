"""store_kv: every key and value lands in its slot, and nothing else of the pages is touched."""

from __future__ import annotations

import pytest
import torch

from qwen3lab_kernels import store_kv
from qwen3lab_kernels.cost import Cost


def strided(device, dtype, tokens, heads, dim):
    """k, v as they lie in a qkv projection, with a q head before them."""
    qkv = torch.randn(tokens, (1 + 2 * heads) * dim, device=device).to(dtype).unflatten(1, (-1, dim))
    return qkv[:, 1 : 1 + heads], qkv[:, 1 + heads :]


def pages(device, dtype, num_pages, page_size, heads, dim):
    """Poisoned pages, k's and v's in one tensor as some engines keep them."""
    both = torch.full((num_pages, 2, page_size, heads, dim), float("nan"), device=device, dtype=dtype)
    return both, both[:, 0], both[:, 1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("heads", "dim", "page_size", "slots"),
    [
        (8, 128, 16, [15, 16, 31, -1, 0]),  # the last of a page, the first of the next
        (1, 64, 4, [7]),
        (3, 96, 5, [-1, 9, 10, 4]),
        (11, 64, 3, [-1, -1]),
    ],
)
def test_each_token_goes_to_its_slot_alone(device, dtype, heads, dim, page_size, slots):
    torch.manual_seed(0)
    k, v = strided(device, dtype, len(slots), heads, dim)
    both, k_cache, v_cache = pages(device, dtype, 4, page_size, heads, dim)
    slot_mapping = torch.tensor(slots, dtype=torch.int32, device=device)
    expected = both.clone()
    for t, slot in enumerate(slots):
        if slot >= 0:
            expected[slot // page_size, 0, slot % page_size] = k[t]
            expected[slot // page_size, 1, slot % page_size] = v[t]
    from_reference = both.clone()
    store_kv.reference(k, v, from_reference[:, 0], from_reference[:, 1], slot_mapping)
    store_kv.store_kv(k, v, k_cache, v_cache, slot_mapping)
    assert torch.allclose(both, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.allclose(from_reference, expected, rtol=0, atol=0, equal_nan=True)


def test_pages_and_tokens_beyond_2_to_the_31(device):
    """Two pages and two tokens, each pair 2³¹ values and more apart in memory that is reserved and never touched."""
    far = 2**31 + 64
    tensors = []
    for shape in [(2, 1, 64), (2, 1, 64), (2, 2, 1, 64), (2, 2, 1, 64)]:
        storage = torch.UntypedStorage(2 * (far + 256), device=device)  # not torch.empty, which tests fill
        stride = (far, *[64] * (len(shape) - 2), 1)
        tensors.append(torch.tensor([], dtype=torch.bfloat16, device=device).set_(storage, 0, shape, stride))
    k, v, k_cache, v_cache = tensors
    k.copy_(torch.randn(2, 1, 64))
    v.copy_(torch.randn(2, 1, 64))
    store_kv.store_kv(k, v, k_cache, v_cache, torch.tensor([3, 0], dtype=torch.int32, device=device))
    assert torch.equal(k_cache[1, 1], k[0]) and torch.equal(v_cache[1, 1], v[0])
    assert torch.equal(k_cache[0, 0], k[1]) and torch.equal(v_cache[0, 0], v[1])


def test_no_tokens_is_nothing_to_do(device):
    k, v = strided(device, torch.bfloat16, 0, 2, 64)
    both, k_cache, v_cache = pages(device, torch.bfloat16, 1, 4, 2, 64)
    store_kv.store_kv(k, v, k_cache, v_cache, torch.zeros(0, dtype=torch.int32, device=device))
    assert both.isnan().all()


def test_what_does_not_fit_is_named(device):
    k, v = strided(device, torch.bfloat16, 2, 2, 64)
    _, kc, vc = pages(device, torch.bfloat16, 1, 4, 2, 64)
    slots = torch.zeros(2, dtype=torch.int32, device=device)
    for args, told in [
        ((k, v[:, :1], kc, vc, slots), r"v \(2, 1, 64\)"),
        ((k, v.transpose(1, 2), kc, vc, slots), "last stride 1"),
        ((k.int(), v.int(), kc, vc, slots), "k torch.int32"),
        ((k.half(), v.half(), kc, vc, slots), "k_cache is torch.bfloat16"),
        ((k, v, kc[..., :1, :], vc, slots), r"k_cache is \(1, 4, 1, 64\)"),
        ((k, v, kc, vc[:, :2], slots), r"v_cache is \(1, 2, 2, 64\)"),
        ((k, v, kc, vc, slots.long()), "slot_mapping is .* torch.int64"),
        ((k, v, kc, vc, slots[:1]), r"wanted int32 \[2\]"),
    ]:
        with pytest.raises(ValueError, match="store_kv: .*" + told):
            store_kv.store_kv(*args)


def test_cost_counts_each_byte_once():
    assert store_kv.cost(10, 8, 128) == Cost(2 * 10 * 8 * 128 * 2 + 40, 2 * 10 * 8 * 128 * 2, 0)
