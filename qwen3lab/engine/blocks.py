"""Who owns which page of the KV cache. Ints only; knows nothing of tensors or of what a page holds.

Page 0 is reserved: padding rows of a batch write there, and no request can own it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PADDING_PAGE = 0


class BlockPool:
    """A pool of `num_pages` pages of `page_size` tokens each; pages 1 … num_pages − 1 can be owned."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 2:
            raise ValueError(f"num_pages={num_pages}, must be at least 2: page 0 is reserved for padding")
        if page_size < 1:
            raise ValueError(f"page_size={page_size}, must be at least 1")
        self.num_pages = num_pages
        self.page_size = page_size
        # A stack from which any page can be taken (a dict keeps order): pages just freed are used again first, while
        # caches still hold them, unless the one that continues a row is free.
        self._free = dict.fromkeys(range(num_pages - 1, PADDING_PAGE, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_usable(self) -> int:
        return self.num_pages - 1

    @property
    def token_capacity(self) -> int:
        """Tokens whose K and V the whole pool can hold."""
        return self.num_usable * self.page_size

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens fill."""
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        """Take `count` pages; the caller has checked `num_free`.

        Each follows the one before it, the first one `after`, where that page is free: a backend that can reads a run
        of pages in place instead of gathering them.
        """
        if count > len(self._free):
            raise AssertionError(f"asked for {count} pages with {len(self._free)} free")
        pages: list[int] = []
        while len(pages) < count:
            if after is not None and after + 1 in self._free:
                after += 1
                del self._free[after]
            else:
                after, _ = self._free.popitem()
            pages.append(after)
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back. Freeing a page twice, or the padding page, is a bug here and raises AssertionError."""
        for page in reversed(pages):
            if page == PADDING_PAGE or page in self._free:
                raise AssertionError(f"page {page} freed while it is {'padding' if page == PADDING_PAGE else 'free'}")
            self._free[page] = None

    def check_integrity(self, owned: Iterable[Sequence[int]]) -> None:
        """Walk every page: each is free, or owned by exactly one of the `owned` lists, or the padding page."""
        owners = [0] * self.num_pages
        for pages in owned:
            for page in pages:
                owners[page] += 1
        if owners[PADDING_PAGE]:
            raise AssertionError("the padding page is owned by a request")
        for page in range(1, self.num_pages):
            is_free = page in self._free
            if owners[page] + is_free != 1:
                state = "free" if is_free else "not free"
                raise AssertionError(f"page {page}: {owners[page]} owners and {state} (leaked or owned twice)")
