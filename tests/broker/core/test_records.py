"""The batch codec against a model that keeps every record in a list, and against damage of every kind."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.records import (
    HEAD_BYTES,
    HEADER_BYTES,
    BadBatch,
    Batch,
    BatchBuilder,
    Kind,
    message_runs,
    parse_header,
    runs_of,
    split,
    verify,
)

QUEUES = st.integers(0, 3)
RECORDS = st.lists(
    st.tuples(st.just("enqueue"), QUEUES, st.binary(max_size=30))
    | st.tuples(st.just("dequeue"), QUEUES, st.integers(0, 50))
    | st.tuples(st.just("count"), QUEUES, st.tuples(st.integers(0, 20), st.integers(1, 200)))
    | st.tuples(st.just("define"), QUEUES, st.text(max_size=5)),
    max_size=60,
)
WHOLE = st.integers(0, 2**64 - 1)


def enqueued(builder: BatchBuilder, queue: int, first_seq: int, *messages: bytes) -> None:
    builder.messages_for(queue, first_seq).extend(messages)
    builder.add_bytes(sum(map(len, messages)))


def example_batch(index: int = 7) -> bytes:
    builder = BatchBuilder()
    builder.define({"queue": "q"})
    enqueued(builder, 3, 100, b"one", b"", b"three")
    builder.dequeues_for(3).append(99)
    builder.members({"members": ["b1:5672"]})
    return builder.seal(4, index, 1234)


def resealed(data: bytes | bytearray) -> bytes:
    """The same bytes with a checksum that is right for them."""
    checksum: int = google_crc32c.value(bytes(data[8:]))
    return bytes(data[:4]) + checksum.to_bytes(4, "little") + bytes(data[8:])


@settings(max_examples=300)
@given(
    records=RECORDS,
    members=st.none() | st.dictionaries(st.text(max_size=3), st.integers()),
    epoch=WHOLE,
    index=WHOLE,
    at_ms=WHOLE,
)
def test_a_batch_reads_back_as_the_records_that_were_put_in(
    records: list[tuple[str, int, Any]], members: dict[str, int] | None, epoch: int, index: int, at_ms: int
) -> None:
    """Backups see nothing but these bytes: what does not read back is lost for them."""
    builder = BatchBuilder()
    messages: dict[int, list[bytes]] = {}
    dequeued: dict[int, set[int]] = {}
    raised: dict[int, dict[int, int]] = {}
    defined: list[Any] = []
    for kind, queue, what in records:
        if kind == "enqueue":
            enqueued(builder, queue, queue * 1000, what)
            messages.setdefault(queue, []).append(what)
        elif kind == "dequeue":
            builder.dequeues_for(queue).append(what)
            dequeued.setdefault(queue, set()).add(what)
        elif kind == "count":
            builder.count(queue, *what)
            counts = raised.setdefault(queue, {})
            counts[what[0]] = min(255, counts.get(what[0], 0) + what[1])
        else:
            builder.define({"name": what})
            defined.append({"name": what})
    if members is not None:
        builder.members(members)
    assert bool(builder) == bool(records or members is not None)
    assert builder.only_dequeues == (members is None and {kind for kind, _, _ in records} <= {"dequeue"})

    batch = Batch.parse(builder.seal(epoch, index, at_ms))
    header = batch.header
    assert (header.epoch, header.index, header.timestamp_ms, header.length) == (epoch, index, at_ms, len(batch.data))
    assert header.holds_members == (members is not None)
    assert header.n_runs == len(batch.runs)
    assert header.n_records == sum(run.count for run in batch.runs)
    assert [run.kind for run in batch.runs] == sorted(
        (run.kind for run in batch.runs), key=[Kind.DEFINE, Kind.ENQUEUE, Kind.DEQUEUE, Kind.COUNT, Kind.MEMBERS].index
    )
    found: dict[Kind, Any] = {kind: {} for kind in Kind}
    for run in batch.runs:
        sequences = range(run.first_seq, run.first_seq + run.count)
        if run.kind == Kind.ENQUEUE:
            assert run.first_seq == run.queue * 1000
            found[run.kind][run.queue] = batch.messages(run)
        elif run.kind == Kind.DEQUEUE:
            found[run.kind].setdefault(run.queue, set()).update(sequences)
        elif run.kind == Kind.COUNT:
            found[run.kind].setdefault(run.queue, {}).update(dict.fromkeys(sequences, run.flags))
    assert found[Kind.ENQUEUE] == messages
    assert found[Kind.DEQUEUE] == dequeued
    assert found[Kind.COUNT] == raised
    assert [batch.json(run) for run in batch.runs if run.kind == Kind.DEFINE] == defined
    assert [batch.json(run) for run in batch.runs if run.kind == Kind.MEMBERS] == ([] if members is None else [members])


@given(st.lists(st.integers(0, 40)))
def test_runs_are_all_sequences_once_and_as_few_as_can_be(sequences: list[int]) -> None:
    """Each run costs a head on disk and on each backup; a repeat would take a message off twice."""
    runs = list(runs_of(sequences))
    assert [s for first, count in runs for s in range(first, first + count)] == sorted(set(sequences))
    assert all(first + count < after for (first, count), (after, _) in pairwise(runs))


def test_the_heads_alone_say_how_much_of_each_queue_a_batch_holds() -> None:
    """What is counted, defined or says who is a member is nothing of a queue's messages."""
    builder = BatchBuilder()
    builder.define({"queue": "q"})
    enqueued(builder, 3, 100, b"one", b"", b"three")
    enqueued(builder, 5, 1, b"x" * 1000)
    builder.dequeues_for(3).extend([90, 91, 99])
    builder.count(3, 98)
    builder.members({"members": ["b1:5672"]})
    assert message_runs(builder.seal(4, 7, 1234)) == [(3, 3, 8), (5, 1, 1000), (3, 2, 0), (3, 1, 0)]


