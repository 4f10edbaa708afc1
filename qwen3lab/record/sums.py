"""SHA256SUMS: one line a member, sorted by name, as `sha256sum -c SHA256SUMS` reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping

SUMS = "SHA256SUMS"
# A member lies flat in its round: no folders, nothing hidden, no name that a shell or another system reads differently.
MEMBER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def render(hashes: Mapping[str, str]) -> bytes:
    return "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes)).encode()


def parse(data: bytes) -> dict[str, str]:
    """Member name → sha256. Raises ValueError on anything that `render` would not have written."""
    hashes: dict[str, str] = {}
    for number, line in enumerate(data.decode("utf-8", "backslashreplace").splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is not '<sha256>  <name>'")
        digest, name = match.groups()
        if MEMBER_NAME.fullmatch(name) is None or name == SUMS:
            raise ValueError(f"line {number} names {name!r}, which no member of a round can be called")
        hashes[name] = digest
    if render(hashes) != data:
        raise ValueError("its lines are not unique, sorted and whole")
    return hashes
