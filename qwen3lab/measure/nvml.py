"""What the NVIDIA driver says of its cards, read only. Owns the binding; a machine without the driver has no cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

# nvml.h, nvmlClocksEventReasons: the bits, and whether the card was held back by itself (a fault of the platform) or
# by a limit that is normal at full load.
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
}
FAULTS = frozenset({"hardware slowdown", "software thermal", "hardware thermal", "power brake"})


@dataclass(frozen=True)
class GpuReading:
    """One card now. A field the card does not report is None."""

    index: int
    name: str
    driver: str
    memory_bytes: int | None
    sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    throttle_reasons: tuple[str, ...]
    ecc_uncorrected: int | None
    temperature_c: int | None
    power_w: float | None
    pids: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read() -> tuple[GpuReading, ...]:
    """Every card of this machine; empty where there is no NVIDIA driver."""
    import pynvml as nvml

    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        driver = str(nvml.nvmlSystemGetDriverVersion())
        return tuple(_card(nvml, index, driver) for index in range(nvml.nvmlDeviceGetCount()))
    finally:
        nvml.nvmlShutdown()


def _card(nvml: Any, index: int, driver: str) -> GpuReading:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(handle, *arguments)
        except nvml.NVMLError:  # this card does not report it
            return None

    memory = ask(nvml.nvmlDeviceGetMemoryInfo)
    reasons = ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    power_mw = ask(nvml.nvmlDeviceGetPowerUsage)
    return GpuReading(
        index=index,
        name=str(nvml.nvmlDeviceGetName(handle)),
        driver=driver,
        memory_bytes=memory.total if memory is not None else None,
        sm_clock_mhz=ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        max_sm_clock_mhz=ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
        throttle_reasons=tuple(name for bit, name in REASONS.items() if reasons & bit),
        ecc_uncorrected=ask(
            nvml.nvmlDeviceGetTotalEccErrors, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        temperature_c=ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        power_w=power_mw / 1000 if power_mw is not None else None,
        pids=tuple(sorted(process.pid for process in ask(nvml.nvmlDeviceGetComputeRunningProcesses) or ())),
    )
