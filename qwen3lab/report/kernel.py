"""The kernel of a headless run (`python -m qwen3lab.report.kernel -f FILE`): ipykernel, with progress bars as text.

A tqdm that is imported inside a kernel draws widgets, which no terminal can show; imported before, it stays with text.
"""

import tqdm.auto  # noqa: F401
from ipykernel.kernelapp import launch_new_instance  # type: ignore[import-untyped]

if __name__ == "__main__":
    launch_new_instance()
