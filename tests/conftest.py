"""What every test gets: the designed checkpoints, and fresh memory that is poison until it is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import checkpoints

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before any of them is imported

torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.empty and empty_like return NaN (or the largest integer), so that reading what nobody wrote shows."""

    def poisoned(make):
        def call(*args, **kwargs):
            tensor = make(*args, **kwargs)
            if tensor.is_floating_point():
                return tensor.fill_(float("nan"))
            return tensor if tensor.dtype == torch.bool else tensor.fill_(torch.iinfo(tensor.dtype).max)

        return call

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    yield


@pytest.fixture(scope="session")
def markov(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.markov(tmp_path_factory.mktemp("markov"))


@pytest.fixture(scope="session")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.echo(tmp_path_factory.mktemp("echo"))


@pytest.fixture(scope="session")
def chaotic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.chaotic(tmp_path_factory.mktemp("chaotic"))
