"""A comparison from end to end with real arms, and what it must refuse."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from qwen3lab.measure import abba, session
from qwen3lab.measure.abba import ArmsDiffer, _check_parity, compare
from qwen3lab.measure.arms import Arm, RunResult
from qwen3lab.measure.bench import bench
from qwen3lab.measure.engines import RequestResult
from qwen3lab.measure.health import Health
from qwen3lab.measure.metrics import RequestTimes
from qwen3lab.measure.schedule import Planned, orders
from qwen3lab.measure.trials import Place, Trial, UnequalWork, _check_counts
from qwen3lab.measure.verdict import blocks_of, decide
from qwen3lab.measure.workloads import Workload, WorkloadRequest

FP32 = {"dtype": "float32"}
SHORT = Workload.of("short", "smoke", [WorkloadRequest((5, 9, 2), 6), WorkloadRequest((8, 8, 1, 30), 3)])
ONE = Workload.of("one_token", "smoke", [WorkloadRequest((3, 1, 4, 1, 5), 1)])


@pytest.fixture(scope="module")
def comparison(chaotic):
    patience, session.PATIENCE_S = session.PATIENCE_S, 0.0  # these tests do not care how busy the machine is
    try:
        yield compare(
            Arm("rival", "transformers", chaotic, FP32, threads=1),
            Arm("ours", "qwen3lab", chaotic, FP32, threads=1),
            [SHORT, ONE],
            blocks=2,
            seed=7,
            progress=False,
            metrics=("wall_s", "tpot_s"),
        )
    finally:
        session.PATIENCE_S = patience


def test_a_decided_workload_ends_at_a_look_and_every_trial_is_logged_as_it_runs(chaotic, monkeypatch):
    monkeypatch.setattr(session, "PATIENCE_S", 0.0)
    monkeypatch.setattr(abba, "_decided", lambda log, workload, *rest: workload == "short")
    logged = []
    found = compare(
        Arm("rival", "transformers", chaotic, FP32, threads=1), Arm("ours", "qwen3lab", chaotic, FP32, threads=1),
        [SHORT, ONE], blocks=4, progress=False, looks=(2, 4), log=logged.append,
    )  # fmt: skip
    counted = found.trials[~found.trials["warmup"] & (found.trials["health"] != "reject")]
    assert counted.groupby("workload").size().to_dict() == {"short": 8, "one_token": 16}
    assert {v.estimate.confidence for v in found.verdicts if v.estimate} == {0.975}
    assert json.loads(json.dumps(logged)) == logged, "plain JSON values"
    assert [row["trial_id"] for row in logged] == list(range(len(found.trials)))
    assert [len(r["token_times_s"]) for r in logged[0]["requests"]] in ([6, 3], [1])


def test_what_was_measured_before_an_interrupt_has_been_logged(chaotic, monkeypatch):
    monkeypatch.setattr(session, "PATIENCE_S", 0.0)
    logged = []

    def log(row):
        logged.append(row)
        if len(logged) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(
            Arm("rival", "transformers", chaotic, FP32, threads=1), Arm("ours", "qwen3lab", chaotic, FP32, threads=1),
            [SHORT], blocks=2, progress=False, log=log,
        )  # fmt: skip
    assert [row["block_id"] for row in logged] == [-1, -1, 0, 0, 0, 0]


def test_looks_end_with_the_last_block(chaotic):
    arms = Arm("rival", "transformers", chaotic, FP32), Arm("ours", "qwen3lab", chaotic, FP32)
    with pytest.raises(ValueError, match=r"looks=\[2, 3\], allowed: the last is the number of blocks, 4"):
        compare(*arms, [SHORT], blocks=4, looks=(2, 3))


def test_warm_ups_come_first_and_are_kept(comparison):
    trials = comparison.trials
    warm = trials[trials["warmup"]]
    assert list(warm.index) == [0, 1, 2, 3]
    assert set(zip(warm["workload"], warm["arm"], strict=True)) == {
        (w, a) for w in ("short", "one_token") for a in "AB"
    }
    assert (warm["block_id"] == -1).all() and (warm["slot"] == -1).all()


def test_blocks_ran_in_the_seeded_order(comparison):
    trials = comparison.trials
    assert list(trials["trial_id"]) == list(range(len(trials)))
    for workload in ("short", "one_token"):
        ran = trials[(trials["workload"] == workload) & ~trials["warmup"]]
        blocks = [block for _, block in ran.groupby("block_id", sort=True)]
        # A block that the machine spoilt ran again, at the end of its round, and does not count.
        counted = ["".join(block["arm"]) for block in blocks if "reject" not in set(block["health"])]
        assert counted == orders(2, 7, workload)
        for block in blocks:
            assert list(block["slot"]) == [0, 1, 2, 3]
            ids = list(block["trial_id"])
            assert ids == list(range(ids[0], ids[0] + 4)), "a block's runs follow each other"


def test_each_row_says_what_ran(comparison):
    trials, samples = comparison.trials, comparison.samples
    assert dict(zip(trials["arm"], trials["engine"], strict=True)) == {"A": "rival", "B": "ours"}
    short = trials[trials["workload"] == "short"]
    assert (short["prompt_tokens"] == 7).all() and (short["output_tokens"] == 9).all()
    assert (trials["output_tok_per_s"] * trials["wall_s"]).round(6).isin([9, 1]).all()
    assert set(trials["health"]) <= {"pass", "flag", "reject"}
    assert len(samples) == 2 * len(short) + len(trials[trials["workload"] == "one_token"])
    for row in samples.itertuples():
        assert len(row.token_times_s) == row.output_tokens
        assert row.ttft_s == pytest.approx(row.token_times_s[0] - row.arrival_s)
        assert row.e2e_s >= row.ttft_s >= 0
    one = samples[samples["workload"] == "one_token"]
    assert one["tpot_s"].isna().all() and one["tpot_s"].dtype == float


def test_verdicts_stand_on_the_blocks_and_the_tokens(comparison):
    assert [(v.workload, v.metric) for v in comparison.verdicts] == [
        (w, m) for w in ("short", "one_token") for m in ("wall_s", "tpot_s")
    ]
    for v in comparison.verdicts:
        assert (v.arm_a, v.arm_b, v.tokens) == ("rival", "ours", "identical")
        if (v.workload, v.metric) == ("one_token", "tpot_s"):
            assert v.ratio is None and v.word == "undecided" and "no block has tpot_s" in v.note
        else:
            assert v.n_blocks == 2 and 0 < v.ci_low <= v.ratio <= v.ci_high
    blocks, _ = blocks_of(comparison.log, "short", "wall_s")
    by_hand = comparison.trials.query("workload == 'short' and not warmup and health != 'reject'")
    assert sorted(t for b in blocks for t in b.times_s) == sorted(by_hand["wall_s"]) or len(by_hand) != 8


def test_outputs_are_both_arms_ids(comparison):
    assert set(comparison.outputs) == {"rival", "ours"}
    assert comparison.outputs["rival"] == comparison.outputs["ours"]
    assert [len(ids) for ids in comparison.outputs["ours"]["short"]] == [6, 3]


def test_the_description_is_plain_json_with_everything_a_reader_asks_for(comparison):
    described = json.loads(json.dumps(comparison.describe(), allow_nan=False))
    assert set(described) == {"machine", "libraries", "workloads", "metrics", "arms", "comparison"}
    assert described["workloads"] == {w.id: w.sha256 for w in (SHORT, ONE)}
    assert [a["label"] for a in described["arms"]] == ["A", "B"]
    assert all(a["model"]["sha256"] for a in described["arms"])
    settings = described["comparison"]
    assert settings["seed"] == 7 and settings["differences"]["engine"] == ["transformers", "qwen3lab"]
    assert len(settings["health"]["trials"]) == len(comparison.log)
    assert settings["health"]["at_rest"][0]["when"] == "before loading"
    assert "short" in comparison._repr_html_()


def test_an_arm_alone(chaotic, monkeypatch):
    monkeypatch.setattr(session, "PATIENCE_S", 0.0)
    found = bench(Arm("ours", "qwen3lab", chaotic, FP32, threads=1), [SHORT, ONE], repeats=2, progress=False)
    rows = {(r["workload"], r["metric"]): r for r in found.summary()}
    assert rows["short", "ttft_s"]["n"] >= 4 and rows["short", "ttft_s"]["p50"] > 0
    assert rows["short", "ttft_s"]["p99"] is None, "four values have no 99th percentile"
    assert rows["one_token", "tpot_s"] | {"workload": 0, "metric": 0, "unit": 0} == {
        "workload": 0, "metric": 0, "unit": 0, "n": 0, "p50": None, "p90": None, "p99": None, "max": None,
    }  # fmt: skip
    json.dumps([found.describe(), found.summary()], allow_nan=False)
    assert [len(ids) for ids in found.outputs["short"]] == [6, 3]


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_arms_set_up_otherwise_are_refused_and_the_axis_named():
    a = {"dtype": "float32", "device": "cpu", "threads": 2, "attention": "sdpa", "only_here": 1}
    b = a | {"dtype": "bfloat16", "attention": "torch"}
    with pytest.raises(ArmsDiffer, match=r"dtype float32 and bfloat16;"):
        _check_parity({"A": a, "B": b}, ())
    assert _check_parity({"A": a, "B": b}, ("dtype",)) == {
        "dtype": ["float32", "bfloat16"],
        "attention": ["sdpa", "torch"],
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ("a", "a")}, "both arms are called 'a'"),
        ({"workloads": []}, "at least one"),
        ({"workloads": [ONE, ONE]}, "each once"),
        ({"blocks": 0}, "blocks=0"),
        ({"metrics": ("speed",)}, "'speed', allowed: wall_s"),
        ({"differ": ("colour",)}, "'colour', allowed: dtype"),
    ],
)
def test_what_is_no_comparison_is_refused_before_anything_is_loaded(changes, message):
    one, other = changes.pop("names", ("a", "b"))
    arguments = {"workloads": [ONE], "progress": False} | changes
    with pytest.raises(ValueError, match=message):
        compare(Arm(one, "qwen3lab", "nowhere"), Arm(other, "qwen3lab", "nowhere"), **arguments)


def test_another_number_of_tokens_than_asked_is_refused():
    short = RunResult((RequestResult((1, 2), 0.0, (0.1, 0.2)), RequestResult((1, 2, 3), 0.0, (0.1, 0.2, 0.3))), 0)
    with pytest.raises(UnequalWork, match=r"arm 'x', short, request 0: 2 tokens came back and 6 were asked"):
        _check_counts("x", SHORT, short)


# ── what counts ──────────────────────────────────────────────────────────────────────────────────────────────────────


def trial(block: int, slot: int, arm: str, seconds: float, status="pass") -> Trial:
    times = (RequestTimes(5, 0.0, (seconds,)),)
    return Trial(block * 4 + slot, Place(ONE, arm, block, slot), "e", times, ((1,),), Health(status), 0)


def run_of(block: int, order: str, a: float, b: float, status="pass") -> list[Trial]:
    return [trial(block, s, arm, a if arm == "A" else b, status if s == 2 else "pass") for s, arm in enumerate(order)]


NAMES = ("rival", "ours")


def test_a_spoilt_block_does_not_count_and_a_flagged_one_is_told():
    log = run_of(0, "ABBA", 2.0, 1.0) + run_of(1, "BAAB", 2.0, 1.0, "flag") + run_of(2, "ABBA", 2.0, 9.0, "reject")
    found = decide(log, "one_token", "wall_s", NAMES, "identical", 0.02, 0)
    assert (found.n_blocks, found.ratio, found.word) == (2, pytest.approx(0.5), "faster")
    assert found.note == "1 of 2 blocks with a flagged platform"
    half = decide(log + run_of(3, "ABBA", 1.0, 9.0)[:3], "one_token", "wall_s", NAMES, "identical", 0.02, 0)
    assert half.n_blocks == 2, "a block that was not finished is no block"


def test_no_claim_without_the_tokens():
    log = run_of(0, "ABBA", 2.0, 1.0) + run_of(1, "BAAB", 2.0, 1.0)
    real = decide(log, "one_token", "wall_s", NAMES, "real", 0.02, 0)
    assert (real.word, real.ratio) == ("undecided", pytest.approx(0.5)) and "tokens differ" in real.note
    unchecked = decide(log, "one_token", "wall_s", NAMES, "unchecked", 0.02, 0)
    assert (unchecked.word, unchecked.ratio, unchecked.ci_low) == ("undecided", None, None)
    assert decide(log, "one_token", "wall_s", NAMES, "near-tie", 0.02, 0).word == "faster"


class Rejecting:
    """Stands where an arm's process would: only `Session._trial` looks at it, and that is replaced."""

    pid, threads = 1, 1


