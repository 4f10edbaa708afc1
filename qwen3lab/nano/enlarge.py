"""A tied checkpoint's function in a larger shape, tensor by tensor. Every factor is a power of two: bf16 loses nothing.

Stream. Hidden size H grows to kH, k ≥ 4, by repeating: each dimension stands in k places, so every RMSNorm sees the
mean square it saw before, and norm weights and eps stay as they are. A projection reads the first p copies (p the
largest power of two in k), W/p from each, and writes to all. Heads and MLP units are repeated in the same way, GQA
groups staying together.

Carrier. Dimension 0 is different: its first four places hold 2x, c, 0, 0 instead of x, x, x, x. As 2² = 4·1² the mean
square still is what it was, but for c²/kH < 1e-9; no layer reads or writes the carrier, so c reaches the final norm.

Vocabulary. The head's row of an id beyond the source's is the mean of all real rows, and −PUSH at the carrier. Its
logit is the mean of the real logits minus 2¹⁹/rms (rms of the final stream, positive whatever the state), so it is
always below their maximum; and since the gap is in the hundreds, sampling does not find these ids either. Real logits
all move by the same 2⁻⁶/rms, which no argmax or softmax sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qwen3lab.model_config import CheckpointError, ModelConfig

CARRIER = 2.0**-10  # c, in the embedding of every real id
CARRIER_NORM = 2.0**14  # the final norm's weight there; like PUSH within float16
PUSH = 2.0**15
LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")


def check(small: ModelConfig, large: ModelConfig) -> None:
    """Raise CheckpointError naming what of `small` does not fit into `large`."""

    def refuse(what: str, have: int, want: int, allowed: str) -> None:
        raise CheckpointError(f"cannot enlarge {what} from {have} to {want}; allowed: {allowed}")

    if not small.tie_word_embeddings:
        raise CheckpointError("cannot enlarge an untied checkpoint; the source's head must be its embedding")
    if small.head_dim != large.head_dim:
        refuse("head_dim", small.head_dim, large.head_dim, "the same")
    group, wanted = small.num_heads // small.num_kv_heads, large.num_heads // large.num_kv_heads
    for what, have, want, times in (
        ("hidden_size", small.hidden_size, large.hidden_size, 4),
        ("num_key_value_heads", small.num_kv_heads, large.num_kv_heads, 1),
        ("query heads per KV head", group, wanted, 1),
    ):
        if want % have or want < times * have:
            refuse(what, have, want, f"multiples of {have} from {times * have}")
    for what, have, want in (
        ("num_hidden_layers", small.num_layers, large.num_layers),
        ("intermediate_size", small.intermediate_size, large.intermediate_size),
        ("vocab_size", small.vocab_size, large.vocab_size),
    ):
        if want < have:
            refuse(what, have, want, f"at least {have}")


def shares(copies: int) -> Tensor:
    """What each of `copies` copies contributes, [copies]: 1/p for the first p, p the largest power of two that fits."""
    p = 1 << (copies.bit_length() - 1)
    return torch.tensor([1 / p] * p + [0.0] * (copies - p))


@dataclass(frozen=True)
class Stream:
    """The places of the enlarged residual stream, each [kH]."""

    amount: Tensor  # place = amount · x
    read: Tensor  # read · place, summed over the places of a dimension, is x
    head: Tensor  # head · place · (amount · e), summed likewise, is x · e
    carrier: int

    @classmethod
    def of(cls, hidden: int, copies: int, dtype: torch.dtype) -> Stream:
        amount = torch.ones(copies, hidden)
        amount[:4, 0] = torch.tensor([2.0, 0.0, 0.0, 0.0])
        share = shares(copies)[:, None].repeat(1, hidden)
        share[:, 0] = 0
        share[0, 0] = 1
        divisor = amount.clamp(min=1)  # where the amount is 0, so is the share
        parts = (amount, share / divisor, share / divisor**2)
        return cls(*(part.flatten().to(dtype) for part in parts), carrier=hidden)


def enlarged(w: Mapping[str, Tensor], small: ModelConfig, large: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Embedding, the source's own layers, final norm and head in `large`; layers beyond those are the caller's."""
    copies = large.hidden_size // small.hidden_size
    stream = Stream.of(small.hidden_size, copies, w["model.embed_tokens.weight"].dtype)
    # Which source head each target head repeats: KV head b is b mod Hkv, and its group repeats that one's group.
    kv_from = torch.arange(large.num_kv_heads) % small.num_kv_heads
    group, wide = small.num_heads // small.num_kv_heads, large.num_heads // large.num_kv_heads
    q_from = (kv_from[:, None] * group + torch.arange(wide) % group).flatten()
    unit_from = torch.arange(large.intermediate_size) % small.intermediate_size

    def reads(weight: Tensor, source_of: Tensor, width: int) -> Tensor:
        """[out, H] → [out′, kH]: row blocks of `width` repeated as `source_of` says."""
        rows = weight.unflatten(0, (-1, width))[source_of].flatten(0, 1)
        return rows.repeat(1, copies) * stream.read

    def writes(weight: Tensor, source_of: Tensor, width: int) -> Tensor:
        """[H, in] → [kH, in′]: column blocks of `width` repeated likewise, each counted once in all."""
        blocks = weight.unflatten(1, (-1, width))
        columns = (blocks[:, source_of] * _once(source_of)[:, None].to(weight.dtype)).flatten(1)
        return columns.repeat(copies, 1) * stream.amount[:, None]

    embedding = _embedding(w["model.embed_tokens.weight"], copies, large.vocab_size, stream)
    yield "model.embed_tokens.weight", embedding
    for i in range(small.num_layers):
        layer = f"model.layers.{i}."
        for name in LAYER_NORMS:
            yield f"{layer}{name}.weight", w[f"{layer}{name}.weight"].repeat(copies)
        for name in HEAD_NORMS:
            yield f"{layer}{name}.weight", w[f"{layer}{name}.weight"]
        for name, change, source_of, width in (
            ("self_attn.q_proj", reads, q_from, small.head_dim),
            ("self_attn.k_proj", reads, kv_from, small.head_dim),
            ("self_attn.v_proj", reads, kv_from, small.head_dim),
            ("self_attn.o_proj", writes, q_from, small.head_dim),
            ("mlp.gate_proj", reads, unit_from, 1),
            ("mlp.up_proj", reads, unit_from, 1),
            ("mlp.down_proj", writes, unit_from, 1),
        ):
            yield f"{layer}{name}.weight", change(w[f"{layer}{name}.weight"], source_of, width)
    # The head is the embedding, amounts and all: here it is the norm that gives each place its share.
    norm = w["model.norm.weight"].repeat(copies) * stream.head
    norm[stream.carrier] = CARRIER_NORM
    yield "model.norm.weight", norm
    if not large.tie_word_embeddings:
        yield "lm_head.weight", embedding


def _embedding(weight: Tensor, copies: int, vocab: int, stream: Stream) -> Tensor:
    """[V, H] → [V′, kH]: the real rows, then the padding of the docstring above."""
    mean = weight.double().mean(0).to(weight.dtype)
    rows = torch.cat([weight, mean[None]]).repeat(1, copies) * stream.amount
    rows[:, stream.carrier] = CARRIER
    rows[-1, stream.carrier] = -PUSH
    return torch.cat([rows[:-1], rows[-1:].expand(vocab - len(weight), -1)])


def _once(source_of: Tensor) -> Tensor:
    """The share of each entry, so that every source is counted once; a partial last repeat counts nothing."""
    n = int(source_of.max()) + 1
    share = torch.zeros(len(source_of))
    times = len(source_of) // n
    for source in range(n):
        share[(source_of == source).nonzero()[:times, 0]] = shares(times)
    return share
