"""START HERE. One request's way through the engine: add_request → schedule → run → commit → Completion.

`LLM` owns the loop and nothing else: the scheduler decides (ints), the runner computes (tensors), this file connects
them, delivers tokens and ends requests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from qwen3lab.config import EngineConfig, ModelConfig
from qwen3lab.engine.blocks import BlockPool
from qwen3lab.engine.request import Completion, FinishReason, Request, RequestMetrics, SamplingParams, Status
from qwen3lab.engine.runner import EngineFacts, Runner
from qwen3lab.engine.sampler import Sampled
from qwen3lab.engine.scheduler import Scheduler, StepPlan
from qwen3lab.engine.text import TextStream
from qwen3lab.model.tokenizer import Message, Tokenizer
from qwen3lab.model.weights import resolve
from qwen3lab.step import StepTrace

Prompt = str | Sequence[int]
TRACES_KEPT = 100_000


class LLM:
    """An offline engine for one Qwen3 checkpoint.

    model    directory of a Hugging Face checkpoint (config.json, *.safetensors, tokenizer.json), or a hub id
    options  see EngineConfig; an unknown one raises TypeError

    Raises CheckpointError (a ValueError) where the checkpoint cannot be served, naming file and remedy.
    """

    def __init__(self, model: str | Path, **options: Any) -> None:
        self.config = EngineConfig.from_options(**options)
        self.path = resolve(model)
        self.model_config = ModelConfig.from_dir(self.path)
        self.tokenizer = Tokenizer.from_dir(self.path) if (self.path / "tokenizer.json").exists() else None
        self._runner = Runner(self.path, self.model_config, self.config)
        self._scheduler = Scheduler(
            BlockPool(self.facts.num_pages, self.facts.page_size),
            max_num_seqs=self.config.max_num_seqs,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            max_model_len=self.facts.max_model_len,
        )
        self._requests: dict[int, Request] = {}
        self._streams: dict[int, TextStream] = {}
        self._next_id = 0
        self.traces: deque[StepTrace] = deque(maxlen=TRACES_KEPT)

    @property
    def facts(self) -> EngineFacts:
        """What start-up chose: device, dtype, attention provider, pages."""
        return self._runner.facts

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished

    # ── whole conversations ──────────────────────────────────────────────────────────────────────────────────────────

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[Completion]:
        """One Completion per prompt, in order. A bad prompt gets an `error` completion; the others finish.

        prompts  a string, a list of strings, a list of ids, or a list of lists of ids
        params   one for all, or one each
        """
        asked = _prompt_list(prompts)
        each = [params or SamplingParams()] * len(asked) if not isinstance(params, Sequence) else list(params)
        if len(each) != len(asked):
            raise ValueError(f"{len(each)} sampling params for {len(asked)} prompts; give one for all, or one each")
        if self.has_unfinished:
            raise RuntimeError("requests of add_request() are in flight; step() them to their end or abort() them")
        completions: dict[int, Completion] = {}
        order = []
        for prompt, mine in zip(asked, each, strict=True):
            try:
                order.append(self.add_request(prompt, mine))
            except (ValueError, TypeError) as error:
                refused = self._refused(prompt, str(error))
                completions[refused.request_id] = refused
                order.append(refused.request_id)
        try:
            with tqdm(total=len(asked), desc="requests", disable=not use_tqdm, dynamic_ncols=True) as bar:
                bar.update(len(completions))
                while self.has_unfinished:
                    for completion in self.step():
                        completions[completion.request_id] = completion
                        bar.update()
        except BaseException:  # an interrupt leaves the engine ready for the next call
            for request_id in list(self._requests):
                self.abort(request_id)
            raise
        return [completions[request_id] for request_id in order]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        **template_variables: Any,
    ) -> list[Completion]:
        """generate() on one conversation or several, each put into the checkpoint's own chat template."""
        if self.tokenizer is None:
            raise ValueError(f"{self.path} has no tokenizer.json; chat() needs one")
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [self.tokenizer.apply_chat_template(c, **template_variables) for c in conversations]  # type: ignore[arg-type]
        return self.generate(prompts, params, use_tqdm)

    # ── a step at a time ─────────────────────────────────────────────────────────────────────────────────────────────

    def add_request(self, prompt: Prompt, params: SamplingParams | None = None) -> int:
        """Queue one request and return its id. ValueError where it can never be served."""
        params = params or SamplingParams()
        ids = self._encode(prompt)
        if params.stop and self.tokenizer is None:
            raise ValueError(f"stop={params.stop!r} needs text, and {self.path} has no tokenizer.json")
        bad = [i for i in params.stop_token_ids if not 0 <= i < self.model_config.vocab_size]
        if bad:
            raise ValueError(f"stop_token_ids holds {bad[0]}, allowed: 0 to {self.model_config.vocab_size - 1}")
        request_id = self._next_id
        seed = params.seed if params.seed is not None else (self.config.seed << 32) + request_id
        request = Request(request_id, ids, params, seed, arrived_s=time.perf_counter())
        self._scheduler.add(request)
        self._next_id += 1
        self._requests[request_id] = request
        if params.stop:
            assert self.tokenizer is not None
            self._streams[request_id] = TextStream(self.tokenizer.decode, tuple(params.stop))
        return request_id

    def step(self) -> list[Completion]:
        """Run one step; the requests that ended in it."""
        plan = self._scheduler.schedule()
        if plan is None:
            return []
        started_s = time.perf_counter()
        for row in plan.rows:
            if row.request.scheduled_s is None:
                row.request.scheduled_s = started_s
        sampled = self._runner.run(plan)
        now_s = time.perf_counter()
        kv_tokens = sum(row.seq_len for row in plan.rows)
        self.traces.append(StepTrace(plan.kind, len(plan.rows), plan.num_tokens, kv_tokens, started_s, now_s))
        return self._commit(plan, sampled, now_s)

    def abort(self, request_id: int) -> Completion:
        """End a request now, wherever it is; its pages are free at once. KeyError where it is not in flight."""
        request = self._requests[request_id]
        return self._finish(request, "abort")

    # ── delivery ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _commit(self, plan: StepPlan, sampled: list[Sampled], now_s: float) -> list[Completion]:
        """Append each row's id and end the requests that are done."""
        finished = []
        for row, result in zip(plan.rows, sampled, strict=True):
            request = row.request
            request.num_computed = row.seq_len
            if result.token_id is None:
                error = "the model gave non-finite logits (NaN or infinity); its weights or its dtype cannot serve this"
                finished.append(self._finish(request, "error", error))
                continue
            request.token_ids.append(result.token_id)
            request.token_times_s.append(now_s)
            if result.logprobs is not None:
                request.logprobs.append(result.logprobs)
            reason = self._finish_reason(request, result.token_id)
            if reason is not None:
                finished.append(self._finish(request, reason))
        return finished

    def _finish_reason(self, request: Request, token_id: int) -> FinishReason | None:
        params = request.params
        if token_id in params.stop_token_ids:
            return "stop"
        if not params.ignore_eos and token_id in self.model_config.eos_token_ids:
            return "stop"
        stream = self._streams.get(request.request_id)
        if stream is not None and stream.push(token_id):
            return "stop"
        if len(request.token_ids) >= params.max_tokens or request.num_tokens >= self._scheduler.token_limit:
            return "length"
        return None

    def _finish(self, request: Request, reason: FinishReason, error: str | None = None) -> Completion:
        self._scheduler.finish(request, reason, error)
        del self._requests[request.request_id]
        return self._completion(request, self._streams.pop(request.request_id, None), time.perf_counter())

    def _completion(self, request: Request, stream: TextStream | None, finished_s: float) -> Completion:
        if stream is not None:
            if request.finish_reason != "stop":
                stream.finish()
            text = stream.text
        else:
            text = self.tokenizer.decode(request.token_ids) if self.tokenizer else ""
        started_s = request.scheduled_s if request.scheduled_s is not None else finished_s
        return Completion(
            request_id=request.request_id,
            prompt_token_ids=tuple(request.prompt_token_ids),
            token_ids=tuple(request.token_ids),
            text=text,
            finish_reason=request.finish_reason or "abort",
            error=request.error,
            logprobs=tuple(request.logprobs) if request.params.logprobs is not None else None,
            metrics=RequestMetrics(
                arrived_s=request.arrived_s,
                queued_s=started_s - request.arrived_s,
                first_token_s=request.token_times_s[0] if request.token_times_s else None,
                finished_s=finished_s,
                token_times_s=tuple(request.token_times_s),
            ),
        )

    def _refused(self, prompt: Prompt, error: str) -> Completion:
        """The completion of a prompt that add_request would not take."""
        ids = list(prompt) if not isinstance(prompt, str) else []
        request = Request(self._next_id, ids, SamplingParams(), seed=0, arrived_s=time.perf_counter())
        self._next_id += 1
        request.status, request.finish_reason, request.error = Status.FINISHED, "error", error
        return self._completion(request, None, request.arrived_s)

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError(f"{self.path} has no tokenizer.json; give the prompt as token ids")
            ids = self.tokenizer.encode(prompt)
        else:
            ids = [int(i) for i in prompt]
        if not ids:
            raise ValueError("the prompt is empty; give it at least one token")
        bad = [i for i in ids if not 0 <= i < self.model_config.vocab_size]
        if bad:
            raise ValueError(f"the prompt holds token id {bad[0]}, allowed: 0 to {self.model_config.vocab_size - 1}")
        return ids

    def __repr__(self) -> str:
        f = self.facts
        return f"LLM({self.path.name}, {f.dtype} on {f.device}, {f.attn_backend}, {f.num_pages} pages of {f.page_size})"


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A single prompt (a string, or a flat list of ids) becomes a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and all(isinstance(p, int) for p in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
