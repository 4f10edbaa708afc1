"""Every chart: its description, its numbers, what it refuses, and the same bytes each time."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import altair as alt
import made_frames
import numpy as np
import pandas as pd
import pytest

from qwen3lab import charts
from qwen3lab.charts import theme
from qwen3lab.charts.show import FIGURE_MIME, Figure, show

TRIALS, SAMPLES, VERDICTS = made_frames.comparison()
KERNELS, FIELD = made_frames.kernels()
RIVAL = "FlashAttention (vllm)"
GAP = [
    {"label": "floor (bytes)", "us": 290.0, "role": "part"},
    {"label": "attention, beyond the floor", "us": 120.0, "role": "part"},
    {"label": "unaccounted for", "us": -10.0, "role": "part"},
    {"label": "qwen3lab", "us": 400.0, "role": "qwen3lab"},
    {"label": "vllm", "us": 1700.0, "role": "vllm"},
]
PARTS = pd.DataFrame(
    [
        {"step": step, "part": part, "share": share, "us": share * us}
        for step, us in (("w1, decode", 900.0), ("w2, prefill", 31000.0))
        for part, share in (("products", 0.6), ("attention", 0.3), ("sampling", 0.1))
    ]
)
CHARTS: dict[str, Callable[[], Figure]] = {
    "ratio_forest": lambda: charts.ratio_forest(VERDICTS),
    "throughput": lambda: charts.throughput(TRIALS),
    "itl_timeline": lambda: charts.itl_timeline(SAMPLES),
    "itl_ecdf": lambda: charts.itl_ecdf(SAMPLES),
    "drift": lambda: charts.drift(TRIALS),
    "kernel_times": lambda: charts.kernel_times(KERNELS, "context", panel="batch", what="decode"),
    "roofline": lambda: charts.roofline(KERNELS, {"read_gbps": 4000.0, "product_tflops": 700.0}, "decode"),
    "waterfall": lambda: charts.waterfall(GAP, "From the floor to a step"),
    "step_parts": lambda: charts.step_parts(PARTS),
    "ratio_grid": lambda: charts.ratio_grid(KERNELS, FIELD, RIVAL, "qwen3lab", "context", "batch"),
}


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    return {name: make() for name, make in CHARTS.items()}


@pytest.mark.parametrize("name", CHARTS)
def test_a_figure_is_drawn_for_desk_and_phone_and_says_what_it_shows(figures: dict[str, Figure], name: str) -> None:
    html = figures[name].html()
    drawings = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
    widths = [float(ElementTree.fromstring(svg).attrib["viewBox"].split()[2]) for svg in drawings]
    assert len(drawings) == 2
    assert widths[0] == pytest.approx(theme.WIDE, rel=0.05)
    assert widths[1] == pytest.approx(theme.NARROW, rel=0.08)
    assert re.search(r'<figure role="img" aria-label="[^"]{40,}"', html)
    assert "qwen3lab" in figures[name].alt, "the description names what is compared"
    assert html.count("<tr>") == 1 + min(len(figures[name].rows), 200)
    assert len(html) < 200_000


@pytest.mark.parametrize("name", CHARTS)
def test_the_same_frames_give_the_same_bytes(figures: dict[str, Figure], name: str) -> None:
    assert CHARTS[name]().html("interactive") == figures[name].html("interactive")
    assert Figure.from_dict(figures[name].to_dict()).html() == figures[name].html(), "and so does a stored figure"


@pytest.mark.parametrize("name", CHARTS)
def test_no_two_drawings_share_an_id(figures: dict[str, Figure], name: str) -> None:
    html = figures[name].html() + charts.ratio_forest(VERDICTS[:3]).html()
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(ids)


def test_every_engine_has_a_colour_a_shape_and_a_dash_of_its_own() -> None:
    looks = [*theme.ENGINES.values(), *theme.SIBLINGS]
    for field in ("color", "shape", "dash", "glyph", "night"):
        assert len({getattr(look, field) for look in looks}) == len(looks), field
    assert all(contrast(look.color, "#ffffff") >= 3 and contrast(look.night, "#0f1419") >= 3 for look in looks)
    assert contrast(theme.MUTED, "#ffffff") >= 4.5
    with pytest.raises(ValueError, match="'llama' has no colour; known: qwen3lab, vllm"):
        charts.throughput(TRIALS.assign(engine="llama"))


def test_arms_of_one_engine_are_told_apart_and_the_plain_one_wears_its_look() -> None:
    arms = theme.present(["qwen3lab flash-attn", "vllm", "qwen3lab", "qwen3lab again"])
    assert arms == ["qwen3lab", "qwen3lab flash-attn", "qwen3lab again", "vllm"]
    looks = theme.looks(arms)
    assert looks["qwen3lab"] == theme.ENGINES["qwen3lab"] and looks["vllm"] == theme.ENGINES["vllm"]
    assert len({look.color for look in looks.values()}) == len({look.shape for look in looks.values()}) == 4
    figure = charts.throughput(TRIALS.replace({"engine": {"transformers": "qwen3lab plain"}}))
    assert "w1_single_decode, qwen3lab plain: " in figure.alt and "w1_single_decode, qwen3lab: " in figure.alt


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio of two colours."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_missing_and_infinite_values_are_counted_where_a_reader_sees_them() -> None:
    frame = pd.DataFrame({"x": [1, 2, 3, 4], "gap_ms": [1.0, np.nan, np.inf, None]})
    figure = show(alt.Chart(frame).mark_point().encode(x="x:Q", y="gap_ms:Q"), alt="Gaps", title="Gaps", table=frame)
    assert "Missing: 3 of 4 in gap_ms." in figure.html()
    assert figure.html().count(">missing</td>") == 3


def test_a_verdict_without_a_ratio_or_an_interval_is_shown_as_such() -> None:
    none = {"ratio": None, "ci_low": None, "ci_high": None, "word": "undecided"}
    figure = charts.ratio_forest([VERDICTS[0], VERDICTS[1] | {"ci_low": None, "ci_high": None}, VERDICTS[2] | none])
    assert figure.missing == {"ratio": 1, "ci_low": 2, "ci_high": 2}
    assert "w3_batch_throughput: no ratio, undecided" in figure.alt
    assert "no ratio · undecided" in figure.html()


def test_charts_refuse_what_they_cannot_draw() -> None:
    with pytest.raises(ValueError, match="no verdict on metric='ttft_s'; there are: wall_s"):
        charts.ratio_forest(VERDICTS, metric="ttft_s")
    with pytest.raises(ValueError, match="2 comparisons in one chart"):
        charts.ratio_forest([VERDICTS[0], VERDICTS[1] | {"arm_a": "vllm"}])
    with pytest.raises(ValueError, match="no measured samples of workload='w9'"):
        charts.itl_timeline(SAMPLES, "w9")
    single = SAMPLES.assign(token_times_s=[times[:1] for times in SAMPLES["token_times_s"]])
    with pytest.raises(ValueError, match="no request has two tokens"):
        charts.itl_timeline(single)
    frame = pd.DataFrame({"x": range(5001)})
    with pytest.raises(ValueError, match="more than 5000 rows of data; aggregate"):
        show(alt.Chart(frame).mark_point().encode(x="x:Q"), alt="Points", title="Points", table=frame)
    with pytest.raises(ValueError, match="alt is empty"):
        show(alt.Chart(frame), alt=" ", title="Points", table=frame)


def test_kernels_are_drawn_in_floors_and_who_is_missing_is_said() -> None:
    figure = charts.kernel_times(KERNELS, "context", panel="batch")
    assert "qwen3lab at context 128, batch 1: 3.13 µs, 4% of the ceiling" in figure.alt
    assert "Not drawn: torch.compile: not installed." in figure.caption
    assert len(figure.rows) == 18 and figure.columns[:3] == ["batch", "context", "arm"]
    with pytest.raises(ValueError, match="no row has a time_us"):
        charts.kernel_times(KERNELS[KERNELS.arm == "torch.compile"], "context")


def test_a_field_of_ratios_says_each_and_refuses_a_pair_it_has_not() -> None:
    figure = charts.ratio_grid(KERNELS, FIELD, RIVAL, "qwen3lab", "context", "batch")
    assert "batch 1, context 128: 0.61, faster" in figure.alt
    assert "batch 8, context 65536: 1.02, same" in figure.alt
    with pytest.raises(ValueError, match=r"no ratio of 'qwen3lab' against 'torch'; there are: qwen3lab against Flash"):
        charts.ratio_grid(KERNELS, FIELD, "torch", "qwen3lab", "context", "batch")


def test_a_waterfall_leads_from_bar_to_bar_and_says_what_is_left() -> None:
    figure = charts.waterfall(GAP, "From the floor to a step")
    (rows,) = figure.wide["datasets"].values()
    assert [(row["from_us"], row["to_us"]) for row in rows] == [(0, 290), (290, 410), (400, 410), (0, 400), (0, 1700)]
    assert "unaccounted for −10 µs" in figure.alt and "vllm 1.7 ms" in figure.alt
    with pytest.raises(ValueError, match="are not each once"):
        charts.waterfall([GAP[0], GAP[0]], "twice")


def test_two_hundred_thousand_gaps_are_a_small_figure() -> None:
    rng = np.random.default_rng(1)
    times = [list(np.cumsum(rng.lognormal(-6, 0.3, 25_000))) for _ in range(8)]
    base = {"workload": "w6_decode_stall", "engine": "qwen3lab", "warmup": False, "trial_id": 1, "prompt_tokens": 64}
    rows = [{**base, "request": i, "arrival_s": 0.0, "ttft_s": t[0], "token_times_s": t} for i, t in enumerate(times)]
    for figure in (charts.itl_timeline(pd.DataFrame(rows)), charts.itl_ecdf(pd.DataFrame(rows))):
        assert len(figure.html("interactive")) < 200_000
    assert max(row[3] for row in charts.itl_timeline(pd.DataFrame(rows)).rows) == pytest.approx(
        max(np.diff(t).max() for t in times) * 1e3
    ), "the worst gap survives the slicing"


def test_warm_ups_and_rejected_trials_are_not_drawn_as_results() -> None:
    odd = pd.concat([TRIALS, TRIALS.assign(warmup=True), TRIALS.assign(health="reject")]).assign(output_tok_per_s=1e9)
    odd.iloc[: len(TRIALS), odd.columns.get_loc("output_tok_per_s")] = TRIALS["output_tok_per_s"]
    assert charts.throughput(odd).rows == charts.throughput(TRIALS).rows


def test_injected_request_is_shaded_and_timed(figures: dict[str, Figure]) -> None:
    trial = SAMPLES[(SAMPLES["workload"] == "w6_decode_stall") & (SAMPLES["arrival_s"] > 0)]
    assert "768 prompt tokens arrive" in figures["itl_timeline"].html()
    waits = {f"{engine} {ms:.3g} ms" for engine, ms in zip(trial["engine"], trial["ttft_s"] * 1e3, strict=True)}
    assert {wait.split()[0] for wait in waits if wait in figures["itl_timeline"].caption} == {
        "qwen3lab",
        "transformers",
    }


def test_a_notebook_output_is_valid_and_holds_the_figure(figures: dict[str, Figure]) -> None:
    import nbformat

    bundle = figures["itl_ecdf"]._repr_mimebundle_()
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("display_data", data=bundle)])
    nbformat.validate(nbformat.v4.new_notebook(cells=[cell]))
    assert Figure.from_dict(bundle[FIGURE_MIME]) == figures["itl_ecdf"]
    assert "<script" not in bundle["text/html"]


def test_interactive_in_jupyterlab_is_the_offline_widget(
    figures: dict[str, Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWEN3LAB_CHARTS", "interactive")
    bundle = figures["itl_ecdf"]._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert FIGURE_MIME in bundle, "a report can still draw it"
    monkeypatch.setenv("QWEN3LAB_CHARTS", "fancy")
    with pytest.raises(ValueError, match="QWEN3LAB_CHARTS='fancy', allowed: static, interactive"):
        figures["itl_ecdf"]._repr_mimebundle_()


def test_strings_from_data_are_escaped_everywhere() -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    frame = pd.DataFrame({"x": [1.0], "name": [evil]})
    chart = alt.Chart(frame).mark_point().encode(x="x:Q", y="name:N")
    html = show(chart, alt=evil, title=evil, table=frame, caption=evil).html("interactive")
    assert "<img" not in html
    assert html.count("</script>") == 1


def test_a_drawing_leads_nowhere_and_fetches_nothing() -> None:
    frame = pd.DataFrame({"x": [1.0], "address": ["https://example.org/x.png"]})
    links = alt.Chart(frame).mark_point().encode(x="x:Q", href="address:N")
    html = show(links, alt="Links", title="Links", table=frame[["x"]]).html()
    assert "https://example.org" not in html
    elsewhere = alt.Chart("https://example.org/data.json").mark_point().encode(x="x:Q")
    with pytest.raises(ValueError, match="External data url not allowed"):
        show(elsewhere, alt="Data from elsewhere", title="Elsewhere", table=frame[["x"]]).html()


@pytest.mark.parametrize(("low", "high", "most"), [(0.97, 1.04, 5), (0.001, 900.0, 6), (3.0, 3.1, 4), (40, 60, 3)])
def test_log_ticks_are_few_and_inside(low: float, high: float, most: int) -> None:
    ticks = theme.log_ticks(low, high, most)
    assert 1 <= len(ticks) <= most
    assert all(low <= tick <= high for tick in ticks)
