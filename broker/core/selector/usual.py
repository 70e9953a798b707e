"""Messages in the form that encoders usually write, read by regular expressions, which are C.

A length in one byte and so many bytes after it are regular: one alternative for each length, of which the first byte selects one.
So is everything that a selector steps over: short sections, and maps whose keys are short texts. `before` finds the sections up
to the application properties; `properties` finds the values of certain names among these.

Invariants: no two alternatives match at one place, and no repetition has a choice when to end, so the time is linear and nothing
is tried twice; what matches is read as the steps of `broker.core.selector.fields` would read it, and anything else is left to
them: longer sections, larger values, names in another encoding, lists and maps among the values, damaged bytes.

Source: AMQP 1.0 part 1, section 1.2 (encodings), part 3, section 3.2 (order of the sections).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, cast

MAX_PAIRS: Final = 32
"""Messages with more properties are left to the steps."""
MAX_NAMES: Final = 32
"""Selectors with more names are left to the steps."""
MAX_NAME_BYTES: Final = 64
_TEXT_BYTES: Final = 64
"""Texts and names have fewer bytes; others are left to the steps."""
_KEPT = 128


def _sized(stop: int) -> bytes:
    """A length below `stop` in one byte, and so many bytes."""
    return b"(?:\\x00|%b)" % b"|".join(b"\\x%02x.{%d}" % (size, size) for size in range(1, stop))


def _section(code: bytes, stop: int) -> bytes:
    """A list or a map whose size is below `stop`, after its descriptor. The list without items has no size."""
    return rb"\x00S%b(?:(?:[\xc0\xc1]|[\xd0\xd1]\x00\x00\x00)%b|\x45)" % (code, _sized(stop))


HEADER, PROPERTIES, LONG_MAP, SHORT_MAP = 1, 2, 3, 4
_BEFORE: Final = re.compile(
    rb"(?:(%b)|)(?:(?:%b){1,2}|)(?:(%b)|)(?:\x00St(?:\xd1()|\xc1())|)"
    % (_section(b"p", 32), _section(b"[qr]", 256), _section(b"s", 256)),
    re.DOTALL,
)
before: Final = cast("Callable[[bytes, int, int], re.Match[bytes]]", _BEFORE.match)
"""The header, the annotations, the properties, and the constructor of the application properties: groups HEADER, PROPERTIES,
LONG_MAP and SHORT_MAP. All may be missing. `lastindex` is one of the last two if it came to a constructor, and `end()` is the
place after it."""
SECTION_HEAD: Final = 3
"""Bytes of a section before its value."""

_TEXT = _sized(_TEXT_BYTES)
_VALUE = (
    rb"(?:[\xa1\xa0\xa3]%b|[\x50-\x5f].|[\x70-\x7f].{4}|[\x80-\x8f].{8}|[\x40-\x4f]|[\x60-\x6f].{2}|[\x90-\x9f].{16})" % _TEXT
)


@lru_cache(_KEPT)
def properties(names: Sequence[bytes], n_pairs: int) -> re.Pattern[bytes]:
    """So many keys and values, to their end. Its groups are empty: each stands before the value of a name, the last one if the
    name comes more than once."""
    wanted = [re.escape(bytes((len(name),)) + name) for name in names]
    named = b"".join(b"%b()|" % name for name in wanted)
    return re.compile(rb"(?:\xa1(?:%b(?!%b)%b)%b){%d}" % (named, b"|".join(wanted), _TEXT, _VALUE, n_pairs), re.DOTALL)
