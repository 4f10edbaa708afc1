"""The drivers in this process: lengths, stops, batches, beats, and options that are refused."""

from __future__ import annotations

import io
import json

import pytest

import checkpoints
from qwen3lab.measure import worker
from qwen3lab.measure.engines import EngineError, open_driver, versions
from qwen3lab.measure.workloads import WorkloadRequest

FP32 = {"dtype": "float32"}
SMALL = {"qwen3lab": FP32 | {"num_kv_blocks": 512}, "transformers": FP32}  # this process poisons all of a pool
MIXED = [
    WorkloadRequest((5, 9, 2, 40, 7, 7, 301), 12),
    WorkloadRequest((17,), 5),
    WorkloadRequest(tuple(range(60, 90)), 9),
    WorkloadRequest((1, 2, 3), 1),
    WorkloadRequest(tuple(range(100, 150)), 4, inject_at_step=4),
]


def quiet() -> None:
    pass


def ids(driver, requests):
    return [r.token_ids for r in driver.run(requests, quiet)]


STALL = [WorkloadRequest((50 + i, 60), 10) for i in range(3)] + [WorkloadRequest(tuple(range(100, 150)), 4, 4)]


@pytest.fixture(scope="module")
def ours(chaotic):
    return open_driver("qwen3lab", str(chaotic), SMALL["qwen3lab"])


@pytest.fixture(scope="module")
def theirs(chaotic):
    return open_driver("transformers", str(chaotic), FP32)


@pytest.mark.parametrize("requests", [MIXED, STALL, MIXED[:1]], ids=["mixed", "stall", "one"])
def test_both_engines_give_the_same_tokens_in_fp32(ours, theirs, requests):
    assert ids(ours, requests) == ids(theirs, requests)
    assert [len(i) for i in ids(ours, requests)] == [r.max_tokens for r in requests]


def test_times_are_in_order_and_after_arrival(ours, theirs):
    for driver in (ours, theirs):
        for r in driver.run(MIXED, quiet):
            assert r.arrival_s <= r.token_times_s[0]
            assert list(r.token_times_s) == sorted(r.token_times_s)


def test_a_late_request_joins_here_and_waits_there(ours, theirs):
    """Continuous batching admits it at its step, a static batch ends first; in both its arrival is at the step."""
    *early, late = ours.run(STALL, quiet)
    assert early[0].token_times_s[3] <= late.arrival_s <= early[0].token_times_s[4]
    assert late.token_times_s[0] < early[0].token_times_s[-1]
    *early, late = theirs.run(STALL, quiet)
    assert late.arrival_s == early[0].token_times_s[3]
    assert late.token_times_s[0] > early[0].token_times_s[-1]


def test_a_request_for_a_step_that_never_comes_arrives_when_the_others_are_done(ours, theirs):
    requests = [WorkloadRequest((5, 6), 3), WorkloadRequest((7, 8), 2, inject_at_step=1000)]
    for driver in (ours, theirs):
        first, late = driver.run(requests, quiet)
        assert late.arrival_s >= first.token_times_s[-1]
        assert len(late.token_ids) == 2


def test_scores_are_the_logits_of_a_forced_continuation(theirs):
    """Greedy's own ids have no regret; another id has, and the best id is named."""
    asked = MIXED[0]
    (greedy,) = ids(theirs, [asked])
    scores = theirs.score(asked.prompt_token_ids, greedy)
    assert len(scores) == len(greedy)
    assert all(s.chosen == s.best and s.best_id == i and s.second < s.best for s, i in zip(scores, greedy, strict=True))
    wrong = (*greedy[:3], (greedy[3] + 1) % 512, *greedy[4:6])
    forced = theirs.score(asked.prompt_token_ids, wrong)
    assert forced[3].best == pytest.approx(scores[3].best, abs=1e-4) and forced[3].chosen < forced[3].best
    assert forced[3].best_id == greedy[3]


def test_more_requests_than_rows_run_in_several_static_batches(chaotic, theirs):
    narrow = open_driver("transformers", str(chaotic), FP32 | {"max_num_seqs": 2})
    found = narrow.run(MIXED, quiet)
    assert [r.token_ids for r in found] == ids(theirs, MIXED)
    assert found[2].token_times_s[0] > found[0].token_times_s[-1]
    assert found[2].arrival_s == found[0].arrival_s  # it was there from the start, and queued


def test_a_row_of_a_static_batch_says_what_it_says_alone(theirs):
    """Left padding, positions and mask: the neighbours' lengths must not show."""
    together = ids(theirs, MIXED)
    assert together == [ids(theirs, [WorkloadRequest(r.prompt_token_ids, r.max_tokens)])[0] for r in MIXED]


