"""The state that a log builds: definitions and messages. The same batches give the same state on every broker.

Life of a state: it starts empty; `apply` takes committed batches in order; `snapshot` writes what is alive as batches that
rebuild it. A state decides nothing: the primary has decided which messages come and leave, and the records say so.
broker.core.definitions interprets the DEFINE records; the state then creates or drops the places for messages.

The state has the places of messages on disk. `keeps_bodies` says whether the bodies of applied messages also stay in memory: on a
primary they do, within the limit of its residency; on a backup they do not. The parts of large messages never stay in memory.
Their manifests are short, are always in memory and are in no file; a snapshot has them whole. Of all other messages a snapshot
has the places, and the bodies are in the files that it names.

Invariants: a batch is applied completely or not at all: if this version cannot apply one, `apply` raises `CannotApply` and leaves
the state as it was before the batch; a queue's sequences only grow; messages exist only for a number that is defined; records for
a number that no longer exists do nothing, and so do counts, times and notes for a message that is not on its queue; a large
message on a queue has all of its parts (broker.core.parts).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from broker.core import limits, notes
from broker.core.commands import (
    LARGE_SINCE,
    MACHINE_VERSION,
    NOTES_SINCE,
    ORIGINS_SINCE,
    OWNERS_SINCE,
    ROUTES_SINCE,
    TIMES_SINCE,
    Command,
    LinkAdd,
    Numbers,
    OriginAdd,
    QueueAdd,
    RecentIds,
    StoreAdd,
    UnknownCommand,
    decode,
)
from broker.core.definitions import (
    Change,
    CountersSet,
    Definitions,
    IdsSet,
    LinkForgotten,
    LinkMade,
    OriginMade,
    OriginsReleased,
    PlaceGone,
    PlaceMade,
    QueueGone,
    QueueMade,
    RouteGone,
)
from broker.core.duplicates import Window, window_of
from broker.core.origins import Held
from broker.core.parts import PARTS_QUEUE, BadManifest, Manifest, Parts
from broker.core.queues.arguments import in_force
from broker.core.queues.blocks import BadColumns, Columns, LiveRun, Lot, Move
from broker.core.queues.discipline import Discipline, discipline_of
from broker.core.queues.lane import LANE_SHIFT, inside
from broker.core.queues.owned import Owned, read_owners
from broker.core.queues.residency import Residency
from broker.core.queues.times import Times
from broker.core.records import AVAILABLE, EXPIRES, BadBatch, Batch, BatchBuilder, Kind, Run

MAX_COUNT = 255
"""The most by which one COUNT record raises a delivery count."""


@dataclass(slots=True)
class Messages:
    """The messages of one queue number, and how many were enqueued and dequeued since this broker loaded them.

    `large` has the manifests of the live large messages, by sequence. `order` counts each of them with the bytes of its manifest,
    and `large_bytes` is the rest of their bytes.
    """

    number: int
    uuid: str
    order: Discipline
    enqueued: int = 0
    enqueued_bytes: int = 0
    dequeued: int = 0
    dequeued_bytes: int = 0
    window: Window | None = None
    """The ids of recent messages, if the queue detects duplicates."""
    expiries: Times | None = None
    """The expiry times of messages; None: no message ever had one."""
    delays: Times | None = None
    """The times from which on delayed messages may be delivered; the primary takes out the times that have passed."""
    large: dict[int, Manifest] = field(default_factory=dict)
    large_bytes: int = 0
    notes: dict[int, bytes] = field(default_factory=dict)
    """Annotations that consumers added to live messages, by sequence (broker.core.notes)."""

    def came(self, batch: Batch, run: Run, *, snapshot: bool) -> None:
        """Count the messages of this run, and enter their ids in the window. A snapshot has the window's content in records of
        its own."""
        self.enqueued += run.count
        self.enqueued_bytes += run.nbytes
        if self.window is not None and not snapshot:
            self.window.came(batch.messages(run), batch.header.timestamp_ms)

    @property
    def depth(self) -> int:
        """Number of live messages."""
        return self.order.depth

    @property
    def live_bytes(self) -> int:
        """Encoded bytes of the live messages, large ones with all of their parts."""
        return self.order.live_bytes + self.large_bytes

    def depths(self) -> list[int]:
        """Number of live messages for each priority level, the lowest first; one number for a queue without levels."""
        return [lane.depth for lane in self.order.lanes]

    def next_seqs(self) -> list[int]:
        """For each lane, the lowest sequence that the next message may get."""
        return [lane.next_seq for lane in self.order.lanes]

    @property
    def has_times(self) -> bool:
        """Whether any message of this queue ever had an expiry time or a delay."""
        return self.expiries is not None or self.delays is not None

    @property
    def next_due_ms(self) -> float | None:
        """When the next expiry or delay is due, in ms since 1970; None when there is none."""
        next_ms = [each.next_ms for each in (self.expiries, self.delays) if each is not None]
        return min((each for each in next_ms if each is not None), default=None)

    def put_times(self, what: int, first_seq: int, column: array[int]) -> None:
        """Apply a TIMES record. ValueError when no version knows this kind of time."""
        if what == EXPIRES:
            self.expiries = Times() if self.expiries is None else self.expiries
            self.expiries.put(first_seq, column)
        elif what == AVAILABLE:
            self.delays = Times() if self.delays is None else self.delays
            self.delays.put(first_seq, column)
        else:
            raise ValueError(f"times of an unknown kind {what}")

    def put_facts(self, batch: Batch, run: Run) -> None:
        """Apply a COUNT, TIMES or NOTES record. ValueError when no version knows its content."""
        if run.kind is Kind.COUNT:
            self.order.lane_of(run.first_seq).raise_count(run.first_seq, run.count, run.flags)
        elif run.kind is Kind.TIMES:
            self.put_times(run.flags, run.first_seq, self._of_live(run.first_seq, array("Q", batch.payload(run))))
        elif self.order.lane_of(run.first_seq).is_live(run.first_seq):
            note = notes.merged(self.notes.get(run.first_seq, b""), batch.payload(run))
            if note:
                self.notes[run.first_seq] = note

    def _of_live(self, first_seq: int, column: array[int]) -> array[int]:
        """These times, but 0 for messages that are not on the queue: nothing would ever remove theirs."""
        found = array("Q", bytes(column.itemsize * len(column)))
        for first, count in self.order.lane_of(first_seq).alive_between(first_seq, first_seq + len(column)):
            at = first - first_seq
            found[at : at + count] = column[at : at + count]
        return found

    def noted(self, sequence: int, data: bytes) -> bytes:
        """The bytes of a message, or of its beginning, with the annotations that consumers added."""
        note = self.notes.get(sequence)
        return data if note is None else notes.noted(data, note)

    def facts_gone(self, first_seq: int, count: int) -> None:
        """Drop the times and notes of these messages, which have left the queue."""
        if self.notes:
            for sequence in inside(self.notes, first_seq, first_seq + count):
                del self.notes[sequence]
        if self.expiries is not None:
            self.expiries.removed(first_seq, count)
        if self.delays is not None:
            self.delays.removed(first_seq, count)


class CannotApply(Exception):
    """This version must not apply the batch at `index`; `why` names the record. Nothing of the batch has been applied."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"batch {index} cannot be applied: {why}")
        self.index = index
        self.why = why


