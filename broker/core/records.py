"""The batch codec: the format of one entry of a log in memory, on the wire and on disk.

A batch has all records of one turn of the primary. It is sealed once, and the same bytes are written to the journal, sent to each
backup and applied. Life of a batch: a `BatchBuilder` collects records, `seal` turns them into `bytes` with an epoch, an index and
a time, and `Batch.parse` reads them back by columns, never message by message.

Layout, little-endian::

    header   48 bytes   magic "USB2", CRC-32C of all bytes after this field, length of the batch, flags, number of runs, number of
                        records, epoch, index, timestamp (ms since 1970, by the primary's clock; it never decides about the order
                        of batches)
    heads    28 bytes for each run    kind, flags, 0, queue number, first sequence, count, payload bytes, CRC-32C of the payload
                                      (only of ENQUEUE runs)
    lengths  4 bytes for each message of the ENQUEUE runs, in the order of the runs
    payload  the runs' payloads, end to end

The checksum in the head of an ENQUEUE run verifies a body that is read without the rest of its batch. Batches of format 1
("USB1") have heads of 24 bytes without this checksum. This release reads them, and writes them while a member of the cluster can
read no other format (docs/adr/0015).

Invariants: runs are in the order DEFINE, ENQUEUE, LARGE, PLACES, TIMES, NOTES, DEQUEUE, COUNT, HELD, FORGOTTEN, OWNERS, MEMBERS;
runs of one kind are in the order in which their queues were first named, and OWNERS runs in the order in which they were added;
the sequences of an ENQUEUE run are consecutive; a batch that parses is complete (checksum) and consistent (lengths add up); times
and notes are in the same batch as their messages or in a later one.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import accumulate, chain, pairwise
from typing import Any

import google_crc32c
import msgspec

from broker.core import checksums

MAGIC = b"USB2"
MAGIC_1 = b"USB1"
MAGIC_START = b"USB"
"""The first bytes of a batch of any format."""
HEADER = struct.Struct("<4sIIIIIQQQ")
HEADER_BYTES = HEADER.size
_AFTER_CRC = struct.Struct("<IIIIQQQ")
_CRC_END = 8
_MANY_BYTES = 256 * 1024
"""Looking at so many bytes takes longer than joining their checksum with another."""
_HEAD = struct.Struct("<BBHIQIII")
_HEAD_1 = struct.Struct("<BBHIQII")
HEAD_BYTES = _HEAD.size
_LENGTH_BYTES = 4
FLAG_MEMBERS = 1
EXPIRES, AVAILABLE = 1, 2
"""The flags of a TIMES run: its times are those at which messages expire, or those from which on they may be delivered."""
_TIME_BYTES = 8
GROUP_BYTES = 16
"""Bytes of the digest of a group's name."""
GROUPS_AT_ONCE = 4096
"""Groups of one OWNERS run."""
_LANE = 0xFF << 56


class BadBatch(ValueError):
    """These bytes are not a complete and unaltered batch. The text says what is wrong."""


class UnknownRecord(BadBatch):
    """The batch is complete, but it has a kind of record that this release does not know."""


