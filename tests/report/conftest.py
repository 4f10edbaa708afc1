"""The sites that the report tests look at, drawn once: v01 in two profiles, the newer without an executed notebook."""

from __future__ import annotations

from pathlib import Path

import made_rounds
import pytest

from qwen3lab.report import site


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site") / "data"
    made_rounds.seal(root, "smoke")
    made_rounds.seal(root, "full", notebook=False)
    return root


@pytest.fixture(scope="session")
def static(data: Path) -> Path:
    return site.build(data, data.parent / "static", "static").parent


@pytest.fixture(scope="session")
def interactive(data: Path) -> Path:
    return site.build(data, data.parent / "interactive", "interactive").parent