def test_a_rejected_block_is_run_again_a_bounded_number_of_times(monkeypatch):
    """The platform is bad throughout: as many repeats as workloads, then what was measured counts, flagged."""
    from tqdm.auto import tqdm

    with tqdm(disable=True) as bar:
        s = session.Session({"A": Rejecting(), "B": Rejecting()}, [ONE], bar)
        monkeypatch.setattr(s, "_trial", lambda place, id: replace(trial(0, 0, "A", 1.0, "reject"), place=place))
        s.run_round([Planned("one_token", 0, "ABBA")])
        s.run_round([Planned("one_token", 1, "BAAB")])
    by_block = {k: {t.health.status for t in s.log if t.place.block_id == k} for k in range(3)}
    assert by_block == {0: {"reject"}, 1: {"flag"}, 2: {"flag"}}
    assert ["".join(t.place.arm for t in s.log if t.place.block_id == k) for k in range(3)] == ["ABBA", "ABBA", "BAAB"]
    assert "no repeats are left" in s.log[-1].health.reasons[-1]


def test_the_control_is_the_arm_against_a_second_process_of_itself(monkeypatch):
    seen = []
    monkeypatch.setattr(abba, "compare", lambda *arguments, **options: seen.append((arguments, options)))
    arm = Arm("ours", "qwen3lab", "nowhere", FP32, threads=1)
    abba.control(arm, [ONE], blocks=4, seed=3)
    assert seen == [((arm, replace(arm, name="ours again"), [ONE], 4), {"seed": 3})]
