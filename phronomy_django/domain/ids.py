"""Identities: time-ordered, 32 lower-case hexadecimal digits (the layout of RFC 9562 UUID version 7).

One plain ``str`` form is used in code, tables, URLs and JSON, so that no layer has to convert.
"""

from __future__ import annotations

import os
import time

__all__ = ["new_id"]

_CHUNK = 10
_random: list[
    bytes
] = []  # read from the system a page at a time: each read lets go of the interpreter's lock


def _more() -> bytes:
    page = os.urandom(_CHUNK * 400)
    _random.extend(page[start : start + _CHUNK] for start in range(_CHUNK, len(page), _CHUNK))
    return page[:_CHUNK]


os.register_at_fork(after_in_child=_random.clear)


def new_id() -> str:
    """A fresh identity; identities made later in another millisecond sort later."""
    try:
        chance = _random.pop()
    except IndexError:
        chance = _more()
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(chance, "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return f"{value:032x}"
