"""Raw outputs and traces: packed into archive/<round>.tar.zst, which stays on this machine; hashes go into the round.

The archive is deterministic (names sorted, times and owners zero, one level), yet only its members are hashed: another
compressor's version may write other bytes for the same content. What comes out of an archive is untrusted: only plain
files that the round knows, with the sizes it knows, and no more bytes than these need.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import zstandard

from qwen3lab.record.files import sha256_file, sync_folder, whole_file, writing
from qwen3lab.record.schema import RAW_NAME, RawMember

LEVEL = 10
EXTRACT_LIMIT_BYTES = 8 << 30
# A member's tar overhead: its header and padding, and an extended header where its name is long.
_MEMBER_ROOM_BYTES, _END_ROOM_BYTES = 4096, 64 << 10


def archive_path(root: Path, round_id: str) -> Path:
    return root / "archive" / f"{round_id}.tar.zst"


def check_name(name: str) -> None:
    """Raises ValueError for a name that could lead out of a folder, or that another system reads differently."""
    if len(name) > 200 or re.fullmatch(RAW_NAME.strip("^$"), name) is None:
        raise ValueError(f"raw member {name!r}, allowed: letters, digits and _.+- in parts joined by /, up to 200")


def pack(staging: Path, archive: Path) -> dict[str, RawMember]:
    """Every file under `staging` into `archive`, whole or not at all; what the record says of each."""
    members: dict[str, RawMember] = {}
    files = {path.relative_to(staging).as_posix(): path for path in staging.rglob("*") if path.is_file()}
    with writing(archive.parent):
        archive.parent.mkdir(exist_ok=True)
    with (
        whole_file(archive) as file,
        zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).stream_writer(file, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted(files):
            info = tarfile.TarInfo(name)  # mtime, uid and gid are 0, owners are empty
            info.size = files[name].stat().st_size
            members[name] = RawMember(bytes=info.size, sha256=sha256_file(files[name]))
            with open(files[name], "rb") as data:
                tar.addfile(info, data)
    sync_folder(archive.parent)
    return members


def faults(archive: Path, expected: Mapping[str, RawMember]) -> list[tuple[str | None, str]]:
    """(member, what is wrong) for everything in `archive` that is not as the round has it; None: the archive itself."""
    found: list[tuple[str | None, str]] = []
    seen: set[str] = set()
    try:
        with _reading(archive, expected) as tar:
            for info in tar:
                fault = _stranger(info, expected, seen)
                if fault is None:
                    digest = hashlib.file_digest(tar.extractfile(info), "sha256").hexdigest()  # type: ignore[arg-type]
                    fault = None if digest == expected[info.name].sha256 else "its bytes are not those that were packed"
                if fault is not None:
                    found.append((ascii(info.name)[1:-1], fault))
                seen.add(info.name)
    # The parsers of damaged input raise whatever they trip over; all of it says that this archive cannot be read.
    except Exception as error:
        found.append((None, f"cannot be read to its end ({type(error).__name__}: {error})"))
    return found + [(name, "missing from the archive") for name in sorted(set(expected) - seen)]


def unpack(archive: Path, expected: Mapping[str, RawMember], to: Path, limit_bytes: int) -> None:
    """The members of `archive` as files under `to`, which must be new or empty. Raises ValueError, leaving nothing."""
    total = sum(member.bytes for member in expected.values())
    if total > limit_bytes:
        raise ValueError(f"{archive}: {total} bytes to extract, allowed: {limit_bytes}; raise limit_bytes to allow it")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ValueError(f"{to}: not an empty folder; name a new one")
    if not hasattr(tarfile, "data_filter"):
        raise ValueError("this Python's tarfile cannot extract safely; use 3.11.4 or newer")
    part = to.with_name(to.name + ".part")
    with writing(to):
        part.mkdir(parents=True)
    seen: set[str] = set()
    try:
        with _reading(archive, expected) as tar:
            for info in tar:
                fault = _stranger(info, expected, seen)
                if fault is not None:
                    raise ValueError(f"{archive}: {info.name!r} {fault}; nothing was extracted")
                tar.extract(info, part, filter="data")
                if sha256_file(part / info.name) != expected[info.name].sha256:
                    raise ValueError(f"{archive}: {info.name!r} differs from what was packed; nothing was extracted")
                seen.add(info.name)
        if seen != set(expected):
            missing = ", ".join(sorted(set(expected) - seen))
            raise ValueError(f"{archive}: {missing} missing; nothing was extracted")
        os.rename(part, to)
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise ValueError(f"{archive}: cannot be read ({error}); nothing was extracted") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _stranger(info: tarfile.TarInfo, expected: Mapping[str, RawMember], seen: set[str]) -> str | None:
    """Why this entry may not be touched, before a byte of it is read."""
    if info.name not in expected:
        return "is not a member that the round knows"
    if info.type != tarfile.REGTYPE:
        return "is not a plain file"
    if info.name in seen:
        return "is there twice"
    if info.size != expected[info.name].bytes:
        return f"has {info.size} bytes, the round has {expected[info.name].bytes}"
    return None


@contextlib.contextmanager
def _reading(archive: Path, expected: Mapping[str, RawMember]) -> Iterator[tarfile.TarFile]:
    room = _END_ROOM_BYTES + sum(member.bytes + _MEMBER_ROOM_BYTES for member in expected.values())
    with open(archive, "rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        bounded: Any = _Bounded(stream, room)
        with tarfile.open(fileobj=bounded, mode="r|") as tar:
            yield tar


class _Bounded:
    """A stream that gives out at most `room` bytes: an archive that unpacks to more was never packed here."""

    def __init__(self, stream: Any, room: int) -> None:
        self._stream, self._room = stream, room

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        self._room -= len(data)
        if self._room < 0:
            raise tarfile.ReadError("it unpacks to more bytes than its members have")
        return data
