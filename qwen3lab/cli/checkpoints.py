"""checkpoint train | random | scale: the small model, and checkpoints of any Qwen3 shape."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qwen3lab.cli.options import parse_options
from qwen3lab.report import places


def train(
    context: typer.Context,
    corpus: Annotated[Path, typer.Option(help="Folder of the corpus; prepared where it is absent.")],
    out: Annotated[Path, typer.Option(help="Folder of the run: log, state, and in the end the checkpoint.")],
) -> None:
    """Train the small model; the options that follow are those of nano.options.TrainOptions."""
    from qwen3lab.nano import pieces
    from qwen3lab.nano.options import TrainOptions
    from qwen3lab.nano.train import train as train_small

    options = TrainOptions(corpus=corpus, out=out, **parse_options(context.args, TrainOptions))
    if not corpus.exists():
        pieces.prepare(corpus)
    train_small(options)


def random(
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    shape: Annotated[str, typer.Option(help="nano, 0.6b, 1.7b, …")],
    seed: int = 0,
    dtype: Annotated[str, typer.Option()] = "bfloat16",
) -> None:
    """A checkpoint of that shape with random weights: for speed where the text does not matter."""
    from qwen3lab.nano.scale import random_checkpoint

    print(random_checkpoint(shape, out, seed, dtype))


def scale(
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    shape: Annotated[str, typer.Option(help="0.6b, 1.7b, …")],
    source: Annotated[str, typer.Option(help="The checkpoint to enlarge.")] = "nano",
) -> None:
    """The source's function in a larger shape: sensible text at the speed of full size."""
    from qwen3lab.nano.scale import scale_checkpoint

    print(scale_checkpoint(Path(places.checkpoint(source)), shape, out))
