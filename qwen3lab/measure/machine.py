"""What machine this is and what is installed: facts that go with every measurement. No host, user or path names."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil

from qwen3lab.measure import nvml
from qwen3lab.measure.engines import versions

LIBRARIES = (
    "qwen3lab", "torch", "triton", "transformers", "tokenizers", "safetensors", "flash-attn", "vllm",
    "numpy", "scipy", "pandas", "pyarrow", "psutil", "nvidia-ml-py",
)  # fmt: skip
# What decides which matrix kernels a CPU can run.
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "sve", "bf16")
CGROUP = Path("/sys/fs/cgroup")


def facts() -> dict[str, Any]:
    """The machine as plain JSON values; memory in bytes."""
    quota = cpu_quota_cores()
    return {
        "cpu": cpu_name(),
        "cpu_features": [f for f in CPU_FEATURES if f in _cpu_flags()],
        "logical_cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "cpu_quota_cores": quota,
        "memory_bytes": psutil.virtual_memory().total,
        "memory_limit_bytes": memory_limit_bytes(),
        "os": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "gpus": [
            {
                "name": gpu.name,
                "driver": gpu.driver,
                "memory_bytes": gpu.memory_bytes,
                "max_sm_clock_mhz": gpu.max_sm_clock_mhz,
            }
            for gpu in nvml.read()
        ],
    }


def libraries() -> dict[str, str]:
    """Versions of what is installed of LIBRARIES."""
    return versions(*LIBRARIES)


def cpu_name() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def usable_cores() -> int:
    """Cores this process may use: its affinity, and the cgroup's quota rounded down (at least 1)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota_cores()
    return max(1, min(affinity, int(quota))) if quota is not None else affinity


def cpu_quota_cores() -> float | None:
    """The smallest CPU quota of this process's cgroups, in cores; None where there is none."""
    quotas = []
    for folder in _cgroups("cpu"):
        if (text := _read(folder / "cpu.max")) and not text.startswith("max"):  # version 2: "quota period"
            quota, period = text.split()[:2]
            quotas.append(int(quota) / int(period))
        if (text := _read(folder / "cpu.cfs_quota_us")) and int(text) > 0:  # version 1
            quotas.append(int(text) / int(_read(folder / "cpu.cfs_period_us")))
    return min(quotas, default=None)


def throttled_s() -> float | None:
    """Seconds for which the cgroup's CPU quota has held this process's group back; None where nothing says."""
    for folder in _cgroups("cpu"):
        stat = dict(line.split(maxsplit=1) for line in _read(folder / "cpu.stat").splitlines())
        if "throttled_usec" in stat:
            return int(stat["throttled_usec"]) / 1e6
        if "throttled_time" in stat:
            return int(stat["throttled_time"]) / 1e9
    return None


def memory_limit_bytes() -> int | None:
    """The smallest memory limit of this process's cgroups; None where there is none below the machine's memory."""
    limits = []
    for folder in _cgroups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit() and int(text) < psutil.virtual_memory().total:
                limits.append(int(text))
    return min(limits, default=None)


def _cgroups(controller: str) -> list[Path]:
    """This process's cgroup folder for `controller` and those above it, innermost first (versions 1 and 2)."""
    folders: list[Path] = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, inner = line.split(":", 2)
        if controllers == "":
            root = CGROUP
        elif controller in controllers.split(","):
            root = CGROUP / controller
        else:
            continue
        leaf = root / inner.lstrip("/")
        folders += [p for p in (leaf, *leaf.parents) if p.is_relative_to(root) and p.is_dir()]
    return folders


def _cpu_flags() -> set[str]:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def _read(path: Path) -> str:
    """A small text file, or "" where this system does not have it."""
    try:
        return path.read_text()
    except OSError:
        return ""
