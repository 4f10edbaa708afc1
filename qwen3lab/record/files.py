"""Writing so that a file is there whole or not at all, and so that a failure says what to do about it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """An OSError of the block is raised again with its own errno, naming `path` and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # raised in Python, with its own words (a lock's timeout): nothing to add
            raise
        if error.errno in _FULL:
            remedy = "free some space (or raise the quota); what was being written is not taken for whole"
        elif error.errno in _CLOSED:
            remedy = "make the folder writable, or name another data folder"
        else:
            remedy = "name a data folder that can be created and written"
        raise OSError(error.errno, f"cannot write: {os.strerror(error.errno)}; {remedy}", str(path)) from error


def write_whole(path: Path, data: bytes) -> None:
    """`data` under `path`, on the disk: written beside it, synchronised, then renamed over it in one step."""
    part = path.with_name(path.name + ".part")
    with writing(path):
        try:
            with open(part, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def copy_whole(source: Path, target: Path) -> None:
    """A copy of the plain file `source`, on the disk."""
    with open(source, "rb") as reading, writing(target), open(target, "xb") as file:
        shutil.copyfileobj(reading, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """The names in `path` are on the disk: a rename survives a power cut only after this."""
    with writing(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sha256_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
