"""Frames in, charts out: every figure of the workbook, in one theme, with its data and its description beside it.

theme.py (colours, type, one look per engine) → show.py (a chart becomes a Figure: caption, description, data table)
→ draw.py (it becomes SVG) → gap.py (who is ahead, and by how much) → timeline.py (when each token came) → order.py (did
the machine hold still) → kernels.py (one operation at many sizes) → parts.py
(what a step is made of) → roofline.py (how near the machine's limits) → waterfall.py (a gap, part by part).

Nothing here measures, imports torch or opens a file: a chart is a function of the frames it is given.
"""

from qwen3lab.charts.gap import ratio_forest, throughput
from qwen3lab.charts.kernels import kernel_times, ratio_grid
from qwen3lab.charts.order import drift
from qwen3lab.charts.parts import step_parts
from qwen3lab.charts.roofline import roofline
from qwen3lab.charts.show import Figure, show
from qwen3lab.charts.timeline import itl_ecdf, itl_timeline
from qwen3lab.charts.waterfall import waterfall

__all__ = [
    "Figure",
    "drift",
    "itl_ecdf",
    "itl_timeline",
    "kernel_times",
    "ratio_forest",
    "ratio_grid",
    "roofline",
    "show",
    "step_parts",
    "throughput",
    "waterfall",
]
