"""Who owns which page of the KV cache. Ints only; knows nothing of tensors.

A page is free, or idle (nobody owns it, but the prefix index still knows what it holds), or owned by one request or,
where they share a prefix, by several. Page 0 is reserved: padding rows of a batch write there, and no request owns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qwen3lab.engine.prefix import PrefixIndex

PADDING_PAGE = 0


class BlockPool:
    """A pool of `num_pages` pages of `page_size` tokens each; pages 1 … num_pages − 1 can be owned.

    With an `index`, pages that it knows stay readable after their last owner is gone, until they are needed: the one
    idle for longest is given up first.
    """

    def __init__(self, num_pages: int, page_size: int, index: PrefixIndex | None = None) -> None:
        if num_pages < 2:
            raise ValueError(f"num_pages={num_pages}, must be at least 2: page 0 is reserved for padding")
        if page_size < 1:
            raise ValueError(f"page_size={page_size}, must be at least 1")
        self.num_pages = num_pages
        self.page_size = page_size
        self.index = index
        # A stack from which any page can be taken (a dict keeps order): pages just freed are used again first, while
        # caches still hold them, unless the one that continues a row is free.
        self._free = dict.fromkeys(range(num_pages - 1, PADDING_PAGE, -1))
        self._idle: dict[int, None] = {}  # in the order in which they lost their last owner
        self._owners = [0] * num_pages

    @property
    def num_free(self) -> int:
        """Pages that can be taken now; idle ones are among them."""
        return len(self._free) + len(self._idle)

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

    def num_idle_in(self, pages: Sequence[int]) -> int:
        """How many of `pages` sharing would take out of what `num_free` counts."""
        return sum(page in self._idle for page in pages)

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        """Take `count` pages; the caller has checked `num_free`.

        Each follows the one before it, the first one `after`, where that page is free: a backend that can reads a run
        of pages in place instead of gathering them.
        """
        if count > self.num_free:
            raise AssertionError(f"asked for {count} pages with {self.num_free} free")
        pages: list[int] = []
        while len(pages) < count:
            if after is not None and after + 1 in self._free:
                after += 1
                del self._free[after]
            elif self._free:
                after, _ = self._free.popitem()
            else:
                after = self._give_up_oldest_idle()
            self._owners[after] = 1
            pages.append(after)
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """One more owner for pages that the index has found."""
        for page in pages:
            if not self._owners[page] and page not in self._idle:
                raise AssertionError(f"page {page} shared while it is free or padding")
            self._idle.pop(page, None)
            self._owners[page] += 1

    def free(self, pages: Sequence[int]) -> None:
        """Give up one ownership of each page. Freeing a page nobody owns is a bug here and raises AssertionError."""
        for page in reversed(pages):  # a row's last page goes first: its prefix is the likelier to be wanted again
            if not self._owners[page]:
                raise AssertionError(f"page {page} freed while it is {'padding' if page == PADDING_PAGE else 'free'}")
            self._owners[page] -= 1
            if not self._owners[page]:
                known = self.index is not None and page in self.index
                (self._idle if known else self._free)[page] = None

    def _give_up_oldest_idle(self) -> int:
        page = next(iter(self._idle))
        del self._idle[page]
        assert self.index is not None
        self.index.forget(page)
        return page

    def check_integrity(self, owned: Iterable[Sequence[int]]) -> None:
        """Walk every page: owned as often as the `owned` lists say, and else free or idle, never two of these."""
        owners = [0] * self.num_pages
        for pages in owned:
            for page in pages:
                owners[page] += 1
        if owners[PADDING_PAGE] or self._owners[PADDING_PAGE]:
            raise AssertionError("the padding page is owned by a request")
        for page in range(1, self.num_pages):
            is_free, is_idle = page in self._free, page in self._idle
            is_filed = self.index is not None and page in self.index
            if owners[page] != self._owners[page] or bool(owners[page]) + is_free + is_idle != 1:
                raise AssertionError(
                    f"page {page}: {owners[page]} owners, {self._owners[page]} counted, free: {is_free}, "
                    f"idle: {is_idle} (leaked or owned twice)"
                )
            if is_free and is_filed:
                raise AssertionError(f"page {page} is free, and the prefix index still names it")
            if (is_idle or owners[page] > 1) and not is_filed:
                raise AssertionError(f"page {page} is idle or shared, and the prefix index does not know it")
        if self.index is not None:
            self.index.check_integrity()
