"""Logits become ids. Every row by its own parameters; a row's choice depends on nothing but its own logits and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qwen3lab.engine.request import Request, SamplingParams, TokenLogprobs

NOT_FINITE = -1  # in place of an id


@dataclass(frozen=True)
class Sampled:
    """One row's outcome: an id, or None where its logits held NaN or infinity."""

    token_id: int | None
    logprobs: TokenLogprobs | None


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[Sampled]:
    """The next id of each request from its row of logits [B, V]."""
    logits = logits.float()
    token_ids = greedy(logits).tolist()  # the only time that a greedy step waits for the device
    results = []
    for row, (request, token_id) in enumerate(zip(requests, token_ids, strict=True)):
        if token_id == NOT_FINITE:
            results.append(Sampled(None, None))
            continue
        if not request.params.greedy:
            token_id = draw(logits[row], request.params, uniform(request.seed, len(request.token_ids)))
        results.append(Sampled(token_id, logprobs(logits[row], token_id, request.params.logprobs)))
    return results


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest id of each row of [B, V], of equals the lowest, as torch.max has it; NOT_FINITE where one is not.

    A row's largest and smallest value tell whether all are finite, as either is NaN if one is; few passes over the row
    are read faster than one that asks each value.
    """
    best, ids = logits.max(dim=-1)
    return torch.where(best - logits.amin(dim=-1) < float("inf"), ids, NOT_FINITE)


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that belongs to token `index` of a request with this seed, whatever else is in the batch."""
    return float(np.random.Generator(np.random.Philox(key=seed & (2**64 - 1), counter=index)).random())


def draw(logits: torch.Tensor, params: SamplingParams, u: float) -> int:
    """Sample one id from a row of logits [V] by inverting the cumulative distribution at `u`.

    Order of filters as everywhere in the field: temperature, then top-k, then top-p over what is left.
    """
    ordered, ids = torch.sort(logits.double() / params.temperature, descending=True, stable=True)
    if 0 < params.top_k < ordered.shape[0]:
        ordered, ids = ordered[: params.top_k], ids[: params.top_k]
    cumulative = torch.softmax(ordered, dim=-1).cumsum(dim=-1)
    kept = cumulative.shape[0]
    if params.top_p < 1.0:  # the smallest prefix that reaches top_p
        kept = min(kept, int(torch.searchsorted(cumulative, params.top_p).item()) + 1)
    mass = float(cumulative[kept - 1].item())
    choice = int(torch.searchsorted(cumulative[:kept], u * mass, right=True).item())
    return int(ids[min(choice, kept - 1)].item())


def logprobs(logits: torch.Tensor, token_id: int, count: int | None) -> TokenLogprobs | None:
    """Natural-log probabilities of the chosen id and of the `count` likeliest, before temperature and filters."""
    if count is None:
        return None
    values = torch.log_softmax(logits, dim=-1)
    top = torch.topk(values, min(count, values.shape[-1]))
    pairs = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return TokenLogprobs(chosen=float(values[token_id].item()), top=pairs)
