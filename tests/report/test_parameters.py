"""Notebook parameters: what papermill injects is read off the cells that ran, and every wrong value refuses to run."""

from __future__ import annotations

from typing import Any

import pytest
from made_notebooks import CHECK, PARAMETERS
from papermill.translators import PythonTranslator

from qwen3lab.report.parameters import ParameterError, Parameters, check


def run(injected: dict[str, Any] | None = None, cells: tuple[str, ...] = (PARAMETERS,)) -> Parameters:
    """The check as it runs in a kernel: after the parameters cell and, where something is injected, papermill's own."""
    history = ["", *cells]
    if injected is not None:
        history.append(PythonTranslator.codify(injected, "Parameters"))
    namespace: dict[str, Any] = {}
    for cell in history:
        exec(cell, namespace)
    return check({**namespace, "In": [*history, CHECK]}, Parameters)


def test_defaults_and_injected_values() -> None:
    assert run().block_count == 4
    assert run({"profile": "h200"}).model_dump() == {
        "profile": "h200", "model": "nano", "dtype": None, "only": None, "blocks": None, "seed": 0, "margin": 0.05,
    }  # fmt: skip
    assert (run({"profile": "h200"}).sizes, run({"profile": "h200"}).dtype_name) == ("full", "bfloat16")
    assert (run().sizes, run().dtype_name) == ("smoke", "float32")
    assert "nano" in run()._repr_html_()


@pytest.mark.parametrize(
    ("injected", "message"),
    [
        ({"blokcs": 3}, "unknown parameter 'blokcs'; did you mean 'blocks'"),
        ({"_seed": 3}, "unknown parameter '_seed'"),
        ({"x": None, "seed": 1}, "unknown parameter 'x'"),
        ({"blocks": "8"}, "blocks='8': Input should be a valid integer"),
        ({"blocks": True}, "blocks=True: Input should be a valid integer"),
        ({"blocks": 1}, "blocks=1: .*greater than or equal to 2"),
        ({"profile": "huge"}, "profile='huge': Input should be 'smoke', 'full' or 'h200'"),
        ({"margin": float("nan")}, "margin=nan"),
        ({"margin": "0.05"}, "margin='0.05': Input should be a valid number"),
        ({"model": None}, "model=None: Input should be a valid string"),
        ({"model": ""}, "model=''"),
        ({"dtype": "fp8"}, "dtype='fp8'"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_values_are_refused(injected: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        run(injected)


def test_a_switch_is_no_string() -> None:
    class Switched(Parameters):
        graph: bool

    def switched(value: Any) -> Switched:
        cells = ["", f"{PARAMETERS}\ngraph = {value!r}", CHECK]
        namespace: dict[str, Any] = {"In": cells}
        exec(cells[1], namespace)
        return check(namespace, Switched)

    assert switched(False).graph is False
    with pytest.raises(ParameterError, match="graph='false': Input should be a valid boolean"):
        switched("false")


def test_a_second_run_of_the_cell_does_not_mistake_results_for_parameters() -> None:
    cells = ["", PARAMETERS, CHECK, "answer = 42", CHECK]
    namespace: dict[str, Any] = {"answer": 42, "In": cells}
    exec(PARAMETERS, namespace)
    assert check(namespace, Parameters).seed == 0


def test_a_parameter_that_the_cell_forgot() -> None:
    with pytest.raises(ParameterError, match="parameter 'seed' has no value"):
        run(cells=(PARAMETERS.replace("seed = 0\n", ""),))


def test_a_kernel_without_history_is_judged_by_what_it_holds() -> None:
    namespace: dict[str, Any] = {"In": [""], "Out": {}, "_i": "", "pd": pytest}
    exec(PARAMETERS, namespace)
    assert check(namespace, Parameters).profile == "smoke"
    with pytest.raises(ParameterError, match="unknown parameter 'blokcs'"):
        check({**namespace, "blokcs": 3}, Parameters)


def test_outside_a_notebook_there_is_nothing_to_check() -> None:
    with pytest.raises(ParameterError, match="there is no In"):
        check({"profile": "smoke"}, Parameters)


def test_only_chooses_among_known_workloads() -> None:
    known = ("w1", "w2", "w3")
    assert run({"only": "w3, w1"}).chosen(known) == ["w1", "w3"]
    assert run().chosen(known) == list(known)
    with pytest.raises(ParameterError, match="only names 'w9'; known: w1, w2, w3"):
        run({"only": "w1,w9"}).chosen(known)
