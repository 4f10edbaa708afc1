"""What every room says about a step: its kind, known on the host before launch, and its trace, kept after it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class StepKind(Enum):
    PREFILL = "prefill"  # whole prompts
    DECODE = "decode"  # one token a row


@dataclass(frozen=True)
class StepTrace:
    """One step as it ran. Times are seconds on time.perf_counter."""

    kind: StepKind
    rows: int
    tokens: int
    kv_tokens: int  # keys read, summed over rows
    started_s: float
    finished_s: float
    mode: str = "eager"

    @property
    def duration_s(self) -> float:
        return self.finished_s - self.started_s
