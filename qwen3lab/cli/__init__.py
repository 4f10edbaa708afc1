"""`qwen3lab …`: thin commands over the rooms. JSON with --json; exit 1 on a failed check, 2 on bad usage.

Engine options are LLM(...)'s own, with dashes: --attn-backend torch, --max-num-seqs 64; a switch is --x or --no-x.
"""

from __future__ import annotations

import sys

import typer

from qwen3lab.cli import checkpoints, measuring, runs
from qwen3lab.cli.options import ENGINE_OPTIONS
from qwen3lab.record import UnverifiedRound

# What needs torch is imported inside the commands, so that `report` and `verify` run where there is none.
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.command()(runs.run)
app.command(context_settings=ENGINE_OPTIONS)(measuring.bench)
app.command(context_settings=ENGINE_OPTIONS)(measuring.abba)
app.command("compare-outputs")(measuring.compare_outputs)
app.command()(runs.verify)
app.command()(runs.report)
app.command()(runs.doctor)

checkpoint = typer.Typer(no_args_is_help=True, help="Make a checkpoint: train the small one, draw or enlarge one.")
checkpoint.command(context_settings=ENGINE_OPTIONS)(checkpoints.train)
checkpoint.command()(checkpoints.random)
checkpoint.command()(checkpoints.scale)
app.add_typer(checkpoint, name="checkpoint")


def main() -> None:
    """The console script: what a user got wrong exits with 2, what failed with 1; both say what and why."""
    try:
        app()
    except UnverifiedRound as error:
        print(f"qwen3lab: {error}", file=sys.stderr)
        sys.exit(1)
    except (ValueError, TypeError, FileNotFoundError, FileExistsError, NotADirectoryError) as error:
        print(f"qwen3lab: {error}", file=sys.stderr)
        sys.exit(2)
    except (RuntimeError, OSError) as error:
        print(f"qwen3lab: {error}", file=sys.stderr)
        sys.exit(1)
