"""Compile every launcher's kernel for an H200 without one, and print what ptxas gave it: JSON, a line a kernel.

Run by test_compiles_for_hopper.py in a process of its own, as the tests' own interprets kernels. Nothing is launched:
a launch stops once its kernel is compiled.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from qwen3lab_kernels import (
    add_rms_norm,
    argmax,
    decode_attention,
    linear_residual,
    lm_head_argmax,
    norm_gate_up_silu,
    norm_linear,
    paged_decode,
    paged_prefill,
    rms_norm_rope,
    silu_and_mul,
    store_kv,
)

EPS = 1e-6
HQ, HKV, D, HIDDEN, SIZE, VOCAB, PAGE = 16, 8, 128, 1024, 3072, 151936, 16
BF16 = torch.bfloat16


class NoCard:
    """What Triton asks a driver for before it launches."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def launches() -> Iterator[str]:
    """Make each launch of a 0.6B step; yields what the kernels compiled since the last are called by."""
    for rows in (1, 4):
        x, wide = torch.empty(rows, HIDDEN, dtype=BF16), torch.empty(rows, SIZE, dtype=BF16)
        norm = torch.empty(HIDDEN, dtype=BF16)

        def weight(n: int, k: int = HIDDEN) -> torch.Tensor:
            return torch.empty(n, k, dtype=BF16)

        for dependent in (False, True):
            how = f"{rows} rows{', dependent' if dependent else ''}"
            norm_linear.norm_linear(x, norm, weight((HQ + 2 * HKV) * D), EPS, dependent=dependent)
            yield f"norm_linear {how}"
            linear_residual.linear_residual(wide, weight(HIDDEN, SIZE), x, dependent=dependent)
            yield f"linear_residual {how}"
            norm_gate_up_silu.norm_gate_up_silu(x, norm, weight(2 * SIZE), EPS, dependent=dependent)
            yield f"norm_gate_up_silu {how}"
            lm_head_argmax.lm_head_argmax(x, norm, weight(VOCAB), EPS, dependent=dependent)
            yield f"lm_head_argmax {how}"
    pages = 64
    k, v = (torch.empty(pages, PAGE, HKV, D, dtype=BF16) for _ in "kv")
    b = 2
    table, lens = torch.zeros(b, 32, dtype=torch.int32), torch.zeros(b, dtype=torch.int32)
    slots, cos_sin = torch.zeros(b, dtype=torch.int32), torch.empty(64, D)
    qkv = torch.empty(b, (HQ + 2 * HKV) * D, dtype=BF16)
    turned = (qkv, torch.empty(D, dtype=BF16), torch.empty(D, dtype=BF16), EPS, lens, cos_sin)
    for dependent in (False, True):
        how = ", dependent" if dependent else ""
        for splits in (1, 8):
            for rows in (1, 5):
                q = torch.empty(b, rows, HQ, D, dtype=BF16)
                for length in (512, 65536):
                    paged_decode.paged_decode(
                        q, k, v, table, lens, num_splits=splits, max_len=length, dependent=dependent
                    )
                    yield f"paged_decode {splits} splits, {rows} rows, {length} keys{how}"
            decode_attention.decode_attention(*turned, k, v, slots, table, lens, num_splits=splits, dependent=dependent)
            yield f"decode_attention {splits} splits{how}"
        rms_norm_rope.launch(*turned, HKV, (k, v, slots), dependent=dependent)
        yield f"rms_norm_rope + store{how}"
    rms_norm_rope.launch(*turned, HKV)
    yield "rms_norm_rope"
    for queries in (16, 2048):
        q = torch.empty(queries, HQ, D, dtype=BF16)
        paged_prefill.paged_prefill(q, k, v, slots[:1].new_zeros(2), lens[:1], table[:1], max_query_len=queries)
        yield f"paged_prefill {queries} queries"
    store_kv.store_kv(k.flatten(0, 1)[:b], v.flatten(0, 1)[:b], k, v, slots)
    yield "store_kv"
    x = torch.empty(3, HIDDEN, dtype=BF16)
    add_rms_norm.add_rms_norm(x, x.clone(), torch.empty(HIDDEN, dtype=BF16), EPS)
    yield "add_rms_norm"
    silu_and_mul.silu_and_mul(torch.empty(3, 2 * SIZE, dtype=BF16))
    yield "silu_and_mul"
    argmax.argmax(torch.empty(3, VOCAB, dtype=BF16))
    yield "argmax"


def resources(log: str) -> dict[str, int]:
    """What ptxas says of a kernel: registers a thread, and bytes of it that went to memory for want of registers."""
    spilt = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", log))
    return {"registers": int(re.findall(r"Used (\d+) registers", log)[0]), "spilt_bytes": spilt}


def main() -> None:
    logs: dict[str, str] = {}  # by kernel: one that is launched again is not compiled again
    launched: list[CompiledKernel] = []
    run = JITFunction.run

    def compile_only(self, *args, grid, warmup, **options):  # type: ignore[no-untyped-def]
        with contextlib.redirect_stdout(io.StringIO()) as log:
            kernel = run(self, *args, grid=grid, warmup=True, **options)
        logs.setdefault(kernel.hash, log.getvalue())
        launched.append(kernel)
        return kernel

    driver.set_active(NoCard())
    JITFunction.run = compile_only
    triton.knobs.nvidia.dump_ptxas_log = True
    triton.knobs.compilation.always_compile = True
    rms_norm_rope.gate = lambda *args, **kwargs: None  # it asks for a CUDA device, and there is none
    for name in launches():
        for kernel in launched:
            row = {"launch": name, "kernel": kernel.name, "shared_bytes": kernel.metadata.shared}
            print(json.dumps(row | resources(logs[kernel.hash])), flush=True)
        launched.clear()


if __name__ == "__main__":
    main()