@dataclass(slots=True)
class Applied:
    """What a batch changed. `fed` has the numbers of queues that may now have messages for a waiting consumer, `drained` those of
    queues that have lost messages, `emptied` those of queues that have lost their last message, even if others have come since;
    `changes` has for each command its change and "", or no change and the reason."""

    fed: set[int]
    drained: set[int]
    emptied: set[int]
    changes: list[tuple[Change, str]]


class State:
    """Definitions and messages of one log up to one index. `version` is the highest machine version whose commands it applies.
    `residency` limits the bodies in memory; several states may share it.
    """

    def __init__(self, version: int = MACHINE_VERSION, *, residency: Residency | None = None, keeps_bodies: bool = True) -> None:
        self.residency = residency if residency is not None else Residency(1 << 62)
        self.keeps_bodies = keeps_bodies
        self.live_by_file: dict[int, int] = Counter()
        """Bytes of live messages, by the number of their file (0: in no file). A file without live messages may have a 0 here."""
        self.index = 0
        self.made_ms = self.ended_ms = self._epoch = 0
        """When the last batch was made, and the last one of the epoch before: ms since 1970 by the clock of the primary that made
        it; 0: unknown."""
        self.version = version
        self._later_kinds = [(kind, since) for kind, since in _SINCE.items() if version < since]
        self.definitions = Definitions()
        self.messages: dict[int, Messages] = {}
        self.by_uuid: dict[str, Messages] = {}
        self._parts = Messages(PARTS_QUEUE, "", discipline_of({}, self.live_by_file, self.residency))
        self.parts = Parts(self._parts.order)
        """The store of parts. From its first part on, its messages are also in `messages`."""
        self.held: dict[int, Held] = {}
        """For the number of each origin and numbered link: which of its messages are, or were, on a queue here
        (broker.core.origins)."""
        self.held_runs = 0
        """Number of runs in all of `held`."""

    def apply(self, batch: Batch, *, snapshot: bool = False) -> Applied:
        """Apply one committed batch, the next one by its index (all batches of a snapshot have the snapshot's index).

        The cost grows with the number of runs, not of messages. CannotApply is raised before anything has changed.
        """
        assert snapshot or batch.header.index > self.index, f"batch {batch.header.index} after {self.index}"
        commands = self._commands(batch)
        for kind, since in self._later_kinds:
            if any(run.kind is kind for run in batch.runs):
                raise CannotApply(batch.header.index, f"a {kind.name} record needs machine version {since}")
        applied = Applied(set(), set(), set(), [self._change(command, batch) for command in commands])
        unheld: list[Manifest] = []
        for run in batch.runs:
            if run.kind is _ENQUEUE:
                messages = self.messages.get(run.queue) or self._messages_of_parts(run)
                if messages is not None:
                    place = batch.place + run.start if batch.place else 0
                    messages.order.lane_of(run.first_seq).append(
                        run.first_seq,
                        run.lengths,
                        run.nbytes,
                        place,
                        run.crc,
                        batch.data,
                        run.start,
                        keep=self.keeps_bodies and messages is not self._parts,
                    )
                    messages.came(batch, run, snapshot=snapshot)
                    applied.fed.add(run.queue)
            elif run.kind is _DEQUEUE:
                messages = self.messages.get(run.queue)
                if messages is not None:
                    if self._remove(messages, run):
                        applied.fed.add(run.queue)
                    applied.drained.add(run.queue)
                    if not messages.depth:
                        applied.emptied.add(run.queue)
            elif run.kind in _FACTS:
                messages = self.messages.get(run.queue)
                if messages is not None:
                    messages.put_facts(batch, run)
            elif run.kind in (Kind.HELD, Kind.FORGOTTEN):
                self._put_held(run) if run.kind is Kind.HELD else self._forget_held(run)
            elif run.kind is Kind.PLACES:
                self._put_block(batch, run)
            elif run.kind is Kind.OWNERS:
                self._put_owners(batch, run, applied)
            elif run.kind is Kind.LARGE and not self._put_large(batch, run, applied, snapshot=snapshot):
                unheld.append(_manifest(batch, run))
        self.parts.drop_unheld(unheld)
        header = batch.header
        if header.epoch > self._epoch:
            self._epoch, self.ended_ms = header.epoch, self.made_ms
        self.made_ms = header.timestamp_ms
        self.index = max(self.index, header.index)
        return applied

    def _put_held(self, run: Run) -> None:
        """Remember that these messages of an origin are here."""
        held = self.held.get(run.queue)
        if held is not None:
            self.held_runs -= held.n_runs
            held.add(run.first_seq, run.count)
            self.held_runs += held.n_runs

    def _forget_held(self, run: Run) -> None:
        """Forget these messages of an origin, because they have left their source queue."""
        held = self.held.get(run.queue)
        if held is not None:
            self.held_runs -= held.n_runs
            held.remove(run.first_seq, run.count)
            self.held_runs += held.n_runs

    def _put_owners(self, batch: Batch, run: Run, applied: Applied) -> None:
        """Groups have an owner, or none any more: their messages may be for other consumers than before."""
        messages = self.messages.get(run.queue)
        if messages is not None and isinstance(messages.order, Owned):
            try:
                messages.order.own(*read_owners(batch.payload(run), run.count))
            except ValueError as error:
                raise BadBatch(f"batch {batch.header.index}: {error}") from None
            applied.fed.add(run.queue)

    def _remove(self, messages: Messages, run: Run) -> bool:
        """Remove messages from their queue. Returns whether this made other messages available."""
        count, nbytes = messages.order.remove(run.first_seq, run.count)
        if messages.large:
            nbytes += self._let_go(messages, inside(messages.large, run.first_seq, run.first_seq + run.count))
        messages.dequeued += count
        messages.dequeued_bytes += nbytes
        messages.facts_gone(run.first_seq, run.count)
        return messages.order.take_opened()

    def _messages_of_parts(self, run: Run) -> Messages | None:
        """The store of parts, if this run belongs to it; else None. From now on it is also in `messages`."""
        if run.queue != PARTS_QUEUE:
            return None
        return self.messages.setdefault(PARTS_QUEUE, self._parts)

    def _put_large(self, batch: Batch, run: Run, applied: Applied, *, snapshot: bool) -> bool:
        """Put a large message on its queue; False when the queue no longer exists. ValueError when a part is missing."""
        messages = self.messages.get(run.queue)
        if messages is None:
            return False
        manifest = _manifest(batch, run)
        missing = 0 if snapshot else self.parts.missing(manifest)
        if missing:
            raise ValueError(f"batch {batch.header.index}: {missing} parts of a large message are missing")
        lengths = array("I", (run.nbytes,))
        messages.order.lane_of(run.first_seq).append(
            run.first_seq, lengths, run.nbytes, 0, run.crc, batch.data, run.start, keep=True
        )
        messages.large[run.first_seq] = manifest
        messages.large_bytes += manifest.nbytes - run.nbytes
        self.parts.hold(manifest)
        messages.enqueued += 1
        messages.enqueued_bytes += manifest.nbytes
        applied.fed.add(run.queue)
        return True

    def _let_go(self, messages: Messages, sequences: Iterable[int]) -> int:
        """Drop large messages that have left their queue. Returns their bytes without the bytes of their manifests."""
        gone = 0
        for sequence in sequences:
            manifest = messages.large.pop(sequence)
            gone += manifest.nbytes - len(manifest.to_bytes())
            self.parts.let_go(manifest)
        messages.large_bytes -= gone
        return gone

    def _put_block(self, batch: Batch, run: Run) -> None:
        messages = self.messages.get(run.queue) or self._messages_of_parts(run)
        if messages is None:
            return
        try:
            lane = messages.order.lane_of(run.first_seq)
            count, nbytes = lane.put_block(run.first_seq, run.count, batch.payload(run))
        except BadColumns as error:
            raise BadBatch(f"batch {batch.header.index}: {error}") from None
        messages.enqueued += count
        messages.enqueued_bytes += nbytes

    @property
    def live_bytes(self) -> int:
        """Bytes of live messages."""
        return sum(self.live_by_file.values())

    # ---- definitions

    def _commands(self, batch: Batch) -> list[Command]:
        """The commands of a batch, which has its DEFINE runs before all others. CannotApply when this version must not apply one
        of them."""
        found: list[Command] = []
        for run in batch.runs:
            if run.kind is not _DEFINE:
                break
            command = decode(batch.payload(run), self.version)
            if isinstance(command, UnknownCommand):
                raise CannotApply(batch.header.index, command.why)
            found.append(command)
        return found

    def _change(self, command: Command, batch: Batch) -> tuple[Change, str]:
        change, reason = self.definitions.apply(command, lambda uuid: self._depth_of(uuid, batch))
        match change:
            case QueueMade(queue) if queue.level != "configuration":
                self._make_messages(queue)
            case PlaceMade(place):
                self._make_messages(place)
            case QueueGone(gone, _, links) | PlaceGone(gone, links):
                self._drop_messages(gone.uuid)
                self._drop_held(links)
            case IdsSet(recent):
                self._load_window(recent, batch)
            case OriginMade(origin, gone):
                assert origin.number is not None
                self.held.setdefault(origin.number, Held())
                self._drop_held(gone)
            case OriginsReleased(_, origins) | RouteGone(_, origins):
                self._drop_held(origins)
            case LinkMade(link):
                assert link.number is not None
                self.held.setdefault(link.number, Held())
            case LinkForgotten(link):
                self._drop_held((link,))
            case CountersSet(numbers):
                for number, sequence in numbers.seqs:
                    messages = self._parts if number == PARTS_QUEUE else self.messages[number]
                    messages.order.lane_of(sequence).skip_to(sequence)
                    self.messages.setdefault(number, messages)
            case _:
                pass
        return change, reason

    def _drop_held(self, ended: Iterable[OriginAdd | LinkAdd]) -> None:
        for each in ended:
            assert each.number is not None
            self.held_runs -= self.held.pop(each.number).n_runs

    def _load_window(self, recent: RecentIds, batch: Batch) -> None:
        messages = self.by_uuid.get(recent.uuid)
        if messages is None or messages.window is None:
            raise BadBatch(f"batch {batch.header.index}: ids of duplicates for a queue that detects none")
        try:
            messages.window.load(recent.ids, recent.times)
        except ValueError as error:
            raise BadBatch(f"batch {batch.header.index}: {error}") from None

    def _depth_of(self, uuid: str, batch: Batch) -> int:
        """The number of messages of a queue, including those of this batch, which are applied after its commands."""
        messages = self.by_uuid.get(uuid)
        if messages is None:
            return 0
        kinds = (Kind.ENQUEUE, Kind.LARGE)
        coming = (run.count for run in batch.runs if run.kind in kinds and run.queue == messages.number)
        return messages.depth + sum(coming)

    def _make_messages(self, owner: QueueAdd | StoreAdd) -> None:
        assert owner.number is not None
        asked = in_force(owner.arguments, owner.needs)
        order = discipline_of(asked, self.live_by_file, self.residency)
        made = Messages(owner.number, owner.uuid, order, window=window_of(asked))
        self.messages[owner.number] = self.by_uuid[owner.uuid] = made

    def _drop_messages(self, uuid: str) -> None:
        """Drop all messages of this queue, with their times and notes: a transaction may still refer to the queue for a while."""
        messages = self.by_uuid.pop(uuid, None)
        if messages is not None:
            del self.messages[messages.number]
            self._let_go(messages, list(messages.large))
            for lane in messages.order.lanes:
                lane.clear()
            messages.expiries = messages.delays = None
            messages.notes.clear()

    def drop_bodies(self) -> None:
        """Drop from memory all bodies that are on disk."""
        for messages in self.messages.values():
            for lane in messages.order.lanes:
                lane.drop_bodies()

    def discard(self) -> None:
        """Stop counting the bodies of this state, because another state replaces it."""
        for uuid in list(self.by_uuid):
            self._drop_messages(uuid)
        for lane in self._parts.order.lanes:
            lane.clear()

    # ---- where the messages lie

    def live_runs_in(self, file: int) -> Iterator[tuple[int, LiveRun]]:
        """Queue number and run, for each run in this file that has live messages. The state may change between two results."""
        for number in list(self.messages):
            messages = self.messages.get(number)
            for lane in () if messages is None else messages.order.lanes:
                for run in lane.live_runs_in(file):
                    yield number, run

    def moved(self, number: int, moves: Iterable[Move]) -> None:
        """Messages of this queue were copied to other places. Messages that have left the queue, or have been moved elsewhere
        since, are not changed."""
        messages = self.messages.get(number)
        if messages is not None:
            by_lane: dict[int, list[Move]] = {}
            for move in moves:
                by_lane.setdefault(move.first_seq >> LANE_SHIFT, []).append(move)
            for here in by_lane.values():
                messages.order.lane_of(here[0].first_seq).moved(here)

    # ---- snapshots

    def snapshot(self) -> Iterator[BatchBuilder]:
        """Batches (each about `limits.BATCH_TARGET_BYTES`) that rebuild this state, together with the files that they refer to.

        The call fixes their content. The caller may take them later and in another thread, while this state changes. At the time
        of the call, `live_by_file` names the files that they refer to. Messages that are in no file, such as manifests, are in
        the batches themselves.
        """
        for file in [file for file, nbytes in self.live_by_file.items() if not nbytes]:
            del self.live_by_file[file]
        commands = [*self.definitions.commands(), *self._recent_ids()]
        lanes: list[_Lane] = []
        times: list[_Column] = []
        seqs: list[tuple[int, int]] = []
        for number, messages in self.messages.items():
            large = frozenset(messages.large)
            for lane in messages.order.lanes:
                lanes.append((number, lane.snapshot(), lane.delivery_counts(), large))
                seqs.append((number, lane.next_seq))
            for what, column in ((EXPIRES, messages.expiries), (AVAILABLE, messages.delays)):
                times += [] if column is None else [(number, what, *each) for each in column.columns()]
        said = [(number, *each) for number, messages in self.messages.items() for each in messages.notes.items()]
        held = [(number, each.runs()) for number, each in self.held.items()]
        orders = ((number, messages.order) for number, messages in self.messages.items())
        owned = [(number, *each) for number, order in orders if isinstance(order, Owned) for each in order.columns()]
        last = Numbers(next=self.definitions.next_number, seqs=seqs)
        return _snapshot_batches(commands, lanes, times, said, held, owned, last)

    def _recent_ids(self) -> Iterator[Command]:
        for messages in self.messages.values():
            for ids, times in () if messages.window is None else messages.window.chunks():
                yield RecentIds(uuid=messages.uuid, ids=ids, times=times)


