"""What a log says: definitions and messages. Applying the same batches gives the same state on every broker.

Life of a state: it starts empty, `apply` takes committed batches in order, `snapshot` writes down what is alive as batches that
rebuild it. It decides nothing: which message left, which one came, was decided by the primary and stands in the records. What the
DEFINE records mean is interpreted in broker.core.definitions; the state follows what they changed with the places for messages.

Of messages it keeps places, not bodies: `keeps_bodies` says whether what is applied also stays in memory (a primary's, within the
bound of its residency) or not (a backup's). Parts of large messages never stay; their manifests, which are short, lie in no file
and are always in memory, and a snapshot has them whole. A snapshot holds places too; the bodies are in the files that it names.

Invariants: a batch is applied wholly or not at all: one that this version cannot apply raises `CannotApply` and leaves the state
at the index before it; a queue's sequences only grow; messages exist only for a number that is defined; records for a number that
is gone do nothing; a large message on a queue has all of its parts (broker.core.parts).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.core import limits, notes
from broker.core.commands import (
    LARGE_SINCE,
    MACHINE_VERSION,
    NOTES_SINCE,
    ORIGINS_SINCE,
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
from broker.core.queues.residency import Residency
from broker.core.queues.times import Times
from broker.core.records import AVAILABLE, EXPIRES, BadBatch, Batch, BatchBuilder, Kind, Run

MAX_COUNT = 255
"""The most by which one COUNT record raises a delivery count."""


@dataclass(slots=True)
class Messages:
    """The messages of one queue number, and how many ever came and went (since this broker loaded them).

    `large` are the large ones among those alive, by sequence: in `order` each stands as its manifest, and `large_bytes` is what
    all of them have beyond that.
    """

    number: int
    uuid: str
    order: Discipline
    enqueued: int = 0
    enqueued_bytes: int = 0
    dequeued: int = 0
    dequeued_bytes: int = 0
    window: Window | None = None
    """What came lately, if the queue detects duplicates."""
    expiries: Times | None = None
    """When those expire that do; None: none ever did."""
    delays: Times | None = None
    """From when on those may be given out that were not at once; the primary has taken the times that are over."""
    large: dict[int, Manifest] = field(default_factory=dict)
    large_bytes: int = 0
    notes: dict[int, bytes] = field(default_factory=dict)
    """What consumers have noted on those alive, by sequence (broker.core.notes)."""

    def came(self, batch: Batch, run: Run, *, snapshot: bool) -> None:
        """Count the messages of this run. A snapshot says by itself what the window holds."""
        self.enqueued += run.count
        self.enqueued_bytes += run.nbytes
        if self.window is not None and not snapshot:
            self.window.came(batch.messages(run), batch.header.timestamp_ms)

    @property
    def depth(self) -> int:
        """Messages alive."""
        return self.order.depth

    @property
    def live_bytes(self) -> int:
        """Encoded bytes of the messages alive, large ones with all of their parts."""
        return self.order.live_bytes + self.large_bytes

    def depths(self) -> list[int]:
        """Messages alive by level of priority, the lowest first; one number for a queue without levels."""
        return [lane.depth for lane in self.order.lanes]

    def next_seqs(self) -> list[int]:
        """The lowest sequence that the next message may get, by lane."""
        return [lane.next_seq for lane in self.order.lanes]

    @property
    def has_times(self) -> bool:
        """Whether any of its messages ever had a time."""
        return self.expiries is not None or self.delays is not None

    @property
    def next_due_ms(self) -> float | None:
        """When the next of its times is to be looked at, ms since 1970; None when none is."""
        next_ms = [each.next_ms for each in (self.expiries, self.delays) if each is not None]
        return min((each for each in next_ms if each is not None), default=None)

    def put_times(self, what: int, first_seq: int, column: array[int]) -> None:
        """A TIMES record. ValueError when it says something that no version knows."""
        if what == EXPIRES:
            self.expiries = Times() if self.expiries is None else self.expiries
            self.expiries.put(first_seq, column)
        elif what == AVAILABLE:
            self.delays = Times() if self.delays is None else self.delays
            self.delays.put(first_seq, column)
        else:
            raise ValueError(f"times of an unknown kind {what}")

    def put_facts(self, batch: Batch, run: Run) -> None:
        """A COUNT, TIMES or NOTES record. ValueError when it says something that no version knows."""
        if run.kind is Kind.COUNT:
            self.order.lane_of(run.first_seq).raise_count(run.first_seq, run.count, run.flags)
        elif run.kind is Kind.TIMES:
            self.put_times(run.flags, run.first_seq, array("Q", batch.payload(run)))
        elif self.order.lane_of(run.first_seq).is_live(run.first_seq):
            note = notes.merged(self.notes.get(run.first_seq, b""), batch.payload(run))
            if note:
                self.notes[run.first_seq] = note

    def noted(self, sequence: int, data: bytes) -> bytes:
        """A message, or its beginning, with what consumers have noted on it."""
        note = self.notes.get(sequence)
        return data if note is None else notes.noted(data, note)

    def facts_gone(self, first_seq: int, count: int) -> None:
        """These messages have left: so have their times and notes."""
        if self.notes:
            for sequence in inside(self.notes, first_seq, first_seq + count):
                del self.notes[sequence]
        if self.expiries is not None:
            self.expiries.removed(first_seq, count)
        if self.delays is not None:
            self.delays.removed(first_seq, count)


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
    """Definitions and messages of one log up to one index. `version` is the machine version up to which it applies commands;
    `residency` bounds the bodies in memory, those of other states too.
    """

    def __init__(self, version: int = MACHINE_VERSION, *, residency: Residency | None = None, keeps_bodies: bool = True) -> None:
        self.residency = residency if residency is not None else Residency(1 << 62)
        self.keeps_bodies = keeps_bodies
        self.live_by_file: dict[int, int] = Counter()
        """Bytes of messages alive, by the file that they lie in (0: in none); a file of which nothing is alive may have a 0."""
        self.index = 0
        self.made_ms = self.ended_ms = self._epoch = 0
        """When the last batch was made, and the last one of the epoch before: ms since 1970 by its primary's clock, or 0."""
        self.version = version
        self.definitions = Definitions()
        self.messages: dict[int, Messages] = {}
        self.by_uuid: dict[str, Messages] = {}
        self._parts = Messages(PARTS_QUEUE, "", discipline_of({}, self.live_by_file, self.residency))
        self.parts = Parts(self._parts.order)
        """The store of parts; it is among `messages` from its first part on."""
        self.held: dict[int, Held] = {}
        """Number of an origin, or of a numbered link -> what of it is, or was, on a queue here (broker.core.origins)."""
        self.held_runs = 0
        """Runs that all of these have."""

    def apply(self, batch: Batch, *, snapshot: bool = False) -> Applied:
        """Apply one committed batch, the next by index (a snapshot's batches carry the index of the whole).

        The cost is that of its runs, not of its messages. CannotApply, before anything has changed.
        """
        assert snapshot or batch.header.index > self.index, f"batch {batch.header.index} after {self.index}"
        commands = self._commands(batch)
        for kind, since in _SINCE.items():
            if self.version < since and any(run.kind is kind for run in batch.runs):
                raise CannotApply(batch.header.index, f"a {kind.name} record needs machine version {since}")
        applied = Applied(set(), [self._change(command, batch) for command in commands])
        unheld: list[Manifest] = []
        for run in batch.runs:
            if run.kind is Kind.ENQUEUE:
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
            elif run.kind is Kind.DEQUEUE:
                messages = self.messages.get(run.queue)
                if messages is not None and self._remove(messages, run):
                    applied.fed.add(run.queue)
            elif run.kind in _FACTS:
                messages = self.messages.get(run.queue)
                if messages is not None:
                    messages.put_facts(batch, run)
            elif run.kind is Kind.HELD:
                self._put_held(run)
            elif run.kind is Kind.FORGOTTEN:
                self._forget_held(run)
            elif run.kind is Kind.PLACES:
                self._put_block(batch, run)
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
        """Messages of an origin are here."""
        held = self.held.get(run.queue)
        if held is not None:
            self.held_runs -= held.n_runs
            held.add(run.first_seq, run.count)
            self.held_runs += held.n_runs

    def _forget_held(self, run: Run) -> None:
        """Messages of an origin have left the queue that they came from."""
        held = self.held.get(run.queue)
        if held is not None:
            self.held_runs -= held.n_runs
            held.remove(run.first_seq, run.count)
            self.held_runs += held.n_runs

    def _remove(self, messages: Messages, run: Run) -> bool:
        """Take messages off their queue. Returns whether others have become available by that."""
        count, nbytes = messages.order.remove(run.first_seq, run.count)
        if messages.large:
            nbytes += self._let_go(messages, inside(messages.large, run.first_seq, run.first_seq + run.count))
        messages.dequeued += count
        messages.dequeued_bytes += nbytes
        messages.facts_gone(run.first_seq, run.count)
        return messages.order.take_opened()

    def _messages_of_parts(self, run: Run) -> Messages | None:
        """The store of parts, if this run is of it: it is there from now on."""
        if run.queue != PARTS_QUEUE:
            return None
        return self.messages.setdefault(PARTS_QUEUE, self._parts)

    def _put_large(self, batch: Batch, run: Run, applied: Applied, *, snapshot: bool) -> bool:
        """Put a large message on its queue; False when that is gone. ValueError when a part is missing."""
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
        """These large messages have left their queue. Returns what they had beyond their manifests."""
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
        """Bytes of messages alive."""
        return sum(self.live_by_file.values())

    # ---- definitions

    def _commands(self, batch: Batch) -> list[Command]:
        """The batch's commands, all of which this version applies. DEFINE runs stand before all others."""
        found: list[Command] = []
        for run in batch.runs:
            if run.kind is not Kind.DEFINE:
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
        """The messages of a queue, with those that this batch brings: it applies them after its commands."""
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
        messages = self.by_uuid.pop(uuid, None)
        if messages is not None:
            del self.messages[messages.number]
            self._let_go(messages, list(messages.large))
            for lane in messages.order.lanes:
                lane.clear()

    def drop_bodies(self) -> None:
        """Forget all bodies that lie on disk."""
        for messages in self.messages.values():
            for lane in messages.order.lanes:
                lane.drop_bodies()

    def discard(self) -> None:
        """Another state takes this one's place: count none of its bodies any more."""
        for uuid in list(self.by_uuid):
            self._drop_messages(uuid)
        for lane in self._parts.order.lanes:
            lane.clear()

    # ---- where the messages lie

    def live_runs_in(self, file: int) -> Iterator[tuple[int, LiveRun]]:
        """Queue number and run, for each run in this file of which something is alive. The state may change in between."""
        for number in list(self.messages):
            messages = self.messages.get(number)
            for lane in () if messages is None else messages.order.lanes:
                for run in lane.live_runs_in(file):
                    yield number, run

    def moved(self, number: int, moves: Iterable[Move]) -> None:
        """Messages of this queue were copied to other places. What is gone by now, or lies elsewhere, stays as it is."""
        messages = self.messages.get(number)
        if messages is not None:
            by_lane: dict[int, list[Move]] = {}
            for move in moves:
                by_lane.setdefault(move.first_seq >> LANE_SHIFT, []).append(move)
            for here in by_lane.values():
                messages.order.lane_of(here[0].first_seq).moved(here)

    # ---- snapshots

    def snapshot(self) -> Iterator[BatchBuilder]:
        """Batches (each about `limits.BATCH_TARGET_BYTES`) that rebuild this state where the files are that it refers to.

        What they hold is fixed at the call; they may be taken later and in another thread while this state goes on. Which files
        they refer to, `live_by_file` says at the call. Messages that lie in no file, as manifests do, are in them
        whole.
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
        return _snapshot_batches(commands, lanes, times, said, held, Numbers(next=self.definitions.next_number, seqs=seqs))

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
}
"""The machine version that brought a kind of record, for those that have come later than the first."""
_FACTS = (Kind.COUNT, Kind.TIMES, Kind.NOTES)
"""What says something of messages that are there."""
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
                yield builder  # within one batch, messages stand before large ones, and these before places
                builder = BatchBuilder()
            if isinstance(part, Lot) and is_large:
                builder.large(number, part.first_seq, part.messages()[0])
            elif isinstance(part, Lot):
                builder.enqueue_at(number, part.first_seq, part.messages())
            else:
                builder.places(number, *part.to_bytes())
        while counts:  # in batches of their own: the counts of one batch add up, but only to the most that a record holds
            yield builder
            builder = BatchBuilder()
            for sequence, count in counts.items():
                builder.count(number, sequence, min(count, MAX_COUNT))
            counts = {sequence: count - MAX_COUNT for sequence, count in counts.items() if count > MAX_COUNT}
    facts: list[tuple[Callable[..., None], tuple[Any, ...]]] = [(BatchBuilder.times, each) for each in times]
    for put, fact in (*facts, *((BatchBuilder.note, each) for each in said)):
        if builder.nbytes >= limits.BATCH_TARGET_BYTES:
            yield builder
            builder = BatchBuilder()
        put(builder, *fact)
    for number, runs in held:
        for first_seq, count in runs:
            builder.hold(number, first_seq, count)
            if builder.nbytes >= limits.BATCH_TARGET_BYTES:
                yield builder
                builder = BatchBuilder()
    yield builder
    builder = BatchBuilder()
    builder.define_text(last.text)
    yield builder