class Kind(IntEnum):
    """What a run of records does."""

    ENQUEUE = 1
    """Puts `count` messages on a queue, with the sequences from `first_seq` on."""
    DEQUEUE = 2
    """Removes the messages `first_seq` .. `first_seq + count - 1` from a queue."""
    COUNT = 3
    """Raises the delivery counts of the messages `first_seq` .. `first_seq + count - 1` by `flags`."""
    DEFINE = 4
    """A change of definitions: one JSON object (see broker.core.commands)."""
    MEMBERS = 5
    """The cluster's members from this index on: one JSON object (see ha.core.membership)."""
    PLACES = 6
    """The places on disk of the messages `first_seq` .. `first_seq + count - 1` of a queue, and which of them are alive: the
    columns of one block (see broker.core.queues.blocks). Only in checkpoints."""
    LARGE = 7
    """Puts one large message on a queue, with the sequence `first_seq`. The message is stored in parts, and the payload of this
    record is its manifest (see broker.core.parts). Since machine version 3."""
    HELD = 8
    """The messages `first_seq` .. `first_seq + count - 1` of an origin are on this broker: the same batch puts them on a queue
    (see broker.core.origins). The field for the queue number has the origin's number. Since machine version 5."""
    TIMES = 9
    """When the messages `first_seq` .. `first_seq + count - 1` of a queue expire (`flags` EXPIRES), or from when on they may be
    delivered (AVAILABLE): 8 bytes for each message, ms since 1970 on the log's time, 0 for none (see broker.core.queues.times).
    Since machine version 5."""
    FORGOTTEN = 10
    """The messages `first_seq` .. `first_seq + count - 1` of an origin have left their source queue, so they need not be
    remembered any more. The field for the queue number has the origin's number. Since machine version 6."""
    NOTES = 11
    """Annotations that a consumer added to the message `first_seq` of a queue: an encoded map (see broker.core.notes). Since
    machine version 6."""
    OWNERS = 12
    """`count` groups of a queue have this owner from now on, or none: the digests of the groups, `GROUP_BYTES` each, and after
    them the owner as JSON, or nothing (see broker.core.queues.owned). Since machine version 9."""


_KINDS = {int(kind): kind for kind in Kind}
_ENQUEUE = int(Kind.ENQUEUE)
_DEQUEUE = int(Kind.DEQUEUE)
_TIMES = int(Kind.TIMES)
_OWNERS = int(Kind.OWNERS)
_WITHOUT_PAYLOAD = frozenset((int(Kind.DEQUEUE), int(Kind.COUNT), int(Kind.HELD), int(Kind.FORGOTTEN)))
_NO_LENGTHS = array("I")


class Header(msgspec.Struct, frozen=True, gc=False):
    """The fixed part of a batch: sizes in bytes, `timestamp_ms` since 1970. Each step in the life of a batch parses its header,
    and a frozen dataclass takes six times as long to create."""

    length: int
    flags: int
    n_runs: int
    n_records: int
    epoch: int
    index: int
    timestamp_ms: int

    @property
    def holds_members(self) -> bool:
        """Whether the batch changes the membership, so that the consensus core must look into it."""
        return bool(self.flags & FLAG_MEMBERS)


class Run(msgspec.Struct, frozen=True, gc=False):
    """One run of a parsed batch. Its payload is `data[start : start + nbytes]` of the batch's bytes.

    Only an ENQUEUE run uses `lengths`, the bytes of each message, and `crc`, the CRC-32C of its payload.
    """

    kind: Kind
    flags: int
    queue: int
    first_seq: int
    count: int
    start: int
    nbytes: int
    lengths: array[int]
    crc: int


class Batch(msgspec.Struct, frozen=True, gc=False):
    """A parsed batch: its header, its runs, the bytes that the runs point into, and its place on this broker's disk.

    `place` is the number of a file of this log (upper 32 bits) and the offset in that file at which the batch begins (lower 32
    bits). 0: the batch is not on disk.
    """

    header: Header
    runs: tuple[Run, ...]
    data: bytes
    place: int = 0

    @classmethod
    def parse(cls, data: bytes, *, place: int = 0, verified: bool = False) -> Batch:
        """Parse a complete batch. `verified`: its checksum has been checked before. BadBatch says what is wrong."""
        header = parse_header(data) if verified else verify(data)
        return cls(header, tuple(_runs(data, header)), data, place)

    def payload(self, run: Run) -> bytes:
        """A copy of a run's payload."""
        return self.data[run.start : run.start + run.nbytes]

    def messages(self, run: Run) -> list[bytes]:
        """Copies of the messages of an ENQUEUE run."""
        return [self.data[start:end] for start, end in pairwise(accumulate(run.lengths, initial=run.start))]

    def json(self, run: Run) -> Any:
        """The object of a DEFINE or MEMBERS run."""
        try:
            return json.loads(self.payload(run))
        except ValueError as error:
            raise BadBatch(f"batch {self.header.index}: a {run.kind.name} record is not JSON: {error}") from None


