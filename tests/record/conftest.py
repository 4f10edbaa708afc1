"""A small real round, sealed on demand: frames, outputs, raw members, a verdict, a note."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from qwen3lab.record import Round, SealedRound

METRICS = {"e2e_s": {"formula": "last token − arrival", "unit": "s", "of": "request", "aliases": {"vllm": "e2el"}}}
VERDICT: dict[str, Any] = {
    "workload": "w1_single_decode", "metric": "e2e_s", "arm_a": "transformers", "arm_b": "qwen3lab", "ratio": 0.5,
    "ci_low": 0.4, "ci_high": 0.6, "n_blocks": 4, "margin": 0.02, "word": "faster", "tokens": "identical",
}  # fmt: skip


def samples() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "trial_id": [0, 1],
            "arm": ["A", "B"],
            "warmup": [False, True],
            "tpot_s": [0.25, None],
            "token_times_s": [[0.5, 0.75], [1.0]],
        }
    )


def open_round(root: Path, **changes: Any) -> Round:
    options = {"variant": "v01", "profile": "smoke", "question": "Where do we start?", "parameters": {"blocks": 2}}
    return Round.open(**(options | changes), root=root)


def fill(rnd: Round) -> Round:
    rnd.set(machine={"cpu": "some", "cores": 2}, metrics=METRICS, workloads={"w1_single_decode": "0" * 64})
    rnd.set(arms=[{"name": "qwen3lab"}, {"name": "transformers"}], comparison={"seed": 7})
    rnd.add_frame("samples", samples())
    rnd.add_outputs("qwen3lab", {"w1_single_decode": [[5, 6, 7], []]})
    rnd.add_raw("logs/qwen3lab.txt", b"stderr of an arm\n" * 40)
    rnd.add_raw("trace.json", b"{}")
    rnd.add_verdicts([VERDICT])
    rnd.add_note("a round made by a test")
    return rnd


def seal_one(root: Path, **changes: Any) -> SealedRound:
    with open_round(root, **changes) as rnd:
        sealed = fill(rnd).seal()
    assert isinstance(sealed, SealedRound)
    return sealed


@pytest.fixture(autouse=True)
def own_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of these tests seal themselves, whoever runs the tests."""
    monkeypatch.delenv("QWEN3LAB_ROUND_SEALED_BY", raising=False)
    monkeypatch.delenv("QWEN3LAB_ROUND_MARK", raising=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(scope="session")
def opening() -> Callable[..., Round]:
    return open_round


@pytest.fixture(scope="session")
def filling() -> Callable[[Round], Round]:
    return fill


@pytest.fixture(scope="session")
def sealing() -> Callable[..., SealedRound]:
    return seal_one


@pytest.fixture(scope="session")
def verdict() -> dict[str, Any]:
    return dict(VERDICT)
