"""Made-up frames with the columns of a real comparison: what the chart and report tests draw."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

WORKLOADS = {
    "w1_single_decode": (1, 128, 64),
    "w2_long_prefill": (1, 1024, 8),
    "w3_batch_throughput": (4, 160, 32),
    "w4_repetitive_batch": (4, 128, 32),
    "w5_code_edit": (2, 250, 60),
    "w6_decode_stall": (8, 64, 80),
    "w7_quote_extract": (2, 300, 40),
    "w8_saturation": (16, 100, 32),
}
STEP_S = {"transformers": 0.0071, "qwen3lab": 0.0042}


def kernels() -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Rows and verdicts of a kernel grid: three arms at 3 contexts × 2 batches, and one arm that could not run."""
    rows, verdicts = [], []
    for batch, context in product((1, 8), (128, 1024, 65536)):
        size = {"case": f"paged_decode batch={batch}, context={context}", "batch": batch, "context": context}
        floor_us = batch * context / 1000
        took_us = {"qwen3lab": 3 + floor_us, "FlashAttention (vllm)": 5 + 0.98 * floor_us, "torch": 20 + 3 * floor_us}
        for arm, us in took_us.items():
            row = {"arm": arm, "time_us": us, "low_us": us * 0.98, "high_us": us * 1.03, "floor_us": floor_us}
            rates = {"gbps": 4000 * floor_us / us, "tflops": 8 * floor_us / us}
            rows.append(size | row | rates | {"share": floor_us / us, "reason": None})
        rows.append(size | {"arm": "torch.compile", "reason": "not installed"})
        ratio = took_us["qwen3lab"] / took_us["FlashAttention (vllm)"]
        verdicts.append(
            {"workload": size["case"], "metric": "time_us", "arm_a": "FlashAttention (vllm)", "arm_b": "qwen3lab"}
            | {"ratio": ratio, "ci_low": ratio * 0.98, "ci_high": ratio * 1.02, "n_blocks": 4, "margin": 0.05}
            | {"word": "faster" if ratio < 0.95 else "same", "tokens": "within-rounding"}
        )
    return pd.DataFrame(rows), verdicts


def comparison(blocks: int = 3, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame, list[dict[str, Any]]]:
    """(trials, samples, verdicts) of `blocks` blocks ABBA of transformers (A) against qwen3lab (B)."""
    rng = np.random.default_rng(seed)
    trials: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    for workload, (requests, prompt, output) in WORKLOADS.items():
        for block in range(blocks):
            for slot, arm in enumerate("ABBA"):
                engine = "transformers" if arm == "A" else "qwen3lab"
                key = {"workload": workload, "block_id": block, "slot": slot, "arm": arm, "engine": engine}
                key |= {"trial_id": f"{workload}-{block}-{slot}", "warmup": False}
                rows = _requests(rng, engine, workload, requests, prompt, output)
                wall_s = max(row["token_times_s"][-1] for row in rows)
                count = sum(row["output_tokens"] for row in rows)
                trials.append(
                    {**key, "wall_s": wall_s, "prompt_tokens": requests * prompt, "output_tokens": count,
                     "output_tok_per_s": count / wall_s, "health": "flag" if (block, slot) == (1, 2) else "pass"}
                )  # fmt: skip
                samples += [{**key, **row, "request": i} for i, row in enumerate(rows)]
    return pd.DataFrame(trials), pd.DataFrame(samples), [_verdict(i, w, blocks) for i, w in enumerate(WORKLOADS)]


def _requests(
    rng: np.random.Generator, engine: str, workload: str, requests: int, prompt: int, output: int
) -> list[dict[str, Any]]:
    step_s, rows = STEP_S[engine], []
    for i in range(requests + (workload == "w6_decode_stall")):
        injected = i == requests
        gaps = step_s * rng.lognormal(0, 0.08, 16 if injected else output)
        gaps[0] = prompt * step_s / 60 * (9 if injected else 1)
        if workload == "w6_decode_stall" and not injected:
            gaps[30] += prompt * step_s / 60 * 9
        arrival_s = 30 * step_s if injected else 0.0
        times = arrival_s + np.cumsum(gaps)
        tpot_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None
        rows.append(
            {"prompt_tokens": prompt * (12 if injected else 1), "output_tokens": len(times), "arrival_s": arrival_s,
             "ttft_s": float(gaps[0]), "tpot_s": tpot_s, "e2e_s": float(times[-1] - arrival_s),
             "token_times_s": [float(t) for t in times]}
        )  # fmt: skip
    return rows


def _verdict(i: int, workload: str, blocks: int) -> dict[str, Any]:
    ratio = (0.58, 1.31, 0.72, 0.74, 0.63, 1.01, 0.99, 1.12)[i]
    half = (0.02, 0.05, 0.03, 0.04, 0.02, 0.01, 0.08, 0.19)[i]
    word = ("faster", "slower", "faster", "faster", "faster", "same", "undecided", "undecided")[i]
    return {
        "workload": workload, "metric": "wall_s", "arm_a": "transformers", "arm_b": "qwen3lab", "ratio": ratio,
        "ci_low": ratio - half if blocks > 1 else None, "ci_high": ratio + half if blocks > 1 else None,
        "n_blocks": blocks, "margin": 0.03, "word": word if blocks > 1 else "undecided",
        "tokens": "near-tie" if i == 3 else "identical",
    }  # fmt: skip