def parse_header(data: bytes | memoryview, offset: int = 0) -> Header:
    """The header at `offset`; the checksum is not checked. BadBatch when there is no header."""
    if len(data) - offset < HEADER_BYTES:
        raise BadBatch(f"{len(data) - offset} bytes are too few for a batch header of {HEADER_BYTES}")
    magic, _, length, flags, n_runs, n_records, epoch, index, timestamp_ms = HEADER.unpack_from(data, offset)
    if magic not in (MAGIC, MAGIC_1):
        raise BadBatch(f"no batch begins here (found {bytes(magic)!r})")
    if length < HEADER_BYTES + n_runs * (HEAD_BYTES if magic == MAGIC else _HEAD_1.size):
        raise BadBatch(f"batch {index}: a length of {length} bytes cannot hold {n_runs} runs")
    return Header(length, flags, n_runs, n_records, epoch, index, timestamp_ms)


def verify(data: bytes) -> Header:
    """Check length and checksum of exactly one batch, and return its header. BadBatch when either is wrong."""
    header = parse_header(data)
    _check(data, header)
    return header


def _check(data: bytes, header: Header) -> None:
    if header.length != len(data):
        raise BadBatch(f"batch {header.index}: says {header.length} bytes, has {len(data)}")
    stored = int.from_bytes(data[4:_CRC_END], "little")
    found = _crc_after(data, _CRC_END)
    if stored != found:
        raise BadBatch(f"batch {header.index}: checksum {found:08x} is not the stored {stored:08x}")


def _crc_after(data: bytes, start: int) -> int:
    """The checksum of the bytes from `start` on, without a copy of them if they are many."""
    rest = len(data) - start
    found: int = google_crc32c.value(data if rest >= _MANY_BYTES else data[start:])
    return found if rest < _MANY_BYTES else checksums.without_beginning(found, google_crc32c.value(data[:start]), rest)


def _crc_of(beginning: bytes, parts: list[bytes], known: dict[int, int]) -> int:
    """The checksum of all this; those of some parts are known. It is made part by part, because joining them first would copy
    every body once more."""
    crc: int = google_crc32c.value(beginning)
    for at, part in enumerate(parts):
        if at in known and len(part) >= _MANY_BYTES:
            crc = checksums.joined(crc, known[at], len(part))
        else:
            crc = google_crc32c.extend(crc, part)
    return crc


def split(data: bytes | memoryview) -> Iterator[tuple[Header, bytes]]:
    """The batches in `data`, which follow each other without a gap: each one verified, with its header. BadBatch at the first
    one that is not complete."""
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        one = bytes(data[position : position + header.length])
        _check(one, header)
        yield header, one
        position += header.length


def _heads(data: bytes, n_runs: int) -> tuple[list[tuple[int, ...]], int]:
    """The run heads of a batch (in format 1 they have no checksum), and the offset at which they end."""
    head = _HEAD if data[: len(MAGIC)] == MAGIC else _HEAD_1
    end = HEADER_BYTES + n_runs * head.size
    return list(head.iter_unpack(data[HEADER_BYTES:end])), end


def _runs(data: bytes, header: Header) -> Iterator[Run]:
    heads, heads_end = _heads(data, header.n_runs)
    n_lengths = total = 0
    for kind, _, _, _, _, count, nbytes, *_ in heads:
        total += nbytes
        if kind == _ENQUEUE:
            n_lengths += count
    start = heads_end + n_lengths * _LENGTH_BYTES
    if start + total != header.length:
        raise BadBatch(f"batch {header.index}: its runs do not add up to its {header.length} bytes")
    all_lengths = array("I")
    all_lengths.frombytes(data[heads_end:start])
    taken = 0
    for kind, flags, _, queue, first_seq, count, nbytes, *crcs in heads:
        crc, lengths = 0, _NO_LENGTHS
        if kind == _ENQUEUE:
            lengths = all_lengths if count == n_lengths else all_lengths[taken : taken + count]
            taken += count
            if sum(lengths) != nbytes:
                raise BadBatch(f"batch {header.index}: the messages of queue {queue} do not add up to {nbytes} bytes")
            crc = crcs[0] if crcs else google_crc32c.value(data[start : start + nbytes])
        elif kind not in _KINDS:
            raise UnknownRecord(f"batch {header.index}: unknown kind of record {kind}; this store was written by a newer version")
        elif nbytes and kind in _WITHOUT_PAYLOAD:
            raise BadBatch(f"batch {header.index}: a {_KINDS[kind].name} record with a payload of {nbytes} bytes")
        elif kind == _TIMES and nbytes != _TIME_BYTES * count:
            raise BadBatch(f"batch {header.index}: the times of {count} messages in {nbytes} bytes")
        elif kind == _OWNERS and nbytes < GROUP_BYTES * count:
            raise BadBatch(f"batch {header.index}: {count} groups in {nbytes} bytes")
        yield Run(_KINDS[kind], flags, queue, first_seq, count, start, nbytes, lengths, crc)
        start += nbytes


