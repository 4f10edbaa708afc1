"""The small model's tokenizer: byte-level BPE over pieces cut so that a word is always a piece of its own.

A word (an identifier, a number) never shares a token with the space, dot or bracket beside it, so it is the same tokens
wherever it stands: renaming is the same operation on text and on tokens, and copying a name is copying its tokens.
What is never renamed may be glued: a newline with its indentation, punctuation and keywords with spaces around them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from qwen3lab.nano.tasks import ANSWER, EDIT, END, KEYWORDS, QUOTE

VOCAB_SIZE = 4096
SPECIAL = (END, "<|im_start|>", "<|im_end|>", EDIT, QUOTE, ANSWER, *(f"<|spare_{i}|>" for i in range(10)))
END_ID, IM_END_ID, EDIT_ID, QUOTE_ID, ANSWER_ID = 0, 2, 3, 4, 5

PIECE = (
    r"(?:[ ]*\r?\n)+[ ]*"  # line ends, blank lines included, with the indentation that follows
    rf"|[ ]?(?:{'|'.join(KEYWORDS)})(?!\w)[ ]?"
    r"|\w+"
    r"|[ ]?[^\w\s]+[ ]?"  # punctuation with the spaces around it
    r"|\s"
)

# ChatML with Qwen3's convention: thinking switched off puts an empty think block in the model's mouth.
CHAT_TEMPLATE = (
    "{%- for message in messages %}\n"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "{{- '<|im_start|>assistant\\n' }}\n"
    "{%- if enable_thinking is defined and enable_thinking is false %}\n"
    "{{- '<think>\\n\\n</think>\\n\\n' }}\n"
    "{%- endif %}\n"
    "{%- endif %}\n"
)


def piece_splitter() -> pre_tokenizers.PreTokenizer:
    """Text to pieces, every character in exactly one of them."""
    return pre_tokenizers.Split(Regex(PIECE), behavior="isolated")


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Learn the merges. Round-trips any UTF-8 text, since all 256 bytes are in the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [piece_splitter(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja, as transformers and the engine read them."""
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "additional_special_tokens": list(SPECIAL[1:]),
        "clean_up_tokenization_spaces": False,
        "model_max_length": 40960,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
