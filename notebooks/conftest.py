"""Notebooks under test (`pytest --nbval-lax --nbval-current-env notebooks`)."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest

# They seal into a folder of their own, never into the project's data.
os.environ.setdefault("QWEN3LAB_DATA", tempfile.mkdtemp(prefix="qwen3lab-nbval-"))
CELL_TIMEOUT_S = 1800


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        cell = getattr(item, "cell", None)
        if cell is None:
            continue
        item.add_marker(pytest.mark.timeout(CELL_TIMEOUT_S))
        # Stripping takes a cell's counter away, and nbval takes a cell without one for one that never ran.
        if "nbval-check-output" in cell.metadata.get("tags", []):
            cell.execution_count = 1
