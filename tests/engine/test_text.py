"""Text grows by whole characters and ends in what a one-shot decode gives; stop strings cut it wherever they fall."""

from __future__ import annotations

import itertools
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import checkpoints
from qwen3lab import LLM, SamplingParams
from qwen3lab.engine.text import TextStream


def utf8(ids) -> str:
    """The smallest byte-level tokenizer: an id is a byte."""
    return bytes(ids).decode("utf-8", errors="replace")


@given(st.text(max_size=40))
def test_the_stream_is_the_text_and_never_half_a_character(text):
    stream = TextStream(utf8)
    for byte in text.encode():
        stream.push(byte)
        assert text.startswith(stream.text), "something was shown that had to be taken back"
    stream.finish()
    assert stream.text == text


@given(st.binary(max_size=40))
def test_broken_bytes_end_as_one_shot_decoding_shows_them(data):
    stream = TextStream(utf8)
    for byte in data:
        stream.push(byte)
    stream.finish()
    assert stream.text == utf8(data)


@given(st.text(alphabet="abé日", max_size=30), st.lists(st.text(alphabet="abé日", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_before_the_stop_string_that_completes_first(text, stops):
    stream, stopped = TextStream(utf8, stops), False
    for byte in text.encode():
        if stream.push(byte):
            stopped = True
            break
    ends = [text.find(s) + len(s) for s in stops if s in text]
    assert stopped == bool(ends)
    if ends:
        upto = text[: min(ends)]
        assert stream.text == upto[: min(upto.find(s) for s in stops if s in upto)]


@pytest.fixture(scope="module")
def spelling(tmp_path_factory, request):
    """A chain of ids that spells a text whose characters and stop strings span ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    path = tmp_path_factory.mktemp("spelling")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = "<a 日🦊z"
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(set(ids)) == len(text.encode())
    successor = [(t + 1) % checkpoints.VOCAB for t in range(checkpoints.VOCAB)]
    for before, after in itertools.pairwise(ids):  # swap, so that it stays a permutation
        other = successor.index(after)
        successor[before], successor[other] = after, successor[before]
    checkpoints.markov(path / "m", successor)
    tokenizer.save(str(path / "m" / "tokenizer.json"))
    return LLM(path / "m", num_kv_blocks=32), text, ids


def test_completion_text_is_a_one_shot_decode(spelling):
    llm, text, ids = spelling
    (completion,) = llm.generate("<", SamplingParams(max_tokens=len(ids) - 1), use_tqdm=False)
    assert list(completion.token_ids) == ids[1:]
    assert completion.text == text[1:]


@pytest.mark.parametrize("stop", [["日"], ["🦊"], ["日🦊"], [" 日🦊z"], ["a"], ["z", "🦊"], "日"], ids=str)
def test_a_stop_string_cuts_the_text_and_the_ids_end_with_it(spelling, stop):
    llm, text, ids = spelling
    params = SamplingParams(max_tokens=len(ids) - 1, stop=stop, logprobs=0)
    (completion,) = llm.generate("<", params, use_tqdm=False)
    stops = [stop] if isinstance(stop, str) else stop
    end = min(text.find(s) + len(s) for s in stops if s in text)
    first = min((text.find(s), s) for s in stops if text.find(s) + len(s) == end)[1]
    assert completion.finish_reason == "stop"
    assert completion.text == text[1 : end - len(first)]
    assert len(completion.token_ids) == len(text[:end].encode()) - 1
    assert len(completion.logprobs) == len(completion.token_ids)


def test_a_stop_that_never_comes_changes_nothing(spelling):
    llm, _, ids = spelling
    (completion,) = llm.generate("<", SamplingParams(max_tokens=len(ids) - 3, stop="zz"), use_tqdm=False)
    assert completion.finish_reason == "length"
    assert completion.text == llm.tokenizer.decode(ids[1:-2])  # ends inside a character, and says so


def test_chat_goes_through_the_checkpoints_template(spelling, tmp_path):
    llm, _, ids = spelling
    shutil.copytree(llm.path, tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    chatty = LLM(tmp_path / "m", num_kv_blocks=32)
    one = chatty.chat([{"role": "user", "content": "<"}], SamplingParams(max_tokens=2), use_tqdm=False)
    assert [list(c.token_ids) for c in one] == [ids[1:3]]
    two = chatty.chat([[{"role": "user", "content": "<"}]] * 2, SamplingParams(max_tokens=2), use_tqdm=False)
    assert [list(c.token_ids) for c in two] == [ids[1:3]] * 2
    with pytest.raises(ValueError, match="no chat template"):
        llm.chat([{"role": "user", "content": "<"}], use_tqdm=False)
