"""transformers as the second engine, and in float32 as the oracle that says how near a tie was.

`generate` is static batching: a batch is padded on the left to its longest prompt and runs until its longest request is
done, and a request that arrives meanwhile waits for the next call. That is how the library is used offline, so that is
how it is timed; its arrival is still counted from the step at which it arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from qwen3lab.measure.engines import Beat, EngineError, RequestResult, Score, now_s, versions

if TYPE_CHECKING:
    from qwen3lab.measure.workloads import WorkloadRequest

DTYPES = ("auto", "float32", "bfloat16", "float16")


class TransformersDriver:
    """AutoModelForCausalLM.generate, greedy, with a key/value cache, past EOS to exactly the lengths asked.

    dtype                "auto" (the checkpoint's own) or one of DTYPES
    device               "auto" (cuda where there is one), "cpu", "cuda" or "cuda:N"
    attn_implementation  transformers' own names: "sdpa", "eager", "flash_attention_2"
    max_num_seqs         rows a static batch may hold; more requests make more batches, one after the other
    prompt_lookup_num_tokens  tokens to draft from the prompt; its speculation, for which a batch holds one row
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "auto",
        device: str = "auto",
        attn_implementation: str = "sdpa",
        max_num_seqs: int = 256,
        prompt_lookup_num_tokens: int | None = None,
    ) -> None:
        from transformers import AutoModelForCausalLM, GenerationConfig
        from transformers.utils import logging

        if dtype not in DTYPES:
            raise ValueError(f"dtype={dtype!r}, allowed: {', '.join(DTYPES)}")
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs={max_num_seqs}, allowed: at least 1")
        logging.disable_progress_bar()
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if prompt_lookup_num_tokens is not None and prompt_lookup_num_tokens < 1:
            raise ValueError(f"prompt_lookup_num_tokens={prompt_lookup_num_tokens}, allowed: at least 1, or None")
        self._lookup = (
            {} if prompt_lookup_num_tokens is None else {"prompt_lookup_num_tokens": prompt_lookup_num_tokens}
        )
        self._device, self._max_num_seqs = torch.device(device), 1 if self._lookup else max_num_seqs
        self._model = AutoModelForCausalLM.from_pretrained(
            model,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            attn_implementation=attn_implementation,
            use_safetensors=True,
            trust_remote_code=False,
        )
        self._model.to(self._device).eval()
        # The checkpoint's own generation_config may sample, penalise and stop at EOS; `generate` merges it into what it
        # is given, so it is replaced, not overridden.
        self._model.generation_config = GenerationConfig(do_sample=False, use_cache=True, pad_token_id=0)

    @torch.inference_mode()
    def run(self, requests: Sequence[WorkloadRequest], beat: Beat) -> list[RequestResult]:
        results: dict[int, RequestResult] = {}
        start_s = now_s()
        first = [i for i, r in enumerate(requests) if r.inject_at_step == 0]
        later = sorted((i for i in range(len(requests)) if i not in first), key=lambda i: requests[i].inject_at_step)
        step_times_s: list[float] = []  # when each engine step since the run's start had ended
        for batch in self._batches(first):
            self._run_batch(requests, batch, dict.fromkeys(batch, start_s), step_times_s, results, beat)
        while later:
            ended = len(step_times_s)
            # Who has arrived by now waits for this call; if nobody has, the next one arrives at once.
            due = [i for i in later if requests[i].inject_at_step <= ended] or later[:1]
            batch = due[: self._max_num_seqs]
            later = [i for i in later if i not in batch]
            arrivals = {i: _arrival_s(requests[i].inject_at_step, step_times_s) for i in batch}
            self._run_batch(requests, batch, arrivals, step_times_s, results, beat)
        return [results[i] for i in range(len(requests))]

    def _batches(self, indices: Sequence[int]) -> list[list[int]]:
        size = self._max_num_seqs
        return [list(indices[k : k + size]) for k in range(0, len(indices), size)]

    def _run_batch(
        self,
        requests: Sequence[WorkloadRequest],
        batch: Sequence[int],
        arrivals_s: dict[int, float],
        step_times_s: list[float],
        results: dict[int, RequestResult],
        beat: Beat,
    ) -> None:
        """One `generate` call; fills `results` and appends the end of each of its steps to `step_times_s`."""
        prompts = [requests[i].prompt_token_ids for i in batch]
        lengths = [requests[i].max_tokens for i in batch]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=self._device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self._device)
        watch = _StepWatch(torch.tensor(lengths, device=self._device), width, beat)
        self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max(lengths),
            stopping_criteria=[watch],
            **self._lookup,
        )
        step_times_s += watch.times_s
        for row, (i, length) in enumerate(zip(batch, lengths, strict=True)):
            token_ids = tuple(step[row] for step in watch.tokens[:length])
            if len(token_ids) != length:
                raise EngineError(f"request {i}: generate stopped after {len(token_ids)} of {length} tokens")
            results[i] = RequestResult(token_ids, arrivals_s[i], tuple(watch.times_s[:length]))

    @torch.inference_mode()
    def score(self, prompt: Sequence[int], continuation: Sequence[int]) -> list[Score]:
        """One forward over prompt + continuation; the logits before each id of `continuation`."""
        n = len(continuation)
        ids = torch.tensor([[*prompt, *continuation]], device=self._device)
        logits = self._model(ids, use_cache=False, logits_to_keep=n + 1).logits[0, :n].float()
        top = logits.topk(2, dim=-1)
        chosen = logits.gather(1, ids[0, -n:, None])[:, 0]
        rows = zip(chosen.tolist(), top.values.tolist(), top.indices.tolist(), strict=True)
        return [Score(c, values[0], values[1], indices[0]) for c, values, indices in rows]

    def describe(self) -> dict[str, Any]:
        return {
            "engine": "transformers",
            "versions": versions("transformers", "torch", "accelerate", "flash-attn"),
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "device": str(self._device),
            "attention": self._model.config._attn_implementation,
            "batching": "static, left-padded; a request that arrives later waits for the next generate call",
            "setup": {
                "graphs": "eager",
                "kv_tokens": "as many as a batch needs",
                "block_size": "none, contiguous",
                "max_num_seqs": self._max_num_seqs,
                "max_num_batched_tokens": "a whole batch",
                "max_model_len": self._model.config.max_position_embeddings,
                "prefix_caching": False,
                "chunked_prefill": False,
                "speculation": f"prompt lookup, {self._lookup['prompt_lookup_num_tokens']}" if self._lookup else "off",
            },
            "options": {"max_num_seqs": self._max_num_seqs, **self._lookup},
        }


class _StepWatch:
    """Called by `generate` after each step: ids and time once they are on the host, and which rows are at their end.

    A row at its end goes on being computed until the batch is done (static batching); what it produces is not kept.
    """

    def __init__(self, lengths: torch.Tensor, prompt_width: int, beat: Beat) -> None:
        self._lengths, self._seen, self._beat = lengths, prompt_width, beat
        self.tokens: list[list[int]] = []
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        new = input_ids[:, self._seen :].t().tolist()  # one a row, but for a step whose drafts were accepted
        self._seen = input_ids.shape[1]
        self.tokens += new
        self.times_s += [now_s()] * len(new)
        self._beat()
        return self._lengths <= len(self.tokens)


def _arrival_s(step: int, step_times_s: Sequence[float]) -> float:
    """When `step` steps had run; a step beyond what was run arrives with the end of the last."""
    return step_times_s[min(step, len(step_times_s)) - 1] if step_times_s else now_s()
