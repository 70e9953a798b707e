"""What a log says: definitions and messages. Applying the same batches gives the same state on every broker.

Life of a state: it starts empty, `apply` takes committed batches in order, `snapshot` writes down what is alive as batches that
rebuild it. It decides nothing: which message left, which one came, was decided by the primary and stands in the records. What the
DEFINE records mean is interpreted in broker.core.definitions; the state follows what they changed with the places for messages.

Invariants: a batch is applied wholly or not at all: one that this version cannot apply raises `CannotApply` and leaves the state
at the index before it; a queue's sequences only grow; messages exist only for a number that is defined; records for a number that
is gone do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from broker.core import limits
from broker.core.commands import MACHINE_VERSION, Command, Numbers, UnknownCommand, decode
from broker.core.definitions import (
    Change,
    CountersSet,
    Definitions,
    PlaceGone,
    PlaceMade,
    QueueGone,
    QueueMade,
)
from broker.core.fifo import Fifo, Lot
from broker.core.records import Batch, BatchBuilder, Kind

MAX_COUNT = 255
"""The most by which one COUNT record raises a delivery count."""


@dataclass(slots=True)
class Messages:
    """The messages of one queue number, and how many ever came and went (since this broker loaded them)."""

    number: int
    uuid: str
    fifo: Fifo = field(default_factory=lambda: Fifo(1))
    enqueued: int = 0
    enqueued_bytes: int = 0
    dequeued: int = 0
    dequeued_bytes: int = 0


class CannotApply(Exception):
    """This version must not apply the batch of this `index`; `why` says what stands in it. Nothing of it is applied."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"batch {index} cannot be applied: {why}")
        self.index = index
        self.why = why


@dataclass(slots=True)
class Applied:
    """What a batch changed: queue numbers that got messages, and each command's change with "" or why there is none."""

    fed: set[int]
    changes: list[tuple[Change, str]]


class State:
    """Definitions and messages of one log up to one index. `version` is the machine version up to which it applies commands."""

    def __init__(self, version: int = MACHINE_VERSION) -> None:
        self.index = 0
        self.version = version
        self.definitions = Definitions()
        self.messages: dict[int, Messages] = {}
        self.by_uuid: dict[str, Messages] = {}

    def apply(self, batch: Batch, *, snapshot: bool = False) -> Applied:
        """Apply one committed batch, the next by index (a snapshot's batches carry the index of the whole).

        The cost is that of its runs, not of its messages. CannotApply, before anything has changed.
        """
        assert snapshot or batch.header.index > self.index, f"batch {batch.header.index} after {self.index}"
        applied = Applied(set(), [self._change(command) for command in self._commands(batch)])
        for run in batch.runs:
            if run.kind is Kind.ENQUEUE:
                messages = self.messages.get(run.queue)
                if messages is not None:
                    messages.fifo.append(run.first_seq, batch.data, run.offsets)
                    messages.enqueued += run.count
                    messages.enqueued_bytes += run.offsets[-1] - run.offsets[0]
                    applied.fed.add(run.queue)
            elif run.kind is Kind.DEQUEUE:
                messages = self.messages.get(run.queue)
                if messages is not None:
                    count, nbytes = messages.fifo.remove(run.first_seq, run.count)
                    messages.dequeued += count
                    messages.dequeued_bytes += nbytes
            elif run.kind is Kind.COUNT:
                messages = self.messages.get(run.queue)
                if messages is not None:
                    messages.fifo.raise_count(run.first_seq, run.count, run.flags)
        self.index = max(self.index, batch.header.index)
        return applied

    @property
    def live_bytes(self) -> int:
        """Bytes of messages alive."""
        return sum(messages.fifo.live_bytes for messages in self.messages.values())

    # ---- definitions

    def _commands(self, batch: Batch) -> list[Command]:
        """The batch's commands, all of which this version applies. DEFINE runs stand before all others."""
        found: list[Command] = []
        for run in batch.runs:
            if run.kind is not Kind.DEFINE:
                break
            command = decode(batch.data[run.offsets[0] : run.offsets[1]], self.version)
            if isinstance(command, UnknownCommand):
                raise CannotApply(batch.header.index, command.why)
            found.append(command)
        return found

    def _change(self, command: Command) -> tuple[Change, str]:
        change, reason = self.definitions.apply(command)
        match change:
            case QueueMade(queue) if queue.level != "configuration":
                self._make_messages(queue.uuid, queue.number)
            case PlaceMade(place):
                self._make_messages(place.uuid, place.number)
            case QueueGone(gone) | PlaceGone(gone):
                self._drop_messages(gone.uuid)
            case CountersSet(numbers):
                for number, sequence in numbers.seqs:
                    self.messages[number].fifo.skip_to(sequence)
            case _:
                pass
        return change, reason

    def _make_messages(self, uuid: str, number: int | None) -> None:
        assert number is not None
        self.messages[number] = self.by_uuid[uuid] = Messages(number, uuid)

    def _drop_messages(self, uuid: str) -> None:
        messages = self.by_uuid.pop(uuid, None)
        if messages is not None:
            del self.messages[messages.number]

    # ---- snapshots

    def snapshot(self) -> Iterator[BatchBuilder]:
        """Batches (each about `limits.BATCH_TARGET_BYTES`) that rebuild this state.

        What they hold is fixed at the call; they may be taken later and in another thread while this state goes on.
        """
        commands = self.definitions.commands()
        lots = [
            (number, list(messages.fifo.lots()), messages.fifo.delivery_counts()) for number, messages in self.messages.items()
        ]
        seqs = [(number, messages.fifo.next_seq) for number, messages in self.messages.items()]
        return _snapshot_batches(commands, lots, Numbers(next=self.definitions.next_number, seqs=seqs))


def _snapshot_batches(
    commands: list[Command], lots: list[tuple[int, list[Lot], dict[int, int]]], last: Numbers
) -> Iterator[BatchBuilder]:
    builder = BatchBuilder()
    for command in commands:
        builder.define_text(command.text)
        if builder.nbytes >= limits.BATCH_TARGET_BYTES:
            yield builder
            builder = BatchBuilder()
    yield builder
    for number, queue_lots, counts in lots:
        builder = BatchBuilder()
        for lot in queue_lots:
            for first_seq, messages in _slices(lot):
                builder.enqueue_at(number, first_seq, messages)
                if builder.nbytes >= limits.BATCH_TARGET_BYTES:
                    yield builder
                    builder = BatchBuilder()
        yield from _with_counts(builder, number, counts)
    builder = BatchBuilder()
    builder.define_text(last.text)
    yield builder


def _with_counts(builder: BatchBuilder, number: int, counts: dict[int, int]) -> Iterator[BatchBuilder]:
    """The last batch of a queue's messages with their delivery counts, and more batches for what does not fit one record."""
    while builder or counts:
        for sequence, count in counts.items():
            builder.count(number, sequence, min(count, MAX_COUNT))
        counts = {sequence: count - MAX_COUNT for sequence, count in counts.items() if count > MAX_COUNT}
        yield builder
        builder = BatchBuilder()


def _slices(lot: Lot) -> Iterator[tuple[int, list[bytes]]]:
    """The messages of a lot in pieces of about `limits.BATCH_TARGET_BYTES`."""
    data, offsets = lot.chunk.data, lot.chunk.offsets
    start, position = lot.start, lot.start
    while start < lot.stop:
        while position < lot.stop and offsets[position] - offsets[start] < limits.BATCH_TARGET_BYTES:
            position += 1
        yield lot.chunk.first_seq + start, [data[offsets[i] : offsets[i + 1]] for i in range(start, position)]
        start = position
