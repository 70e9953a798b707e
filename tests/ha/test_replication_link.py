"""What members say to each other, as bytes and back, and bytes that nobody of ours has sent."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest

from broker.core.limits import PIECE_BYTES
from ha.amqp.replication_link import BadReplication, decode, encode, pieces
from ha.core.membership import Membership
from ha.core.messages import (
    Append,
    AppendReply,
    Attest,
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
SITES = Membership(("a:1", "b:1", "w:1"), ("c:1", "d:1"), "cluster", "w:1", ("c:1",))


def raw(head: Any, payload: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return b"\x00\x53\x75\xb0" + struct.pack(">II", 4 + len(text) + len(payload), len(text)) + text + payload


def decoded(data: bytes) -> tuple[Message, bytes]:
    message, beside = decode(data)
    return message, bytes(beside)


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
        SnapshotChunk(3, 20, 2, SITES, 0, 5, 10),
        Attest(3, 7, 20, SITES, 18, 19),
        SnapshotReply(3, 20, 5),
        TransferRequest(3),
        TransferReply(3, ""),
        TimeoutNow(3),
    ],
)
def test_every_message_comes_back_as_it_was_with_what_goes_beside_it(message: Message) -> None:
    assert decoded(encode(message, [b"one", b"two"])) == (message, b"onetwo")
    assert decoded(encode(message, ())) == (message, b"")


def test_fields_of_a_newer_release_are_ignored() -> None:
    """A link that one more field drops is a cluster that cannot be upgraded while it works."""
    newer = VOTE | {"more": {"a": [1]}, "still": None}
    assert decoded(raw(newer, b"beside")) == (Vote(3, 20, 2), b"beside")
    members = {"voters": ["b:1", "a:1"], "learners": [], "cluster_id": "c", "observers": ["d:1"]}
    message, _ = decode(raw(CHUNK | {"members": members}))
    assert isinstance(message, SnapshotChunk)
    assert message.members == Membership(("a:1", "b:1"), (), "c")


def test_a_member_of_the_first_release_is_not_sent_the_fields_that_it_would_drop_the_link_over() -> None:
    for message in (PreVote(3, 1, 20, 2, "us"), Vote(3, 20, 2, True, "us"), Append(3, 0, 19, 2, 20, 21, 19, (), "us")):
        there, _ = decode(encode(message, [b"x"], 1))
        here, _ = decode(encode(message, [b"x"]))
        assert here == message
        assert there == msgspec.structs.replace(message, cluster_id=None)
        assert b"cluster_id" not in encode(message, (), 1)
    assert decoded(encode(SnapshotChunk(3, 20, 2, MEMBERS, 0, 5, 10), (), 1))[0] == SnapshotChunk(3, 20, 2, MEMBERS, 0, 5, 10)


def test_what_has_no_default_is_in_each_head_and_batches_are_in_none() -> None:
    """Release 0.1 needs every field that its own heads have."""
    data = encode(Append(3, 0, 19, 2, 20, 21, 19), [b"batch"])
    size = struct.unpack_from(">I", data, 8)[0]
    assert json.loads(data[12 : 12 + size]) == APPEND


APPEND = {
    "kind": "Append",
    "epoch": 3,
    "round": 0,
    "prev_index": 19,
    "prev_epoch": 2,
    "first": 20,
    "last": 21,
    "commit_index": 19,
}
CHUNK = {"kind": "SnapshotChunk", "epoch": 3, "index": 20, "index_epoch": 2, "offset": 0, "nbytes": 5, "total_bytes": 10}
VOTE = {"kind": "Vote", "epoch": 3, "last_index": 20, "last_epoch": 2}


@pytest.mark.parametrize(
    "data,text",
    [
        (b"", "0 bytes that are not a replication message"),
        (b"\x00\x53\x77" + b"x" * 20, "23 bytes that are not a replication message"),
        (raw(VOTE)[:-1], "states lengths"),
        (raw(VOTE).replace(b'"', b"'"), "makes no sense"),
        (raw(VOTE).replace(b"Vote", b"V\xffte"), "makes no sense"),
        (raw([1, 2]), "makes no sense"),
        (raw({}), "makes no sense"),
        (raw({"kind": "Vote", "epoch": 3}), "makes no sense"),
        (raw(VOTE | {"kind": "Gossip"}), "Invalid value 'Gossip'"),
        (raw(VOTE | {"epoch": "3"}), "Expected `int`, got `str` - at `\\$.epoch`"),
        (raw(VOTE | {"epoch": True}), "Expected `int`, got `bool` - at `\\$.epoch`"),
        (raw(VOTE | {"transfer": 1}), "Expected `bool`, got `int` - at `\\$.transfer`"),
        (raw(APPEND | {"entries": [{"index": 1, "epoch": 1, "nbytes": 1}]}), "describes batches"),
        (raw(CHUNK | {"members": 7}), "members"),
        (raw(CHUNK | {"members": {"voters": [], "learners": [], "cluster_id": ""}}), "at least one voting member"),
        (raw(CHUNK), "members"),
    ],
)
def test_what_is_no_message_is_refused_with_a_text(data: bytes, text: str) -> None:
    with pytest.raises(BadReplication, match=text):
        decode(data)


@pytest.mark.parametrize(
    "sizes, n_pieces",
    [
        ([], 1),
        ([5], 1),
        ([1000] * 2000, 8),
        ([PIECE_BYTES], 2),
        ([1000, PIECE_BYTES, 10, 10, PIECE_BYTES // 2, PIECE_BYTES, 5], 6),
    ],
)
def test_large_batches_are_not_copied_and_many_small_ones_are_joined(sizes: list[int], n_pieces: int) -> None:
    """Breaks when a member that catches up gets each batch as a piece: 1,000 of 1 KiB took more than twice the time to send."""
    batches = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    append = Append(1, 0, 0, 1, 1, 1, 0)
    found = pieces(append, batches)
    assert b"".join(found) == encode(append, batches)
    assert len(found) == n_pieces
    assert all(len(piece) <= PIECE_BYTES for piece in found)
    large = [batch for batch in batches if len(batch) >= PIECE_BYTES // 2]
    assert all(any(piece is batch for piece in found) for batch in large)
