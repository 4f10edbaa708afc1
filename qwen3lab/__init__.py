"""qwen3lab: a performance-investigation workbook for Qwen3 offline inference, and the engine it investigates.

Reading order: engine/llm.py (the loop: follow one request) → engine/scheduler.py → engine/batch.py → engine/runner.py
→ model/qwen3.py → attention/base.py; then measure/abba.py (how a claim is made) and record/archive.py (how it is kept).

Shape legend, used by every docstring of the package and of `qwen3lab_kernels`:

    T   packed tokens in a step          Hq   query heads            P   pages of the KV cache
    B   rows (sequences) in a step       Hkv  key/value heads        S   page size, in tokens
    Q   query rows per sequence          D    head dimension         N   pages per row of a block table
    L   layers                           H    hidden size            V   vocabulary

Importing `qwen3lab` imports no torch: reports are drawn on machines that have none. `LLM` is loaded at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qwen3lab.config import EngineConfig
    from qwen3lab.engine.llm import LLM
    from qwen3lab.engine.request import Completion, SamplingParams
    from qwen3lab.model_config import ModelConfig

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "EngineConfig", "ModelConfig", "SamplingParams"]

_HOME = {
    "LLM": "qwen3lab.engine.llm",
    "SamplingParams": "qwen3lab.engine.request",
    "Completion": "qwen3lab.engine.request",
    "EngineConfig": "qwen3lab.config",
    "ModelConfig": "qwen3lab.model_config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'qwen3lab' has no attribute {name!r}; it offers {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
