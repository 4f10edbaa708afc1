"""What an operation must move and compute: the numerators of every roofline share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The least work an implementation can do, each operand read once and each result written once."""

    bytes_read: int
    bytes_written: int
    flops: int

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes_read + other.bytes_read, self.bytes_written + other.bytes_written, self.flops + other.flops
        )