def test_a_message_that_fails_twice_within_one_batch_is_counted_twice() -> None:
    """Batches wait while the log is busy, and a consumer may release the same message again in the meantime."""
    builder = BatchBuilder()
    builder.count(1, 5)
    builder.count(1, 6)
    builder.count(1, 5)
    runs = Batch.parse(builder.seal(1, 1, 0)).runs
    assert {(run.flags, run.first_seq, run.count) for run in runs} == {(1, 6, 1), (2, 5, 1)}


def test_a_checkpoint_keeps_each_message_at_its_sequence_over_gaps() -> None:
    """A message under another sequence would be taken off by another's dequeue."""
    builder = BatchBuilder()
    assert not builder
    builder.enqueue_at(1, 10, [b"a", b"bc"])
    builder.enqueue_at(2, 7, [b"d"])
    builder.enqueue_at(1, 15, [b"e"])
    assert builder
    assert not builder.only_dequeues
    assert builder.nbytes == 5
    batch = Batch.parse(builder.seal(1, 1, 0))
    assert [(run.queue, run.first_seq, run.count) for run in batch.runs] == [(1, 10, 2), (2, 7, 1), (1, 15, 1)]
    assert batch.messages(batch.runs[2]) == [b"e"]


def test_what_leaves_a_queue_at_two_times_leaves_it_in_one_run() -> None:
    builder = BatchBuilder()
    builder.dequeues_for(3).append(7)
    builder.dequeues_for(3).append(8)
    assert [(run.queue, run.first_seq, run.count) for run in Batch.parse(builder.seal(1, 1, 0)).runs] == [(3, 7, 2)]


def test_a_queue_without_messages_makes_no_run() -> None:
    """The hot path takes a queue's list before it knows whether anything will be put on it."""
    builder = BatchBuilder()
    assert builder.messages_for(1, 5) == []
    assert Batch.parse(builder.seal(1, 1, 0)).runs == ()


def test_every_single_flipped_bit_is_noticed() -> None:
    """Disks rot and networks lie: a batch with one wrong bit must never be applied."""
    data = example_batch()
    assert verify(data).index == 7
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(BadBatch):
            Batch.parse(bytes(damaged))


