"""Do two arms say the same? Request by request: identical, a near tie, or really different.

Greedy decoding in reduced precision may break a tie otherwise than another kernel does, and from there on the texts go
apart; that is not an error. So a difference is judged by the oracle, transformers in float32, under teacher forcing:
each arm's own ids are fed to it, and the *regret* of an id is the oracle's largest logit at that place less the logit
of the id. Two arms differ by a near tie when no id of either has a regret over the limit: each token is then one that
the float32 model would have chosen but for rounding, after the divergence too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from qwen3lab.measure.arms import Arm, ArmProcess
from qwen3lab.measure.engines import Score
from qwen3lab.measure.trials import Outputs
from qwen3lab.measure.workloads import Workload

TokenWord = Literal["identical", "near-tie", "real", "unchecked"]
WORDS: tuple[TokenWord, ...] = ("identical", "near-tie", "real", "unchecked")

NEAR_TIE_LIMITS = {"float32": 1e-3, "float16": 0.06, "bfloat16": 0.5}
"""Largest regret, in logits, that rounding explains, by the arms' dtype (the coarser of the two). On the shipped model
transformers' own bf16 leaves its float32 by regrets up to 0.42: logits there are 16 to 32, and bf16 steps by 0.125.
fp16 steps by an eighth of that. To be replaced, per model and machine, by what an engine says against itself at other
batch sizes."""

Scorer = Callable[[Sequence[int], Sequence[int]], list[Score]]


@dataclass(frozen=True)
class RequestDiff:
    """One request of one workload. The fields after `word` are None where the ids are identical.

    first_divergence  index of the first output id that differs
    token_a, token_b  the two ids there
    top2_gap          the oracle's largest logit less its second largest there
    regret_a, _b      what each arm's id there lacks to the oracle's largest logit
    worst_regret_a, _b  the largest regret over all of an arm's ids
    """

    request: int
    word: TokenWord
    first_divergence: int | None = None
    token_a: int | None = None
    token_b: int | None = None
    top2_gap: float | None = None
    regret_a: float | None = None
    regret_b: float | None = None
    worst_regret_a: float | None = None
    worst_regret_b: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def worst(words: Sequence[TokenWord]) -> TokenWord:
    """The gravest of `words`; "identical" where there are none."""
    return max(words, key=WORDS.index, default="identical")


def compare_many(
    workload: Workload, first: Outputs, others: Sequence[Outputs], score: Scorer, limit: float
) -> list[RequestDiff]:
    """Each request's gravest difference between the `first` answer and all the others (none: identical)."""
    gravest = [RequestDiff(i, "identical") for i in range(len(workload.requests))]
    for other in others:
        for i, (asked, a, b) in enumerate(zip(workload.requests, first, other, strict=True)):
            diff = diff_request(i, asked.prompt_token_ids, a, b, score, limit)
            gravest[i] = max(gravest[i], diff, key=lambda d: WORDS.index(d.word))
    return gravest


def diff_request(
    request: int, prompt: Sequence[int], a: Sequence[int], b: Sequence[int], score: Scorer, limit: float
) -> RequestDiff:
    """One request. An output that is only the other's beginning differs really: lengths are part of what was asked."""
    if list(a) == list(b):
        return RequestDiff(request, "identical")
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if at is None:
        return RequestDiff(request, "real", first_divergence=min(len(a), len(b)))
    scores_a, scores_b = score(prompt, a), score(prompt, b)
    worst_a = max(s.best - s.chosen for s in scores_a)
    worst_b = max(s.best - s.chosen for s in scores_b)
    here_a, here_b = scores_a[at], scores_b[at]
    return RequestDiff(
        request=request,
        word="near-tie" if max(worst_a, worst_b) <= limit and len(a) == len(b) else "real",
        first_divergence=at,
        token_a=a[at],
        token_b=b[at],
        top2_gap=here_a.best - here_a.second,
        regret_a=here_a.best - here_a.chosen,
        regret_b=here_b.best - here_b.chosen,
        worst_regret_a=worst_a,
        worst_regret_b=worst_b,
    )


class Oracle:
    """transformers in float32, started only when there is something to judge; a context manager."""

    def __init__(self, model: str | Path, threads: int | None = None) -> None:
        self.arm = Arm("oracle", "transformers", model, {"dtype": "float32"}, threads=threads)
        self._process: ArmProcess | None = None
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Score]] = {}

    def score(self, prompt: Sequence[int], continuation: Sequence[int]) -> list[Score]:
        """One Score per id of `continuation`; the same question is asked of the model once."""
        key = (tuple(prompt), tuple(continuation))
        if key not in self._known:
            if self._process is None:
                self._process = ArmProcess(self.arm)
                self._process.wait_ready()
            self._known[key] = self._process.score(prompt, continuation)
        return self._known[key]

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._process is not None:
            self._process.close()


def near_tie_limit(dtypes: Sequence[str]) -> float:
    """The limit for arms of these dtypes."""
    return max(NEAR_TIE_LIMITS[dtype] for dtype in dtypes)


def dump(folder: Path, workload: Workload, arm: str, dtype: str, outputs: Sequence[Sequence[int]]) -> Path:
    """Write one workload's output ids to `folder`/<workload>.json, with what a later comparison must know."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{workload.id}.json"
    content = {
        "workload": workload.id,
        "profile": workload.profile,
        "sha256": workload.sha256,
        "arm": arm,
        "dtype": dtype,
        "prompts": [list(r.prompt_token_ids) for r in workload.requests],
        "outputs": [list(ids) for ids in outputs],
    }
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return path


def compare_dumps(a: Path, b: Path, model: str | Path, limit: float | None = None) -> dict[str, list[RequestDiff]]:
    """Two folders written by `dump`, workload by workload; `model` is the oracle's checkpoint.

    ValueError where a folder holds no dump, where they hold different workloads, or the same of other ids.
    """
    dumps_a, dumps_b = _read_dumps(a), _read_dumps(b)
    if dumps_a.keys() != dumps_b.keys():
        odd = ", ".join(sorted(dumps_a.keys() ^ dumps_b.keys()))
        raise ValueError(
            f"{a} and {b} do not hold the same workloads: {odd} is in one only; dump both with the same --only"
        )
    result = {}
    with Oracle(model) as oracle:
        for id, one in dumps_a.items():
            other = dumps_b[id]
            if one["sha256"] != other["sha256"]:
                raise ValueError(f"{id}: the two dumps answer different prompts ({one['profile']}, {other['profile']})")
            if len(one["outputs"]) != len(other["outputs"]):
                raise ValueError(f"{id}: {len(one['outputs'])} and {len(other['outputs'])} outputs")
            result[id] = [
                diff_request(i, prompt, one["outputs"][i], other["outputs"][i], oracle.score,
                             near_tie_limit([one["dtype"], other["dtype"]]) if limit is None else limit)
                for i, prompt in enumerate(one["prompts"])
            ]  # fmt: skip
    return result


def _read_dumps(folder: Path) -> dict[str, dict[str, Any]]:
    dumps = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            dumps[str(content["workload"])] = content
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not a dump of outputs ({error!r}); write it with --dump-outputs") from None
    if not dumps:
        raise ValueError(f"{folder}: no dumped outputs (*.json); write them with --dump-outputs")
    return dumps
