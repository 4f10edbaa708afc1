"""Every case of the kernel grids, at sizes the interpreter can do: arms right, rows whole, a wrong arm refused."""

import json
import math
import time
from dataclasses import replace

import pytest
import torch

from qwen3lab.measure import attention_cases, kernel_grid, kernel_sizes, projection_cases
from qwen3lab.measure.kernel_timing import Ceilings, Clock, copies
from qwen3lab.nano.shapes import SHAPES, config_json

CPU = torch.device("cpu")
CEILINGS = Ceilings(read_gbps=100.0, copy_gbps=80.0, product_tflops=2.0)
SHAPE = SHAPES["nano"]
SMALL = replace(SHAPE, hidden_size=64, intermediate_size=96, vocab_size=250, num_heads=2, num_kv_heads=1, head_dim=64)
CASES = {
    "decode": lambda: attention_cases.decode(SHAPE, 2, 21, 16, 1, CPU, torch.float32),
    "verify": lambda: attention_cases.decode(SHAPE, 2, 21, 16, 3, CPU, torch.float32),
    "prefill": lambda: attention_cases.prefill(SHAPE, 18, 18, 16, CPU, torch.float32),
    "chunk": lambda: attention_cases.prefill(SHAPE, 5, 23, 16, CPU, torch.float32),
    "step": lambda: attention_cases.step(SHAPE, 2, 21, 16, CPU, torch.float32),
    "rope": lambda: projection_cases.rope(SHAPE, 3, CPU, torch.float32),
} | {
    f"{name} × {rows}": lambda name=name, rows=rows: projection_cases.linear(SMALL, name, rows, CPU, torch.float32)
    for name in projection_cases.LINEARS
    for rows in (1, 4)
}


def quick(*cases, **settings):
    return kernel_grid.measure(cases, CEILINGS, budget_ms=1, **{"blocks": 2, **settings})


@pytest.mark.parametrize("name", CASES)
def test_every_arm_is_right_and_has_its_row(name):
    torch.manual_seed(0)
    case = CASES[name]()
    grid = quick(case)
    rows = grid.rows
    checked = rows[rows.error.notna()]
    assert set(checked.arm) == {"qwen3lab", "qwen3lab in two" if name == "step" else "torch"}
    assert (checked.error <= kernel_grid.ERROR_ALLOWED[torch.float32]).all()
    for column, value in case.size.items():
        assert (rows[column] == value).all()
    ours = checked[checked.arm.str.startswith("qwen3lab")]
    assert set(ours.reason) == {kernel_grid.INTERPRETED}, "an interpreter's time is not a kernel's"
    assert not set(grid.times.arm) & set(ours.arm)


@pytest.mark.parametrize("name", ["prefill", "decode", "rope"])
def test_a_time_becomes_the_rate_of_the_least_work_and_its_share(name):
    case = CASES[name]()
    rows = quick(case).rows
    ran = rows[rows.arm == "torch"].iloc[0]
    assert ran.gbps * ran.time_us / 1e6 == pytest.approx(case.cost.bytes_moved / 1e9)
    assert ran.tflops * ran.time_us / 1e6 == pytest.approx(case.cost.flops / 1e12)
    rate, ceiling = {"read": (ran.gbps, 100.0), "copy": (ran.gbps, 80.0), "product": (ran.tflops, 2.0)}[case.bound]
    assert ran.share == pytest.approx(rate / ceiling) == pytest.approx(ran.floor_us / ran.time_us)
    assert ran.low_us <= ran.time_us <= ran.high_us


def slow(us):
    """A call of about so many µs."""

    def call():
        end = time.perf_counter() + us / 1e6
        while time.perf_counter() < end:
            pass
        return torch.zeros(1)

    return [call]


def test_ours_is_judged_against_each_rival_of_every_case_and_over_each_kind(monkeypatch):
    monkeypatch.setattr(kernel_grid, "_can_be_timed", lambda case, arm: True)
    plain = CASES["prefill"]()
    cases = [
        replace(plain, size={"tokens": tokens}, error=lambda result: 0.0, arms={
            "qwen3lab": slow(us), "torch": slow(2 * us), "FlashAttention (x)": slow(us),
        })
        for tokens, us in ((1, 200), (2, 400))
    ]  # fmt: skip
    grid = quick(*cases, blocks=4, margin=0.2)
    said = [(v.workload, v.metric, v.arm_a, v.arm_b, v.word, v.tokens) for v in grid.verdicts]
    for rival, word in (("torch", "faster"), ("FlashAttention (x)", "same")):
        assert ("prefill", "mean_time_us", rival, "qwen3lab", word, "within-rounding") in said
        for tokens in (1, 2):
            assert (f"paged_prefill tokens={tokens}", "time_us", rival, "qwen3lab", word, "within-rounding") in said
    assert len(said) == 6
    assert [v.ratio for v in grid.verdicts if v.arm_a == "torch"] == pytest.approx([0.5] * 3, rel=0.2)
    slots = grid.times[grid.times.case == "paged_prefill tokens=1"].groupby("block").arm.agg(list)
    assert all(arms == arms[::-1] and len(set(arms)) == 3 for arms in slots), "each block is there and back"


