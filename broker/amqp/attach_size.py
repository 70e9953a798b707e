"""The size of an attach that this side is about to send: it is one frame, because proton cannot split it.

Invariant: the bound is never below the size of the frame, and at most 80 bytes above it.

Source: AMQP 1.0 parts 2.7.3 (attach), 3.5.3 (source), 3.5.4 (target).
"""

from __future__ import annotations

from typing import Any

from cproton_ffi import ffi, lib

_FRAME_BYTES = 8 + 12 + 5 + 1 + 2 + 2 + 1 + 1 + 1 + 9 + 1 + 1
"""Of an attach without its name, termini and properties: the head of the frame; the descriptor, size and count of the list; the
fields of fixed size at their largest, except that this side counts its deliveries from 0."""
_TERMINUS_BYTES = 12 + 2 + 5 + 1 + 6 + 1
"""Of a terminus without its address, expiry policy and the fields that are values: the descriptor, size and count of its list;
durability, timeout, dynamic, distribution mode and default outcome at their largest."""
_POLICY_BYTES = {
    lib.PN_EXPIRE_WITH_LINK: 2 + len("link-detach"),
    lib.PN_EXPIRE_WITH_SESSION: 2 + len("session-end"),
    lib.PN_EXPIRE_WITH_CONNECTION: 2 + len("connection-close"),
    lib.PN_EXPIRE_NEVER: 2 + len("never"),
}
_SHORT_BYTES = 255
"""The longest text whose size has one byte."""


def attach_bytes(handle: Any, source: Any, target: Any) -> int:
    """An upper bound of the bytes of an attach's frame for this link with these termini."""
    found = _FRAME_BYTES + _text(lib.pn_link_name(handle)) + _value(lib.pn_link_properties(handle))
    return found + _terminus(source) + _terminus(target)


def refusal_bytes(handle: Any, other: Any) -> int:
    """The same for an attach with one terminus, as it leaves before a detach."""
    return _FRAME_BYTES + _text(lib.pn_link_name(handle)) + 1 + 1 + _terminus(other)


def _terminus(pointer: Any) -> int:
    if lib.pn_terminus_get_type(pointer) == lib.PN_UNSPECIFIED:
        return 1
    return (
        _TERMINUS_BYTES
        + _text(lib.pn_terminus_get_address(pointer))
        + _POLICY_BYTES[lib.pn_terminus_get_expiry_policy(pointer)]
        + _value(lib.pn_terminus_properties(pointer))
        + _value(lib.pn_terminus_filter(pointer))
        + _value(lib.pn_terminus_outcomes(pointer))
        + _value(lib.pn_terminus_capabilities(pointer))
    )


def _text(pointer: Any) -> int:
    """Bytes of a C string as a value; of NULL."""
    if pointer == ffi.NULL:
        return 1
    size = len(ffi.string(pointer))
    return size + (2 if size <= _SHORT_BYTES else 5)


def _value(data: Any) -> int:
    """Bytes of a value; of none."""
    return max(1, int(lib.pn_data_encoded_size(data)))
