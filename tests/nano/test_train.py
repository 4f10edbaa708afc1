"""The trainer learns, resumes to the very same state, exports what transformers computes, and says what it did."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qwen3lab.nano.evaluate import HeldOutTask, evaluate
from qwen3lab.nano.muon import orthogonalise
from qwen3lab.nano.network import Network, rope_table
from qwen3lab.nano.options import TrainOptions
from qwen3lab.nano.shapes import SHAPES
from qwen3lab.nano.train import train


@pytest.fixture(scope="module")
def options(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainOptions:
    return TrainOptions(
        corpus=prepared, out=tmp_path_factory.mktemp("run"), shape="tiny", steps=30, rows=4, row_tokens=192,
        warmup_steps=5, workers=0, log_every=10, evaluate_every=30, seed=3,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(options: TrainOptions) -> Path:
    checkpoint = train(options)
    assert checkpoint is not None
    return checkpoint


def _log(out: Path, event: str) -> list[dict[str, object]]:
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [e for e in entries if e["event"] == event]


def test_the_loss_falls(trained: Path, options: TrainOptions) -> None:
    losses = [e["loss"] for e in _log(options.out, "step")]
    assert losses[-1] < losses[0] - 1.0  # type: ignore[operator]


def test_two_halves_make_the_same_run(trained: Path, options: TrainOptions, tmp_path: Path) -> None:
    halves = replace(options, out=tmp_path, stop_after_s=1e-6)
    calls = 0
    while train(halves) is None:
        calls += 1
        halves = replace(halves, stop_after_s=1e-6 if calls < 3 else 0.0)  # three single steps, then the rest
    one, other = (load_file(out / "state" / "state.safetensors") for out in (options.out, tmp_path))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_is_not_resumed_as_another(trained: Path, options: TrainOptions) -> None:
    with pytest.raises(ValueError, match="matrix_lr"):
        train(replace(options, matrix_lr=0.5))


def test_transformers_computes_the_same_logits(trained: Path, options: TrainOptions) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(str(trained), dtype=torch.float32).eval()
    ours = Network(SHAPES["tiny"])
    weights = {n: w.float() for n, w in load_file(trained / "model.safetensors").items()}
    ours.load_state_dict(weights)
    ids = torch.randint(0, 512, (2, 70), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        got = ours(ids, *rope_table(70, ours.shape.head_dim, ours.shape.rope.theta, torch.device("cpu")))
        expected = theirs(ids).logits
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)


def test_the_card_tells_the_run(trained: Path, options: TrainOptions) -> None:
    card = (trained / "card.md").read_text()
    for fact in (
        "PSF licence",
        "seed 3",
        "30 steps of 4 rows",
        "23,040 tokens",
        "| float32 | quote | all |",
    ):
        assert fact in card


def test_evaluation_counts_what_is_right() -> None:
    class Successor(torch.nn.Module):
        """Says that after token n comes n + 1."""

        shape = SHAPES["tiny"]

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, ids: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(ids + 1, 32).float()

    tasks = [
        HeldOutTask("edit", "small", (1, 2), (3, 4, 5)),  # all right
        HeldOutTask("edit", "small", (9,), (10, 11, 20)),  # the last is wrong
    ]
    by_size = {s.size: s for s in evaluate(Successor(), tasks, torch.float32)}  # type: ignore[arg-type]
    assert by_size["small"].token_accuracy == pytest.approx(5 / 6)
    assert by_size["all"].exact == 0.5 and by_size["all"].answer_tokens == 6


@pytest.mark.parametrize("shape", [(3, 16, 40), (2, 40, 16), (1, 24, 24)])
def test_muon_updates_are_nearly_orthogonal(shape: tuple[int, int, int]) -> None:
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(g).float())
    assert values.min() > 0.3 and values.max() < 1.4


@pytest.mark.parametrize("bad", [{"optimizer": "sgd"}, {"shape": "9b"}, {"steps": 0}, {"evaluate_every": 7}])
def test_bad_options_are_named(bad: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        TrainOptions(corpus=tmp_path, out=tmp_path, **bad)  # type: ignore[arg-type]
