"""run, report, verify, doctor: what measures a notebook, publishes it, checks it, and says whether it could."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from qwen3lab import variants
from qwen3lab.cli.options import BadUsage, Data, Json, Profile, dump, pair, print_json
from qwen3lab.record import check, check_all, rounds
from qwen3lab.record.schema import Verdict
from qwen3lab.record.sealed import sentence
from qwen3lab.report import places, runner, site

FINE = "in order"


def run(
    notebook: Annotated[str, typer.Argument(help="A rung (v01), a notebook's path, or all.")],
    profile: Profile = "smoke",
    parameter: Annotated[list[str] | None, typer.Option("-p", help="NAME=VALUE; the value as JSON, else text.")] = None,
    model: Annotated[str | None, typer.Option(help="Short for -p model=…")] = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Run notebooks strictly, seal their rounds, draw the report, and end with the verdicts."""
    given = dict(pair(text) for text in parameter or []) | ({"model": model} if model else {})
    notebooks = places.written_rungs() if notebook == "all" else [notebook]
    given = {"profile": profile} | given
    for name in notebooks:
        runner.check_source(runner.source(name), given)  # before the first one runs for minutes
    root = data or places.data_root()
    sealed, failures = [], []
    for name in notebooks:
        print(f"{variants.get(name).title if name in variants.BY_ID else name} · {profile}", file=sys.stderr)
        try:
            sealed.append(runner.run(name, parameters=given, out_root=root))
        except runner.NotebookFailed as error:
            failures.append(str(error))
            print(f"failed: {error}", file=sys.stderr)
    index = site.build(root) if sealed else None
    found = [{"round": r.record.round, "sha256": r.sha256, "verdicts": dump(r.verdicts)} for r in sealed]
    if as_json:
        print_json({"report": str(index) if index else None, "rounds": found, "failures": failures})
    else:
        for one in sealed:
            for verdict in leading(one.verdicts):
                print(f"{one.record.variant} · {sentence(verdict)}")
        print(f"report: {index}" if index else "no report: nothing was sealed")
    if failures:
        raise typer.Exit(1)


def leading(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Those of the first pair of arms by the first metric, which the round is about; the report has all."""
    keys = [(v.arm_a, v.arm_b, v.metric) for v in verdicts]
    return [v for v, key in zip(verdicts, keys, strict=True) if key == keys[0]]


def verify(
    round_id: Annotated[str, typer.Argument(metavar="ROUND", help="A round's id or folder, or all.")] = "all",
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Check every byte of sealed rounds; name what is wrong and exit 1."""
    root = data or places.data_root()
    if round_id == "all":
        checks = check_all(root)
    else:
        path = Path(round_id)
        found = [path] if path.is_dir() else sorted(root.glob(f"rounds/*/{round_id}"))
        if not found:
            raise BadUsage(f"no round {round_id!r} under {root / 'rounds'}")
        checks = [check(found[0])]
    problems = [problem for one in checks for problem in one.problems]
    if as_json:
        print_json({"checked": [c.round for c in checks], "problems": dump(problems)})
    else:
        for one in checks:
            print(f"{one.round}: {'; '.join(one.notes) or 'verified' if not one.problems else 'FAILED'}")
        for problem in problems:
            print(problem, file=sys.stderr)
    if problems:
        raise typer.Exit(1)


def report(
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="Folder to draw into; reports/ beside the rounds' folder.")] = None,
    interactive: Annotated[bool, typer.Option(help="Charts that answer to the pointer, one script a page.")] = False,
    as_json: Json = False,
) -> None:
    """Draw reports/ from the sealed rounds alone."""
    index = site.build(data, out, "interactive" if interactive else None)
    if as_json:
        print_json({"report": str(index)})
    else:
        print(f"report: {index}")


def doctor(as_json: Json = False) -> None:
    """What is installed, what each backend would run on, and whether the platform is fit; exit 1 where it is not."""
    from qwen3lab.attention import choose
    from qwen3lab.measure import health, machine, workloads

    platform = health.at_rest()
    checks = {
        "checkpoint nano": _state(lambda: places.checkpoint("nano")),
        "workloads": _state(lambda: [workloads.load(w, p) for p in workloads.PROFILES for w in workloads.IDS]),
        "rounds": _state(lambda: list(rounds(places.data_root()))),
        "platform": "; ".join((platform.status, *platform.reasons)),
    }
    facts = {
        "machine": machine.facts(),
        "libraries": machine.libraries(),
        "attention": choose.here(),
    }
    if as_json:
        print_json({**facts, "checks": checks})
    else:
        for name, known in facts.items():
            print(name, *(f"  {key}: {value}" for key, value in known.items()), sep="\n")
        print("checks", *(f"  {name}: {state}" for name, state in checks.items()), sep="\n")
    if platform.status == "reject" or any(state != FINE for name, state in checks.items() if name != "platform"):
        raise typer.Exit(1)


def _state(look: Callable[[], object]) -> str:
    try:
        look()
    except (ValueError, OSError) as error:
        return str(error)
    return FINE
