"""Where a round's numbers come from: the source's git state, the libraries' versions, the command line."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from qwen3lab.record.schema import Git

LIBRARIES = (
    "torch", "triton", "flash-attn", "vllm", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy",
    "scipy", "pandas", "pyarrow", "pydantic", "altair", "vl-convert-python", "papermill", "nbclient", "nbconvert",
    "ipykernel", "qwen3lab",
)  # fmt: skip


class _NoGit(Exception):
    """Why git has no answer."""


def git_state(source: Path) -> Git:
    """The repository that tracks the file `source`, or the reason why there is none."""
    folder = source.parent
    try:
        # A virtual environment may lie inside somebody's repository: only one that tracks this very file counts.
        _git(folder, "ls-files", "--error-unmatch", "--", source.name)
        commit = _git(folder, "rev-parse", "--verify", "HEAD").strip()
        outputs = (":(top,exclude)data", ":(top,exclude)reports")
        status = _git(folder, "status", "--porcelain", "-z", "--no-renames", "--", ":/", *outputs)
    except _NoGit as reason:
        return Git(why_absent=str(reason))
    changed = sorted(entry[3:] for entry in status.split("\0") if entry)
    return Git(commit=commit, dirty=bool(changed), changed=changed)


def libraries() -> dict[str, str]:
    """Versions of what can bear on a number, as this interpreter has them; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def argv() -> list[str]:
    return [os.fsencode(argument).decode("utf-8", "backslashreplace") for argument in sys.argv]


def _git(folder: Path, *arguments: str) -> str:
    # A hook exports GIT_DIR and its kin, which would answer for the hook's repository instead of the source's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        run = subprocess.run(
            ["git", "-C", str(folder), *arguments], env=environment, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _NoGit(f"git did not run: {error}") from None
    if run.returncode:
        complaint = run.stderr.decode("utf-8", "backslashreplace").strip().splitlines()
        raise _NoGit(complaint[0] if complaint else f"git {arguments[0]} ended with {run.returncode}")
    return run.stdout.decode("utf-8", "backslashreplace")
