"""Workloads: what is stored is what is run; an altered byte is refused; another tokenizer gets the same texts."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import checkpoints
from qwen3lab.measure import recipes, workloads
from qwen3lab.measure.workloads import IDS, PROFILES, Workload, WorkloadError, WorkloadRequest
from qwen3lab.model.tokenizer import Tokenizer as Own
from qwen3lab.nano import tasks

FIRST = IDS[0]
TASKS = ("w5_code_edit", "w7_quote_extract")


def byte_tokenizer(path: Path, chat_template: str | None = None) -> Path:
    """A checkpoint directory whose tokenizer gives one id a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    path.mkdir(parents=True, exist_ok=True)
    fast.save(str(path / "tokenizer.json"))
    if chat_template is not None:
        (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": chat_template}))
    return path


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke profile made anew for the shipped tokenizer, under this Python's own library."""
    root = tmp_path_factory.mktemp("workloads")
    recipes.write_all(recipes.NANO, root, ["smoke"])
    return root


def check_sizes(workload: Workload) -> None:
    sizes = recipes.SIZES[workload.profile][workload.id]
    assert len(workload.requests) == sizes.requests + (sizes.inject is not None)
    for r in workload.requests[: sizes.requests]:
        assert sizes.output[0] <= r.max_tokens <= sizes.output[1]
        assert r.inject_at_step == 0
        if workload.id not in TASKS:
            assert sizes.prompt[0] <= len(r.prompt_token_ids) <= sizes.prompt[1]
    if sizes.inject is not None:
        last = workload.requests[-1]
        assert (len(last.prompt_token_ids), last.max_tokens, last.inject_at_step) == sizes.inject
    starts = [r.prompt_token_ids[: recipes.DISTINCT_IDS] for r in workload.requests]
    assert len(set(starts)) == len(starts), "a prefix cache would find what is not meant"


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("id", IDS)
def test_a_workload_has_the_sizes_its_recipe_states(id, profile):
    check_sizes(workloads.load(id, profile))


def test_so_has_one_made_from_another_library(fresh):
    for id in IDS:
        check_sizes(workloads.load(id, root=fresh))
    assert not list(fresh.rglob("*.partial"))


def test_the_full_profile_is_the_missions_43_requests_and_the_saturation_of_256():
    counts = [s.requests + (s.inject is not None) for s in recipes.SIZES["full"].values()]
    assert sum(counts[:7]) == 43
    assert counts[7] == 256


def test_tasks_are_asked_in_words_too():
    for id, asked in (("w5_code_edit", "rename "), ("w7_quote_extract", "Quote the function ")):
        for r in workloads.read(workloads.ROOT / "smoke" / f"{id}.json")["requests"]:
            assert r["text"].endswith(tasks.ANSWER)
            assert asked in r["message"]
            assert "<|" not in r["message"]
            assert r["message"].startswith("```python\n")


def test_repeating_text_repeats():
    for r in workloads.read(workloads.ROOT / "smoke" / "w4_repetitive_batch.json")["requests"]:
        period = r["text"].index("\n" + r["text"][:40]) + 1
        assert r["text"] == r["text"][:period] * (len(r["text"]) // period)


def same_library(profile: str) -> None:
    made_under = {workloads.read(workloads.ROOT / profile / f"{id}.json")["python"] for id in IDS}
    if made_under != {platform.python_version()}:
        pytest.skip(f"the corpus is the library of Python {made_under}, and this is {platform.python_version()}")


def test_the_smoke_files_are_what_the_recipe_makes(fresh):
    same_library("smoke")
    for path in fresh.rglob("*.json"):
        assert path.read_bytes() == (workloads.ROOT / "smoke" / path.name).read_bytes()


def test_the_full_files_are_what_the_recipe_makes(tmp_path):
    same_library("full")
    for path in recipes.write_all(recipes.NANO, tmp_path, ["full"]):
        assert path.read_bytes() == (workloads.ROOT / "full" / path.name).read_bytes()


def test_any_changed_byte_is_refused(tmp_path):
    whole = (workloads.ROOT / "smoke" / f"{FIRST}.json").read_bytes()
    target = tmp_path / "smoke" / f"{FIRST}.json"
    target.parent.mkdir()
    for at in range(0, len(whole), 7):
        target.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(WorkloadError, match=r"write all anew|restore it"):
            workloads.load(FIRST, root=tmp_path)
    for other in (whole[:-1], whole + b"\n", b" " + whole, b"", b"[]", b"null"):
        target.write_bytes(other)
        with pytest.raises(WorkloadError):
            workloads.load(FIRST, root=tmp_path)
    target.write_bytes(whole)
    assert workloads.load(FIRST, root=tmp_path).id == FIRST


def test_ids_that_do_not_give_the_stored_identity_are_refused(tmp_path):
    document = workloads.read(workloads.ROOT / "smoke" / f"{FIRST}.json")
    document["requests"][0]["max_tokens"] += 1
    (tmp_path / "smoke").mkdir()
    (tmp_path / "smoke" / f"{FIRST}.json").write_bytes(workloads.serialise(document))
    with pytest.raises(WorkloadError, match="token ids do not match"):
        workloads.load(FIRST, root=tmp_path)


def test_unknown_and_missing_are_named(tmp_path):
    with pytest.raises(WorkloadError, match=r"w9.*w1_single_decode"):
        workloads.load("w9")
    with pytest.raises(WorkloadError, match=r"'tiny'.*smoke, full"):
        workloads.load(FIRST, "tiny")
    with pytest.raises(WorkloadError, match=r"no such workload file.*write_all"):
        workloads.load(FIRST, root=tmp_path)


def test_the_model_it_was_made_for_gets_the_stored_ids():
    assert workloads.load(FIRST, model=recipes.NANO) == workloads.load(FIRST)


def test_another_tokenizer_gets_the_same_texts_at_the_same_lengths(tmp_path):
    """One id a byte: other ids, and the same token counts."""
    other = byte_tokenizer(tmp_path / "other")
    for id in IDS:
        stored = workloads.load(id)
        own = workloads.load(id, model=other)
        assert [r.max_tokens for r in own.requests] == [r.max_tokens for r in stored.requests]
        assert [r.inject_at_step for r in own.requests] == [r.inject_at_step for r in stored.requests]
        assert own.tokenizer != stored.tokenizer
        if id not in TASKS:
            assert [len(r.prompt_token_ids) for r in own.requests] == [len(r.prompt_token_ids) for r in stored.requests]
    assert workloads.load("w2_long_prefill", model=other).sha256 != stored.sha256


def test_a_chat_model_gets_tasks_through_its_template_and_plain_text_plain(tmp_path):
    template = "{%- for m in messages -%}<{{ m.role }}>{{ m.content }}{%- endfor -%}<assistant>"
    chat = byte_tokenizer(tmp_path / "chat", template)
    decode = Own.from_dir(chat).decode
    task = workloads.load("w5_code_edit", model=chat).requests[0]
    message = workloads.read(workloads.ROOT / "smoke" / "w5_code_edit.json")["requests"][0]["message"]
    assert decode(task.prompt_token_ids) == f"<user>{message}<assistant>"
    text = workloads.read(workloads.ROOT / "smoke" / f"{FIRST}.json")["requests"][0]["text"]
    plain = workloads.load(FIRST, model=chat).requests[0].prompt_token_ids
    assert text.startswith(decode(plain)) and len(plain) == 32
    (chat / "tokenizer_config.json").unlink()
    task = workloads.load("w5_code_edit", model=chat).requests[0]
    assert decode(task.prompt_token_ids) == message


def test_without_a_tokenizer_the_stored_ids_must_be_in_the_vocabulary(tmp_path):
    big = checkpoints.markov(tmp_path / "big", vocab_size=4096)
    assert workloads.load(FIRST, model=big).requests == workloads.load(FIRST).requests
    small = checkpoints.markov(tmp_path / "small", vocab_size=64)
    with pytest.raises(WorkloadError, match=r"no tokenizer.json and 64 ids"):
        workloads.load(FIRST, model=small)


def test_the_identity_is_of_ids_lengths_and_steps_alone():
    request = WorkloadRequest((1, 2, 3), 4, 0)
    base = Workload.of("mine", "smoke", [request])
    assert base.sha256 == Workload.of("other", "full", [request]).sha256
    for changed in (WorkloadRequest((1, 2, 4), 4), WorkloadRequest((1, 2, 3), 5), WorkloadRequest((1, 2, 3), 4, 1)):
        assert Workload.of("mine", "smoke", [changed]).sha256 != base.sha256


@pytest.mark.parametrize("request_", [WorkloadRequest((), 4), WorkloadRequest((1,), 0), WorkloadRequest((1,), 4, -1)])
def test_a_request_that_asks_nothing_is_refused(request_):
    with pytest.raises(WorkloadError, match="mine, request 0"):
        Workload.of("mine", "smoke", [request_])
