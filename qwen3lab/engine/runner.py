"""The only place where a plan meets the device: weights, KV pages, one forward, one sampling."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from qwen3lab.attention.base import PAGE_SIZE, LayerCache
from qwen3lab.attention.choose import choose as choose_attention
from qwen3lab.config import EngineConfig
from qwen3lab.engine import batch as batches
from qwen3lab.engine.sampler import Sampled, sample
from qwen3lab.engine.scheduler import StepPlan
from qwen3lab.model import linear, qk, weights
from qwen3lab.model.qwen3 import Qwen3
from qwen3lab.model.rope import RotaryEmbedding
from qwen3lab.model_config import ModelConfig
from qwen3lab.step import StepKind

GIB = 2**30
HOST_POOL_BYTES = 2 * GIB  # most a KV pool takes of a CPU's memory unless num_kv_blocks says otherwise


@dataclass(frozen=True)
class EngineFacts:
    """What start-up found and chose; recorded with every measurement."""

    device: str
    device_name: str
    dtype: str
    attn_backend: str
    attn_providers: dict[str, str]  # kind of step → what computes its attention
    qk_provider: str
    linear_provider: str
    mode: str
    page_size: int
    num_pages: int
    kv_pool_bytes: int
    weight_bytes: int
    max_model_len: int
    threads: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Runner:
    """Holds the model and its KV pages on one device and runs plans on them."""

    def __init__(self, path: Path, model_config: ModelConfig, config: EngineConfig) -> None:
        self.device = _device(config.device)
        self.dtype = getattr(torch, model_config.dtype if config.dtype == "auto" else config.dtype)
        self.page_size = config.block_size or PAGE_SIZE[self.device.type]
        max_model_len = config.max_model_len or model_config.max_context
        if max_model_len > model_config.max_context:
            raise ValueError(
                f"max_model_len={max_model_len}, allowed: up to {model_config.max_context}, the longest context that "
                "the checkpoint's max_position_embeddings and rope_parameters serve"
            )
        with torch.inference_mode():
            product = linear.choose(self.device, self.dtype)
            loaded = weights.load(path, model_config, self.dtype, self.device, product.pack)
            rotary = RotaryEmbedding(model_config.rope, model_config.head_dim, max_model_len, self.device)
            heads = model_config.num_heads, model_config.num_kv_heads, model_config.head_dim
            attention = choose_attention(config, heads, self.page_size, self.dtype, self.device)
            query_key = qk.choose(model_config, rotary, config.enable_fused_ops, self.dtype)
            self.model = Qwen3(model_config, loaded, query_key, attention, product)
            page_bytes = self.page_size * model_config.kv_bytes_per_token(str(self.dtype).removeprefix("torch."))
            num_pages = pool_pages(config, page_bytes, self.page_size, max_model_len, self.device)
            shape = (num_pages, self.page_size, model_config.num_kv_heads, model_config.head_dim)
            self.kv = [
                LayerCache(*(torch.empty(shape, dtype=self.dtype, device=self.device) for _ in "kv"))
                for _ in range(model_config.num_layers)
            ]
        self.facts = EngineFacts(
            device=str(self.device),
            device_name=torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU",
            dtype=str(self.dtype).removeprefix("torch."),
            attn_backend=attention.name,
            attn_providers={kind.value: attention.provider(kind) for kind in StepKind},
            qk_provider=query_key.provider,
            linear_provider=self.model.linear.provider,
            mode="eager",
            page_size=self.page_size,
            num_pages=num_pages,
            kv_pool_bytes=num_pages * page_bytes,
            weight_bytes=model_config.num_params * self.dtype.itemsize,
            max_model_len=max_model_len,
            threads=torch.get_num_threads(),
        )

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[Sampled]:
        """One step: the next id of every row of `plan`, read back to the host."""
        batch = batches.build(plan, self.page_size, self.device)
        logits = self.model.forward(batch, self.kv)
        return sample(logits, [row.request for row in plan.rows])


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={name!r}, and this torch ({torch.__version__}) sees no CUDA device; use device='cpu'")
    return torch.device(name)


def pool_pages(config: EngineConfig, page_bytes: int, page_size: int, max_model_len: int, device: torch.device) -> int:
    """Pages of the KV pool, the reserved one included.

    Given by num_kv_blocks (usable pages); else what every row at full length would need, as far as memory goes: on a
    card, gpu_memory_utilization of it less what this process holds, and no more than is free; on a host, a quarter of
    what is free, at most HOST_POOL_BYTES.
    """
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks + 1
    wanted = config.max_num_seqs * -(-max_model_len // page_size) + 1
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        budget = min(int(total * config.gpu_memory_utilization) - torch.cuda.memory_reserved(device), free)
    else:
        budget = min(psutil.virtual_memory().available // 4, HOST_POOL_BYTES)
    pages = min(wanted, budget // page_bytes)
    if pages < 2:
        raise ValueError(
            f"{budget / GIB:.2f} GiB are left for the KV pool, and one page takes {page_bytes / GIB:.4f} GiB; "
            "raise gpu_memory_utilization, free memory, or set num_kv_blocks"
        )
    return pages
