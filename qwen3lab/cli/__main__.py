"""`python -m qwen3lab.cli` is `qwen3lab`."""

from qwen3lab.cli import main

main()
