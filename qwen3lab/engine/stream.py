"""One request, read as it grows. The reader drives the engine: asking for a piece runs steps until there is one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from qwen3lab.engine.request import Completion, Request, TokenLogprobs


@dataclass(frozen=True)
class Piece:
    """What one step added. `text` holds whole characters only, and never a part of what may become a stop string.

    The texts of all pieces joined are the completion's text, their ids its token_ids.
    """

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] | None = None


class Stream:
    """An iterator over a request's pieces; afterwards `completion` says how it ended.

    Closing it (close(), the end of a `with` block, or dropping it) aborts the request if it still runs, and its pages
    are free at once. Other requests of the same engine advance with it. A request that ends by an error raises
    RuntimeError in its reader.
    """

    def __init__(self, request_id: int, work: Callable[[], None], abort: Callable[[int], Completion]) -> None:
        self.request_id = request_id
        self.completion: Completion | None = None
        self._work = work
        self._abort = abort
        self._pieces: deque[Piece] = deque()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        while not self._pieces and self.completion is None:
            self._work()
        if self._pieces:
            return self._pieces.popleft()
        assert self.completion is not None
        if self.completion.error is not None:
            raise RuntimeError(f"request {self.request_id}: {self.completion.error}")
        raise StopIteration

    def feed(self, request: Request, num_new: int, completion: Completion | None) -> None:
        """The engine's side: the request's last `num_new` ids are new; with a completion there will be no more."""
        text = request.text.take() if request.text is not None else ""
        if num_new or text:
            token_ids = tuple(request.token_ids[len(request.token_ids) - num_new :])
            logprobs = tuple(request.logprobs[len(request.logprobs) - num_new :])
            wanted = request.params.logprobs is not None
            self._pieces.append(Piece(token_ids, text, logprobs if wanted else None))
        self.completion = completion

    def close(self) -> None:
        """Stop reading; pieces that were not read are dropped."""
        self._pieces.clear()
        if self.completion is None:
            self._abort(self.request_id)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
