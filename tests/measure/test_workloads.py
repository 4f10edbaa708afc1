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
from qwen3lab.nano.tokenizer import train_tokenizer

FIRST = IDS[0]


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
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Workloads written for a tokenizer trained here on a few files: <root>/model and <root>/<profile>/<id>.json."""
    root = tmp_path_factory.mktemp("workloads")
    (root / "model").mkdir()
    texts = [file.text for file in tasks.Corpus.from_stdlib().held_out[:12]]
    train_tokenizer(texts, vocab_size=1024).save(str(root / "model" / "tokenizer.json"))
    recipes.write_all(root / "model", root)
    return root


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("id", IDS)
def test_a_workload_has_the_sizes_its_recipe_states(made, id, profile):
    workload = workloads.load(id, profile, root=made)
    sizes = recipes.SIZES[profile][id]
    assert len(workload.requests) == sizes.requests + (sizes.inject is not None)
    for r in workload.requests[: sizes.requests]:
        assert sizes.output[0] <= r.max_tokens <= sizes.output[1]
        assert r.inject_at_step == 0
        if id not in ("w5_code_edit", "w7_quote_extract"):
            assert sizes.prompt[0] <= len(r.prompt_token_ids) <= sizes.prompt[1]
    if sizes.inject is not None:
        last = workload.requests[-1]
        assert (len(last.prompt_token_ids), last.max_tokens, last.inject_at_step) == sizes.inject
    starts = [r.prompt_token_ids[: recipes.DISTINCT_IDS] for r in workload.requests]
    assert len(set(starts)) == len(starts), "a prefix cache would find what is not meant"


def test_the_full_profile_is_the_missions_43_requests_and_the_saturation_of_256():
    counts = [s.requests + (s.inject is not None) for s in recipes.SIZES["full"].values()]
    assert sum(counts[:7]) == 43
    assert counts[7] == 256


def test_tasks_are_asked_in_words_too(made):
    for id, asked in (("w5_code_edit", "rename "), ("w7_quote_extract", "Quote the function ")):
        for r in workloads.read(made / "smoke" / f"{id}.json")["requests"]:
            assert r["text"].endswith(tasks.ANSWER)
            assert asked in r["message"]
            assert "<|" not in r["message"]
            assert r["message"].startswith("```python\n")


def test_repeating_text_repeats(made):
    for r in workloads.read(made / "smoke" / "w4_repetitive_batch.json")["requests"]:
        period = r["text"].index("\n" + r["text"][:40]) + 1
        assert r["text"] == r["text"][:period] * (len(r["text"]) // period)


@pytest.mark.parametrize("id", ["w3_batch_throughput", "w4_repetitive_batch", "w5_code_edit", "w7_quote_extract"])
def test_making_it_again_gives_the_same_bytes(made, id):
    encode = Own.from_dir(made / "model").encode
    tokenizer_sha256 = workloads.file_sha256(made / "model" / "tokenizer.json")
    again = recipes.make(id, "smoke", tasks.Corpus.from_stdlib(), encode, tokenizer_sha256)
    assert workloads.serialise(again) == (made / "smoke" / f"{id}.json").read_bytes()


def test_any_changed_byte_is_refused(made, tmp_path):
    whole = (made / "smoke" / f"{FIRST}.json").read_bytes()
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


def test_ids_that_do_not_give_the_stored_identity_are_refused(made, tmp_path):
    document = workloads.read(made / "smoke" / f"{FIRST}.json")
    document["requests"][0]["max_tokens"] += 1
    (tmp_path / "smoke").mkdir()
    (tmp_path / "smoke" / f"{FIRST}.json").write_bytes(workloads.serialise(document))
    with pytest.raises(WorkloadError, match="token ids do not match"):
        workloads.load(FIRST, root=tmp_path)


def test_unknown_and_missing_are_named(made, tmp_path):
    with pytest.raises(WorkloadError, match=r"w9.*w1_single_decode"):
        workloads.load("w9", root=made)
    with pytest.raises(WorkloadError, match=r"'tiny'.*smoke, full"):
        workloads.load(FIRST, "tiny", root=made)
    with pytest.raises(WorkloadError, match=r"no such workload file.*write_all"):
        workloads.load(FIRST, root=tmp_path)


def test_the_model_it_was_made_for_gets_the_stored_ids(made):
    assert workloads.load(FIRST, model=made / "model", root=made) == workloads.load(FIRST, root=made)


def test_another_tokenizer_gets_the_same_texts_at_the_same_lengths(made, tmp_path):
    """One id a byte: other ids, and the same token counts."""
    other = byte_tokenizer(tmp_path / "other")
    for id in IDS:
        stored = workloads.load(id, root=made)
        own = workloads.load(id, model=other, root=made)
        assert [r.max_tokens for r in own.requests] == [r.max_tokens for r in stored.requests]
        assert [r.inject_at_step for r in own.requests] == [r.inject_at_step for r in stored.requests]
        assert own.tokenizer != stored.tokenizer
        if id not in ("w5_code_edit", "w7_quote_extract"):
            assert [len(r.prompt_token_ids) for r in own.requests] == [len(r.prompt_token_ids) for r in stored.requests]
    assert workloads.load("w2_long_prefill", model=other, root=made).sha256 != stored.sha256


def test_a_chat_model_gets_tasks_through_its_template_and_plain_text_plain(made, tmp_path):
    template = "{%- for m in messages -%}<{{ m.role }}>{{ m.content }}{%- endfor -%}<assistant>"
    chat = byte_tokenizer(tmp_path / "chat", template)
    decode = Own.from_dir(chat).decode
    task = workloads.load("w5_code_edit", model=chat, root=made).requests[0]
    message = workloads.read(made / "smoke" / "w5_code_edit.json")["requests"][0]["message"]
    assert decode(task.prompt_token_ids) == f"<user>{message}<assistant>"
    text = workloads.read(made / "smoke" / f"{FIRST}.json")["requests"][0]["text"]
    plain = workloads.load(FIRST, model=chat, root=made).requests[0].prompt_token_ids
    assert text.startswith(decode(plain)) and len(plain) == 32
    (chat / "tokenizer_config.json").unlink()
    task = workloads.load("w5_code_edit", model=chat, root=made).requests[0]
    assert decode(task.prompt_token_ids) == message


def test_without_a_tokenizer_the_stored_ids_must_be_in_the_vocabulary(made, tmp_path):
    big = checkpoints.markov(tmp_path / "big", vocab_size=1024)
    assert workloads.load(FIRST, model=big, root=made).requests == workloads.load(FIRST, root=made).requests
    small = checkpoints.markov(tmp_path / "small", vocab_size=64)
    with pytest.raises(WorkloadError, match=r"no tokenizer.json and 64 ids"):
        workloads.load(FIRST, model=small, root=made)


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


@pytest.mark.parametrize("profile", PROFILES)
def test_the_committed_files_are_what_the_recipe_makes(profile, tmp_path):
    if not (recipes.NANO / "tokenizer.json").exists():
        pytest.skip("data/nano has no tokenizer yet")
    committed = {id: workloads.read(workloads.ROOT / profile / f"{id}.json") for id in IDS}
    made_under = {d["python"] for d in committed.values()}
    if made_under != {platform.python_version()}:
        pytest.skip(f"the corpus is Python {made_under}'s library, this is {platform.python_version()}")
    for path in recipes.write_all(recipes.NANO, tmp_path):
        if path.parent.name == profile:
            assert path.read_bytes() == (workloads.ROOT / profile / path.name).read_bytes()


def test_writing_leaves_nothing_half_made(made):
    assert not list(made.rglob("*.partial"))
