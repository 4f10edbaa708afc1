"""A small prepared corpus, made once: some of the library's files, a small vocabulary, few held-out tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwen3lab.nano.pieces import prepare
from qwen3lab.nano.tasks import Corpus

FEW = ("email/", "json/", "logging/", "venv/", "sched.py", "argparse.py", "copyreg.py", "multiprocessing/connection.py")


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return Corpus(tuple(f for f in Corpus.from_stdlib().files if f.path.startswith(FEW)))


@pytest.fixture(scope="session")
def prepared(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpus") / "corpus"
    prepare(out, corpus, vocab_size=512, tasks_per_size=2)
    return out
