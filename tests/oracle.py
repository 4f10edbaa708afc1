"""Hugging Face's Qwen3 in fp32: what every token is held against."""

from __future__ import annotations

from pathlib import Path

import torch


class Oracle:
    """transformers' Qwen3ForCausalLM on the same checkpoint."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True).eval()

    @torch.no_grad()
    def greedy(self, prompt: list[int], max_tokens: int) -> list[int]:
        """`max_tokens` greedy ids after `prompt`, past any EOS."""
        ids = torch.tensor([prompt])
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),  # or an id equal to pad_token_id would be masked out
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return out[0, len(prompt) :].tolist()

    @torch.no_grad()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """[len(ids), V]: what follows each position."""
        return self.model(torch.tensor([ids])).logits[0]

    def argmaxes(self, prompt: list[int], output: list[int]) -> list[int]:
        """What greedy decoding emits at each place of `output`, given what stands before it: one forward for all."""
        return self.logits([*prompt, *output])[len(prompt) - 1 : -1].argmax(-1).tolist()

    def gaps(self, prompt: list[int], output: list[int]) -> torch.Tensor:
        """How far below the row's maximum each emitted id lies, [len(output)]; all zeros is exactly greedy."""
        rows = self.logits([*prompt, *output])[len(prompt) - 1 : -1]
        return rows.max(-1).values - rows.gather(1, torch.tensor(output)[:, None])[:, 0]
