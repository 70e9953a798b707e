"""A second and very simple calculation of the state from the committed log: the reference for all brokers.

Life: each batch is entered once, when the first broker applies it. Every broker that applies that index later must
apply the same bytes. The batches give the queues, their live messages, and a digest of everything at every index. So
any broker's state can be compared at any index that it reaches. There is one reference for the cluster's log, and one
for each broker's local log, until its disk is replaced: `abandon`.

Invariants: a message is on a queue because a client sent it there, once, on the level of its priority, and after the
messages of that level that the same link sent before it. It leaves because a consumer took it, or with its queue, or
because a consumer rejected it, its delivery failed too often or it expired; then its dead letter is on the right queue.
(For queues that the history does not know, only the state is compared.) Digests are sums of hashes, so that each change
costs one addition.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import google_crc32c

from broker.core.parts import PARTS_QUEUE, Manifest
from broker.core.queues.lane import LANE_SHIFT
from broker.core.queues.owned import Owned
from broker.core.records import AVAILABLE, EXPIRES, Batch, Kind, Run
from broker.core.state import State
from broker.core.values import decode
from broker.disk.bodies import Unreadable
from broker.disk.compaction import Read
from tests.broker.core.queues.files import all_messages
from tests.simulation.checks.book import Book
from tests.simulation.checks.owners import Owners, digest_of_group, hash_of
from tests.simulation.checks.passing import Passing
from tests.simulation.history import Discharged, History, Key, Outcome, is_whole, kept_at, read
from tests.simulation.layouts import FROM

_MASK = (1 << 64) - 1
_OWNERS_SINCE = 9
_POLICY_KNOWN_MS = 500
"""So long after it was committed, every primary that makes a queue knows a policy."""


class Queue:
    """The messages of one queue number: by sequence, each as bytes and delivery count. `name` is the history's for it."""

    __slots__ = (
        *("by_level", "came", "for_letters", "groups", "gone", "keys", "large", "limit", "live"),
        *(
            "let_go",
            "lossy",
            "name",
            "next_seqs",
            "notes",
            "number",
            "owned",
            "retries",
            "ring",
            "share",
            "times",
            "uuid",
            "values",
        ),
        "watched",
    )

    def __init__(self, history: History, name: str, store_id: str, number: int, uuid: str = "") -> None:
        self.name = kept_at(name, store_id) if store_id else name
        self.uuid = uuid
        self.number = number
        self.watched = name in history.created
        self.lossy = name in history.lossy
        self.ring = history.rings.get(name, 0)
        self.values = history.values.get(name, 0)
        self.groups = history.groups.get(name, 0)
        self.share = history.shares.get(name, 0)
        self.came = self.let_go = 0
        """What the batch that is being entered has put on a ring, and what has left it for that."""
        self.for_letters = name in history.letters.values()
        self.limit = 0
        """So many failed deliveries a message may have; 0: any number."""
        self.owned = False
        """Whether its groups have owners in the log."""
        self.retries = False
        """Whether what has failed is to wait before it comes again."""
        self.next_seqs: dict[int, int] = {}
        """Level -> the lowest sequence that may come; a level that had none yet is missing."""
        self.by_level: dict[int, dict[int, None]] = {}
        """Level -> the sequences alive, in order."""
        self.live: dict[int, tuple[bytes, int]] = {}
        self.keys: dict[int, Key] = {}
        self.times: dict[int, dict[int, int]] = {EXPIRES: {}, AVAILABLE: {}}
        """Sequence -> when the message expires, and from when on it may be given out, in ms of the log's time."""
        self.notes: dict[int, dict[str, int]] = {}
        """Sequence -> what consumers have noted on the message."""
        self.large: dict[int, tuple[int, ...]] = {}
        """Sequence -> the sequences of its parts."""
        self.gone: dict[int, int] = {}
        """Sequence -> the index that took it off for good."""

    @property
    def sequences(self) -> int:
        """How many sequences were given."""
        return sum(next_seq - first_of(level) for level, next_seq in self.next_seqs.items())

    def of_its_group(self, sequence: int) -> Iterator[int]:
        """The messages alive of the same group, this one too; none where there are no groups."""
        if self.groups:
            group = self.keys[sequence].number % self.groups
            yield from (other for other in self.live if self.keys[other].number % self.groups == group)

    def group_of(self, key: Key) -> str:
        """The group of a message, as records of owners have it."""
        return digest_of_group(key.number % self.groups)

    def newer_values(self, sequence: int) -> Iterator[int]:
        """The messages alive that have come after this one, with its key; none where keys mean nothing."""
        if self.values:
            value = self.keys[sequence].number % self.values
            for other in self.live:
                if other > sequence and self.keys[other].number % self.values == value:
                    yield other

    def heads(self, count: int) -> Iterator[int]:
        """The oldest alive, so many of each level, the highest level first."""
        for level in sorted(self.by_level, reverse=True):
            yield from islice(self.by_level[level], count)


