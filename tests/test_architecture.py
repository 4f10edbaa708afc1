"""The house's rules, read off the source: imports run downward, plain rooms stay plain, files stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted([*ROOT.glob("qwen3lab/**/*.py"), *ROOT.glob("kernels/qwen3lab_kernels/**/*.py")])

# What each room may import, besides itself, the two top-level modules every room shares, and third parties.
SHARED = {"config", "model_config", "step", "variants", "__init__"}
BELOW = {
    "cli": {"report", "charts", "record", "measure", "engine", "model", "attention", "nano", "kernels"},
    "report": {"charts", "record"},
    "charts": set(),
    "record": set(),
    "measure": {"engine", "model", "attention", "nano", "kernels"},
    "nano": {"model", "kernels"},
    "engine": {"model", "attention", "kernels"},
    "model": {"attention", "kernels"},
    "attention": {"kernels"},
    "kernels": set(),
}
NO_TORCH = {"record", "charts", "report", "config", "model_config", "step", "variants", "cli"}
NO_TORCH_FILES = {
    "engine/request.py",
    "engine/scheduler.py",
    "engine/blocks.py",
    "engine/prefix.py",
    "engine/text.py",
    "engine/stream.py",
}
LINES = 300


def room(path: Path) -> str:
    if path.is_relative_to(ROOT / "kernels"):
        return "kernels"
    first = path.relative_to(ROOT / "qwen3lab").parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Every module the file names in an import, wherever it stands, but for those only a type checker reads."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test).endswith("TYPE_CHECKING")
        for node in ast.walk(branch)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_downward(path):
    mine = room(path)
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "qwen3lab_kernels":
            target = "kernels"
        elif parts[0] == "qwen3lab":
            target = parts[1] if len(parts) > 1 else "__init__"
        else:
            continue
        if mine == "kernels":
            assert target == "kernels", f"{path.name} imports {name}: kernels know nothing of qwen3lab"
        elif target not in SHARED and target != mine and target[:1].islower():
            assert target in BELOW.get(mine, set()), f"{mine} must not import {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_stays_small(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_plain_rooms_name_no_torch(path):
    relative = str(path.relative_to(ROOT / "qwen3lab")) if room(path) != "kernels" else ""
    if room(path) in NO_TORCH or relative in NO_TORCH_FILES:
        assert not {n for n in imported(path) if n.split(".")[0] == "torch"}


def test_there_is_no_package_called_kernels():
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert not list(ROOT.glob("tests/kernels/__init__.py"))


@pytest.mark.parametrize(
    "module", ["qwen3lab", "qwen3lab.cli", "qwen3lab.report.site", "qwen3lab.record", "qwen3lab.charts.show"]
)
def test_reports_are_drawn_without_torch(module):
    """Not even through a third party: a machine without torch must be able to draw."""
    code = f"import sys, {module}; sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
