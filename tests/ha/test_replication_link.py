"""What members say to each other, as bytes and back, and bytes that nobody of ours has sent."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from ha.amqp.replication_link import BadReplication, decode, encode
from ha.core.membership import Membership
from ha.core.messages import (
    Append,
    AppendReply,
    Message,
    PreVote,
    PreVoteReply,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    TransferReply,
    TransferRequest,
    Vote,
    VoteReply,
)

MEMBERS = Membership(("a:1", "b:1"), ("c:1",), "cluster")


def raw(head: Any, payload: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return b"\x00\x53\x75\xb0" + struct.pack(">II", 4 + len(text) + len(payload), len(text)) + text + payload


@pytest.mark.parametrize(
    "message",
    [
        PreVote(3, 1, 20, 2),
        PreVoteReply(3, 1, True, False, "why not"),
        Vote(3, 20, 2, True),
        VoteReply(3, 3, False, True, "no: ä"),
        Append(3, 0, 19, 2, 20, 21, 19),
        AppendReply(3, 4, False, 1, 2, 3, 4, 5, "gap"),
        SnapshotChunk(3, 20, 2, MEMBERS, 0, 5, 10),
        SnapshotReply(3, 20, 5),
        TransferRequest(3),
        TransferReply(3, ""),
        TimeoutNow(3),
    ],
)
def test_every_message_comes_back_as_it_was_with_what_goes_beside_it(message: Message) -> None:
    assert decode(encode(message, [b"one", b"two"])) == (message, b"onetwo")
    assert decode(encode(message, ())) == (message, b"")


VOTE = {"kind": "Vote", "epoch": 3, "last_index": 20, "last_epoch": 2}


@pytest.mark.parametrize(
    "data,text",
    [
        (b"", "0 bytes that are no replication message"),
        (b"\x00\x53\x77" + b"x" * 20, "23 bytes that are no replication message"),
        (raw(VOTE)[:-1], "states lengths"),
        (raw(VOTE).replace(b'"', b"'"), "makes no sense"),
        (raw(VOTE).replace(b"Vote", b"V\xffte"), "makes no sense"),
        (raw([1, 2]), "makes no sense"),
        (raw({}), "makes no sense"),
        (raw(VOTE | {"more": 1}), "makes no sense"),
        (raw({"kind": "Vote", "epoch": 3}), "makes no sense"),
        (raw(VOTE | {"kind": "Gossip"}), "newer version"),
        (raw(VOTE | {"epoch": "3"}), "Vote.epoch is '3', not int"),
        (raw(VOTE | {"epoch": True}), "Vote.epoch is True, not int"),
        (raw(VOTE | {"transfer": 1}), "Vote.transfer is 1, not bool"),
        (raw({"kind": "Append", "entries": []}), "describes batches"),
        (raw({"kind": "SnapshotChunk", "members": 7}), "member"),
        (raw({"kind": "SnapshotChunk"}), "member"),
    ],
)
def test_what_is_no_message_is_refused_with_a_text(data: bytes, text: str) -> None:
    with pytest.raises(BadReplication, match=text):
        decode(data)
