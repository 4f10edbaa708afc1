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
        self._taken = 0  # text[:_taken] has been given to a reader
        self._ended = False
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

    def take(self) -> str:
        """Text that is certain and was not taken before: all but an end that may yet become a stop string."""
        certain = len(self.text) - (0 if self._ended else self._open_stop())
        piece = self.text[self._taken : certain]
        self._taken = max(self._taken, certain)
        return piece

    def finish(self) -> bool:
        """No more ids will come: what was held back is shown as it is, unless a stop string has ended the text."""
        if self._ended:
            return True
        self._ended = True
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
        self._ended = True
        return True

    def _open_stop(self) -> int:
        """Characters at the end of the text that are the beginning of a stop string."""
        return max(
            (n for stop in self._stop for n in range(1, len(stop)) if self.text.endswith(stop[:n])),
            default=0,
        )