def first_of(level: int) -> int:
    """The first sequence of a level."""
    return (level << LANE_SHIFT) + 1


def rank(sequence: int) -> tuple[int, int]:
    """What comes first on a queue is less."""
    return -(sequence >> LANE_SHIFT), sequence


class Reference:
    """See the module. What is wrong is added to `faults`, in sentences. A broker's own log has its store's identity, and finds
    the names of queues that the cluster's log defines in `names`."""

    def __init__(
        self,
        history: History,
        faults: list[str],
        book: Book | None = None,
        *,
        store_id: str = "",
        names: dict[str, str] | None = None,
    ) -> None:
        self.history = history
        self.faults = faults
        self.book = Book() if book is None else book
        self.store_id = store_id
        self.names: dict[str, str] = {} if names is None else names
        """Queues by identity, deleted ones too."""
        self.passing = Passing(faults)
        self.owners = Owners(faults)
        self.index = 0
        self.epoch = 0
        self.batches: dict[int, bytes] = {}
        self.epochs: dict[int, int] = {0: 0}
        self.queues: dict[int, Queue] = {}
        self.digests: dict[int, int] = {0: 0}
        self.sizes: dict[int, tuple[int, int]] = {0: (0, 0)}
        self._numbers: dict[str, Queue] = {}
        self._deleted: dict[int, Queue] = {}
        self._parts: dict[tuple[int, ...], int] = {}
        """Large messages by the sequences of their parts: how many queues hold each."""
        self._timed: list[tuple[Queue, int, Key]] = []
        """Messages that say a time, and that the batch that is being entered has put on a queue."""
        self._rings: dict[Queue, None] = {}
        """Rings that the batch that is being entered has changed."""
        self._waits: set[tuple[int, int]] = set()
        """Messages that the batch that is being entered lets wait: number of the queue, and sequence."""
        self._rejected: list[Key] = []
        """Left their queues by the batch that is being entered, because they were rejected."""
        self._came: dict[Discharged, None] = {}
        """The transactions of which the batch that is being entered has a message."""
        self._retired: list[Key] = []
        """Left their queues by it, and may do so in transactions alone."""
        self._definitions: dict[str, tuple[Any, ...]] = {}
        self._described: dict[str, int] = {}
        """Queue or exchange -> what the digest has of its arguments."""
        self._names: set[tuple[str, str]] = set()
        self._bindings: dict[tuple[str, str, str], str] = {}
        self._policies: dict[tuple[str, str], tuple[str, int]] = {}
        """Kind and pattern of a policy -> its attributes, as text, and when its batch was made."""
        self._now_ms = 0
        self._routes: set[tuple[str, ...]] = set()
        self.settings: dict[str, str] = {}
        """What the cluster agrees on, as text."""
        self._origins: dict[tuple[str, ...], int] = {}
        """Drain and queue -> the number of that origin; and of numbered links, by their names."""
        self.held: dict[int, set[int]] = {}
        """Number of an origin -> the sequences of it that have come."""
        self._fetched: dict[tuple[str, int, int], int] = {}
        """Messages on the queue that a route fetches from, by client, link and number -> their sequences there."""
        self._moved: Counter[int] = Counter()
        """Sequences of movers' messages, and of numbered ones, in the batch that is being entered, less those that it says are
        held."""
        self._last_sent: dict[tuple[str, int, str, int], int] = {}
        self._next_number = 1
        self._digest = 0
        self._depth = 0
        self._sequences = 0

    # ---- what brokers apply

    def applied(self, who: str, batch: Batch) -> None:
        """A broker applies this batch: the next one, or the same as others have applied."""
        index = batch.header.index
        known = self.batches.get(index)
        if known is not None:
            if known != batch.data:
                self.faults.append(
                    f"committed changed: {who} applies batch {index} of epoch {batch.header.epoch} with other content than the "
                    f"one of epoch {self.epochs[index]} that was committed"
                )
            return
        if index != self.index + 1:
            self.faults.append(f"committed changed: {who} applies batch {index}, and the newest that anybody has is {self.index}")
            return
        self._enter(batch)

    def _enter(self, batch: Batch) -> None:
        header = batch.header
        if header.epoch < self.epoch:
            self.faults.append(f"committed changed: batch {header.index} is of epoch {header.epoch}, after epoch {self.epoch}")
        self.index, self.epoch, self._now_ms = header.index, max(header.epoch, self.epoch), header.timestamp_ms
        self.batches[header.index] = batch.data
        self.epochs[header.index] = header.epoch
        for run in batch.runs:
            match run.kind:
                case Kind.DEFINE:
                    self._define(batch.json(run))
                case Kind.ENQUEUE:
                    queue = self.queues.get(run.queue) or self._store_of_parts(run.queue)
                    if queue is not None:
                        for sequence, one in enumerate(batch.messages(run), run.first_seq):
                            self._enqueue(queue, sequence, one)
                    elif run.queue in self._deleted:
                        self._too_late(self._deleted[run.queue], batch.messages(run))
                case Kind.LARGE:
                    self._large(run.queue, run.first_seq, batch.payload(run))
                case Kind.TIMES:
                    self._put_times(run.queue, run.flags, run.first_seq, array("Q", batch.payload(run)))
                case Kind.NOTES:
                    self._put_note(run.queue, run.first_seq, batch.payload(run))
                case Kind.DEQUEUE | Kind.COUNT:
                    self._take_or_count(run)
                case Kind.HELD:
                    self._hold(run.queue, range(run.first_seq, run.first_seq + run.count))
                case Kind.FORGOTTEN:
                    self._forget_held(run.queue, range(run.first_seq, run.first_seq + run.count))
                case Kind.OWNERS:
                    self._own(run.queue, batch.payload(run), run.count)
                case _:
                    pass
        self._drop_parts()
        self._judge_times()
        self._judge_moves()
        self._judge_letters()
        self._judge_rings()
        self._judge_transactions()
        self.passing.end_batch(header.index)
        self.digests[header.index] = self._digest
        self.sizes[header.index] = (self._depth, self._sequences)

    def _take_or_count(self, run: Run) -> None:
        queue = self.queues.get(run.queue)
        for sequence in () if queue is None else range(run.first_seq, run.first_seq + run.count):
            assert queue is not None
            if run.kind is Kind.DEQUEUE:
                self._dequeue(queue, sequence, self.index)
            else:
                self._count(queue, sequence, run.flags)

    def _own(self, number: int, payload: bytes, count: int) -> None:
        queue = self.queues.get(number)
        if queue is not None and queue.owned:
            self._add(self.owners.own(self.index, number, payload, count))

    # ---- times

    def _put_times(self, number: int, what: int, first_seq: int, times: array[int]) -> None:
        queue = self.queues.get(number)
        for sequence, when_ms in enumerate(times, first_seq):
            if queue is not None and when_ms and sequence in queue.live:
                if what == AVAILABLE:
                    self._waits.add((number, sequence))
                    self._add(-hash(("time", number, sequence, what, was)) if (was := queue.times[what].get(sequence, 0)) else 0)
                queue.times[what][sequence] = when_ms
                self._add(hash(("time", queue.number, sequence, what, when_ms)))

    def _put_note(self, number: int, sequence: int, encoded: bytes) -> None:
        queue = self.queues.get(number)
        if queue is not None and sequence in queue.live:
            self._add(-_note_hash(queue, sequence))
            queue.notes[sequence] = queue.notes.get(sequence, {}) | decode(encoded)
            self._add(_note_hash(queue, sequence))

    def _drop_facts(self, queue: Queue, sequence: int) -> None:
        self._add(-_note_hash(queue, sequence))
        queue.notes.pop(sequence, None)
        for what, times in queue.times.items():
            when_ms = times.pop(sequence, 0)
            if when_ms:
                self._add(-hash(("time", queue.number, sequence, what, when_ms)))

    def _judge_times(self) -> None:
        """What says a time has it in the batch that puts it on its queue: that of its arrival, and as much as it says."""
        for queue, sequence, key in self._timed:
            note = self.history.notes[key]
            wanted = tuple(note.arrived_ms + each if each else 0 for each in (note.ttl_ms, note.delay_ms))
            found = tuple(queue.times[what].get(sequence, 0) for what in (EXPIRES, AVAILABLE))
            if found != wanted and sequence in queue.live:
                self.faults.append(
                    f"times: {key} is to expire and to be given out at {wanted}, and by batch {self.index} at {found}"
                )
        self._timed.clear()
        self._waits.clear()

    # ---- what comes from other stores

    def _expect(self, change: dict[str, Any]) -> None:
        """Messages of an origin, or over a numbered link, may come."""
        origin = tuple(change[each] for each in ("drain", "queue", "user", "container", "link", "into") if each in change)
        if origin not in self._origins:
            self._origins[origin] = number = change.get("number", self._next_number)
            self._next_number = max(self._next_number, number + 1)
            self.held[number] = set()

    def _hold(self, origin: int, sequences: range) -> None:
        held = self.held.get(origin)
        if held is None:
            return
        again = held.intersection(sequences)
        if again:
            self.faults.append(f"origin: batch {self.index} says that {sorted(again)} of origin {origin} come again")
        held.update(sequences)
        self._moved.subtract(sequences)
        self._add(sum(hash(("held", origin, sequence)) for sequence in sequences))

    def _forget_held(self, origin: int, sequences: range) -> None:
        """What is not held any more has left the queue that it was fetched from."""
        held = self.held.get(origin, set())
        gone = held.intersection(sequences)
        there = [sequence for queue in self.queues.values() if queue.name == FROM for sequence in gone if sequence in queue.live]
        if there:
            self.faults.append(f"origin: batch {self.index} forgets {sorted(there)} of origin {origin}, which are to be fetched")
        held -= gone
        self._add(-sum(hash(("held", origin, sequence)) for sequence in gone))

    def _judge_moves(self) -> None:
        """What a batch puts of another store, and what it says of that, is the same."""
        wrong = sorted(sequence for sequence, count in self._moved.items() if count)
        if wrong:
            self.faults.append(f"origin: batch {self.index} puts messages of another store and says that others come: {wrong}")
        self._moved.clear()

    # ---- large messages

    def _store_of_parts(self, number: int) -> Queue | None:
        """The store of parts, from its first part on."""
        if number != PARTS_QUEUE:
            return None
        self.queues[number] = Queue(self.history, "", self.store_id, number)
        self._add(hash(("number", "", number)))
        return self.queues[number]

    def _large(self, number: int, sequence: int, manifest: bytes) -> None:
        """A large message comes on a queue: the bytes of its parts are what a client sent."""
        parts = tuple(Manifest.from_bytes(manifest).sequences)
        store = self.queues[PARTS_QUEUE].live
        if any(part not in store for part in parts):
            self.faults.append(f"parts: batch {self.index} puts a large message on a queue that lacks some of its parts")
        message = b"".join(store[part][0] for part in parts if part in store)
        self._parts.setdefault(parts, 0)
        queue = self.queues.get(number)
        if queue is None:
            if number in self._deleted:
                self._too_late(self._deleted[number], [message])
            return
        if not is_whole(message):
            self.faults.append(f"parts: batch {self.index} puts {message[:80]!r} on {queue.name}, cut short or altered")
        self._enqueue(queue, sequence, manifest, message)
        queue.large[sequence] = parts
        self._parts[parts] += 1

    def _drop_parts(self) -> None:
        """The parts of large messages that are on no queue any more go."""
        for parts in [parts for parts, holders in self._parts.items() if not holders]:
            del self._parts[parts]
            for part in parts:
                self._dequeue(self.queues[PARTS_QUEUE], part, self.index)

    def _enqueue(self, queue: Queue, sequence: int, data: bytes, message: bytes = b"") -> None:
        level = sequence >> LANE_SHIFT
        next_seq = queue.next_seqs.get(level, first_of(level))
        if sequence < next_seq:
            self.faults.append(f"order: batch {self.index} gives sequence {sequence} of {queue.name} again")
        self.passing.came(self.index, queue.uuid, data)
        if queue.watched:
            self._judge_arrival(queue, sequence, message or data)
        elif queue.name == FROM and (key := read(message or data, FROM)) is not None:
            self._fetched[key.client, key.link, key.number] = sequence
        self._sequences += sequence + 1 - next_seq
        queue.next_seqs[level] = sequence + 1
        queue.live[sequence] = (data, 0)
        queue.by_level.setdefault(level, {})[sequence] = None
        if queue.ring:
            queue.came += 1
            self._rings[queue] = None
        self._depth += 1
        self._add(hash((queue.number, sequence, 0, data)))

    def _judge_arrival(self, queue: Queue, sequence: int, data: bytes) -> None:
        key = read(data, queue.name)
        note = None if key is None else self.history.notes.get(key)
        if key is None or note is None:
            self.faults.append(f"unexpected: batch {self.index} puts {data[:80]!r} on {queue.name}, where nobody sent it")
            return
        queue.keys[sequence] = key
        if key.client.startswith("m-"):
            self._moved[key.number + 1] += 1
        elif key.client.startswith("f-"):
            self._moved[self._fetched.get((key.client, key.link, key.number), 0)] += 1
        enqueued = self.book.enqueued
        if queue.for_letters:
            self.book.letters[key] += 1
            if self.book.letters[key] > note.attempts:
                self.faults.append(f"duplicated: the dead letter of {key} has come more often than it was rejected")
            enqueued[key] = self.index
            return
        if key in enqueued:
            self.faults.append(f"duplicated: {key} is on its queue a second time, by batches {enqueued[key]} and {self.index}")
        if note.outcome is Outcome.REFUSED:
            self.faults.append(f"unexpected: {key} was refused, and batch {self.index} puts it on its queue")
        enqueued[key] = self.index
        if note.arrived_ms:
            self._timed.append((queue, sequence, key))
        if key in self.history.in_transactions:
            self._came[self.history.in_transactions[key]] = None
        level = sequence >> LANE_SHIFT
        if level != self.history.level_of(key):
            self.faults.append(
                f"level: {key} has priority {note.priority}, and batch {self.index} puts it on level {level} of {queue.name}"
            )
        link = (key.client, key.link, key.queue, level)
        before = self._last_sent.get(link, -1)
        if key.number < before and key not in self.history.given_back:
            self.faults.append(f"order: {key} comes after message {before} of the same link, which was sent later")
        self._last_sent[link] = max(before, key.number)

    def _dequeue(self, queue: Queue, sequence: int, index: int) -> None:
        found = queue.live.pop(sequence, None)
        if found is None:
            return
        data, count = found
        del queue.by_level[sequence >> LANE_SHIFT][sequence]
        if sequence in queue.large:
            self._parts[queue.large.pop(sequence)] -= 1
        self._depth -= 1
        self._add(-hash((queue.number, sequence, count, data)))
        self._drop_facts(queue, sequence)
        queue.gone[sequence] = index
        key = queue.keys.get(sequence)
        if key is None:
            return
        self.book.dequeued[key] = index
        if key in self.history.retired:
            self._retired.append(key)
        note = self.history.notes[key]
        if queue.ring and not (note.taken or note.expired):
            self._leaves_ring(queue, sequence, key)
        if queue.values and not (note.taken or note.expired or list(queue.newer_values(sequence))):
            self.faults.append(f"value: {key} leaves {queue.name} by batch {index}, and nothing newer with its key is there")
        if note.taken or queue.lossy:
            return
        if note.rejected or note.over_limit or note.expired:
            if key.queue in self.history.letters:
                self._rejected.append(key)
        else:
            self.faults.append(f"lost: {key} left its queue by batch {index}, and nobody had taken it")

    def _leaves_ring(self, queue: Queue, sequence: int, key: Key) -> None:
        """Nobody has taken a message that leaves a ring: it is the oldest."""
        queue.let_go += 1
        self._rings[queue] = None
        oldest = next(iter(queue.live), sequence)
        if oldest < sequence:
            self.faults.append(f"ring: {key} leaves {queue.name} by batch {self.index}, and an older message stays")

    def _judge_rings(self) -> None:
        """A ring is within its bound after every batch, and no more has left it than has come."""
        for queue in self._rings:
            left, by = len(queue.live), f"batch {self.index}"
            if left > queue.ring:
                self.faults.append(f"ring: {by} leaves {left} messages on {queue.name}, a ring of {queue.ring}")
            if queue.let_go > queue.came:
                self.faults.append(f"ring: {queue.let_go} messages leave {queue.name} by {by}, which brings {queue.came}")
            queue.came = queue.let_go = 0
        self._rings.clear()

    def _judge_letters(self) -> None:
        """What was rejected, failed too often or expired is in the queue for dead letters by the batch that takes it off its own,
        or by an earlier one."""
        for key in self._rejected:
            letter = key._replace(queue=self.history.letters[key.queue])
            if letter not in self.book.enqueued:
                note = self.history.notes[key]
                why = "was rejected" if note.rejected else "failed too often" if note.over_limit else "has expired"
                self.faults.append(f"lost: {key} {why}, and left its queue by batch {self.index} without a dead letter")
        self._rejected.clear()

    def _judge_transactions(self) -> None:
        """All of a transaction is in one batch. (What leaves with its queue is not asked for.)"""
        enqueued, dequeued, index = self.book.enqueued, self.book.dequeued, self.index
        for one in self._came:
            torn = [key for key in one.posts if enqueued.get(key) != index]
            torn += [key for key in one.retired if dequeued.get(key) != index]
            if torn:
                self.faults.append(f"torn: batch {index} has a part of a transaction, without {torn[0]}")
        for key in self._retired:
            if not any(key in one.retired for one in self._came):
                self.faults.append(f"torn: {key} left its queue by batch {index}, without what was sent in its transaction")
        self._came.clear()
        self._retired.clear()

    def _too_late(self, queue: Queue, messages: list[bytes]) -> None:
        """Messages for a queue that was deleted before: they went with it."""
        for key in [read(one, queue.name) for one in messages] if queue.watched else ():
            if key is not None:
                self.book.gone[key] = self.index

    def _count(self, queue: Queue, sequence: int, by: int) -> None:
        found = queue.live.get(sequence)
        if found is not None:
            data, count = found
            queue.live[sequence] = (data, count + by)
            if queue.retries and not 0 < queue.limit <= count + by and (queue.number, sequence) not in self._waits:
                self.faults.append(f"retry: {queue.keys.get(sequence)} has failed by batch {self.index}, and is not to wait")
            if count < queue.limit <= count + by and sequence in queue.keys:
                self.history.failed_too_often(queue.keys[sequence])
            self._add(hash((queue.number, sequence, count + by, data)) - hash((queue.number, sequence, count, data)))

    # ---- definitions

    def _define(self, change: dict[str, Any]) -> None:
        match change.get("op"):
            case "queue-add":
                if self._claim("queue", change):
                    self._judge_policy(change)
                    self.names[change["uuid"]] = change["name"]
                    if change["level"] != "configuration":
                        self._place(change)
            case "queue-del":
                self._drop("queue", change["uuid"], 1)
                self._forget(change["uuid"])
            case "store-add":
                if change["uuid"] not in self._numbers:
                    self._place(change)
            case "store-del":
                self._forget(change["uuid"])
            case "exchange-add":
                self._claim("exchange", change)
            case "exchange-del":
                self._drop("exchange", change["uuid"], 0)
            case "bind" | "unbind":
                key = change["exchange"], change["queue"], change["key"]
                self._bind(key, change) if change["op"] == "bind" else self._unbind(key)
            case "setting" | "policy-add" | "policy-del":
                self._set(change) if change["op"] == "setting" else self._decree(change)
            case "alter":
                if change["uuid"] in self._definitions:
                    self._describe(change["uuid"], change)
            case "origin-add" | "link-add":
                self._expect(change)
            case "route-add":
                self._route(change)
            case "exchange-passed" | "value-given":
                self._pass(change) if change["op"] == "exchange-passed" else self._pay(change)

    def _bind(self, key: tuple[str, str, str], change: dict[str, Any]) -> None:
        arguments = json.dumps(change["arguments"], sort_keys=True)
        if key in self._bindings:
            if self._bindings[key] == arguments:
                return
            self._add(-hash((*key, self._bindings[key], key in self.passing.owing)))
        self.passing.bound(key, change, self.epoch)
        self._bindings[key] = arguments
        self._add(hash((*key, arguments, key in self.passing.owing)))

    def _pass(self, change: dict[str, Any]) -> None:
        """So many messages have gone through an exchange, and this was the last."""
        uuid = change["exchange"]
        if uuid in self._definitions:
            found = tuple(change.get(each, "") for each in ("sequence", "key", "value"))
            self._add(hash(("passed", uuid, *found)) - self._what_passed(uuid))
            self.passing.passed[uuid] = found

    def _what_passed(self, uuid: str) -> int:
        return hash(("passed", uuid, *self.passing.passed[uuid])) if uuid in self.passing.passed else 0

    def _pay(self, change: dict[str, Any]) -> None:
        key = change["exchange"], change["queue"], change["key"]
        if self.passing.paid(key):
            self._add(hash((*key, self._bindings[key], False)) - hash((*key, self._bindings[key], True)))

    def _route(self, change: dict[str, Any]) -> None:
        """There is one route of this kind from there to there, whoever asks for it how often."""
        found = tuple(change[part] for part in ("kind", "source", "exchange", "key"))
        if found not in self._routes:
            self._routes.add(found)
            self._add(hash(("route", change["uuid"], change["key"])))

    def _decree(self, change: dict[str, Any]) -> None:
        """From here on a policy is so, or is no more."""
        key = change["kind"], change["pattern"]
        if key in self._policies:
            self._add(-hash(("policy", *key, self._policies.pop(key)[0])))
        if change["op"] == "policy-add":
            attributes = json.dumps(change["attributes"], sort_keys=True)
            self._policies[key] = attributes, self._now_ms
            self._add(hash(("policy", *key, attributes)))

    def _judge_policy(self, change: dict[str, Any]) -> None:
        """A queue was made: by a primary that has known the policy for its name for long, and so with what that says."""
        for (kind, pattern), (attributes, since_ms) in self._policies.items():
            if kind == "queue" and change["name"].startswith(pattern) and since_ms <= self._now_ms - _POLICY_KNOWN_MS:
                wanted = json.loads(attributes).get("arguments", {})
                if not wanted.items() <= change["arguments"].items():
                    self.faults.append(f"policy: batch {self.index} makes queue {change['name']} without what {pattern!r} says")

    def _set(self, change: dict[str, Any]) -> None:
        key, value = change["key"], json.dumps(change["value"], sort_keys=True)
        if key in self.settings:
            self._add(-hash(("setting", key, self.settings.pop(key))))
        if change["value"]:
            self.settings[key] = value
            self._add(hash(("setting", key, value)))

    def _place(self, change: dict[str, Any]) -> None:
        """A queue's messages have a place from here on, and a number."""
        uuid = change["uuid"]
        number = change.get("number", self._next_number)
        self._next_number = max(self._next_number, number + 1)
        queue = Queue(self.history, self.names.get(uuid, ""), self.store_id, number, uuid)
        queue.limit = change.get("arguments", {}).get("x-delivery-limit", 0)
        queue.retries = "x-delayed-retry-min" in change.get("arguments", {})
        queue.owned = "qpid.group_owner_timeout" in change.get("arguments", {}) and change.get("needs", 1) >= _OWNERS_SINCE
        self.queues[number] = self._numbers[uuid] = queue
        self._add(hash(("number", uuid, number)))

    def _claim(self, kind: str, change: dict[str, Any]) -> bool:
        if (kind, change["name"]) in self._names:
            return False
        self._names.add((kind, change["name"]))
        self._definitions[change["uuid"]] = (kind, change["name"])
        self._add(hash((kind, change["name"], change["uuid"])))
        self._describe(change["uuid"], change)
        return True

    def _describe(self, uuid: str, change: dict[str, Any] | None) -> None:
        """A queue or an exchange has these arguments and this alternate exchange from here on; None: it is gone."""
        self._add(-self._described.pop(uuid, 0))
        if change is not None:
            self._described[uuid] = described(uuid, change.get("arguments") or {}, change.get("alternate") or "")
            self._add(self._described[uuid])

    def _drop(self, kind: str, uuid: str, position: int) -> None:
        definition = self._definitions.pop(uuid, None)
        if definition is None:
            return
        self._names.discard((kind, definition[1]))
        self._add(-hash((kind, definition[1], uuid)))
        self._describe(uuid, None)
        self._add(-self._what_passed(uuid))
        self.passing.passed.pop(uuid, None)
        for key in [key for key in self._bindings if key[position] == uuid]:
            self._unbind(key)

    def _unbind(self, key: tuple[str, str, str]) -> None:
        arguments = self._bindings.pop(key, None)
        if arguments is not None:
            self._add(-hash((*key, arguments, key in self.passing.owing)))
            self.passing.unbound(key, self.epoch)

    def _forget(self, uuid: str) -> None:
        """The queue is deleted, with whatever it holds."""
        queue = self._numbers.pop(uuid, None)
        if queue is None:
            return
        if queue.watched and not queue.lossy and self.names.get(uuid) not in self.history.deleted:
            self.faults.append(f"lost: batch {self.index} deletes {queue.name}, which nobody asked for")
        self._deleted[queue.number] = self.queues.pop(queue.number)
        self._let_go(queue)
        self._add(-hash(("number", uuid, queue.number)) - self.owners.forget(queue.number))
        for sequence, (data, count) in queue.live.items():
            self._add(-hash((queue.number, sequence, count, data)))
            self._drop_facts(queue, sequence)
        for parts in queue.large.values():
            self._parts[parts] -= 1
        self._depth -= len(queue.live)
        self._sequences -= queue.sequences

    def _add(self, amount: int) -> None:
        self._digest = (self._digest + amount) & _MASK

    def _let_go(self, queue: Queue) -> None:
        self.book.gone.update((queue.keys[sequence], self.index) for sequence in queue.live if sequence in queue.keys)

    def abandon(self) -> None:
        """The one disk that had this log is gone, with all that was on it."""
        for queue in self.queues.values():
            self._let_go(queue)
        self.queues.clear()

    # ---- questions

    def has_queue(self, name: str) -> bool:
        """Whether a queue of this name is defined."""
        return ("queue", name) in self._names

    def left(self) -> list[Key]:
        """The messages that are on their queues."""
        return [queue.keys[sequence] for queue in self.queues.values() for sequence in queue.live if sequence in queue.keys]


