"""What a log says: definitions and messages. Applying the same batches gives the same state on every broker.

Life of a state: it starts empty, `apply` takes committed batches in order, `snapshot` writes down what is alive as batches that
rebuild it. It decides nothing: which message left, which one came, was decided by the primary and stands in the records. A
definition that does not fit (a name that exists, a queue that is gone) changes nothing and says why, alike everywhere.

Forms of a DEFINE record (JSON objects, `op` says which)::

    queue-add     uuid name level durable autoDelete exclusive arguments alternate [number]
    queue-del     uuid
    store-add     uuid [number]     a place for the messages of a queue that another log defines (level configuration)
    store-del     uuid
    exchange-add  uuid name kind level durable arguments alternate
    exchange-del  uuid
    bind          exchange queue key arguments     by uuid; a built-in exchange's uuid is its name
    unbind        exchange queue key
    reign         epoch primary reason ts gapMs     a broker became primary
    numbers       next, seqs                        only in snapshots, last: the counters to go on from

Invariants: queue numbers are given in order of definition and never used twice; a queue's sequences only grow; messages
exist only for a number that is defined; records for a number that is gone do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from broker.core import limits
from broker.core.fifo import Fifo, Lot
from broker.core.records import Batch, BatchBuilder, Kind

Change = dict[str, Any]
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


@dataclass(slots=True)
class Applied:
    """What a batch changed: queue numbers that got messages, and each definition with "" or the reason why it changed nothing."""

    fed: set[int]
    changes: list[tuple[Change, str]]


class State:
    """Definitions and messages of one log up to one index."""

    def __init__(self) -> None:
        self.index = 0
        self.queues: dict[str, Change] = {}
        self.stores: dict[str, Change] = {}
        self.exchanges: dict[str, Change] = {}
        self.bindings: dict[tuple[str, str, str], Change] = {}
        self.reigns: list[Change] = []
        self.messages: dict[int, Messages] = {}
        self.by_uuid: dict[str, Messages] = {}
        self._names: set[tuple[str, str]] = set()
        self._next_number = 1

    def apply(self, batch: Batch, *, snapshot: bool = False) -> Applied:
        """Apply one committed batch, the next by index (a snapshot's batches carry the index of the whole).

        The cost is that of its runs, not of its messages.
        """
        assert snapshot or batch.header.index > self.index, f"batch {batch.header.index} after {self.index}"
        applied = Applied(set(), [])
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
            elif run.kind is Kind.DEFINE:
                change = batch.json(run)
                applied.changes.append((change, self._define(change)))
        self.index = max(self.index, batch.header.index)
        return applied

    @property
    def live_bytes(self) -> int:
        """Bytes of messages alive."""
        return sum(messages.fifo.live_bytes for messages in self.messages.values())

    # ---- definitions

    def _define(self, change: Change) -> str:
        match change.get("op"):
            case "queue-add":
                return self._add_queue(change)
            case "queue-del":
                return self._remove_queue(change["uuid"])
            case "store-add":
                return self._add_store(change)
            case "store-del":
                return self._remove_store(change["uuid"])
            case "exchange-add":
                return self._add_exchange(change)
            case "exchange-del":
                return self._remove_exchange(change["uuid"])
            case "bind":
                return self._bind(change)
            case "unbind":
                found = self.bindings.pop((change["exchange"], change["queue"], change["key"]), None)
                return "" if found is not None else "there is no such binding"
            case "reign":
                self.reigns.append(change)
                del self.reigns[: -limits.MAX_HISTORY]
                return ""
            case "numbers":
                return self._go_on_from(change)
            case other:
                return f"this version does not know the change {other!r}"

    def _add_queue(self, change: Change) -> str:
        if ("queue", change["name"]) in self._names:
            return f"a queue named {change['name']!r} exists already"
        self._names.add(("queue", change["name"]))
        self.queues[change["uuid"]] = change
        if change["level"] != "configuration":
            self._make_messages(change)
        return ""

    def _make_messages(self, change: Change) -> None:
        number = change.setdefault("number", self._next_number)
        self._next_number = max(self._next_number, number + 1)
        messages = Messages(number, change["uuid"])
        self.messages[number] = messages
        self.by_uuid[change["uuid"]] = messages

    def _drop_messages(self, uuid: str) -> None:
        messages = self.by_uuid.pop(uuid, None)
        if messages is not None:
            del self.messages[messages.number]

    def _remove_queue(self, uuid: str) -> str:
        change = self.queues.pop(uuid, None)
        if change is None:
            return "there is no such queue"
        self._names.discard(("queue", change["name"]))
        self._drop_messages(uuid)
        for key in [key for key in self.bindings if key[1] == uuid]:
            del self.bindings[key]
        return ""

    def _add_store(self, change: Change) -> str:
        if change["uuid"] in self.stores:
            return "this queue's messages have a place already"
        self.stores[change["uuid"]] = change
        self._make_messages(change)
        return ""

    def _remove_store(self, uuid: str) -> str:
        if self.stores.pop(uuid, None) is None:
            return "there is no place for this queue's messages"
        self._drop_messages(uuid)
        return ""

    def _add_exchange(self, change: Change) -> str:
        if ("exchange", change["name"]) in self._names:
            return f"an exchange named {change['name']!r} exists already"
        self._names.add(("exchange", change["name"]))
        self.exchanges[change["uuid"]] = change
        return ""

    def _remove_exchange(self, uuid: str) -> str:
        change = self.exchanges.pop(uuid, None)
        if change is None:
            return "there is no such exchange"
        self._names.discard(("exchange", change["name"]))
        for key in [key for key in self.bindings if key[0] == uuid]:
            del self.bindings[key]
        return ""

    def _bind(self, change: Change) -> str:
        key = (change["exchange"], change["queue"], change["key"])
        known = self.bindings.get(key)
        if known is not None and known["arguments"] == change["arguments"]:
            return "this binding exists already"
        self.bindings[key] = change
        return ""

    def _go_on_from(self, change: Change) -> str:
        self._next_number = change["next"]
        for number, sequence in change["seqs"]:
            self.messages[number].fifo.skip_to(sequence)
        return ""

    # ---- snapshots

    def snapshot(self) -> Iterator[BatchBuilder]:
        """Batches (each about `limits.BATCH_TARGET_BYTES`) that rebuild this state.

        What they hold is fixed at the call; they may be taken later and in another thread while this state goes on.
        """
        defines = [dict(change) for change in self._definitions()]
        lots = [
            (number, list(messages.fifo.lots()), messages.fifo.delivery_counts()) for number, messages in self.messages.items()
        ]
        seqs = [(number, messages.fifo.next_seq) for number, messages in self.messages.items()]
        return _snapshot_batches(defines, lots, {"op": "numbers", "next": self._next_number, "seqs": seqs})

    def _definitions(self) -> Iterator[Change]:
        yield from self.queues.values()
        yield from self.stores.values()
        yield from self.exchanges.values()
        yield from self.bindings.values()
        yield from self.reigns


def _snapshot_batches(
    defines: list[Change], lots: list[tuple[int, list[Lot], dict[int, int]]], last: Change
) -> Iterator[BatchBuilder]:
    builder = BatchBuilder()
    for change in defines:
        builder.define(change)
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
    builder.define(last)
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
