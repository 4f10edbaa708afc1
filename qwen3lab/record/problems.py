"""What verification finds, and the error for whoever asks for a round that did not pass it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with `round`: in `member` (None: the round as a whole), what it is, what to do."""

    round: str
    member: str | None
    what: str
    remedy: str

    def __str__(self) -> str:
        place = f"{self.round}/{self.member}" if self.member else self.round
        return f"{place}: {self.what}; {self.remedy}"


class UnverifiedRound(ValueError):
    """Nothing is read or drawn from a round, or from an index, that does not verify. `problems` says why."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))
