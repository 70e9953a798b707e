"""A snapshot in transit (§7): the state of the sender and of the receiver.

One chunk is in transit at a time, and the next one is requested only after the previous one is written. So a slow disk
slows the sender, and nothing accumulates. The receiver names the next offset, so a lost, repeated or late chunk only
costs a repetition. The bytes of two checkpoints never mix: a chunk of another checkpoint counts only from offset 0 on.
"""

from __future__ import annotations

from ha.core.messages import SnapshotChunk


class Outgoing:
    """At the primary: the checkpoint of `index` (0: not known yet, the newest one) is being requested from `offset` on.
    `round` is the newest heartbeat that was sent before that chunk, and `waits_since` when the chunk was last known to be on
    its way.
    """

    __slots__ = ("index", "offset", "round", "waits_since")

    def __init__(self, now: float, round_number: int) -> None:
        self.index = 0
        self.offset = 0
        self.asked(now, round_number)

    def wanted(self, now: float, index: int, offset: int, round_number: int) -> None:
        """The next offset that the receiver requests."""
        self.index, self.offset = index, offset
        self.asked(now, round_number)

    def asked(self, now: float, round_number: int) -> None:
        """The chunk is requested now, after the heartbeat `round_number` was sent."""
        self.waits_since, self.round = now, round_number


class Incoming:
    """At a backup: the checkpoint that begins with this chunk. The bytes before `next_offset` are written, and
    `writing` more are about to be.
    """

    __slots__ = ("_file", "index", "next_offset", "total_bytes", "writing")

    def __init__(self, sender: str, chunk: SnapshotChunk) -> None:
        self._file = _file_of(sender, chunk)
        self.index = chunk.index
        self.total_bytes = chunk.total_bytes
        self.next_offset = 0
        self.writing = 0

    def same_file(self, sender: str, chunk: SnapshotChunk) -> bool:
        """Whether this chunk is of the same file, byte for byte: the same checkpoint of the same primary's term."""
        return self._file == _file_of(sender, chunk)

    @property
    def complete(self) -> bool:
        """Whether the edge, which makes the file durable, has every byte."""
        return self.next_offset + self.writing >= self.total_bytes


def _file_of(sender: str, chunk: SnapshotChunk) -> tuple[str, int, int, int, int]:
    return sender, chunk.epoch, chunk.index, chunk.total_bytes, chunk.checkpoint
