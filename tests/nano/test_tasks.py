"""Tasks are what they say, from files never trained on, and the same for the same seed."""

from __future__ import annotations

import re

import numpy as np
import pytest

from qwen3lab.nano.tasks import ANSWER, EDIT, QUOTE, Corpus, SourceFile, code_text, make_edit, make_quote, rename


def words(text: str) -> int:
    return len(re.findall(r"\w+|\S", text))


def test_rename_touches_whole_words_only() -> None:
    assert rename("i = bin(i) + i1  # i, _i", "i", r"\1") == r"\1 = bin(\1) + i1  # \1, _i"


def test_the_split_follows_the_path_alone() -> None:
    assert SourceFile("sched.py", "a").is_held_out == SourceFile("sched.py", "b").is_held_out


def test_held_out_and_training_share_no_file(corpus: Corpus) -> None:
    held_out, training = {f.path for f in corpus.held_out}, {f.path for f in corpus.training}
    assert held_out and training and not held_out & training


def test_an_edit_renames_one_name_throughout(corpus: Corpus) -> None:
    task = make_edit(corpus, np.random.default_rng(1), 200, words)
    code, request = task.prompt.removesuffix(ANSWER).split(EDIT)
    old, new = re.fullmatch(r"rename (\w+) to (\w+)", request).groups()  # type: ignore[union-attr]
    assert re.search(rf"\b{old}\b", code) and not re.search(rf"\b{new}\b", code)
    assert task.answer == re.sub(rf"\b{old}\b", new, code)
    assert 120 <= words(code) <= 200


def test_a_quote_is_a_function_of_the_prompt(corpus: Corpus) -> None:
    task = make_quote(corpus, np.random.default_rng(2), 400, words, answer_tokens=(20, 200))
    code, name = task.prompt.removesuffix(ANSWER).split(QUOTE)
    assert task.answer in code.split("\n\n\n")
    assert re.match(rf"(async )?def {name}\(", task.answer)
    assert 20 <= words(task.answer) <= 200


def test_prompts_come_from_held_out_files(corpus: Corpus) -> None:
    held_out = {b.text for f in corpus.held_out for b in f.blocks}
    for seed in range(5):
        code = make_edit(corpus, np.random.default_rng(seed), 300, words).prompt.split(EDIT)[0]
        assert set(code.split("\n\n\n")) <= held_out


def test_the_seed_decides(corpus: Corpus) -> None:
    make = lambda seed: make_edit(corpus, np.random.default_rng(seed), 200, words)  # noqa: E731
    assert make(3) == make(3) != make(4)


def test_code_text_has_the_length_asked_for(corpus: Corpus) -> None:
    text = code_text(corpus, np.random.default_rng(0), 5000)
    assert len(text) == 5000 and any(text[:200] in f.text for f in corpus.held_out)


def test_a_size_that_no_file_gives_is_refused(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match="ask for less"):
        make_edit(corpus, np.random.default_rng(0), 1_000_000, words)
