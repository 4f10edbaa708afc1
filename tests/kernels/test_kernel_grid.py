"""Every case of the kernel grids, at sizes the interpreter can do: arms right, rows whole, a wrong arm refused."""

from dataclasses import replace

import pytest
import torch

from qwen3lab.measure import attention_cases, kernel_grid, projection_cases
from qwen3lab.measure.kernel_timing import Ceilings, copies, time_us
from qwen3lab.nano.shapes import SHAPES

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


@pytest.mark.parametrize("name", CASES)
def test_every_arm_is_right_and_has_its_row(name):
    torch.manual_seed(0)
    case = CASES[name]()
    rows = kernel_grid.table([case], CEILINGS, budget_ms=1)
    ran = rows[rows.reason.isna()]
    other = "rms_norm_rope + paged_decode" if name == "step" else "torch"
    assert set(ran.arm) == {"qwen3lab", other}
    assert (ran.error <= kernel_grid.ERROR_ALLOWED[torch.float32]).all()
    moved_gb = case.cost.bytes_moved / 1e9
    assert (ran.gbps * ran.time_us / 1e6).values == pytest.approx([moved_gb] * 2)
    rate, ceiling = {
        "read": (ran.gbps, 100.0),
        "copy": (ran.gbps, 80.0),
        "product": (ran.tflops, 2.0),
    }[case.bound]
    assert ran.share.values == pytest.approx((rate / ceiling).values)
    for column, value in case.size.items():
        assert (rows[column] == value).all()


def test_an_arm_that_cannot_run_says_why():
    rows = kernel_grid.table([CASES["decode"]()], CEILINGS, budget_ms=1)
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
        kernel_grid.table([replace(case, arms={"qwen3lab": [spoilt]})], CEILINGS, budget_ms=1)


def test_a_token_other_than_the_best_is_off_by_its_logit():
    case = CASES["lm_head × 4"]()
    calls = case.arms["torch"]
    with pytest.raises(kernel_grid.WrongResult, match="lm_head"):
        kernel_grid.table([replace(case, arms={"torch": [lambda: (calls[0]() + 1) % 250]})], CEILINGS, budget_ms=1)


def test_an_unknown_projection_lists_the_known():
    with pytest.raises(ValueError, match="linear 'v'; known: qkv, o, gate_up, down, lm_head"):
        projection_cases.linear(SHAPE, "v", 1, CPU)


@pytest.mark.parametrize("change", [lambda x: x * 1.01, lambda x: x * float("nan")])
def test_a_wrong_result_is_refused_before_it_is_timed(change):
    case = CASES["prefill"]()
    calls = case.arms["torch"]
    wrong = replace(case, arms={"torch": [lambda: change(calls[0]())]})
    with pytest.raises(kernel_grid.WrongResult, match=r"paged_prefill \{'tokens': 18.*torch: .* from fp64, allowed"):
        kernel_grid.table([wrong], CEILINGS, budget_ms=1)


def test_the_clock_takes_each_set_in_turn():
    seen = []
    timing = time_us([lambda: seen.append(0), lambda: seen.append(1)], CPU, budget_ms=1)
    assert seen == [0, 1] * (len(seen) // 2) and len(seen) >= 4
    assert timing.low_us <= timing.median_us <= timing.high_us
    assert timing.how.startswith("host clock")


def test_a_host_needs_one_set_of_buffers():
    assert copies(1, CPU) == 1
