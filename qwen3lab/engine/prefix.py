"""What finished pages hold, found by content: the index behind `enable_prefix_caching`. Ints and bytes; no tensors.

The K and V of a page follow from its own token ids and from every id before them. A full page is therefore filed under
a hash of its ids and its parent's key, which stands for all of the ancestry. A hit is believed only after the ids and
the parent's key have been compared, so that two contents with one hash cannot share a page.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

Key = bytes
ROOT: Key = b""  # the parent of a sequence's first page


def page_key(parent: Key, token_ids: Sequence[int]) -> Key:
    """128 bits of BLAKE2b over the parent's key and the ids, each in eight bytes."""
    return hashlib.blake2b(array("q", token_ids).tobytes(), key=parent, digest_size=16).digest()


@dataclass(frozen=True)
class Entry:
    """One filed page: where it is, what it holds, and what came before."""

    page: int
    parent: Key
    token_ids: tuple[int, ...]


class PrefixIndex:
    """Full, written pages by content. One page a content: a second page with the same content is not filed."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._entries: dict[Key, Entry] = {}
        self._key_of: dict[int, Key] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._key_of

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, token_ids: Sequence[int]) -> tuple[list[int], Key]:
        """The filed pages that hold the longest prefix of `token_ids`, in order of position, and the last one's key."""
        pages: list[int] = []
        parent = ROOT
        for start in range(0, len(token_ids) - self.page_size + 1, self.page_size):
            content = tuple(token_ids[start : start + self.page_size])
            key = page_key(parent, content)
            entry = self._entries.get(key)
            if entry is None or entry.token_ids != content or entry.parent != parent:
                break
            pages.append(entry.page)
            parent = key
        return pages, parent

    def file(self, page: int, parent: Key, token_ids: Sequence[int]) -> Key:
        """File a page whose every position is written; returns its content's key, the parent of the next page."""
        content = tuple(token_ids)
        if len(content) != self.page_size:
            raise AssertionError(f"page {page} filed with {len(content)} of {self.page_size} ids: it is not full")
        key = page_key(parent, content)
        if key not in self._entries and page not in self._key_of:
            self._entries[key] = Entry(page, parent, content)
            self._key_of[page] = key
        return key

    def forget(self, page: int) -> None:
        """The page is about to hold something else."""
        del self._entries[self._key_of.pop(page)]

    def check_integrity(self) -> None:
        """AssertionError where the two directions of the index disagree."""
        if {e.page: k for k, e in self._entries.items()} != self._key_of or len(self._entries) != len(self._key_of):
            raise AssertionError("the prefix index names a page by a key that is not its own")
        for key, entry in self._entries.items():
            if page_key(entry.parent, entry.token_ids) != key:
                raise AssertionError(f"page {entry.page} is filed under another content's key")
