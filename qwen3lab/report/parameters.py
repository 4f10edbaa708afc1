"""A notebook's parameters, checked: the second code cell of every notebook calls `check(globals(), …)`.

papermill injects what it is given, right or wrong: an unknown name only earns a warning, `-p flag false` becomes the
true string 'false', and a typo measures the default. Here each of these raises, in the kernel, so that bare papermill,
JupyterLab and `qwen3lab run` refuse alike. Values are checked strictly: 'false' is no bool and '8' no number. With bare
papermill, `-y '{blocks: 8, model: path}'` passes typed values and `-r name text` passes text as it is.
"""

from __future__ import annotations

import ast
import difflib
import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

PROFILES = ("smoke", "full", "h200")
Profile = Literal["smoke", "full", "h200"]
BLOCKS = {"smoke": 4, "full": 6, "h200": 10}
DTYPES = {"smoke": "float32", "full": "float32", "h200": "bfloat16"}


class ParameterError(ValueError):
    """Parameters that a notebook does not take: which, what they were, what is allowed."""


class Parameters(BaseModel):
    """What every notebook takes; one with more parameters has a subclass. Frozen, strict; an unknown name raises.

    profile  sizes: "smoke" takes seconds on a CPU, "full" the workloads' whole size, "h200" that on the card
    model    "nano" (ships here), a checkpoint folder or a hub id
    dtype    of weights, activations and KV cache in both arms; None: the profile's own
    only     ids of workloads, separated by commas; None: all of them
    blocks   ABBA blocks a workload, at least 2 for an interval; None: the profile's own
    seed     of the order of the blocks and of the bootstrap
    margin   the difference that counts as none
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())

    profile: Profile
    model: Annotated[str, Field(min_length=1)]
    dtype: Literal["float32", "bfloat16", "float16"] | None
    only: Annotated[str, Field(min_length=1)] | None
    blocks: Annotated[int, Field(ge=2, le=100)] | None
    seed: Annotated[int, Field(ge=0)]
    margin: Annotated[float, Field(gt=0, lt=1)]

    @property
    def sizes(self) -> Literal["smoke", "full"]:
        """Which workloads: those of "h200" are the full ones."""
        return "smoke" if self.profile == "smoke" else "full"

    @property
    def dtype_name(self) -> str:
        return DTYPES[self.profile] if self.dtype is None else self.dtype

    def chosen(self, workloads: Sequence[str]) -> list[str]:
        """Those of `workloads` that `only` names, in their own order; an unknown one raises ParameterError."""
        if self.only is None:
            return list(workloads)
        asked = [name.strip() for name in self.only.split(",")]
        if unknown := [name for name in asked if name not in workloads]:
            raise ParameterError(f"only names {unknown[0]!r}; known: {', '.join(workloads)}")
        return [workload for workload in workloads if workload in asked]

    @property
    def block_count(self) -> int:
        return BLOCKS[self.profile] if self.blocks is None else self.blocks

    def _repr_html_(self) -> str:
        own = {"dtype": self.dtype_name, "only": "all workloads", "blocks": self.block_count}
        shown = {name: own.get(name) if value is None else value for name, value in self.model_dump().items()}
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(str(value))}</td></tr>" for name, value in shown.items())
        return f"<table>{rows}</table>"


class RivalParameters(Parameters):
    """Of a notebook that compares with another engine; "auto" is vLLM where this machine has it, else transformers."""

    rival: Literal["auto", "vllm", "transformers"]


P = TypeVar("P", bound=Parameters)


def check(namespace: Mapping[str, Any], model: type[P]) -> P:
    """The parameters in a notebook's `globals()`. Raises ParameterError for an unknown, missing or wrong one.

    Names are unknown that were assigned before the cell of this call first ran and are no field of `model`: in a fresh
    kernel only the parameters cell runs before it, and papermill's injected one. A kernel without history (nbval's)
    is judged by the plain values it holds.
    """
    declared = set(model.model_fields)
    cells = namespace.get("In")
    if not isinstance(cells, list):
        raise ParameterError("parameters.check(globals(), …) is for a cell of a notebook: there is no In")
    for name in assigned_before(cells) if cells and cells[-1] else _plain_values(namespace):
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ";"
            raise ParameterError(f"unknown parameter {name!r}{hint} known: {', '.join(model.model_fields)}")
    if missing := [name for name in model.model_fields if name not in namespace]:
        raise ParameterError(f"parameter {missing[0]!r} has no value; assign it in the parameters cell")
    try:
        return model.model_validate({name: namespace[name] for name in model.model_fields})
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc'][:1]))}={fault['input']!r}: {fault['msg']}" for fault in error.errors()
        ]
        raise ParameterError("; ".join(faults)) from None


def assigned_before(cells: list[str]) -> Iterator[str]:
    """Names assigned at the top level of the cells that ran before the last one first did."""
    for source in cells[: cells.index(cells[-1])]:
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue  # it did not run, so it assigned nothing
        for statement in tree.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if isinstance(statement, ast.AnnAssign | ast.AugAssign):
                targets = [statement.target]
            for target in targets:
                yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _plain_values(namespace: Mapping[str, Any]) -> Iterator[str]:
    """Names of what a parameters cell could have assigned; IPython's own are In, Out and those with an underscore."""
    plain = (bool, int, float, str, list, dict, tuple, type(None))
    return (n for n, v in namespace.items() if isinstance(v, plain) and n not in ("In", "Out") and n[:1] != "_")
