"""The command line: typed options, JSON, exit 1 for a failed check and 2 for bad usage, each with a reason."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_notebooks
import made_rounds
import pytest

from qwen3lab import cli, record
from qwen3lab.cli.options import BadUsage, pair, parse_options
from qwen3lab.config import EngineConfig
from qwen3lab.nano.options import TrainOptions
from qwen3lab.report import places

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command line in this process: (exit code, stdout, stderr)."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["qwen3lab", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), said.out, said.err

    return run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cli") / "data"
    made_rounds.seal(root, figures=False)
    return root


def test_engine_options_are_typed_by_the_dataclass() -> None:
    words = ["--attn-backend", "torch", "--max-num-seqs=4", "--gpu-memory-utilization", "0.5"]
    assert parse_options(words, EngineConfig) == {
        "attn_backend": "torch", "max_num_seqs": 4, "gpu_memory_utilization": 0.5,
    }  # fmt: skip
    assert parse_options(["--compile", "--steps", "7"], TrainOptions) == {"compile": True, "steps": 7}
    assert parse_options(["--no-compile"], TrainOptions) == {"compile": False}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-num-sequs", "4"], "no such option: --max-num-sequs; did you mean --max-num-seqs"),
        (["--max-num-seqs", "four"], "--max-num-seqs 'four': not of type int"),
        (["--max-num-seqs"], "option --max-num-seqs needs a value"),
        (["4"], "no such option: 4"),
    ],
)
def test_wrong_engine_options(words: list[str], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        parse_options(words, EngineConfig)


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=1", 1), ("a=true", True), ("a=x", "x"), ("a=null", None), ("a=b=c", "b=c"), ("a=0.5", 0.5), ('a="1"', "1")],
)
def test_pairs_are_json_where_they_can_be(text: str, value: Any) -> None:
    assert pair(text) == ("a", value)


def test_a_pair_has_a_name() -> None:
    with pytest.raises(BadUsage, match="write NAME=VALUE"):
        pair("blocks")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "--attn-bakend", "torch"], "did you mean --attn-backend"),
        (["bench", "--attn-backend", "magic"], "attn_backend='magic'"),
        (["bench", "--only", "w9"], "'w9' is not known"),
        (["bench", "--profile", "huge"], "'huge' is not known"),
        (["bench", "--engine", "llama"], "engine='llama', allowed"),
        (["bench", "--engine", "transformers", "--max-num-seqs", "4"], "is an option of qwen3lab"),
        (["abba", "--metric", "speed", "--only", "w1_single_decode"], "metrics holds 'speed'"),
        (["run", "v99"], "no rung 'v99'"),
        (["run", "v01", "-p", "blokcs=3"], "unknown parameter 'blokcs'"),
        (["run", "v01", "-p", "blocks"], "write NAME=VALUE"),
        (["run", "v01", "--frobnicate"], "No such option"),
        (["verify", "nothing"], "no round 'nothing'"),
        (["verify", "all", "--data", "/nowhere/at/all"], "no such data folder"),
        (["frobnicate"], "No such command"),
    ],
)
def test_bad_usage_exits_with_2_and_says_why(call: Call, words: list[str], message: str) -> None:
    code, _, err = call(*words)
    assert code == 2
    assert message in err


def test_verify_says_verified_and_names_what_is_not(call: Call, data: Path, tmp_path: Path) -> None:
    code, out, _ = call("verify", "--data", data)
    round_id = next(record.rounds(data)).record.round
    assert (code, out.splitlines()[1]) == (0, f"{round_id}: verified")
    assert call("verify", round_id, "--data", data, "--json")[0] == 0

    member = next(data.glob("rounds/*/*/record.json"))
    sound = member.read_bytes()
    member.write_bytes(sound.replace(b"Where", b"There"))
    try:
        code, out, err = call("verify", "all", "--data", data)
        assert code == 1 and f"{round_id}: FAILED" in out and "record.json: changed" in err
        code, out, _ = call("verify", "all", "--data", data, "--json")
        assert code == 1 and json.loads(out)["problems"][0]["member"] == "record.json"
        code, _, err = call("report", "--data", data, "--out", tmp_path)
        assert code == 1 and "record.json: changed" in err
        assert list(tmp_path.iterdir()) == []
    finally:
        member.write_bytes(sound)


def test_report_says_where_it_is(call: Call, data: Path, tmp_path: Path) -> None:
    code, out, _ = call("report", "--data", data, "--out", tmp_path, "--json")
    assert (code, json.loads(out)) == (0, {"report": str(tmp_path / "index.html")})


def test_run_seals_reports_and_ends_with_the_verdicts(call: Call, tmp_path: Path) -> None:
    verdict = {
        "workload": "w1_single_decode", "metric": "wall_s", "arm_a": "transformers", "arm_b": "qwen3lab", "ratio": 0.5,
        "ci_low": 0.4, "ci_high": 0.6, "n_blocks": 3, "margin": 0.05, "word": "faster", "tokens": "identical",
    }  # fmt: skip
    seal = f"rnd.add_verdicts([{verdict}])\nrnd.seal()"
    path = made_notebooks.notebook(tmp_path, made_notebooks.CHECK, made_notebooks.OPEN, seal)
    code, out, _ = call("run", path, "--data", tmp_path / "data", "-p", "blocks=4")
    assert code == 0
    assert out.splitlines() == [
        "v01 · w1_single_decode · wall_s: qwen3lab against transformers ×0.500 [0.400, 0.600] over 3 blocks: faster "
        "(tokens: identical)",
        f"report: {tmp_path / 'reports/index.html'}",
    ]
    assert "faster in 1 of 1 workload." in (tmp_path / "reports/v01.html").read_text(encoding="utf-8")


def test_run_that_fails_exits_with_1_and_says_where_to_look(call: Call, tmp_path: Path) -> None:
    path = made_notebooks.notebook(tmp_path, "1 / 0")
    code, out, err = call("run", path, "--data", tmp_path / "data", "--json")
    assert code == 1
    assert json.loads(out)["report"] is None
    assert "cell 2: ZeroDivisionError" in json.loads(out)["failures"][0] and "What ran of it" in err


@pytest.mark.slow
@pytest.mark.skipif(not places.NANO.is_dir(), reason="data/nano is not there")
def test_bench_dumps_outputs_that_compare_as_identical(call: Call, tmp_path: Path) -> None:
    words = ["bench", "--only", "w1_single_decode", "--repeats", 1, "--dump-outputs", tmp_path, "--max-num-seqs", 2]
    code, out, _ = call(*words, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["arms"][0]["options"]["max_num_seqs"] == 2
    assert {row["metric"] for row in found["summary"]} >= {"wall_s", "ttft_s", "tpot_s", "itl_s"}
    code, out, _ = call("compare-outputs", tmp_path, tmp_path)
    assert (code, out.split()) == (0, ["w1_single_decode", "1", "identical"])
    assert call("compare-outputs", tmp_path, tmp_path / "absent")[0] == 2


def test_random_and_scaled_checkpoints_are_written_once(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "tiny"
    assert call("checkpoint", "random", "--shape", "tiny", out)[:2] == (0, f"{out}\n")
    code, _, err = call("checkpoint", "random", "--shape", "tiny", out)
    assert code == 2 and "already there" in err
    code, _, err = call("checkpoint", "random", "--shape", "huge", tmp_path / "huge")
    assert code == 2 and "shape='huge'" in err
    code, _, err = call("checkpoint", "scale", "--shape", "0.6b", "--source", out, tmp_path / "large")
    assert code == 2 and not (tmp_path / "large").exists(), "its heads are no part of the target's"
    code, _, err = call("checkpoint", "train", "--corpus", tmp_path, "--out", tmp_path / "run", "--stepz", 5)
    assert code == 2 and "did you mean --steps" in err


def test_doctor_reports_its_checks(call: Call) -> None:
    code, out, _ = call("doctor", "--json")
    found = json.loads(out)
    assert set(found) == {"machine", "libraries", "attention", "checks"}
    assert list(found["attention"]) == ["torch", "flash-attn", "paged-attn", "hybrid"]
    assert all("decode: " in told or told.startswith("cannot run: ") for told in found["attention"].values())
    faults = [state for name, state in found["checks"].items() if name != "platform" and state != "in order"]
    assert code == int(bool(faults) or found["checks"]["platform"].startswith("reject"))