_SINCE = {
    Kind.LARGE: LARGE_SINCE,
    Kind.HELD: ORIGINS_SINCE,
    Kind.TIMES: TIMES_SINCE,
    Kind.FORGOTTEN: ROUTES_SINCE,
    Kind.NOTES: NOTES_SINCE,
    Kind.OWNERS: OWNERS_SINCE,
}
"""For each kind of record that is not in machine version 1, the version that introduced it."""
_ENQUEUE, _DEQUEUE, _DEFINE = Kind.ENQUEUE, Kind.DEQUEUE, Kind.DEFINE
"""Those that every batch asks for: a member of an enumeration takes long to look up."""
_FACTS = (Kind.COUNT, Kind.TIMES, Kind.NOTES)
"""The kinds of records that change something about messages on a queue."""
_Column = tuple[int, int, int, "array[int]"]
_Lane = tuple[int, Sequence[Columns | Lot], dict[int, int], frozenset[int]]


def _manifest(batch: Batch, run: Run) -> Manifest:
    try:
        return Manifest.from_bytes(batch.payload(run))
    except BadManifest as error:
        raise BadBatch(f"batch {batch.header.index}: {error}") from None


def _snapshot_batches(
    commands: list[Command],
    lanes: list[_Lane],
    times: list[_Column],
    said: list[tuple[int, int, bytes]],
    held: list[tuple[int, list[tuple[int, int]]]],
    owned: list[tuple[int, list[bytes], bytes]],
    last: Numbers,
) -> Iterator[BatchBuilder]:
    builder = BatchBuilder()
    for command in commands:
        builder.define_text(command.text)
        if builder.nbytes >= limits.BATCH_TARGET_BYTES:
            yield builder
            builder = BatchBuilder()
    for number, parts, all_counts, large in lanes:
        counts = all_counts
        for part in parts:
            is_large = isinstance(part, Lot) and part.first_seq in large
            behind = builder.has_places or (builder.has_large and not is_large)
            if builder.nbytes >= limits.BATCH_TARGET_BYTES or (isinstance(part, Lot) and behind):
                yield builder  # within one batch, messages come before large ones, and large ones before places
                builder = BatchBuilder()
            if isinstance(part, Lot) and is_large:
                builder.large(number, part.first_seq, part.messages()[0])
            elif isinstance(part, Lot):
                builder.enqueue_at(number, part.first_seq, part.messages())
            else:
                builder.places(number, *part.to_bytes())
        while counts:  # in batches of their own, because the counts of one batch add up only to the maximum of a record
            yield builder
            builder = BatchBuilder()
            for sequence, count in counts.items():
                builder.count(number, sequence, min(count, MAX_COUNT))
            counts = {sequence: count - MAX_COUNT for sequence, count in counts.items() if count > MAX_COUNT}
    facts: Iterator[tuple[Callable[..., None], tuple[Any, ...]]] = chain(
        ((BatchBuilder.times, each) for each in times),
        ((BatchBuilder.note, each) for each in said),
        ((BatchBuilder.hold, (number, *run)) for number, runs in held for run in runs),
        ((BatchBuilder.own, each) for each in owned),
    )
    for put, fact in facts:
        if builder.nbytes >= limits.BATCH_TARGET_BYTES:
            yield builder
            builder = BatchBuilder()
        put(builder, *fact)
    yield builder
    builder = BatchBuilder()
    builder.define_text(last.text)
    yield builder
