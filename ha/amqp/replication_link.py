"""What the members of a cluster say to each other, as AMQP messages: one message each, whole batches in it.

A message is one AMQP data section (part 3.2.6) that holds the length of a JSON head, the head (kind and fields of an
`ha.core.messages` message), and the bytes that travel beside it: batches end to end, or a chunk of a snapshot. Heads are
small and few, one a batch; the batches are never looked into here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import fields
from json.encoder import encode_basestring_ascii
from typing import Any, get_args

from ha.core import messages
from ha.core.membership import BadMembership, Membership

_DATA = b"\x00\x53\x75\xb0"
_LENGTHS = struct.Struct(">II")
_START = len(_DATA) + _LENGTHS.size
_LARGEST_HEAD = 1 << 20
_KINDS: dict[str, type[messages.Message]] = {kind.__name__: kind for kind in get_args(messages.Message)}
_MEMBERS = "members"
_FIELDS = {kind: tuple(field.name for field in fields(kind) if field.name != "entries") for kind in _KINDS.values()}
"""What goes into the head of each message: looked up once, for there are several messages a batch."""
_PLAIN = {"int": int, "bool": bool, "str": str}
_TYPES = {
    kind: tuple((field.name, _PLAIN[str(field.type)]) for field in fields(kind) if str(field.type) in _PLAIN)
    for kind in _KINDS.values()
}
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_from_json = json.JSONDecoder().decode
_JSON_OF: dict[type, Callable[[Any], str]] = {
    int: repr,
    bool: lambda value: "true" if value else "false",
    str: encode_basestring_ascii,
    Membership: lambda value: _to_json(value.to_dict()),
}
_HEADS = {
    kind: "{" + ",".join([f'"kind":"{kind.__name__}"', *(f'"{name}":%s' for name in names)]) + "}"
    for kind, names in _FIELDS.items()
}
"""The head of each message, for the JSON of its fields: a JSON encoder is made anew for each object and takes twice as long."""


class BadReplication(ValueError):
    """Not a message between members; the text says what is wrong with it."""


def encode(message: messages.Message, payload: Sequence[bytes]) -> bytes:
    """The AMQP message (its encoded bytes) that carries this message and what goes beside it."""
    kind = type(message)
    values = [getattr(message, name) for name in _FIELDS[kind]]
    text = (_HEADS[kind] % tuple([_JSON_OF[type(value)](value) for value in values])).encode()
    size = 4 + len(text) + sum(map(len, payload))
    return b"".join((_DATA, _LENGTHS.pack(size, len(text)), text, *payload))


def decode(data: bytes) -> tuple[messages.Message, bytes]:
    """The message and what came beside it; an Append still without its `entries`. BadReplication when it is none."""
    if len(data) < _START or not data.startswith(_DATA):
        raise BadReplication(f"{len(data)} bytes that are no replication message")
    size, head_size = _LENGTHS.unpack_from(data, len(_DATA))
    if size != len(data) - _START + 4 or head_size > min(size, _LARGEST_HEAD):
        raise BadReplication(f"a replication message of {len(data)} bytes states lengths of {size} and {head_size}")
    try:
        head = _from_json(str(data[_START : _START + head_size], "utf-8"))
        return _message(head), data[_START + head_size :]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadReplication(f"the head of a replication message makes no sense: {error}") from None


def _message(head: dict[str, Any]) -> messages.Message:
    named = head.pop("kind")
    kind = _KINDS.get(named)
    if kind is None:
        raise BadReplication("the kind of this replication message is unknown: its sender runs a newer version")
    if "entries" in head:
        raise BadReplication(f"the head of {named} describes batches, which are beside it")
    for name, expected in _TYPES[kind]:
        value = head.get(name)
        if type(value) is not expected and value is not None:
            raise BadReplication(f"{named}.{name} is {value!r:.80}, not {expected.__name__}")
    if _MEMBERS in _FIELDS[kind]:
        try:
            head[_MEMBERS] = Membership.from_dict(head.get(_MEMBERS))
        except BadMembership as error:
            raise BadReplication(str(error)) from None
    return kind(**head)
