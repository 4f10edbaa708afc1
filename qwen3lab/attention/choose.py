"""From an option's name to the backend that runs, once, at start-up; what cannot run here raises, and says why."""

from __future__ import annotations

import torch

from qwen3lab.attention import flash_providers
from qwen3lab.attention.base import PAGE_SIZE, AttentionBackend, Heads
from qwen3lab.attention.detours import AskedRoute, CopiedPages
from qwen3lab.attention.flash import FlashAttention
from qwen3lab.attention.hybrid import HybridAttention
from qwen3lab.attention.torch_ref import TorchAttention
from qwen3lab.config import ATTN_BACKENDS, EngineConfig
from qwen3lab.step import StepKind


def choose(
    config: EngineConfig, heads: Heads, page_size: int, dtype: torch.dtype, device: torch.device
) -> AttentionBackend:
    """The backend that `config` asks for. A `flash_provider` that is not there raises ImportError.

    On a CPU, which no FlashAttention serves, torch's own attention takes its part, row by row.
    """
    name, provider = config.attn_backend or "torch", config.flash_provider
    if name == "torch":
        return TorchAttention()
    if name == "paged-attn":
        return _paged(heads, page_size, dtype, device)
    flash = _flash(provider, heads, page_size, dtype, device)
    if name == "flash-attn":
        return flash
    paged = _paged(heads, page_size, dtype, device)
    if config.ablate == "host-route":
        return AskedRoute(prefill=flash, decode=paged)
    hybrid = HybridAttention(prefill=flash, decode=paged)
    return CopiedPages(hybrid) if config.ablate == "kv-view" else hybrid


def here() -> dict[str, str]:
    """What each backend would run on on this machine, with a 0.6B model's heads in bfloat16, or why it cannot."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {}
    for name in ATTN_BACKENDS:
        try:
            backend = choose(
                EngineConfig(attn_backend=name), (16, 8, 128), PAGE_SIZE[device.type], torch.bfloat16, device
            )
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
