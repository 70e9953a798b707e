"""The messages between the members of a cluster as AMQP messages, each with whole batches.

A message is one AMQP data section (part 3.2.6) with the length of a JSON head, the head (kind and fields of an
`ha.core.messages` message), and the bytes beside it: concatenated batches, or a chunk of a snapshot. Heads are small and few,
one for each batch; this module does not look into batches.

Invariants: unknown fields of a head are ignored; a head of an unknown kind, or without a required field, is refused with a text.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from broker.core.limits import PIECE_BYTES
from ha.core.membership import BadMembership, Membership
from ha.core.messages import SINCE_WIRE_2, Append, Attest, Message, SnapshotChunk
from ha.core.versions import WIRE_VERSION

_DATA = b"\x00\x53\x75\xb0"
_LENGTHS = struct.Struct(">II")
_START = len(_DATA) + _LENGTHS.size
_LARGEST_HEAD = 1 << 20
_LARGE_BYTES = PIECE_BYTES // 8
"""Copying so many bytes takes longer than a piece more."""
_to_json = msgspec.json.Encoder().encode
_from_json: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class BadReplication(ValueError):
    """The data is not a message between members; the text says what is wrong with it."""


def encode(message: Message, payload: Sequence[bytes], wire: int = WIRE_VERSION) -> bytes:
    """The encoded AMQP message for this message and its payload, for a member with that wire version."""
    return b"".join((_beginning(message, payload, wire), *payload))


def pieces(message: Message, payload: Sequence[bytes], wire: int = WIRE_VERSION) -> Sequence[bytes]:
    """The same, not joined where that saves more than it costs. Each piece costs several calls of C functions, so a message that
    is not large has one piece, and the small batches of a large one are joined."""
    found: list[bytes] = []
    small = [_beginning(message, payload, wire)]
    nbytes = len(small[0])
    if nbytes + sum(map(len, payload)) <= PIECE_BYTES:
        return (b"".join((*small, *payload)),)
    for batch in payload:
        large = len(batch) >= _LARGE_BYTES
        if small and (large or nbytes + len(batch) > PIECE_BYTES):
            found.append(b"".join(small))
            small, nbytes = [], 0
        if large:
            found.append(batch)
        else:
            small.append(batch)
            nbytes += len(batch)
    return (*found, b"".join(small)) if small else found


def _beginning(message: Message, payload: Sequence[bytes], wire: int) -> bytes:
    """The bytes of the encoded AMQP message before those of its payload."""
    text = _to_json(message if wire > 1 else _first_form(message))
    size = 4 + len(text) + sum(map(len, payload))
    return b"".join((_DATA, _LENGTHS.pack(size, len(text)), text))


def _first_form(message: Message) -> dict[str, Any]:
    """The fields of a message that release 0.1 knows. It knows no witness and no second site, so the members have their old
    form."""
    fields: dict[str, Any] = msgspec.to_builtins(message)
    members = getattr(message, "members", None)
    if isinstance(members, Membership):
        fields["members"] = members.to_dict()
    return {name: value for name, value in fields.items() if name not in SINCE_WIRE_2}


def decode(data: bytes) -> tuple[Message, memoryview]:
    """The message and its payload, as a view of `data`; an Append does not have its `entries` yet. BadReplication if the data
    is not a message."""
    if len(data) < _START or not data.startswith(_DATA):
        raise BadReplication(f"{len(data)} bytes that are not a replication message")
    size, head_size = _LENGTHS.unpack_from(data, len(_DATA))
    if size != len(data) - _START + 4 or head_size > min(size, _LARGEST_HEAD):
        raise BadReplication(f"a replication message of {len(data)} bytes states lengths of {size} and {head_size}")
    head = data[_START : _START + head_size]
    try:
        message = _from_json.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadReplication(f"the head of a replication message makes no sense: {error}: {head!r:.200}") from None
    return _checked(message), memoryview(data)[_START + head_size :]


def _checked(message: Message) -> Message:
    if isinstance(message, Append) and message.entries:
        raise BadReplication("the head of Append describes batches, which are beside it")
    if isinstance(message, SnapshotChunk | Attest):
        told = message.members
        try:
            members = Membership.of(told.voters, told.learners, told.cluster_id, told.witness, told.standby)
        except BadMembership as error:
            raise BadReplication(str(error)) from None
        return msgspec.structs.replace(message, members=members)
    return message
