"""The ladder: sixteen rungs, each one question, each changing one thing. Data only; the notebooks measure.

A rung's `options` are what it adds to its parent's EngineConfig, so `options("v15")` is everything that v15 turns on.
A prediction is written before the round is measured, as one word a workload, so that the notebook can hold the two
together and say which were wrong.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Word = Literal["faster", "slower", "same"]


@dataclass(frozen=True)
class Rung:
    """One step of the ladder.

    question   what its notebook answers
    versus     what is compared with what; None where one thing is taken apart
    parent     the rung it is built on and compared with; None for the first
    options    EngineConfig options that it turns on, besides its parent's
    predicted  workload, or kind of a kernel's sizes → the word expected of B against A; empty until it is written
    """

    id: str
    question: str
    versus: str | None
    parent: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    predicted: Mapping[str, Word] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.id} · {self.question}"


# Two CPU cores and a 7 M parameter model: a step is mostly Python, so the thinner loop should win wherever steps are
# many; where one long product is most of the time, both call the same library.
_V01_PREDICTED: Mapping[str, Word] = MappingProxyType(
    {
        "w1_single_decode": "faster",
        "w2_long_prefill": "same",
        "w3_batch_throughput": "faster",
        "w4_repetitive_batch": "faster",
        "w5_code_edit": "faster",
        "w6_decode_stall": "faster",
        "w7_quote_extract": "faster",
        "w8_saturation": "faster",
    }
)

# Written before the kernels had run on a card. Against FlashAttention 3: a decode step that one launch shares out by
# number of multiprocessors, with GQA packed, reads each key once; with thousands of queries its warp-specialised
# pipeline is what Triton's loops do not have.
_V03_PREDICTED: Mapping[str, Word] = MappingProxyType(
    {"decode": "faster", "verify": "faster", "prefill": "slower", "chunk": "slower"}
)

# Against torch's chain of operations, and for "step" against FlashAttention after rms_norm_rope: one launch where there
# were several, and nothing written between them.
_V06_PREDICTED: Mapping[str, Word] = MappingProxyType({"rope": "faster", "step": "faster", "linear": "faster"})

# Of a card, against flash-attn: decode steps are what differs, so the one workload without many of them stays the same.
_V04_PREDICTED: Mapping[str, Word] = MappingProxyType(
    {
        "w1_single_decode": "faster",
        "w2_long_prefill": "same",
        "w3_batch_throughput": "faster",
        "w4_repetitive_batch": "faster",
    }
)

# Of a card: with the detour off, B, against with it. A copy of every page and layer, or a wait in every layer, is dear.
_V05_PREDICTED: Mapping[str, Word] = MappingProxyType({"w1_single_decode": "faster", "w3_batch_throughput": "faster"})

# Of a card without graphs: launches bind a decode step, and the fused op saves ten of them a layer.
_V07_PREDICTED: Mapping[str, Word] = MappingProxyType(
    {"w1_single_decode": "faster", "w2_long_prefill": "same", "w3_batch_throughput": "faster"}
)

# The plain engine against vLLM with all that vLLM turns on by itself: chunked prefill, a compiled model, graphs.
V01_AGAINST_VLLM: Mapping[str, Word] = MappingProxyType(dict.fromkeys(_V01_PREDICTED, "slower"))

# Everything that the ladder has turned on so far.
_V10_PREDICTED: Mapping[str, Word] = MappingProxyType(dict.fromkeys(_V01_PREDICTED, "faster"))

LADDER = (
    Rung("v01", "Where do we start?", "plain engine against the peers", None, predicted=_V01_PREDICTED),
    Rung("v02", "Where does a step's time go?", None, "v01"),
    Rung(
        "v03",
        "How fast is the paged split-KV decode kernel?",
        "kernel, FlashAttention, torch",
        "v02",
        predicted=_V03_PREDICTED,
    ),
    Rung(
        "v04",
        "What does hybrid attention gain over each of its parents?",
        "hybrid against each parent",
        "v03",
        options={"attn_backend": "hybrid"},
        predicted=_V04_PREDICTED,
    ),
    Rung(
        "v05",
        "What do the strided view and the host-side route cost or save?",
        "copy, view; sync, hint",
        "v04",
        predicted=_V05_PREDICTED,
    ),
    Rung(
        "v06",
        "Is rms_norm_rope right, and how fast?",
        "unfused chain against the fused op",
        "v05",
        predicted=_V06_PREDICTED,
    ),
    Rung(
        "v07",
        "Does the fusion pay end to end?",
        "fusion off against on",
        "v06",
        options={"enable_fused_ops": True},
        predicted=_V07_PREDICTED,
    ),
    Rung("v08", "Graphs: what is captured, what does it cost, what breaks it?", "eager against graph", "v07"),
    Rung("v09", "What is left outside the graph?", "packed copy, companion graph, overlap: off against on", "v08"),
    Rung(
        "v10",
        "How large is the gap to vLLM, and what is it made of?",
        "our best against vLLM",
        "v09",
        predicted=_V10_PREDICTED,
    ),
    Rung("v11", "Chunked prefill: the same tokens, and what does a chunk cost?", "chunks off against on", "v10"),
    Rung("v12", "How does the worst stall depend on the chunk's size?", "a sweep of chunk sizes", "v11"),
    Rung("v13", "Prompt lookup: when are drafts accepted, and does it pay?", "speculation off against on", "v12"),
    Rung("v14", "What do one fused, captured verify forward and the gain gate save?", "gate off against on", "v13"),
    Rung("v15", "Speculation and chunked prefill in one forward: where is the gap now?", "v10, v15 and vLLM", "v14"),
    Rung("v16", "Near ties: is every divergence explained, and what is left?", None, "v15"),
)
OF_KERNELS = frozenset({"attn_backend", "enable_fused_ops"})
BY_ID: Mapping[str, Rung] = MappingProxyType({rung.id: rung for rung in LADDER})


def get(rung_id: str) -> Rung:
    """The rung of that id; an unknown one raises ValueError."""
    if rung_id not in BY_ID:
        near = difflib.get_close_matches(rung_id, BY_ID, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no rung {rung_id!r}; {hint}The ladder goes from {LADDER[0].id} to {LADDER[-1].id}")
    return BY_ID[rung_id]


def options(rung_id: str) -> dict[str, Any]:
    """Every EngineConfig option that is on at that rung: its parents' first, then its own."""
    rung = get(rung_id)
    inherited = options(rung.parent) if rung.parent else {}
    return {**inherited, **rung.options}


def best(rung_id: str, device: str) -> dict[str, Any]:
    """The rung's options, less those that are kernels of ours where `device` ("cpu", "cuda", …) cannot run them."""
    return {k: v for k, v in options(rung_id).items() if device.startswith("cuda") or k not in OF_KERNELS}
