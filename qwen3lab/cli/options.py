"""What commands share: the options they have in common, engine options as words of a command line, and printing."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

ENGINE_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[str, typer.Option(help="'nano' (ships here), a checkpoint folder, or a hub id.")]
Profile = Annotated[str, typer.Option(help="Sizes of the workloads: smoke, full or h200.")]
Only = Annotated[list[str] | None, typer.Option(help="A workload's id; may be given again. None: all.")]
Data = Annotated[Path | None, typer.Option(help="Folder of rounds; QWEN3LAB_DATA, else the project's own.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16, or auto: the checkpoint's own.")]


class BadUsage(ValueError):
    """The command line asks for something that there is not."""


def parse_options(words: Sequence[str], kind: type[Any]) -> dict[str, Any]:
    """`--some-name value`, `--switch` and `--no-switch` as typed values of the dataclass `kind`. BadUsage else."""
    fields = {f.name: str(f.type) for f in dataclasses.fields(kind)}
    options: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, text = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        off = name.removeprefix("no_")
        if word.startswith("--") and not equals and "bool" in (fields.get(name), fields.get(off)):
            options[name if name in fields else off] = name in fields
            continue
        if not word.startswith("--") or name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"; did you mean --{near[0].replace('_', '-')}?" if near else ""
            raise BadUsage(f"no such option: {word}{hint}")
        if not equals and not rest:
            raise BadUsage(f"option {word} needs a value")
        options[name] = _typed(flag, text if equals else rest.pop(0), fields[name])
    return options


def _typed(flag: str, text: str, annotation: str) -> Any:
    kinds: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "Path": Path}
    try:
        return kinds[annotation.split(" ")[0]](text)
    except (ValueError, KeyError):
        raise BadUsage(f"{flag} {text!r}: not of type {annotation}") from None


def pair(text: str) -> tuple[str, Any]:
    """NAME=VALUE; the value is JSON where it parses as such, else the text itself."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadUsage(f"{text!r}: write NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def dump(items: Sequence[Any]) -> list[dict[str, Any]]:
    return [item.model_dump() if hasattr(item, "model_dump") else dataclasses.asdict(item) for item in items]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False, default=str))


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    import pandas as pd

    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.4g}".format, na_rep="–"))
