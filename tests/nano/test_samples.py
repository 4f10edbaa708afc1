"""The tokenizer keeps words whole, and samples made from pieces are the tokens of the text they spell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from qwen3lab.nano.pieces import Pieces, check
from qwen3lab.nano.samples import EDIT_ANSWER, PROMPT, QUOTE_ANSWER, Sampler
from qwen3lab.nano.tasks import ANSWER, BETWEEN_BLOCKS, EDIT, QUOTE, Corpus, rename
from qwen3lab.nano.tokenizer import END_ID, VOCAB_SIZE, train_tokenizer

LEARNT = train_tokenizer(["def f(self, value):\n    return self.value + value\n"] * 5, vocab_size=300)


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert LEARNT.decode(LEARNT.encode(text).ids) == text


@pytest.mark.parametrize("around", ["{}", "({},", "self.{}\n", " = {} if", "[{}]", "'{}'", "\n    {}:"])
def test_a_name_is_the_same_tokens_everywhere(around: str) -> None:
    name = LEARNT.encode("some_value9").tokens
    left, right = (LEARNT.encode(side).tokens for side in around.split("{}"))
    assert LEARNT.encode(around.format("some_value9")).tokens == [*left, *name, *right]


def test_transformers_reads_the_tokenizer(prepared: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(prepared))
    text = "def f(x):\n    return x  # ünïcode<|edit|>rename x to y<|answer|>"
    assert tokenizer.encode(text) == Tokenizer.from_file(str(prepared / "tokenizer.json")).encode(text).ids
    assert tokenizer.eos_token_id == END_ID
    chat = [{"role": "user", "content": "hi"}]
    template = lambda **kw: tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **kw)  # noqa: E731
    assert template() == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert template(enable_thinking=False) == template() + "<think>\n\n</think>\n\n"


def test_pieces_spell_the_functions_tokens(prepared: Path, corpus: Corpus) -> None:
    pieces, tokenizer = Pieces.load(prepared), Tokenizer.from_file(str(prepared / "tokenizer.json"))
    texts = [b.text for f in corpus.training for b in f.blocks]
    assert len(texts) == len(pieces.blocks)
    for i in range(0, len(texts), 7):
        assert pieces.tokens(pieces.blocks[i]).tolist() == tokenizer.encode(texts[i]).ids


def test_a_row_is_whole_tasks_and_the_step_makes_it_again(prepared: Path) -> None:
    sampler = Sampler(Pieces.load(prepared), row_tokens=1025)
    tokens, kinds = sampler.batch(0, 5, 8)
    assert tokens.shape == kinds.shape == (8, 1025) and tokens.max() < VOCAB_SIZE and tokens.min() >= 0
    again, other = sampler.batch(0, 5, 8), sampler.batch(0, 6, 8)
    assert np.array_equal(tokens, again[0]) and np.array_equal(kinds, again[1]) and not np.array_equal(tokens, other[0])
    assert {PROMPT, EDIT_ANSWER, QUOTE_ANSWER} <= set(kinds.ravel().tolist())


def _spelt(prepared: Path, kind: str, n: int) -> list[str]:
    sampler, tokenizer = Sampler(Pieces.load(prepared)), Tokenizer.from_file(str(prepared / "tokenizer.json"))
    rng, texts = np.random.default_rng(0), []
    while len(texts) < n:
        if sample := getattr(sampler, kind)(rng, 900):
            texts.append(tokenizer.decode(sample[0].tolist(), skip_special_tokens=False))
            answer = sample[0][sample[1] != PROMPT]
            assert answer[-1] == END_ID
    return texts


def test_training_edits_are_the_task(prepared: Path) -> None:
    for text in _spelt(prepared, "edit", 30):
        prompt, answer = text.removesuffix("<|endoftext|>").split(ANSWER)
        code, request = prompt.split(EDIT)
        _, old, _, new = request.split(" ")
        # Noise may set two words side by side, which text cannot tell from one.
        assert answer == rename(code, old, new) or "\n    " not in code or len(answer) == len(code.replace(old, new))


def test_training_quotes_are_the_task(prepared: Path) -> None:
    for text in _spelt(prepared, "quote", 30):
        code, *questions = text.split(QUOTE)
        for question in questions:
            name, answer = question.removesuffix("<|endoftext|>").split(ANSWER)
            assert answer in code.split(BETWEEN_BLOCKS) and f"def {name}(" in answer


def test_a_changed_corpus_file_is_named(prepared: Path, tmp_path: Path) -> None:
    for file in prepared.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "held_out.json").write_text("[]")
    with pytest.raises(ValueError, match=r"held_out\.json"):
        check(tmp_path)