@pytest.mark.parametrize("a_begins", [True, False])
def test_a_ratio_over_sizes_is_the_geometric_mean(a_begins):
    orders = (0, 1) if a_begins else (1, 0)
    took_us = {("one", "A"): 4.0, ("one", "B"): 1.0, ("two", "A"): 9.0, ("two", "B"): 9.0}
    logs = {
        (case, arm): {0: (orders["AB".index(arm)], [math.log(us)] * 2)} for (case, arm), us in took_us.items()
    }  # fmt: skip
    (block,) = kernel_grid._blocks(logs, ["one", "two"], "A", "B")
    assert block.order == ("ABBA" if a_begins else "BAAB")
    assert math.exp(block.log_ratio) == pytest.approx(0.5)
    assert sorted(block.times_s) == pytest.approx([3e-6, 3e-6, 6e-6, 6e-6])


def test_what_was_interpreted_has_a_verdict_without_a_ratio():
    verdicts = quick(CASES["decode"]()).verdicts
    assert [(v.workload, v.ratio, v.word) for v in verdicts] == [
        ("decode", None, "undecided"),
        ("paged_decode batch=2, context=21, page_size=16, rows=1", None, "undecided"),
    ]
    assert all(v.note == f"qwen3lab was {kernel_grid.INTERPRETED}" for v in verdicts)


def test_an_arm_that_cannot_run_says_why():
    rows = quick(CASES["decode"]()).rows
    absent = rows[rows.arm == "FlashAttention"]
    assert list(absent.reason) == ["FlashAttention runs on CUDA devices; this is cpu"]
    assert absent.time_us.isna().all()


@pytest.mark.parametrize("name", ["decode", "step", "rope"])
def test_one_nan_is_refused_wherever_it_stands(name):
    case = CASES[name]()
    calls = case.arms["qwen3lab"]

    def spoilt():
        result = calls[0]()
        last = result[-1] if isinstance(result, tuple) else result
        last.view(-1)[-1] = float("nan")
        return result

    with pytest.raises(kernel_grid.WrongResult, match="qwen3lab: nan from fp64"):
        kernel_grid.check(replace(case, arms={"qwen3lab": [spoilt]}))


def test_a_token_other_than_the_best_is_off_by_its_logit():
    case = CASES["lm_head × 4"]()
    calls = case.arms["torch"]
    with pytest.raises(kernel_grid.WrongResult, match="lm_head"):
        kernel_grid.check(replace(case, arms={"torch": [lambda: (calls[0]() + 1) % 250]}))


def test_an_unknown_projection_lists_the_known():
    with pytest.raises(ValueError, match="linear 'v'; known: qkv, o, gate_up, down, lm_head"):
        projection_cases.linear(SHAPE, "v", 1, CPU)


@pytest.mark.parametrize("change", [lambda x: x * 1.01, lambda x: x * float("nan")])
def test_a_wrong_result_is_refused_before_it_is_timed(change):
    case = CASES["prefill"]()
    calls = case.arms["torch"]
    wrong = replace(case, arms={"torch": [lambda: change(calls[0]())]})
    with pytest.raises(kernel_grid.WrongResult, match=r"paged_prefill tokens=18.*torch: .* from fp64, allowed"):
        kernel_grid.check(wrong)


def test_the_clock_takes_each_set_in_turn():
    seen = []
    clock = Clock([lambda: seen.append(0), lambda: seen.append(1)], CPU)
    assert clock.time_us(1) > 0 and clock.how == "host clock"
    assert seen == [0, 1] * (len(seen) // 2) and len(seen) >= 4


def test_a_host_needs_one_set_of_buffers():
    assert copies(1, CPU) == 1


@pytest.mark.parametrize("kind", kernel_sizes.KINDS)
def test_every_kind_has_sizes_for_a_cpu_and_for_a_card(kind):
    (case, *_) = kernel_sizes.cases([kind], "smoke", SMALL, CPU, torch.float32)
    assert case.kind == kind
    with pytest.raises(ValueError, match=r"full grids need a CUDA device, and this is cpu; take profile 'smoke'"):
        kernel_sizes.cases([kind], "full", SMALL, CPU, torch.float32)


def test_an_unknown_kind_lists_the_known():
    with pytest.raises(ValueError, match="kind 'encode'; known: decode, verify, prefill"):
        kernel_sizes.cases(["encode"], "smoke", SMALL, CPU, torch.float32)


def test_a_shape_is_named_or_read_from_a_checkpoint(tmp_path):
    assert kernel_sizes.shape("0.6b") is SHAPES["0.6b"]
    (tmp_path / "config.json").write_text(json.dumps(config_json(SHAPES["nano"])))
    assert kernel_sizes.shape(str(tmp_path)).num_kv_heads == SHAPES["nano"].num_kv_heads
    with pytest.raises(ValueError, match=r"model '0\.7b' is neither a checkpoint's folder nor a shape; shapes: tiny"):
        kernel_sizes.shape("0.7b")
