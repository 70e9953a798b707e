"""A snapshot on its way (§7): what the sender knows of it, and what the receiver has of it.

One chunk is under way at a time, and the next is asked for only when it is written, so a slow disk slows the sender and nothing
piles up. The receiver names the offset that it wants next, so a lost, repeated or late chunk costs a repetition and nothing else.
The bytes of two checkpoints never mix: a chunk of another checkpoint counts only from offset 0 on.
"""

from __future__ import annotations

from ha.core.messages import SnapshotChunk


class Outgoing:
    """At the primary: the checkpoint of `index` (0: not known yet, the newest) is being asked for from `offset` on, since
    `asked_at`.
    """

    __slots__ = ("asked_at", "index", "offset")

    def __init__(self, now: float) -> None:
        self.index = 0
        self.offset = 0
        self.asked_at = now

    def wanted(self, now: float, index: int, offset: int) -> None:
        """The receiver wants this next."""
        self.index, self.offset, self.asked_at = index, offset, now


class Incoming:
    """At a backup: the checkpoint that begins with this chunk; the bytes before `next_offset` are written, `writing` more are
    about to be.
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
        """Whether every byte is with the edge, which makes the file durable."""
        return self.next_offset + self.writing >= self.total_bytes


def _file_of(sender: str, chunk: SnapshotChunk) -> tuple[str, int, int, int, int]:
    return sender, chunk.epoch, chunk.index, chunk.total_bytes, chunk.checkpoint
