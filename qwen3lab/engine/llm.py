"""START HERE. One request's way through the engine: add_request → schedule → run → commit → Completion.

`LLM` owns the loop and nothing else: the scheduler decides (ints), the runner computes (tensors), this file connects
them, delivers tokens and ends requests.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from tqdm.auto import tqdm

from qwen3lab.config import EngineConfig
from qwen3lab.engine.blocks import BlockPool
from qwen3lab.engine.intake import Intake, Prompt, params_list, prompt_list, whole_ids
from qwen3lab.engine.prefix import PrefixIndex
from qwen3lab.engine.request import Completion, FinishReason, Request, SamplingParams, Status
from qwen3lab.engine.runner import EngineFacts, Runner
from qwen3lab.engine.sampler import Sampled
from qwen3lab.engine.scheduler import Scheduler, StepPlan
from qwen3lab.engine.stream import Stream
from qwen3lab.model.tokenizer import Message, Tokenizer
from qwen3lab.model.weights import resolve
from qwen3lab.model_config import ModelConfig
from qwen3lab.step import StepTrace

NOT_FINITE = "the model gave non-finite logits (NaN or infinity); its weights or its dtype cannot serve this"
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
        self._intake = Intake(self.path, self.model_config.vocab_size, self.tokenizer)
        index = PrefixIndex(self.facts.page_size) if self.config.enable_prefix_caching else None
        self._scheduler = Scheduler(
            BlockPool(self.facts.num_pages, self.facts.page_size, index),
            max_num_seqs=self.config.max_num_seqs,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            max_model_len=self.facts.max_model_len,
        )
        self._requests: dict[int, Request] = {}
        # Weakly: a stream that nobody holds any more must be able to close itself.
        self._readers: WeakValueDictionary[int, Stream] = WeakValueDictionary()
        self._ended: deque[Completion] = deque()  # of requests that ended while somebody read a stream
        self._next_id = 0
        self._steps: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self.traces: deque[StepTrace] = deque(maxlen=TRACES_KEPT)

    @property
    def facts(self) -> EngineFacts:
        """What start-up chose: device, dtype, attention provider, pages."""
        return self._runner.facts

    @property
    def stats(self) -> dict[str, Any]:
        """What has run so far: {"steps": {kind: count}, "tokens": {kind: count}}, and on what, as in `facts`."""
        f = self.facts
        ran = {"attn_backend": f.attn_backend, "attn_providers": f.attn_providers, "qk_provider": f.qk_provider}
        return {"steps": dict(self._steps), "tokens": dict(self._tokens), **ran}

    @property
    def has_unfinished(self) -> bool:
        """Whether step() still has something to run or to hand over."""
        return self._scheduler.has_unfinished or bool(self._ended)

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
        asked = prompt_list(prompts)
        each = params_list(params, len(asked))
        if self.has_unfinished:
            raise RuntimeError(
                "requests of add_request() or stream() are in flight; bring them to their end, or abort them"
            )
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
        tokenizer = self._intake.text_tokenizer("chat() needs one")
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [tokenizer.apply_chat_template(c, **template_variables) for c in conversations]  # type: ignore[arg-type]
        return self.generate(prompts, params, use_tqdm)

    # ── a step at a time ─────────────────────────────────────────────────────────────────────────────────────────────

    def add_request(self, prompt: Prompt, params: SamplingParams | None = None) -> int:
        """Queue one request and return its id. ValueError where it can never be served."""
        params = params or SamplingParams()
        ids = self._intake.token_ids(prompt)
        self._intake.check(params)
        request_id = self._next_id
        seed = params.seed if params.seed is not None else (self.config.seed << 32) + request_id
        request = Request(request_id, ids, params, seed, arrived_s=time.perf_counter())
        self._scheduler.add(request)
        self._next_id += 1
        self._requests[request_id] = request
        if params.stop:
            request.text = self._intake.text(params)
        return request_id

    def step(self) -> list[Completion]:
        """Run one step; the requests that have ended since the last call, but for those that a Stream reads."""
        self._work()
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Queue one request and read it as it grows: `for piece in llm.stream(…): print(piece.text, end="")`.

        The errors of add_request; see Stream for closing it and for how it ends.
        """
        params = params or SamplingParams()
        request_id = self.add_request(prompt, params)
        request = self._requests[request_id]
        request.text = request.text or self._intake.text(params)
        self._readers[request_id] = stream = Stream(request_id, self._work, self.abort)
        return stream

    def abort(self, request_id: int) -> Completion:
        """End a request now, wherever it is; its pages are free at once. KeyError where it is not in flight."""
        request = self._requests[request_id]
        completion = self._finish(request, "abort")
        if request_id in self._readers:
            self._readers[request_id].feed(request, 0, completion)
        return completion

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        """Schedule, run, commit: one step."""
        plan = self._scheduler.schedule()
        if plan is None:
            return
        started_s = time.perf_counter()
        for row in plan.rows:
            if row.request.scheduled_s is None:
                row.request.scheduled_s = started_s
        try:
            sampled = self._runner.run(plan)
        except BaseException:  # an interrupt, or no memory: nothing of this step counts, and it can be run again
            self._scheduler.take_back(plan)
            raise
        now_s = time.perf_counter()
        self._steps[plan.kind.value] += 1
        self._tokens[plan.kind.value] += plan.num_tokens
        kv_tokens = sum(row.seq_len for row in plan.rows)
        self.traces.append(StepTrace(plan.kind, len(plan.rows), plan.num_tokens, kv_tokens, started_s, now_s))
        self._commit(plan, sampled, now_s)

    def _commit(self, plan: StepPlan, sampled: list[Sampled], now_s: float) -> None:
        """Append each row's id, hand it to whoever reads, and end the requests that are done."""
        for row, result in zip(plan.rows, sampled, strict=True):
            request = row.request
            ended: Completion | None
            if result.token_id is None:
                ended = self._finish(request, "error", NOT_FINITE)
            else:
                self._scheduler.commit(row)
                request.append(result.token_id, result.logprobs, now_s)
                reason = self._finish_reason(request, result.token_id)
                ended = self._finish(request, reason) if reason is not None else None
            reader = self._readers.get(request.request_id)
            if reader is not None:
                reader.feed(request, int(result.token_id is not None), ended)
            elif ended is not None:
                self._ended.append(ended)

    def _finish_reason(self, request: Request, token_id: int) -> FinishReason | None:
        params = request.params
        stopped = request.text is not None and request.text.push(token_id)
        if stopped or token_id in params.stop_token_ids:
            return "stop"
        if not params.ignore_eos and token_id in self.model_config.eos_token_ids:
            return "stop"
        if len(request.token_ids) >= params.max_tokens or request.num_tokens >= self._scheduler.token_limit:
            return "length"
        return None

    def _finish(self, request: Request, reason: FinishReason, error: str | None = None) -> Completion:
        self._scheduler.finish(request, reason, error)
        del self._requests[request.request_id]
        return self._completion(request)

    def _completion(self, request: Request) -> Completion:
        if request.text is not None:
            request.text.finish()
            text = request.text.text
        else:
            text = self.tokenizer.decode(request.token_ids) if self.tokenizer else ""
        return request.completion(text, finished_s=time.perf_counter())

    def _refused(self, prompt: Prompt, error: str) -> Completion:
        """The completion of a prompt that add_request would not take."""
        try:
            ids = [] if isinstance(prompt, str) else whole_ids(prompt)
        except ValueError:
            ids = []
        request = Request(self._next_id, ids, SamplingParams(), seed=0, arrived_s=time.perf_counter())
        self._next_id += 1
        request.status, request.finish_reason, request.error = Status.FINISHED, "error", error
        return self._completion(request)

    def __repr__(self) -> str:
        f = self.facts
        return f"LLM({self.path.name}, {f.dtype} on {f.device}, {f.attn_backend}, {f.num_pages} pages of {f.page_size})"
