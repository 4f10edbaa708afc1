"""From an option's name to the backend that runs, once, at start-up; what cannot run here raises, and says why."""

from __future__ import annotations

import torch

from qwen3lab.attention import flash_providers
from qwen3lab.attention.base import PAGE_SIZE, AttentionBackend, Heads
from qwen3lab.attention.flash import FlashAttention
from qwen3lab.attention.hybrid import HybridAttention
from qwen3lab.attention.torch_ref import TorchAttention
from qwen3lab.config import ATTN_BACKENDS
from qwen3lab.step import StepKind


def choose(
    name: str | None, flash_provider: str | None, heads: Heads, page_size: int, dtype: torch.dtype, device: torch.device
) -> AttentionBackend:
    """The backend of that name; None is "torch". A `flash_provider` that is not there raises ImportError.

    On a CPU, which no FlashAttention serves, torch's own attention takes its part, row by row.
    """
    if flash_provider is not None and name not in ("flash-attn", "hybrid"):
        raise ValueError(
            f"flash_provider={flash_provider!r} with attn_backend={name!r}: only 'flash-attn' and 'hybrid' use one"
        )
    if name in (None, "torch"):
        return TorchAttention()
    if name == "paged-attn":
        return _paged(heads, page_size, dtype, device)
    if name == "flash-attn":
        return _flash(flash_provider, heads, page_size, dtype, device)
    if name == "hybrid":
        return HybridAttention(
            prefill=_flash(flash_provider, heads, page_size, dtype, device),
            decode=_paged(heads, page_size, dtype, device),
        )
    raise ValueError(f"attn_backend={name!r}; known: {', '.join(ATTN_BACKENDS)}")


def here() -> dict[str, str]:
    """What each backend would run on on this machine, with a 0.6B model's heads in bfloat16, or why it cannot."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {}
    for name in ATTN_BACKENDS:
        try:
            backend = choose(name, None, (16, 8, 128), PAGE_SIZE[device.type], torch.bfloat16, device)
        except (ValueError, ImportError) as error:
            found[name] = f"cannot run: {error}"
        else:
            found[name] = "; ".join(f"{kind.value}: {backend.provider(kind)}" for kind in StepKind)
    return found


def _paged(heads: Heads, page_size: int, dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    from qwen3lab.attention.paged import PagedAttention  # brings Triton, which the plain path does not need

    return PagedAttention(heads, page_size, dtype, device)


def _flash(
    provider: str | None, heads: Heads, page_size: int, dtype: torch.dtype, device: torch.device
) -> AttentionBackend:
    if device.type == "cpu" and provider is None:
        return TorchAttention("flash-attn")
    if provider is None:
        return FlashAttention(flash_providers.first(device, page_size), heads, page_size, dtype)
    if device.type != "cuda":
        raise ValueError(f"flash_provider={provider!r} runs on CUDA devices; this is {device}; leave it out")
    return FlashAttention(flash_providers.named(provider), heads, page_size, dtype)
