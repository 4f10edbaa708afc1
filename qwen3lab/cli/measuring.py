"""bench, abba, compare-outputs: measuring from the command line, without a notebook and without a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qwen3lab.cli.options import (
    BadUsage,
    Dtype,
    Json,
    Model,
    Only,
    Profile,
    dump,
    pair,
    parse_options,
    print_json,
    print_table,
)
from qwen3lab.config import EngineConfig
from qwen3lab.report import places

if TYPE_CHECKING:
    from qwen3lab.measure.arms import Arm
    from qwen3lab.measure.workloads import Workload


def bench(
    context: typer.Context,
    engine: Annotated[str, typer.Option(help="qwen3lab, transformers or vllm.")] = "qwen3lab",
    model: Model = "nano",
    profile: Profile = "smoke",
    only: Only = None,
    repeats: Annotated[int, typer.Option(help="Runs that count, after one that does not.")] = 3,
    dtype: Dtype = "auto",
    option: Annotated[list[str] | None, typer.Option(help="Another engine's own option, NAME=JSON.")] = None,
    dump_outputs: Annotated[Path | None, typer.Option(help="Write the token ids to this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Measure one engine alone. Engine options follow, as in LLM(...)."""
    from qwen3lab.measure import bench as room
    from qwen3lab.measure import outputs

    arm = _arm(engine, engine, model, dtype, context.args, option)
    found = room.bench(arm, _workloads(profile, only, arm.model), repeats, progress=not as_json)
    if dump_outputs is not None:
        for workload in found.workloads:
            outputs.dump(dump_outputs, workload, arm.name, str(found.facts["dtype"]), found.outputs[workload.id])
    if as_json:
        print_json({**found.describe(), "summary": found.summary()})
    else:
        print_table(found.summary())


def abba(
    context: typer.Context,
    rival: Annotated[str, typer.Option(help="Engine of arm A; qwen3lab is our own, plain.")] = "transformers",
    model: Model = "nano",
    profile: Profile = "smoke",
    only: Only = None,
    blocks: Annotated[int, typer.Option(help="Blocks of four runs for each workload; 2 for an interval.")] = 3,
    look: Annotated[list[int] | None, typer.Option(help="End a workload that is decided after so many blocks.")] = None,
    seed: int = 0,
    margin: Annotated[float, typer.Option(help="The difference that counts as none.")] = 0.05,
    metric: Annotated[list[str] | None, typer.Option(help="wall_s, ttft_s, …; may be given again.")] = None,
    dtype: Dtype = "auto",
    rival_option: Annotated[list[str] | None, typer.Option(help="Arm A's own option, NAME=JSON.")] = None,
    python_a: Annotated[str | None, typer.Option(help="The interpreter of arm A; None: as measure.arms says.")] = None,
    python_b: Annotated[str | None, typer.Option(help="The interpreter of arm B.")] = None,
    as_json: Json = False,
) -> None:
    """Compare qwen3lab (arm B, with the engine options that follow) with a rival by turns."""
    from qwen3lab.measure.abba import compare

    theirs = _arm(rival if rival != "qwen3lab" else "qwen3lab plain", rival, model, dtype, [], rival_option)
    ours = _arm("qwen3lab", "qwen3lab", model, dtype, context.args, None)
    theirs, ours = replace(theirs, python=python_a), replace(ours, python=python_b)
    loads = _workloads(profile, only, ours.model)
    metrics = tuple(metric or ("wall_s",))
    looks = sorted({*look, blocks}) if look else ()
    found = compare(theirs, ours, loads, blocks, seed, margin, progress=not as_json, metrics=metrics, looks=looks)
    rows = [verdict.to_dict() for verdict in found.verdicts]
    if as_json:
        print_json({**found.describe(), "verdicts": rows})
    else:
        shown = ("workload", "metric", "ratio", "ci_low", "ci_high", "n_blocks", "word", "tokens", "note")
        print_table([{key: row[key] for key in shown} for row in rows])
        unlike = found.setup[~found.setup["same"]].drop(columns="same")
        print("\nThe arms are set up otherwise in:" if len(unlike) else "\nThe arms are set up alike.")
        print_table([dict(row) for _, row in unlike.iterrows()])


def compare_outputs(
    a: Annotated[Path, typer.Argument(help="Folder written by bench --dump-outputs.")],
    b: Annotated[Path, typer.Argument(help="Another one, of the same workloads.")],
    model: Model = "nano",
    limit: Annotated[float | None, typer.Option(help="Largest regret, in logits, that is a near tie.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two engines' tokens, request by request; exit 1 where they really differ."""
    from qwen3lab.measure.outputs import compare_dumps, worst

    found = compare_dumps(a, b, places.checkpoint(model), limit)
    if as_json:
        print_json({workload: dump(diffs) for workload, diffs in found.items()})
    else:
        for workload, diffs in found.items():
            counts = {word: sum(d.word == word for d in diffs) for word in dict.fromkeys(d.word for d in diffs)}
            print(f"{workload:22}{', '.join(f'{n} {word}' for word, n in counts.items())}")
    if any(worst([d.word for d in diffs]) == "real" for diffs in found.values()):
        raise typer.Exit(1)


def _arm(name: str, engine: str, model: str, dtype: str, words: Sequence[str], given: Sequence[str] | None) -> Arm:
    """An arm; the words of the command line are our engine's options, `given` any engine's as NAME=JSON."""
    from qwen3lab.measure.arms import Arm

    if words and engine != "qwen3lab":
        raise BadUsage(f"{words[0]} is an option of qwen3lab; {engine}'s own are given as --option NAME=JSON")
    options = {"dtype": dtype} | parse_options(words, EngineConfig) | dict(pair(text) for text in given or [])
    if engine == "qwen3lab":
        EngineConfig.from_options(**options)  # says what is wrong here, and not from within a worker
    return Arm(name, engine, places.checkpoint(model), options)


def _workloads(profile: str, only: Sequence[str] | None, model: str | Path) -> list[Workload]:
    from qwen3lab.measure import workloads

    sizes = {"h200": "full"}.get(profile, profile)
    return [workloads.load(name, sizes, model) for name in only or workloads.IDS]
