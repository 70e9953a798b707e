"""Error conditions, texts and values in the memory of proton, which has them as C strings and as objects of AMQP data.

Source: AMQP 1.0 parts 1 (types) and 2.8.14 (errors).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cproton_ffi import ffi, lib

from broker.core import limits, values


class Condition(Exception):
    """An AMQP error condition for the peer: `name` (part 2.8.14 and following), a text for people, and an info for programs."""

    def __init__(self, name: str, text: str, info: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text
        self.info = info


def set_condition(pointer: Any, condition: Condition) -> None:
    """Write an error condition into proton's own, cut so that its frame is as small as any peer may demand, because proton cannot
    split it. Of the info, entries are left out that do not fit beside those before them; the text gets the rest."""
    room = limits.MAX_CONDITION_BYTES
    lib.pn_condition_set_name(pointer, condition.name.encode())
    if condition.info:
        named = _info_within(condition.info, room)
        put_value(lib.pn_condition_info(pointer), named)
        room -= len(named)
    lib.pn_condition_set_description(pointer, _cut(condition.text, room))


def _info_within(info: Mapping[str, Any], room: int) -> bytes:
    """The first entries of an info, encoded, in at most so many bytes."""
    fits: dict[values.Symbol, Any] = {}
    encoded = values.encode(fits)
    for key, value in info.items():
        more = fits | {values.Symbol(key): value}
        found = values.encode(more)
        if len(found) <= room:
            fits, encoded = more, found
    return encoded


def _cut(text: str, room: int) -> bytes:
    """The text in UTF-8, in at most so many bytes."""
    encoded = text.encode()
    if len(encoded) <= room:
        return encoded
    return encoded[: max(room - 3, 0)].decode(errors="ignore").encode() + b"..."[:room]


def condition_text(pointer: Any) -> str:
    """A peer's error condition as "name: description", "" when there is none."""
    if not lib.pn_condition_is_set(pointer):
        return ""
    name, text = text_of(lib.pn_condition_get_name(pointer)), text_of(lib.pn_condition_get_description(pointer))
    return f"{name}: {text}" if text else name


def text_of(pointer: Any) -> str:
    """A C string, "" for NULL."""
    return "" if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace")


def encoded_of(data: Any) -> bytes:
    """The encoded content of a peer's data object; b"" if it is empty."""
    size = lib.pn_data_encoded_size(data)
    if size <= 0:
        return b""
    encoded = bytearray(size)
    lib.pn_data_encode(data, ffi.from_buffer(encoded), size)
    return bytes(encoded)


def value_of(data: Any) -> Any:
    """The value that a peer's data holds, None when it is empty; Condition when it cannot be read (text that is not UTF-8)."""
    encoded = encoded_of(data)
    try:
        return values.decode(encoded) if encoded else None
    except values.BadValue as error:
        raise Condition("amqp:decode-error", f"a property, filter or capability cannot be read: {error}") from None


def map_of(data: Any) -> dict[Any, Any]:
    """The map that a peer's data holds, {} when it holds something else; Condition as `value_of`."""
    found = value_of(data)
    return found if isinstance(found, dict) else {}


def names_of(data: Any) -> tuple[str, ...]:
    """The symbols that a peer's data holds, one or an array of them; Condition as `value_of`."""
    found = value_of(data)
    return tuple(map(str, found if isinstance(found, list) else () if found is None else (found,)))


def put_value(data: Any, encoded: bytes) -> None:
    """Make proton's data hold a value, given as its bytes."""
    taken = lib.pn_data_decode(data, ffi.from_buffer(encoded), len(encoded))
    assert taken == len(encoded), f"proton takes {taken} of the {len(encoded)} bytes of a value"