def message_runs(data: bytes) -> list[tuple[int, int, int]]:
    """Queue number, records and payload bytes of each ENQUEUE, LARGE and DEQUEUE run of a verified batch. Reads only the heads.

    A LARGE record counts with the bytes of its manifest. The bytes of its parts came before, in runs of their own.
    """
    heads, _ = _heads(data, parse_header(data).n_runs)
    wanted = (int(Kind.ENQUEUE), int(Kind.DEQUEUE), int(Kind.LARGE))
    return [(head[3], head[5], head[6]) for head in heads if head[0] in wanted]


def runs_of(sequences: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Sequences, given in any order, as ascending runs (first, count) of consecutive ones. Repeated sequences count once."""
    first = last = -1
    for sequence in sorted(sequences):
        if sequence == last + 1 and first >= 0:
            last = sequence
        elif sequence != last or first < 0:
            if first >= 0:
                yield first, last - first + 1
            first = last = sequence
    if first >= 0:
        yield first, last - first + 1


class BatchBuilder:
    """Collects the records of the next batch.

    The hot path may append to the lists that `messages_for` and `dequeues_for` return, without a call for each record. `nbytes`
    is the size so far; a caller that appends to a list of `messages_for` reports the bytes with `add_bytes`.
    """

    __slots__ = (
        *(
            "_counts",
            "_defines",
            "_dequeues",
            "_enqueues",
            "_explicit",
            "_forgotten",
            "_held",
            "_large",
            "_members",
            "_notes",
            "_owners",
            "_places",
            "_times",
        ),
        "n_records",
        "nbytes",
    )

    def __init__(self) -> None:
        self._explicit: list[tuple[int, int, list[bytes]]] = []
        self._large: list[tuple[int, int, bytes]] = []
        self._places: list[tuple[int, int, int, bytes]] = []
        self._times: list[tuple[int, int, int, bytes]] = []
        self._notes: list[tuple[int, int, bytes]] = []
        self._enqueues: dict[int, tuple[int, list[bytes]]] = {}
        self._dequeues: dict[int, list[int]] = {}
        self._counts: dict[int, dict[int, int]] = {}
        self._held: dict[int, list[tuple[int, int]]] = {}
        self._forgotten: list[tuple[int, int, int]] = []
        self._owners: list[tuple[int, Sequence[bytes], bytes]] = []
        self._defines: list[bytes] = []
        self._members: bytes | None = None
        self.nbytes = 0
        self.n_records = 0
        """How many records there are in the batch, once it is sealed."""

    def __bool__(self) -> bool:
        return bool(self._dequeues) or not self.only_dequeues

    def messages_for(self, queue: int, first_seq: int) -> list[bytes]:
        """The list to which the caller appends encoded messages of this queue. If the list is new, its first message gets the
        sequence `first_seq`.

        There is a list for each lane of a queue (the upper 8 bits of a sequence).
        """
        key = (first_seq & _LANE) | queue
        entry = self._enqueues.get(key)
        if entry is None:
            entry = self._enqueues[key] = (first_seq, [])
        return entry[1]

    def add_bytes(self, nbytes: int) -> None:
        """Add the bytes of messages that were appended to a list of `messages_for`."""
        self.nbytes += nbytes

    def dequeues_for(self, queue: int) -> list[int]:
        """The list to which the caller appends the sequences that leave this queue."""
        found = self._dequeues.get(queue)
        if found is None:
            found = self._dequeues[queue] = []
        return found

    @property
    def only_dequeues(self) -> bool:
        """Whether there are only dequeues (or nothing) here. Then the batch may wait a little longer for more records."""
        messages = self._enqueues or self._explicit or self._large or self._places
        others = messages or self._times or self._notes or self._defines or self._counts
        return not (others or self._held or self._forgotten or self._owners or self._members is not None)

    def count(self, queue: int, sequence: int, by: int = 1) -> None:
        """Raise a message's delivery count. Calls for the same message add up, to at most 255 in a batch."""
        raised = self._counts.setdefault(queue, {})
        raised[sequence] = min(raised.get(sequence, 0) + by, 255)

    def hold(self, origin: int, first_seq: int, count: int) -> None:
        """Record that this batch puts these messages of an origin on a queue (see Kind.HELD)."""
        runs = self._held.setdefault(origin, [])
        if runs and sum(runs[-1]) == first_seq:
            first_seq, count = runs[-1][0], runs[-1][1] + count
            runs.pop()
        else:
            self.nbytes += HEAD_BYTES
        runs.append((first_seq, count))

    def forget(self, origin: int, first_seq: int, count: int) -> None:
        """Record that these messages of an origin need not be remembered any more (see Kind.FORGOTTEN)."""
        self._forgotten.append((origin, first_seq, count))
        self.nbytes += HEAD_BYTES

    def own(self, queue: int, groups: Sequence[bytes], owner: bytes) -> None:
        """Record that these groups, by their digests and up to `GROUPS_AT_ONCE`, have this owner, or none (b""), from now on (see
        Kind.OWNERS)."""
        self._owners.append((queue, groups, owner))
        self.nbytes += HEAD_BYTES + GROUP_BYTES * len(groups) + len(owner)

    def define(self, change: dict[str, Any]) -> None:
        """Add a command as an object (see broker.core.commands for its forms)."""
        self.define_text(json.dumps(change, separators=(",", ":"), sort_keys=True).encode())

    def define_text(self, text: bytes) -> None:
        """Add a command as its text (`Command.text`)."""
        self._defines.append(text)
        self.nbytes += len(text)

    def members(self, members: dict[str, Any]) -> None:
        """Set the cluster's members with this batch (see Kind.MEMBERS)."""
        self._members = json.dumps(members, separators=(",", ":"), sort_keys=True).encode()

    def enqueue_at(self, queue: int, first_seq: int, messages: list[bytes]) -> None:
        """Add a run of messages with its own first sequence. Body files need this, because their queues have gaps."""
        self._explicit.append((queue, first_seq, messages))
        self.nbytes += sum(map(len, messages))

    @property
    def has_large(self) -> bool:
        """Whether large messages were added. In a batch they come after all other messages of their queue."""
        return bool(self._large)

    def large(self, queue: int, sequence: int, manifest: bytes) -> None:
        """Put a large message on a queue; `manifest` names its parts (see Kind.LARGE)."""
        self._large.append((queue, sequence, manifest))
        self.nbytes += len(manifest)

    @property
    def has_places(self) -> bool:
        """Whether places were added."""
        return bool(self._places)

    def places(self, queue: int, first_seq: int, count: int, columns: bytes) -> None:
        """Record the places of `count` messages of a queue (see Kind.PLACES)."""
        self._places.append((queue, first_seq, count, columns))
        self.nbytes += len(columns)

    def note(self, queue: int, sequence: int, encoded: bytes) -> None:
        """Add annotations to a message (see Kind.NOTES)."""
        self._notes.append((queue, sequence, encoded))
        self.nbytes += len(encoded)

    def times(self, queue: int, what: int, first_seq: int, column: array[int]) -> None:
        """Record when messages expire (`what` EXPIRES) or may be delivered (AVAILABLE); one time for each (see Kind.TIMES)."""
        self._times.append((queue, what, first_seq, column.tobytes()))
        self.nbytes += _TIME_BYTES * len(column)

    def _about_messages(self) -> Iterator[tuple[Kind, int, int, int, int, bytes]]:
        """Kind, flags, queue, first sequence, count and payload of the records of messages other than enqueues and dequeues."""
        for queue, sequence, manifest in self._large:
            yield Kind.LARGE, 0, queue, sequence, 1, manifest
        for queue, first_seq, count, columns in self._places:
            yield Kind.PLACES, 0, queue, first_seq, count, columns
        for queue, what, first_seq, times in self._times:
            yield Kind.TIMES, what, queue, first_seq, len(times) // _TIME_BYTES, times
        for queue, sequence, note in self._notes:
            yield Kind.NOTES, 0, queue, sequence, 1, note

    def seal(self, epoch: int, index: int, timestamp_ms: int, *, first_format: bool = False) -> bytes:
        """The batch as bytes. Do not use the builder after this. `first_format`: write format 1, for members that can read no
        other. It has only what the first machine version knows: a batch with more is behind the rise of the version, which such
        members do not apply."""
        heads: list[bytes] = []
        lengths: list[bytes] = []
        payload: list[bytes] = []
        known: dict[int, int] = {}  # position in `payload` -> checksum
        records = 0
        for text in self._defines:
            heads.append(_HEAD.pack(Kind.DEFINE, 0, 0, 0, 0, 1, len(text), 0))
            payload.append(text)
            records += 1
        gathered = ((key & ~_LANE, first_seq, messages) for key, (first_seq, messages) in self._enqueues.items())
        for queue, first_seq, messages in chain(gathered, self._explicit):
            if messages:
                column = array("I", map(len, messages))
                bodies = messages[0] if len(messages) == 1 else b"".join(messages)
                crc = google_crc32c.value(bodies)
                heads.append(_HEAD.pack(_ENQUEUE, 0, 0, queue, first_seq, len(messages), len(bodies), crc))
                lengths.append(column.tobytes())
                known[len(payload)] = crc
                payload.append(bodies)
                records += len(messages)
        for kind, said, queue, first_seq, count, data in self._about_messages():
            heads.append(_HEAD.pack(kind, said, 0, queue, first_seq, count, len(data), 0))
            payload.append(data)
            records += count
        for queue, sequences in self._dequeues.items():
            for first_seq, count in runs_of(sequences):
                heads.append(_HEAD.pack(_DEQUEUE, 0, 0, queue, first_seq, count, 0, 0))
                records += count
        for queue, raised in self._counts.items():
            for by in sorted(set(raised.values())):
                for first_seq, count in runs_of(sequence for sequence, n in raised.items() if n == by):
                    heads.append(_HEAD.pack(Kind.COUNT, by, 0, queue, first_seq, count, 0, 0))
                    records += count
        for origin, runs in self._held.items():
            heads += [_HEAD.pack(Kind.HELD, 0, 0, origin, first_seq, count, 0, 0) for first_seq, count in runs]
            records += sum([count for _, count in runs])
        for origin, first_seq, count in self._forgotten:
            heads.append(_HEAD.pack(Kind.FORGOTTEN, 0, 0, origin, first_seq, count, 0, 0))
            records += count
        for queue, groups, owner in self._owners:
            data = b"".join((*groups, owner))
            heads.append(_HEAD.pack(Kind.OWNERS, 0, 0, queue, 0, len(groups), len(data), 0))
            payload.append(data)
            records += len(groups)
        flags = 0
        if self._members is not None:
            heads.append(_HEAD.pack(Kind.MEMBERS, 0, 0, 0, 0, 1, len(self._members), 0))
            payload.append(self._members)
            records += 1
            flags = FLAG_MEMBERS
        newer = self._large or self._times or self._held or self._notes or self._forgotten or self._owners or self._places
        first_format = first_format and not newer
        if first_format:
            heads = [_HEAD_1.pack(*_HEAD.unpack(head)[:-1]) for head in heads]
        self.n_records = records
        front = b"".join((*heads, *lengths))
        length = HEADER_BYTES + len(front) + sum(map(len, payload))
        rest = _AFTER_CRC.pack(length, flags, len(heads), records, epoch, index, timestamp_ms) + front
        return b"".join((MAGIC_1 if first_format else MAGIC, _crc_of(rest, payload, known).to_bytes(4, "little"), rest, *payload))
