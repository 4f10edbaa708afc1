"""What a user hands over is checked before it can reach the queue: prompts become ids, or a ValueError says why."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from qwen3lab.engine.request import SamplingParams
from qwen3lab.engine.text import TextStream
from qwen3lab.model.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Intake:
    """The checks of one checkpoint: its tokenizer, where it has one, and its vocabulary."""

    path: Path
    vocab_size: int
    tokenizer: Tokenizer | None

    def token_ids(self, prompt: Prompt) -> list[int]:
        """The prompt as ids, at least one, all inside the vocabulary."""
        if isinstance(prompt, str):
            prompt = self.text_tokenizer("give the prompt as token ids").encode(prompt)
        ids = whole_ids(prompt)
        if not ids:
            raise ValueError("the prompt is empty; give it at least one token")
        self._check_ids("the prompt", ids)
        return ids

    def check(self, params: SamplingParams) -> None:
        """Refuse what SamplingParams cannot judge by itself: it knows no vocabulary and no tokenizer."""
        if params.stop:
            self.text_tokenizer(f"stop={params.stop!r} needs text")
        self._check_ids("stop_token_ids", params.stop_token_ids)

    def text(self, params: SamplingParams) -> TextStream | None:
        """What follows the request's text as it grows; None for a checkpoint without a tokenizer."""
        return TextStream(self.tokenizer.decode, tuple(params.stop)) if self.tokenizer is not None else None

    def text_tokenizer(self, otherwise: str) -> Tokenizer:
        """The tokenizer; ValueError where there is none."""
        if self.tokenizer is None:
            raise ValueError(f"{self.path} has no tokenizer.json; {otherwise}")
        return self.tokenizer

    def _check_ids(self, what: str, ids: Sequence[int]) -> None:
        bad = [i for i in ids if not 0 <= i < self.vocab_size]
        if bad:
            raise ValueError(f"{what} holds token id {bad[0]}, allowed: 0 to {self.vocab_size - 1}")


def whole_ids(prompt: Sequence[int]) -> list[int]:
    """A prompt's ids as Python's own ints, numpy's and torch's too; ValueError for what is not a row of those."""
    try:
        return [operator.index(i) for i in prompt]
    except TypeError:
        raise ValueError(f"the prompt is {prompt!r:.80}, allowed: a string, or a sequence of token ids") from None


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A single prompt (a string, or a flat list of ids) becomes a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Collection):
        raise ValueError(f"prompts={prompts!r:.80}, allowed: a string, a list of token ids, or a list of these")
    if len(prompts) and all(isinstance(p, int) for p in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def params_list(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """One set of sampling parameters for each of `count` prompts: one for all, or one each."""
    each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * count
    if len(each) != count:
        raise ValueError(f"{len(each)} sampling params for {count} prompts; give one for all, or one each")
    return each
