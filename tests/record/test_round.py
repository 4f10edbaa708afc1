"""A round's life: opened, filled, sealed or left open; what it refuses on the way."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from qwen3lab.record import SchemaError, SealedRound, UnverifiedRound, latest, rounds, verify, verify_all


def test_what_goes_in_comes_out(data, sealing):
    sealed = sealing(data)
    again = SealedRound.load(sealed.path)
    assert again.sha256 == sealed.sha256
    assert again.record.question == "Where do we start?"
    assert again.record.parameters == {"blocks": 2}
    assert again.record.libraries["python"] == ".".join(map(str, sys.version_info[:3]))
    assert again.outputs() == {"qwen3lab": {"w1_single_decode": [[5, 6, 7], []]}}
    assert again.verdicts[0].word == "faster"
    assert again.executed_notebook is None
    assert again.record.notebook.why_absent
    frame = again.frame("samples")
    assert frame["trial_id"].tolist() == [0, 1]
    assert frame["warmup"].tolist() == [False, True]
    assert np.isnan(frame["tpot_s"][1])
    assert [list(times) for times in frame["token_times_s"]] == [[0.5, 0.75], [1.0]]
    with pytest.raises(KeyError, match=r"no frame 'trials'; it has outputs, samples"):
        again.frame("trials")


def test_the_folder_is_what_the_index_and_sha256sum_say(data, sealing):
    sealed = sealing(data)
    members = {"record.json", "samples.parquet", "outputs.parquet"}
    assert {path.name for path in sealed.path.iterdir()} == members | {"SHA256SUMS"}
    subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=sealed.path, check=True, capture_output=True)
    line = json.loads((data / "index.jsonl").read_text())
    assert line["path"] == str(sealed.path.relative_to(data))
    assert (line["sha256"], line["previous"]) == (sealed.sha256, None)


def test_the_same_samples_are_the_same_bytes(data, sealing):
    one, two = sealing(data), sealing(data)
    for member in ("samples.parquet", "outputs.parquet"):
        assert one.sums[member] == two.sums[member]
    assert b"pandas" not in (one.path / "samples.parquet").read_bytes()


def test_rounds_come_newest_last(data, sealing):
    assert list(rounds(data)) == []
    assert latest(data, "v01") is None
    first, second = sealing(data), sealing(data, variant="v02")
    third = sealing(data, profile="full")
    assert [r.sha256 for r in rounds(data)] == [first.sha256, second.sha256, third.sha256]
    assert latest(data, "v01").sha256 == third.sha256
    assert latest(data, "v01", "smoke").sha256 == first.sha256
    assert latest(data, "v02", "full") is None


def test_an_exception_leaves_the_round_open_and_says_why(data, opening, filling):
    with pytest.raises(ZeroDivisionError), opening(data) as rnd:
        filling(rnd)
        1 / 0  # noqa: B018
    assert rnd.state == "abandoned"
    assert "ZeroDivisionError" in (rnd.folder / "failure.txt").read_text()
    assert json.loads((rnd.folder / "opened.json").read_text())["question"] == "Where do we start?"
    assert not (data / "index.jsonl").exists()
    assert verify_all(data) == []
    assert "not sealed" in verify(rnd.folder)[0].what
    with pytest.raises(UnverifiedRound, match="not sealed"):
        SealedRound.load(rnd.folder)
    with pytest.raises(ValueError, match="abandoned"):
        rnd.seal()


def test_a_block_that_forgets_to_seal_is_told(data, opening):
    with pytest.warns(UserWarning, match="without seal"), opening(data) as rnd:
        rnd.add_note("and then nothing")
    assert not (data / "index.jsonl").exists()


def test_a_sealed_round_takes_nothing_more(data, opening, filling):
    rnd = filling(opening(data))
    rnd.seal()
    for late in (lambda: rnd.add_note("late"), lambda: rnd.set(machine={"a": 1}), rnd.seal):
        with pytest.raises(ValueError, match="is sealed: nothing more goes into it"):
            late()


def test_a_round_without_its_machine_is_not_sealed(data, opening):
    with pytest.raises(ValueError, match="has no machine"), opening(data) as rnd:
        rnd.seal()


@pytest.mark.parametrize(
    ("facts", "error", "words"),
    [
        ({"machin": {}}, TypeError, "unknown fact 'machin'"),
        ({"machine": {"ghz": float("nan")}}, ValueError, "machine.ghz=nan, allowed: finite"),
        ({"machine": {"when": object()}}, ValueError, "machine.when is a object"),
        ({"machine": {1: 2}}, ValueError, "has the key 1, allowed: strings"),
        ({"machine": {"bytes": 2**53}}, ValueError, "within ±"),
        ({"machine": {"name": "\ud800"}}, ValueError, "UTF-8"),
        ({"metrics": {"e2e_s": {"unit": "s"}}}, SchemaError, "metrics.e2e_s.formula: Field required"),
        ({"metrics": {"e2e_s": {"unit": "s", "formula": "f", "x": 1}}}, SchemaError, "metrics.e2e_s.x: Extra inputs"),
        ({"workloads": {"w1": "not a hash"}}, SchemaError, "workloads.w1: .*pattern"),
    ],
)
def test_facts_are_checked_where_they_are_told(data, opening, facts, error, words):
    rnd = opening(data)
    with pytest.raises(error, match=words):
        rnd.set(**facts)


@pytest.mark.parametrize(
    "changes",
    [
        {"variant": "../v01"}, {"variant": ""}, {"variant": "v01\n"}, {"profile": "a/b"}, {"question": ""},
        {"parameters": {"engine": float("nan")}},
    ],
)  # fmt: skip
def test_names_and_parameters_are_checked_before_anything_is_made(data, opening, changes):
    with pytest.raises(ValueError):
        opening(data, **changes)
    assert not data.exists()


@pytest.mark.parametrize(
    ("name", "frame", "words"),
    [
        ("../up", pd.DataFrame({"a": [1]}), "frame name"),
        ("outputs", pd.DataFrame({"a": [1]}), "taken"),
        ("table", {"a": [1]}, "a pandas DataFrame"),
        ("table", pd.DataFrame({"a": [1]}, index=["x"]), "reset_index"),
        ("table", pd.DataFrame([[1, 2]], columns=["a", "a"]), "each once"),
        ("table", pd.DataFrame({"a": [1, "x"]}), "one type"),
    ],
)
def test_frames_that_would_lose_something_are_refused(data, opening, name, frame, words):
    rnd = opening(data)
    with pytest.raises(ValueError, match=words):
        rnd.add_frame(name, frame)
    assert [p.name for p in rnd.folder.iterdir()] == ["opened.json"]


def test_nothing_is_added_twice(data, opening, filling):
    rnd = filling(opening(data))
    with pytest.raises(ValueError, match="never overwritten"):
        rnd.add_frame("samples", pd.DataFrame({"a": [1]}))
    with pytest.raises(ValueError, match="never overwritten"):
        rnd.add_outputs("qwen3lab", {"w1": [[1]]})
    with pytest.raises(ValueError, match="never overwritten"):
        rnd.add_raw("trace.json", b"")


@pytest.mark.parametrize("ids", [[[2**31]], [[-(2**31) - 1]], [["x"]], [[1.5]], [7], []])
def test_outputs_are_token_ids(data, opening, ids):
    with pytest.raises(ValueError):
        opening(data).add_outputs("arm", {"w1": ids})


def test_a_raw_member_that_fails_to_be_written_is_not_there(data, opening, tmp_path):
    rnd = opening(data)
    rnd.add_raw("a.part", b"kept")
    (tmp_path / "big").write_bytes(bytes(20_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match="not taken for whole"):
            rnd.add_raw("a", tmp_path / "big")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(FileNotFoundError, match="absent"):
        rnd.add_raw("b", tmp_path / "absent")
    assert {path.name for path in (rnd.folder / "raw").iterdir()} == {"a.part"}
    rnd.add_raw("a", tmp_path / "big")
    assert (rnd.folder / "raw" / "a.part").read_bytes() == b"kept"


def test_verdicts_are_checked(data, opening, filling, verdict):
    rnd = filling(opening(data))
    for change, words in [
        ({"word": "better"}, "verdicts.0..word: Input should be 'faster'"),
        ({"ratio": float("inf")}, "a metric that is undefined is None"),
        ({"ratio": 0.0}, "greater than 0"),
        ({"surprise": 1}, "Extra inputs"),
    ]:
        with pytest.raises(ValueError, match=words):
            rnd.add_verdicts([verdict | change])
    rnd.add_verdicts([verdict | {"metric": "ttft_s", "ratio": None, "ci_low": None, "ci_high": None}])
    with pytest.raises(SchemaError, match="verdicts are about ttft_s, whose formula is not in metrics"):
        rnd.seal()


def test_reprs_are_escaped(data, opening, filling, verdict):
    evil = "<script>alert(1)</script>"
    rnd = filling(opening(data, question=evil))
    rnd.add_verdicts([verdict | {"workload": evil}])
    open_html = rnd._repr_html_()
    sealed_html = rnd.seal()._repr_html_()
    for page in (open_html, sealed_html):
        assert "<script" not in page
        assert "&lt;script&gt;" in page
    assert "measuring" in open_html
    assert "faster" in sealed_html


def test_the_room_needs_no_torch():
    code = "import sys, qwen3lab.record; sys.exit('torch' in sys.modules or 'qwen3lab.measure' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
