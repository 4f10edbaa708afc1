"""Token comparison: identical, near tie or real, by an oracle that is asked only where the ids differ."""

from __future__ import annotations

import pytest

from qwen3lab.measure import outputs
from qwen3lab.measure.engines import Score, open_driver
from qwen3lab.measure.outputs import Oracle, compare_dumps, compare_many, diff_request, dump, near_tie_limit, worst
from qwen3lab.measure.workloads import Workload, WorkloadRequest

ASKED = WorkloadRequest((5, 9, 2), 6)


def regrets(table):
    """A scorer whose id i has regret table.get(i, 0), with a second best 0.5 below the best."""

    def score(prompt, continuation):
        return [Score(10.0 - table.get(i, 0.0), 10.0, 9.5, 0) for i in continuation]

    return score


def never(prompt, continuation):
    raise AssertionError("identical ids need no oracle")


def test_identical_ids_ask_nobody():
    assert diff_request(0, [1], [4, 5], [4, 5], never, 0.1).word == "identical"


def test_a_near_tie_needs_every_id_of_both_arms_under_the_limit():
    score = regrets({7: 0.09, 8: 0.2})
    near = diff_request(3, [1], [4, 5, 4], [4, 7, 4], score, 0.1)
    assert (near.word, near.request, near.first_divergence, near.token_a, near.token_b) == ("near-tie", 3, 1, 5, 7)
    assert near.top2_gap == pytest.approx(0.5)
    assert (near.regret_a, near.regret_b) == (0.0, pytest.approx(0.09))
    assert diff_request(0, [1], [4, 5, 4], [4, 8, 4], score, 0.1).word == "real"
    # The first difference is a tie, and what comes after it is not.
    later = diff_request(0, [1], [4, 5, 4], [4, 7, 8], score, 0.1)
    assert later.word == "real" and later.worst_regret_b == pytest.approx(0.2)
    # And the same in the other arm.
    assert diff_request(0, [1], [4, 7, 8], [4, 5, 4], score, 0.1).word == "real"


def test_an_output_cut_short_is_a_real_difference():
    cut = diff_request(0, [1], [4, 5, 6], [4, 5], regrets({}), 0.1)
    assert (cut.word, cut.first_divergence) == ("real", 2)
    assert diff_request(0, [1], [4, 5, 6], [4, 7], regrets({}), 0.1).word == "real"


def test_the_gravest_of_several_runs_counts():
    workload = Workload.of("mine", "smoke", [WorkloadRequest((1,), 2), WorkloadRequest((2,), 2)])
    first = ((4, 5), (4, 5))
    others = [((4, 5), (4, 7)), ((4, 5), (4, 8))]
    words = [d.word for d in compare_many(workload, first, others, regrets({7: 0.01, 8: 1.0}), 0.1)]
    assert words == ["identical", "real"]
    assert worst(words) == "real"
    assert worst([d.word for d in compare_many(workload, first, [], never, 0.1)]) == "identical"


def test_the_coarser_dtype_sets_the_limit():
    assert near_tie_limit(["float32", "bfloat16"]) == outputs.NEAR_TIE_LIMITS["bfloat16"]
    assert near_tie_limit(["float32", "float32"]) == outputs.NEAR_TIE_LIMITS["float32"]


@pytest.fixture(scope="module")
def dumped(chaotic, tmp_path_factory):
    """Three folders: fp32 outputs, the same again, and one with an id that no rounding explains."""
    workload = Workload.of("mine", "smoke", [ASKED, WorkloadRequest((8, 8, 1), 6)])
    driver = open_driver("qwen3lab", str(chaotic), {"dtype": "float32", "num_kv_blocks": 512})
    ids = [list(r.token_ids) for r in driver.run(workload.requests, lambda: None)]
    root = tmp_path_factory.mktemp("dumps")
    wrong = [ids[0], [*ids[1][:2], (ids[1][2] + 1) % 512, *ids[1][3:]]]
    for name, out in (("one", ids), ("two", ids), ("wrong", wrong)):
        dump(root / name, workload, name, "float32", out)
    return root


def test_dumps_are_compared_with_the_real_oracle(dumped, chaotic, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    same = compare_dumps(dumped / "one", dumped / "two", chaotic)["mine"]
    assert [d.word for d in same] == ["identical", "identical"]
    differs = compare_dumps(dumped / "one", dumped / "wrong", chaotic)["mine"]
    assert [d.word for d in differs] == ["identical", "real"]
    assert differs[1].first_divergence == 2 and differs[1].regret_a == 0.0 and differs[1].regret_b > 0.001


def test_the_oracle_starts_only_when_asked(chaotic):
    with Oracle(chaotic) as oracle:
        assert oracle._process is None


def test_dumps_of_other_work_are_refused(dumped, tmp_path):
    other = Workload.of("mine", "smoke", [ASKED])
    dump(tmp_path / "other", other, "x", "float32", [[1] * 6])
    with pytest.raises(ValueError, match="answer different prompts"):
        compare_dumps(dumped / "one", tmp_path / "other", "nowhere")
    dump(tmp_path / "odd", Workload.of("odd", "smoke", [ASKED]), "x", "float32", [[1] * 6])
    with pytest.raises(ValueError, match="odd"):
        compare_dumps(dumped / "one", tmp_path / "odd", "nowhere")
    with pytest.raises(ValueError, match="no dumped outputs"):
        compare_dumps(dumped / "one", tmp_path / "nothing", "nowhere")
    (tmp_path / "odd" / "odd.json").write_text("{")
    with pytest.raises(ValueError, match="not a dump"):
        compare_dumps(dumped / "one", tmp_path / "odd", "nowhere")
