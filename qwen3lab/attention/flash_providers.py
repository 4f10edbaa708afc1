"""FlashAttention over pages, from whichever package brings it: one signature, four providers, named, never guessed.

flash_attn_interface        FlashAttention 3 as its authors package it       pages of any size, Hopper
flash_attn                  FlashAttention 2                                 pages of a multiple of 256
vllm.vllm_flash_attn        FlashAttention 3 as vLLM builds it               pages of a multiple of 16, Hopper
torch.nn.attention.varlen   what torch (2.12 and up) itself brings           pages of a multiple of 256

None keeps a cache: each reads k and v [P, S, Hkv, D] where they lie.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch

VLLM_SPLITS = 32  # at most, in a plan: vLLM's own number for a captured step (flash_attn_max_num_splits_for_cuda_graph)


class Varlen(Protocol):
    """q [T, Hq, D] over pages k, v [P, S, Hkv, D] → out [T, Hq, D], causal, aligned to each row's end, scaled by 1/√D.

    cu_seqlens_q [B + 1], seq_lens [B], block_table [B, N]: int32, on q's device. max_query_len and max_len are the
    longest row's queries and keys: host ints, that size the launch.
    """

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        *,
        max_query_len: int,
        max_len: int,
        out: torch.Tensor | None = None,
        plan: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


class Plan(Protocol):
    """How the work of a step's attention is dealt out, which is the same in every layer: to be given to `attend`."""

    def __call__(
        self,
        heads: tuple[int, int, int],
        dtype: torch.dtype,
        page_size: int,
        cu_seqlens_q: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        max_query_len: int,
        max_len: int,
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class Provider:
    """What a name stands for here: `page_multiple` divides every page size that it takes.

    `plan`: None where a provider plans in every call, and takes no plan. `heads` there are (Hq, Hkv, D).
    """

    name: str
    page_multiple: int
    attend: Varlen
    plan: Plan | None = None


@dataclass(frozen=True)
class _Door:
    attend: Varlen
    plan: Plan | None = None


def _unplanned(plan: torch.Tensor | None) -> None:
    if plan is not None:
        raise ValueError("a plan was given to a provider that takes none; see Provider.plan")


def _interface(module: Any) -> _Door:
    def attend(q, k, v, cu_seqlens_q, seq_lens, block_table, *, max_query_len, max_len, out=None, plan=None):  # type: ignore[no-untyped-def]
        _unplanned(plan)
        # Causality is aligned to the end of each row; this door has no max_len, and none for an output.
        result = module.flash_attn_with_kvcache(
            q,
            k,
            v,
            cache_seqlens=seq_lens,
            page_table=block_table,
            cu_seqlens_q=cu_seqlens_q,
            max_seqlen_q=max_query_len,
            causal=True,
        )
        return result if out is None else out.copy_(result)

    return _Door(attend)


def _flash_attn(module: Any) -> _Door:
    def attend(q, k, v, cu_seqlens_q, seq_lens, block_table, *, max_query_len, max_len, out=None, plan=None):  # type: ignore[no-untyped-def]
        _unplanned(plan)
        bounds = torch.nn.functional.pad(seq_lens.cumsum(0, dtype=torch.int32), (1, 0))
        result = module.flash_attn_varlen_func(
            q, k, v, cu_seqlens_q, bounds, max_query_len, max_len, causal=True, block_table=block_table
        )
        return result if out is None else out.copy_(result)

    return _Door(attend)


def _vllm(module: Any) -> _Door:
    def attend(q, k, v, cu_seqlens_q, seq_lens, block_table, *, max_query_len, max_len, out=None, plan=None):  # type: ignore[no-untyped-def]
        return module.flash_attn_varlen_func(
            q,
            k,
            v,
            max_seqlen_q=max_query_len,
            cu_seqlens_q=cu_seqlens_q,
            max_seqlen_k=max_len,
            seqused_k=seq_lens,
            block_table=block_table,
            causal=True,
            out=out,
            fa_version=3,
            scheduler_metadata=plan,
            num_splits=0 if plan is None else VLLM_SPLITS,
        )

    def plan(heads, dtype, page_size, cu_seqlens_q, seq_lens, *, max_query_len, max_len):  # type: ignore[no-untyped-def]
        return module.get_scheduler_metadata(
            seq_lens.shape[0],
            max_query_len,
            max_len,
            *heads,
            cache_seqlens=seq_lens,
            qkv_dtype=dtype,
            cu_seqlens_q=cu_seqlens_q,
            page_size=page_size,
            causal=True,
            num_splits=VLLM_SPLITS,
        )

    return _Door(attend, plan)


def _torch(module: Any) -> _Door:
    if "block_table" not in inspect.signature(module.varlen_attn).parameters:
        raise ImportError(f"torch {torch.__version__} has varlen_attn without block_table; 2.12 and up have it")

    def attend(q, k, v, cu_seqlens_q, seq_lens, block_table, *, max_query_len, max_len, out=None, plan=None):  # type: ignore[no-untyped-def]
        _unplanned(plan)
        options = {
            "window_size": (-1, 0),  # causal
            "enable_gqa": q.shape[1] != k.shape[2],
            "seqused_k": seq_lens,
            "block_table": block_table,
        }
        given = (q, k, v, cu_seqlens_q, None, max_query_len, max_len)
        if out is None:
            return module.varlen_attn(*given, **options)
        module.varlen_attn_out(out, *given, **options)
        return out

    return _Door(attend)


@dataclass(frozen=True)
class _Source:
    door: Callable[[Any], _Door]
    page_multiple: int
    install: str


_SOURCES: Mapping[str, _Source] = MappingProxyType(
    {
        "flash_attn_interface": _Source(_interface, 1, "build it from github.com/Dao-AILab/flash-attention, hopper/"),
        "flash_attn": _Source(_flash_attn, 256, "pip install flash-attn"),
        "vllm.vllm_flash_attn": _Source(_vllm, 16, "pip install vllm"),
        "torch.nn.attention.varlen": _Source(_torch, 256, "pip install 'torch>=2.12'"),
    }
)
PROVIDERS = tuple(_SOURCES)


def named(name: str) -> Provider:
    """That provider. ValueError for a name that is none, ImportError with its install line where it is missing."""
    if name not in _SOURCES:
        raise ValueError(f"flash_provider={name!r}; known: {', '.join(PROVIDERS)}")
    source = _SOURCES[name]
    try:
        door = source.door(importlib.import_module(name))
    except ImportError as error:
        raise ImportError(f"flash_provider={name!r} cannot be loaded ({error}); {source.install}") from error
    return Provider(name, source.page_multiple, door.attend, door.plan)


def first(device: torch.device, page_size: int) -> Provider:
    """The first of PROVIDERS that is installed and reads pages of this size; ImportError naming why each is not."""
    if device.type != "cuda":
        raise ImportError(f"FlashAttention runs on CUDA devices; this is {device}")
    reasons = []
    for name in PROVIDERS:
        try:
            provider = named(name)
        except ImportError as error:
            reasons.append(str(error))
            continue
        if page_size % provider.page_multiple == 0:
            return provider
        reasons.append(f"{name} reads pages of a multiple of {provider.page_multiple}, not {page_size}")
    raise ImportError("no FlashAttention here: " + "; ".join(reasons))