def test_prompt_lookup_gives_the_same_tokens_several_a_step(echo, chaotic):
    requests = [WorkloadRequest((7, 8, 9, 7, 8, 9), 12, 0), WorkloadRequest((3, 1, 4, 1, 5), 7, 0)]
    for path, drafts_hold in ((echo, True), (chaotic, False)):
        plain = open_driver("transformers", str(path), FP32)
        lookup = open_driver("transformers", str(path), FP32 | {"prompt_lookup_num_tokens": 3})
        expected, got = (driver.run(requests, lambda: None) for driver in (plain, lookup))
        assert [r.token_ids for r in got] == [r.token_ids for r in expected]
        assert [len(r.token_times_s) for r in got] == [12, 7]
        if drafts_hold:
            assert len(set(got[0].token_times_s)) < 9, "accepted drafts come together"
    assert (
        lookup.describe()["setup"] | {"speculation": "prompt lookup, 3", "max_num_seqs": 1}
        == lookup.describe()["setup"]
    )


@pytest.mark.parametrize("engine", ["qwen3lab", "transformers"])
def test_eos_is_ignored_and_a_sampling_default_is_overruled(tmp_path, engine):
    """Token 10 is EOS and comes third; generation_config would also sample, penalise and stop."""
    generation = {"eos_token_id": [10], "do_sample": True, "temperature": 5.0, "repetition_penalty": 3.0, "top_k": 50}
    path = checkpoints.markov(tmp_path, eos_token_id=10, generation=generation)
    driver = open_driver(engine, str(path), SMALL[engine])
    assert ids(driver, [WorkloadRequest((7,), 8), WorkloadRequest((9,), 3)]) == [tuple(range(8, 16)), (10, 11, 12)]


@pytest.mark.parametrize("engine", ["qwen3lab", "transformers"])
def test_every_engine_step_beats(markov, engine):
    beats = []
    open_driver(engine, str(markov), SMALL[engine]).run([WorkloadRequest((7, 8), 9)], lambda: beats.append(1))
    assert len(beats) == 9


def test_a_beat_is_written_at_most_once_a_second(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(worker, "now_s", lambda: clock[0])
    wire = io.StringIO()
    channel = worker.Channel(wire)
    for _ in range(100):
        clock[0] += 0.03
        channel.beat()
    steps = [json.loads(line)["steps"] for line in wire.getvalue().splitlines()]
    assert steps == [34, 68]


@pytest.mark.parametrize(
    ("engine", "options", "error", "message"),
    [
        ("qwen3lab", {"dtpye": "float32"}, TypeError, "unknown option 'dtpye'"),
        ("transformers", {"dtpye": "float32"}, TypeError, "dtpye"),
        ("transformers", {"dtype": "float8"}, ValueError, r"'float8', allowed: auto, float32"),
        ("transformers", {"max_num_seqs": 0}, ValueError, "max_num_seqs=0"),
        (
            "transformers",
            {"prompt_lookup_num_tokens": 0},
            ValueError,
            "prompt_lookup_num_tokens=0, allowed: at least 1",
        ),
        ("ollama", {}, ValueError, r"'ollama' is not known, allowed: qwen3lab, transformers"),
    ],
)
def test_options_that_do_not_exist_are_refused(chaotic, engine, options, error, message):
    with pytest.raises(error, match=message):
        open_driver(engine, str(chaotic), options)


def test_a_request_the_engine_ends_with_an_error_is_one(tmp_path):
    """Weights so large that the logits overflow: the engine reports it, and the measurement does not go on."""
    config = checkpoints.config()
    tensors = checkpoints.random_tensors(config)
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * 1e38
    driver = open_driver("qwen3lab", str(checkpoints.write(tmp_path, config, tensors)), SMALL["qwen3lab"])
    with pytest.raises(EngineError, match="request 0: the model gave non-finite logits"):
        driver.run([WorkloadRequest((1, 2), 4)], quiet)


def test_an_engine_that_is_no_oracle_and_an_unknown_command_are_answered_with_an_error(ours):
    wire = io.StringIO()
    channel = worker.Channel(wire)
    worker.answer(ours, {"op": "score", "prompt": [1], "continuation": [2]}, channel)
    worker.answer(ours, {"op": "dance"}, channel)
    worker.answer(ours, {"op": "run", "requests": [{"prompt_token_ids": [1, 9999], "max_tokens": 1}]}, channel)
    errors = [json.loads(line)["error"] for line in wire.getvalue().splitlines()]
    assert errors[0] == "EngineError: qwen3lab cannot score; the oracle is transformers"
    assert "'dance' is not known, allowed: run, score" in errors[1]
    assert errors[2].startswith("KeyError")
    assert ids(ours, MIXED[:1]), "and it serves the next"


def test_versions_leave_out_what_is_not_installed():
    assert set(versions("torch", "no-such-package-here")) == {"torch"}
