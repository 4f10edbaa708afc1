"""Ids become text one at a time, without ever showing half a character; stop strings are found as they complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
UNFINISHED = "\ufffd"  # what a byte-level tokenizer shows for the first bytes of a character


class TextStream:
    """The text of one growing list of ids.

    Only a short window of ids is decoded at each step: from the last point known to be a clean break. An id's text can
    depend on the one before it (a leading space), so the window begins one piece early, and the difference is new.
    """

    def __init__(self, decode: Decode, stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._window = 0  # ids[_window:_read] are shown already and give context
        self._read = 0
        self.text = ""

    def push(self, token_id: int) -> bool:
        """Take one id; True when a stop string is complete, and then `text` ends just before it."""
        self._ids.append(token_id)
        shown = self._decode(self._ids[self._window : self._read])
        whole = self._decode(self._ids[self._window :])
        if len(whole) <= len(shown) or whole.endswith(UNFINISHED):
            return False  # nothing new yet, or the middle of a character
        before = len(self.text)
        self.text += whole[len(shown) :]
        self._window, self._read = self._read, len(self._ids)
        return self._cut(before)

    def finish(self) -> bool:
        """No more ids will come: what was held back is shown as it is."""
        shown = self._decode(self._ids[self._window : self._read])
        whole = self._decode(self._ids[self._window :])
        before = len(self.text)
        self.text += whole[len(shown) :]
        self._window = self._read = len(self._ids)
        return self._cut(before)

    def _cut(self, before: int) -> bool:
        """Look for the earliest stop string that ends in the part after `before`."""
        hits = [self.text.find(stop, max(0, before - len(stop) + 1)) for stop in self._stop]
        hits = [hit for hit in hits if hit >= 0]
        if not hits:
            return False
        self.text = self.text[: min(hits)]
        return True
