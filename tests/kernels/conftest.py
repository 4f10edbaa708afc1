"""Kernels run in Triton's interpreter where there is no card (see tests/conftest.py), compiled where there is one."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