def _note_hash(queue: Queue, sequence: int) -> int:
    note = queue.notes.get(sequence)
    return hash(("note", queue.number, sequence, tuple(sorted(note.items())))) if note else 0


def size_of(state: State) -> tuple[int, int]:
    """What is compared at every index: messages alive, and the sequences that were given."""
    depth = sequences = 0
    for messages in state.messages.values():
        depth += messages.depth
        sequences += sum((next_seq & ~(0xFF << LANE_SHIFT)) - 1 for next_seq in messages.next_seqs())
    return depth, sequences


def described(uuid: str, arguments: dict[str, Any], alternate: str) -> int:
    """What a digest has of the arguments and the alternate exchange of a queue or an exchange."""
    return hash(("described", uuid, json.dumps(arguments, sort_keys=True), alternate))


def digest_of(state: State, read: Read) -> int:
    """The digest of a broker's whole state, comparable with `Reference.digests`. `read` reads from its disk."""
    found = 0
    for uuid, queue in state.definitions.queues.items():
        found += hash(("queue", queue.name, uuid)) + described(uuid, queue.arguments, queue.alternate)
    for uuid, exchange in state.definitions.exchanges.items():
        found += hash(("exchange", exchange.name, uuid)) + described(uuid, exchange.arguments, exchange.alternate)
    for key, binding in state.definitions.bindings.items():
        found += hash((*key, json.dumps(binding.arguments, sort_keys=True), binding.owes))
    for of, passed in state.definitions.passed.items():
        found += hash(("passed", of, passed.sequence, passed.key, passed.value))
    for setting in state.definitions.settings.values():
        found += hash(("setting", setting.key, json.dumps(setting.value, sort_keys=True)))
    for policy in state.definitions.policies.values():
        found += hash(("policy", policy.kind, policy.pattern, json.dumps(policy.attributes, sort_keys=True)))
    for route in state.definitions.routes.values():
        found += hash(("route", route.uuid, route.key))
    for number, held in state.held.items():
        found += sum(hash(("held", number, sequence)) for first, count in held.runs() for sequence in range(first, first + count))
    for number, messages in state.messages.items():
        found += hash(("number", messages.uuid, number))
        for lane in messages.order.lanes:
            for sequence, data in all_messages(lane, read):
                found += hash((number, sequence, lane.delivery_count(sequence), data))
        if isinstance(messages.order, Owned):
            found += sum(hash_of(number, group, owner) for group, owner in messages.order.owner_of.items())
        for sequence, note in messages.notes.items():
            found += hash(("note", number, sequence, tuple(sorted(decode(note).items()))))
        for what, times in ((EXPIRES, messages.expiries), (AVAILABLE, messages.delays)):
            for first_seq, column in () if times is None else times.columns():
                for sequence, when_ms in enumerate(column, first_seq):
                    found += hash(("time", number, sequence, what, when_ms)) if when_ms else 0
    return found & _MASK


def has_rot(state: State, read: Read) -> bool:
    """Whether a body of this state that is not in memory cannot be read from its broker's disk, or has another checksum there."""
    for messages in state.messages.values():
        for block in chain.from_iterable(lane.blocks for lane in messages.order.lanes):
            runs = range(len(block.run_starts))
            alive = (run for run in runs if next(block.stretches(*block.bounds(run)), None) is not None)
            away = [run for run in alive if block.body(run) is None]
            try:
                found = read([(block.places[run], block.run_bytes(run)) for run in away]) if away else []
            except (OSError, Unreadable):
                return True
            if any(google_crc32c.value(data) != block.crcs[run] for run, data in zip(away, found, strict=True)):
                return True
    return False
