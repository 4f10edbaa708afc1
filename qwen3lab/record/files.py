"""Writing so that a file is there whole or not at all, and so that a failure says what to do about it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

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


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write into: under `path`, and on the disk, once the block has ended; if that failed, it never was."""
    part = path.with_name(f".{path.name}.part")  # no member of a round begins with a dot
    with writing(path):
        try:
            with open(part, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def discard_parts(folder: Path) -> None:
    """Remove what a process that was killed while writing left behind."""
    for part in folder.glob(".*.part"):
        part.unlink()


def write_whole(path: Path, data: bytes) -> None:
    with whole_file(path) as file:
        file.write(data)


def copy_whole(source: Path, target: Path) -> None:
    with open(source, "rb") as data, whole_file(target) as file:
        shutil.copyfileobj(data, file, 1 << 20)


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
