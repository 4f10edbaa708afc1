"""Text, ids and chat prompts as transformers makes them from the same files."""

from __future__ import annotations

import json
import shutil

import pytest

from qwen3lab.model.tokenizer import Tokenizer
from qwen3lab.model_config import CheckpointError

TURN = {"role": "user", "content": "Say «hi» & <b>bye</b>"}
CONVERSATIONS = {
    "one turn": [TURN],
    "three turns": [
        {"role": "system", "content": "be brief"},
        TURN,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhi"},
        {"role": "user", "content": "more 日本語"},
    ],
}


@pytest.fixture(scope="module")
def theirs(tokenizer_dir):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_dir, local_files_only=True)


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize(
    "variables", [{}, {"enable_thinking": True}, {"enable_thinking": False}, {"tools": [{"name": "f<é>"}]}], ids=str
)
@pytest.mark.parametrize("generation_prompt", [True, False])
def test_chat_prompts_are_those_of_transformers(tokenizer_dir, theirs, conversation, variables, generation_prompt):
    ours = Tokenizer.from_dir(tokenizer_dir)
    text = ours.apply_chat_template(conversation, add_generation_prompt=generation_prompt, **variables)
    expected = theirs.apply_chat_template(
        conversation, add_generation_prompt=generation_prompt, tokenize=False, **variables
    )
    assert text == expected
    ids = ours.encode(text)
    assert ids == theirs(expected)["input_ids"]
    assert ids.count(1) == text.count("<|im_start|>"), "a special token became text"


def test_a_template_file_wins_over_the_config(tokenizer_dir, tmp_path):
    shutil.copytree(tokenizer_dir, tmp_path / "t")
    (tmp_path / "t" / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert Tokenizer.from_dir(tmp_path / "t").apply_chat_template([{"role": "user", "content": "x"}]) == "x!"


def test_a_template_cannot_reach_out_of_its_sandbox(tokenizer_dir, tmp_path):
    shutil.copytree(tokenizer_dir, tmp_path / "t")
    attack = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    (tmp_path / "t" / "chat_template.jinja").write_text(attack)
    with pytest.raises(ValueError, match="chat template refused"):
        Tokenizer.from_dir(tmp_path / "t").apply_chat_template([TURN])


def test_what_the_template_refuses_is_a_value_error(tokenizer_dir):
    with pytest.raises(ValueError, match="unknown role robot"):
        Tokenizer.from_dir(tokenizer_dir).apply_chat_template([{"role": "robot", "content": ""}])


def test_no_template_says_so(tokenizer_dir, tmp_path):
    shutil.copytree(tokenizer_dir, tmp_path / "t")
    (tmp_path / "t" / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer.from_dir(tmp_path / "t").apply_chat_template([TURN])


def test_a_broken_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read"):
        Tokenizer.from_dir(tmp_path)


def test_padding_and_truncation_of_the_file_are_off(tokenizer_dir, tmp_path):
    shutil.copytree(tokenizer_dir, tmp_path / "t")
    file = tmp_path / "t" / "tokenizer.json"
    content = json.loads(file.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(content))
    tokenizer = Tokenizer.from_dir(tmp_path / "t")
    assert tokenizer.decode(tokenizer.encode("a longer text")) == "a longer text"
