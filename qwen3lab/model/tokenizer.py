"""The checkpoint's own tokenizer and chat template. `tokenizers` does the work; templates run in Jinja's sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer

from qwen3lab.model_config import CheckpointError

Message = Mapping[str, Any]


class Tokenizer:
    """Text ⇄ ids, and messages → prompt text."""

    def __init__(self, fast: FastTokenizer, chat_template: str | None, special_tokens: Mapping[str, str]) -> None:
        self._fast = fast
        self._chat_template = chat_template
        self._special_tokens = dict(special_tokens)

    @classmethod
    def from_dir(cls, path: str | Path) -> Tokenizer:
        """Read `path`/tokenizer.json, and the template of chat_template.jinja or tokenizer_config.json."""
        path = Path(path)
        try:
            fast = FastTokenizer.from_file(str(path / "tokenizer.json"))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{path / 'tokenizer.json'}: cannot be read ({error})") from None
        fast.no_truncation()
        fast.no_padding()
        config: dict[str, Any] = {}
        if (path / "tokenizer_config.json").exists():
            try:
                config = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
            except ValueError as error:
                raise CheckpointError(f"{path / 'tokenizer_config.json'}: not JSON ({error})") from None
        template = config.get("chat_template")
        if isinstance(template, list):  # several named templates: "default" is the one for chat
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if (path / "chat_template.jinja").exists():
            template = (path / "chat_template.jinja").read_text(encoding="utf-8")
        special = {key: _token_text(value) for key, value in config.items() if key.endswith("_token") and value}
        return cls(fast, template, special)

    @property
    def vocab_size(self) -> int:
        """Ids it can produce, added tokens included."""
        return int(self._fast.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; a special token written out in it becomes its single id."""
        return list(self._fast.encode(text).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that form no character become U+FFFD."""
        return str(self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt text for `messages`, by the checkpoint's own template.

        `variables` reach the template (enable_thinking=False, tools=[…]). Raises ValueError where there is no template
        or it refuses the messages.
        """
        if self._chat_template is None:
            raise ValueError("this checkpoint has no chat template; use generate() with a prompt of your own")
        try:
            return (
                _environment()
                .from_string(self._chat_template)
                .render(
                    messages=list(messages),
                    add_generation_prompt=add_generation_prompt,
                    **{"tools": None, "documents": None, **self._special_tokens, **variables},
                )
            )
        except TemplateError as error:
            raise ValueError(f"the checkpoint's chat template refused these messages: {error}") from error


def _token_text(value: Any) -> str:
    return str(value["content"]) if isinstance(value, dict) else str(value)


def _environment() -> ImmutableSandboxedEnvironment:
    """Whitespace rules, extensions and functions that Hugging Face's templates are written for."""

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson  # Jinja's own escapes for HTML, which a prompt is not
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
