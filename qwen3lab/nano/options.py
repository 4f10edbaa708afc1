"""What a training run is told: the recipe's own numbers, and those of this call alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qwen3lab.nano.shapes import SHAPES

# These may differ between two calls of one run; all others make it that run.
_OF_THE_CALL = (
    "corpus", "out", "workers", "device", "compile", "attention", "log_every", "evaluate_every",
    "stop_after_s", "probe_s", "commit",
)  # fmt: skip


@dataclass(frozen=True)
class TrainOptions:
    """`steps` fixes the schedule; `stop_after_s` only ends this call, to be resumed by the next one."""

    corpus: Path
    out: Path
    shape: str = "nano"
    steps: int = 20_000
    rows: int = 64
    row_tokens: int = 2048
    optimizer: str = "muon"  # for the hidden matrices: muon or adamw; the rest is always adamw
    matrix_lr: float = 0.02
    other_lr: float = 3e-3
    warmup_steps: int = 200
    decay_share: float = 0.8  # of the steps, at the end, the learning rate falls linearly to zero
    # Of a token's loss, an answer's being 1. What nobody can predict has the larger gradient by far: at 1 it drowns the
    # last tenths of a per cent of copying, which decide whether an answer of 300 tokens is exact.
    prompt_weight: float = 0.03
    continuation_weight: float = 0.3
    seed: int = 0
    workers: int = 2
    device: str = "cpu"
    compile: bool = False
    attention: str = "flash"  # torch's fused attention: flash or cudnn
    log_every: int = 50
    evaluate_every: int = 2000
    stop_after_s: float = 0.0  # 0: until the last step
    probe_s: float = 0.0  # run this long without saving anything, to learn the speed
    commit: str = "unknown"

    def __post_init__(self) -> None:
        if self.optimizer not in ("muon", "adamw"):
            raise ValueError(f"optimizer={self.optimizer!r}, allowed: muon, adamw")
        if self.attention not in ("flash", "cudnn"):
            raise ValueError(f"attention={self.attention!r}, allowed: flash, cudnn")
        if self.shape not in SHAPES:
            raise ValueError(f"shape={self.shape!r}, allowed: {', '.join(SHAPES)}")
        if self.evaluate_every % self.log_every:
            raise ValueError(f"evaluate_every={self.evaluate_every}, must be a multiple of log_every={self.log_every}")
        for name in ("steps", "rows", "row_tokens", "log_every", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}, must be at least 1")

    def learning_rate_factor(self, step: int) -> float:
        """Up over the warm-up, level, then down in a straight line to zero at the last step."""
        decay_steps = max(1.0, self.decay_share * self.steps)
        return min(1.0, (step + 1) / max(1, self.warmup_steps), (self.steps - step) / decay_steps)

    @property
    def plain(self) -> dict[str, Any]:
        """Every option, as JSON can hold it."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}

    @property
    def identity(self) -> dict[str, Any]:
        """The options that a resumed run must share with the one that it resumes."""
        return {k: v for k, v in self.plain.items() if k not in _OF_THE_CALL}