def test_the_checksum_of_large_messages_is_that_of_all_bytes() -> None:
    """It is put together from those of the parts, because looking at a large message takes time each time."""
    builder = BatchBuilder()
    builder.define({"queue": "q"})
    large = bytes(range(256)) * 1100
    enqueued(builder, 3, 100, large)
    enqueued(builder, 4, 1, b"small")
    enqueued(builder, 5, 1, b"two", large)
    builder.note(3, 100, b"behind")
    data = builder.seal(4, 7, 1234)
    assert data == resealed(data)
    assert verify(data).index == 7
    for position in (16, 60, len(data) // 2, len(data) - 1):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(BadBatch, match="checksum"):
            verify(bytes(damaged))


def test_every_truncation_is_noticed() -> None:
    """The torn tail of a journal is the common case after a power failure."""
    data = example_batch()
    for stop in range(len(data)):
        with pytest.raises(BadBatch):
            verify(data[:stop])
    with pytest.raises(BadBatch, match=f"batch 7: says {len(data)} bytes, has {len(data) + 1}"):
        verify(data + b"\0")


def test_batches_end_to_end_are_split_where_they_were_joined() -> None:
    """The journal and the replication link carry many in one piece."""
    one, two = example_batch(7), example_batch(8)
    assert list(split(one + two)) == [(parse_header(one), one), (parse_header(two), two)]
    assert next(split(one))[1] is one
    assert list(split(b"")) == []
    batches = split(one + two[:-1])
    assert next(batches)[1] == one
    with pytest.raises(BadBatch, match="batch 8: says"):
        next(batches)


def test_a_header_is_read_in_place() -> None:
    """A scan of a segment reads headers only, out of a view of the file."""
    data = b"before" + example_batch()
    assert parse_header(memoryview(data), 6) == verify(data[6:])
    assert Batch.parse(data[6:], verified=True).runs == Batch.parse(data[6:]).runs


FIRST_HEAD = HEADER_BYTES
SECOND_HEAD = HEADER_BYTES + HEAD_BYTES


@pytest.mark.parametrize(
    "position, layout, value, fault",
    [
        (0, "<I", 0, r"no batch begins here \(found b'\\x00\\x00\\x00\\x00'\)"),
        (16, "<I", 1000, "a length of [0-9]+ bytes cannot hold 1000 runs"),
        (FIRST_HEAD, "<B", 99, "unknown kind of record 99; this store was written by a newer version"),
        (FIRST_HEAD + 20, "<I", 0, "its runs do not add up to its [0-9]+ bytes"),
        (SECOND_HEAD + 16, "<I", 2**32 - 1, "its runs do not add up to its [0-9]+ bytes"),
        (HEADER_BYTES + 4 * HEAD_BYTES, "<I", 4, "the messages of queue 3 do not add up to 8 bytes"),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused_with_its_fault(position: int, layout: str, value: int, fault: str) -> None:
    """A right checksum says that the bytes are the sender's, and not that the sender was right."""
    data = bytearray(example_batch())
    struct.pack_into(layout, data, position, value)
    with pytest.raises(BadBatch, match=fault):
        Batch.parse(resealed(data))


def test_a_definition_that_is_no_json_is_refused_by_name() -> None:
    """It must not end in a decoder's error that names neither the batch nor the record."""
    data = example_batch().replace(b'"queue":"q"', b'"queue":"q]')
    batch = Batch.parse(resealed(data))
    with pytest.raises(BadBatch, match="batch 7: a DEFINE record is not JSON: "):
        batch.json(batch.runs[0])


def test_a_batch_of_the_first_format_says_the_same() -> None:
    """Members of release 0.1 read no other."""

    def filled() -> BatchBuilder:
        builder = BatchBuilder()
        builder.define({"op": "x"})
        builder.messages_for(3, 7).extend([b"one", b"three", b""])
        builder.messages_for(4, 1).append(b"two")
        builder.dequeues_for(3).extend([1, 2, 5])
        builder.count(3, 4)
        builder.members({"voters": ["a:1"]})
        return builder

    first, second = filled().seal(2, 9, 5, first_format=True), filled().seal(2, 9, 5)
    assert (first[:4], second[:4]) == (b"USB1", b"USB2")
    one, two = Batch.parse(first), Batch.parse(second)
    assert one.header.n_runs == two.header.n_runs
    assert len(two.data) - len(one.data) == 4 * two.header.n_runs
    for old, new in zip(one.runs, two.runs, strict=True):
        assert (old.kind, old.flags, old.queue, old.first_seq, old.count) == (
            new.kind,
            new.flags,
            new.queue,
            new.first_seq,
            new.count,
        )
        assert list(one.messages(old)) == list(two.messages(new)) if old.kind is Kind.ENQUEUE else True
        assert old.crc == new.crc


def test_a_batch_of_format_1_reads_as_it_did_and_has_a_checksum_for_each_run() -> None:
    """Stores of release 0.1 have them."""
    parsed = Batch.parse(example_batch())
    heads, lengths = bytearray(), bytearray()
    for run in parsed.runs:
        heads += struct.pack("<BBHIQII", run.kind, run.flags, 0, run.queue, run.first_seq, run.count, run.nbytes)
        lengths += run.lengths.tobytes()
    body = bytes(heads + lengths) + b"".join(map(parsed.payload, parsed.runs))
    header = parsed.header
    front = struct.pack(
        "<4sIIIIIQQQ", b"USB1", 0, HEADER_BYTES + len(body), header.flags, header.n_runs, header.n_records, 4, 7, 1234
    )
    old = Batch.parse(resealed(front + body))
    assert [(run.kind, run.queue, run.first_seq, run.count, run.crc) for run in old.runs] == [
        (run.kind, run.queue, run.first_seq, run.count, run.crc) for run in parsed.runs
    ]
    assert old.messages(old.runs[1]) == [b"one", b"", b"three"]
    assert message_runs(old.data) == message_runs(parsed.data)


def test_a_dequeue_with_a_payload_is_refused() -> None:
    data = bytearray(example_batch())
    struct.pack_into("<I", data, HEADER_BYTES + 20, 10)
    struct.pack_into("<I", data, HEADER_BYTES + 2 * HEAD_BYTES + 20, 3)
    with pytest.raises(BadBatch, match="batch 7: a DEQUEUE record with a payload of 3 bytes"):
        Batch.parse(resealed(data))
