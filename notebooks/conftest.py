"""Notebooks under test (`pytest --nbval-lax notebooks`) seal into a folder of their own, never into the project's data."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("QWEN3LAB_DATA", tempfile.mkdtemp(prefix="qwen3lab-nbval-"))
