"""Canonical JSON (RFC 8785): a value has one sequence of bytes, whatever its key order or float printing was.

JSON has neither NaN nor infinity. A metric that does not exist is None, so a NaN on its way into a record is somebody's
mistake: it is refused by its place in the value, and never turned into null in silence.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import rfc8785

# JSON numbers are IEEE doubles (RFC 8785 §3.2.2.3): from here on a whole number is no longer its own neighbour's equal.
MAX_EXACT_INT = 2**53 - 1


def plain(value: object, where: str) -> Any:
    """`value` as JSON's own types: NumPy scalars unwrapped, tuples as lists. Raises ValueError naming the place."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, int):
        if abs(value) > MAX_EXACT_INT:
            raise ValueError(f"{where}={value}, allowed: whole numbers within ±(2^53 − 1); write it as a string")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where}={value}, allowed: finite numbers; a metric that is undefined is None")
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where} has the key {key!r}, allowed: strings")
        return {_text(key, where): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise ValueError(f"{where} is a {type(value).__name__}, allowed: None, bool, int, float, str, lists and mappings")


def dumps(value: object, where: str) -> bytes:
    """The canonical bytes of `value`; `where` names it in errors."""
    data: bytes = rfc8785.dumps(plain(value, where))
    return data


def loads(data: bytes, where: str) -> Any:
    """JSON's own types from `data`. Raises ValueError where it is not JSON, holds NaN, or nests beyond reason."""
    try:
        return json.loads(data, parse_int=_number, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error})") from None


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where}={value!r}, allowed: text that UTF-8 can hold") from None
    return str(value)


def _number(digits: str) -> int | float:
    """Canonical JSON prints the double 1e17 as whole digits; it comes back as the double that it was."""
    value = int(digits)
    return value if abs(value) <= MAX_EXACT_INT else float(digits)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")
