"""The broker's side of one log: what waits to be written, what waits to be committed, and the committed state.

Life of a ledger: messages, outcomes and changes of one reactor turn are gathered in a batch builder. At the end of the turn, or
as soon as the log accepts another batch, they are proposed. When the log reports the batch as committed, the state applies it.
Only then do producers get their outcome, consumers their settlement and requests their answer. All of this is done by the batch.

Invariants: only committed batches are applied; nothing is proposed before the log reports that it serves, which it does when all
earlier batches are applied; waits end in the order of the log's indexes; when a term ends, all its waits end without an answer
(their clients are disconnected, so they know that the result is unknown).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, Protocol

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.amqp.receiver import Receiver
from broker.amqp.sender import Sender
from broker.commit_log import CommitLog
from broker.core import lifetimes, limits
from broker.core.commands import MACHINE_VERSION, TIMES_SINCE, Command, ExchangeDel, QueueDel, QueueDelIfEmpty
from broker.core.definitions import Change
from broker.core.lifetimes import Said
from broker.core.links import ACCEPTED, add_ids
from broker.core.log_time import LogTime
from broker.core.nodes import CLUSTER, QueueNode
from broker.core.pace import Pace
from broker.core.parts import PARTS_QUEUE, Manifest
from broker.core.passage import Passage
from broker.core.queues.blocks import LiveRun, Move
from broker.core.queues.displacement import Displacing
from broker.core.queues.residency import Residency
from broker.core.queues.times import MAX_MS, OVER
from broker.core.records import AVAILABLE, EXPIRES, GROUPS_AT_ONCE, Batch, BatchBuilder, runs_of
from broker.core.state import CannotApply, State
from broker.host import REAL_HOST
from broker.sessions.inflow import Inflow

SERVING = ("active", "standalone")
"""The states of a log in which this broker may write to it."""
DEQUEUE_DELAY_S = 0.010
_MOST_LOOKED_AT = 4096
"""Sequences between the first and the last of some messages of an origin that are looked at together."""
_NONE_COMING: frozenset[int] = frozenset()
_log = Logger()


def _nothing() -> None:
    """The call of a wait that only has to end in order."""


def _heard(reason: str) -> None:
    """The answer to a command without a request."""


class LedgerOwner(Protocol):
    """The broker, which serves the clients of a ledger."""

    def ledger_applied(
        self,
        ledger: Ledger,
        fed: Iterable[int],
        drained: Iterable[int],
        emptied: Iterable[int],
        changes: Collection[tuple[Change, str]],
    ) -> None:
        """Batches were applied and their waits ended: `fed` queue numbers got messages, `drained` ones lost some, `emptied`
        ones their last, `changes` were made (or not: reason)."""

    def ledger_begins(self, ledger: Ledger) -> None:
        """A term begins: everything committed is applied, and nothing is proposed yet."""

    def ledger_state(self, ledger: Ledger, state: str, epoch: int, primary: str) -> None:
        """The log's state changed."""

    def ledger_reset(self, ledger: Ledger) -> None:
        """The ledger's state was replaced by a snapshot."""

    def ledger_quiesces(self, ledger: Ledger, within_s: float, done: Callable[[], None]) -> None:
        """Another broker will take over: see LogListener.on_quiesce."""

    def ledger_resumes(self, ledger: Ledger) -> None:
        """The handover was cancelled."""

    def ledger_storage_error(self, ledger: Ledger, text: str, fatal: bool) -> None:
        """The disk failed or is full: see LogListener.on_storage_error."""

    def ledger_writable(self, ledger: Ledger) -> None:
        """The disk takes writes again."""

    def flush(self) -> None:
        """The end of an entry from the reactor: write the output."""


class _Waits:
    """The waits that end when one batch is committed. Deliveries are stored as runs: link -> (first id, count) of each."""

    __slots__ = (
        "accepts",
        "answers",
        "calls",
        "commands",
        "going",
        "held",
        "letters",
        "nbytes",
        "proposed_s",
        "returns",
        "settles",
    )

    def __init__(self) -> None:
        self.accepts: dict[Receiver, list[tuple[int, int]]] = {}
        self.settles: dict[Sender, list[tuple[int, int, int]]] = {}
        """With the outcome that is repeated to the peer: (first id, count, outcome)."""
        self.answers: list[Callable[[str], None]] = []
        self.calls: list[Callable[[], None]] = []
        self.returns: list[Callable[[], None]] = []
        self.commands: list[Command] = []
        """The changes in the batch that somebody has asked for."""
        self.going: list[str] = []
        """The identities of the queues and exchanges that they delete."""
        self.held: list[tuple[int, Sequence[int]]] = []
        self.nbytes = 0
        """Bytes of messages in the batch."""
        self.letters = 0
        """How many of these bytes are dead letters."""
        self.proposed_s = 0.0


class Ledger:
    """A log, its applied state, and the waits for it. `clock` is the reactor's time."""

    def __init__(
        self,
        name: str,
        clock: IReactorTime,
        owner: LedgerOwner,
        *,
        version: int = MACHINE_VERSION,
        residency: Residency | None = None,
        inflow: Inflow | None = None,
        wall: Callable[[], float] = REAL_HOST.wall,
    ) -> None:
        """`residency` limits the bodies in memory, and `inflow` counts the uncommitted bytes; both include other ledgers. `wall`
        gives seconds since 1970."""
        self.name = name
        self.residency = residency if residency is not None else Residency(1 << 62)
        self.state = State(version, residency=self.residency, keeps_bodies=False)
        self.log: CommitLog | None = None
        self.storage_text = ""
        self.low = False
        """Whether the disk is nearly full: call `takes` before a message is put."""
        self.letter_bytes = 0
        """Bytes of dead letters that were put and are not committed."""
        self.moved_s = -math.inf
        """The time of the last proposal or commit of a batch, by the reactor's clock."""
        self._spare_bytes = self._letters_spare_bytes = self._letter_most_bytes = 0
        self._clock = clock
        self._wall = wall
        self._time = LogTime()
        self._owner = owner
        self._inflow = inflow if inflow is not None else Inflow(limits.INFLOW_BYTES)
        self._pace = Pace()
        self._builder = BatchBuilder()
        self._waits = _Waits()
        self._full: deque[tuple[BatchBuilder, _Waits]] = deque()
        self._proposed: deque[tuple[int, _Waits]] = deque()
        self._turn_call: Any = None
        self._turn_is_late = False
        self._passages: dict[str, Passage] = {}
        """Exchanges that messages of the next batch go through, and that number or keep them."""
        self._coming: dict[int, set[int]] = {}
        """Number of an origin -> the sequences of its messages that are put and not committed yet."""
        self._going: Counter[str] = Counter()
        """Identity of a queue or an exchange -> how many commands under way delete it."""
        self._next_part = 1
        self._leads = False
        self._closed = False
        self._whole = False
        """Whether the current content must not be split into batches."""

    # ---- what the broker puts in

    @property
    def serving(self) -> bool:
        """Whether this broker may write to the log now."""
        return self._leads and self.log is not None and self.log.state in SERVING

    def takes(self, nbytes: int) -> bool:
        """Whether the disk has room for messages of this size. While it is nearly full, a little of the clients' credit is still
        accepted, and nothing after the first message that is too large."""
        if not self.low:
            return True
        fits = nbytes <= self._spare_bytes
        self._spare_bytes = self._spare_bytes - nbytes if fits else 0
        return fits

    def has_room_for_letter(self, nbytes: int) -> bool:
        """Whether the disk has room for a dead letter of this size, with its copies in all logs: call `take_letter` of every log
        before it is put. While the disk is nearly full, some are still accepted from time to time: each replaces its original,
        and consumers of the dead letters free space."""
        return not self.low or nbytes <= max(self._letter_most_bytes, self._spare_bytes)

    def take_letter(self, nbytes: int) -> None:
        """A dead letter of this size, with its copies, is about to be put, here or in another log of this broker: all logs lie in
        one data folder, so they share the room."""
        if not (self.low and nbytes):
            return
        if nbytes <= self._letter_most_bytes:
            self._letters_spare_bytes = self._letter_most_bytes = max(self._letters_spare_bytes - nbytes, 0)
        else:
            self._spare_bytes = max(self._spare_bytes - nbytes, 0)

    @property
    def now_ms(self) -> int:
        """Ms since 1970 by the log's time, while it serves."""
        return self._time.now_ms(self._clock.seconds())

    @property
    def version(self) -> int:
        """The highest machine version that a proposal may need."""
        return self.state.definitions.machine_version if self.name == CLUSTER else self.state.version

    def enqueue(
        self,
        node: QueueNode,
        messages: list[bytes],
        nbytes: int,
        link: Receiver | None = None,
        first: int = 0,
        held: tuple[int, Sequence[int]] | None = None,
        *,
        timed: bool = False,
        moved: bool = False,
        times: list[tuple[int, int]] | None = None,
        waited_ms: Sequence[int] = (),
    ) -> None:
        """Put messages (of `nbytes` in all) on a queue; the deliveries of `link` with the ids from `first` on, one a message, are
        accepted when they are committed. `held`: the number of their origin, or of their link, and their sequences there, in the
        same batch. `timed`: any of them may say when it expires or is to be given out. `moved`: they come from another store.
        `times`: when they expire and are given out, whatever they say. `waited_ms`: how long ago each arrived; default: now."""
        assert node.messages is not None
        if self._builder.has_large:
            self._cut()
        if held is not None:
            self._hold(*held)
        number, seqs, count = node.messages.number, node.proposed_seqs, len(messages)
        if times is None and (timed or node.ttl_ms):
            times = self._times_of(node, messages, timed=timed, moved=moved, waited_ms=waited_ms)
        if node.displacing is not None:
            count, nbytes = self._displace(node, node.displacing, messages, times)
        elif len(seqs) == 1:
            if times is not None:
                self._put_times(number, seqs[0], times)
            self._builder.messages_for(number, seqs[0]).extend(messages)
            seqs[0] += len(messages)
        else:
            lane_for = node.messages.order.lane_for
            for at, each in enumerate(messages):
                lane = lane_for(each)
                if times is not None:
                    self._put_times(number, seqs[lane], times[at : at + 1])
                self._builder.messages_for(number, seqs[lane]).append(each)
                seqs[lane] += 1
        self._builder.add_bytes(nbytes)
        self._waits.nbytes += nbytes
        self._inflow.came(nbytes)
        node.proposed += count
        node.proposed_bytes += nbytes
        if node.detects_duplicates:
            node.under_way.put(messages, node.proposed, node.messages.enqueued)
        if link is not None:
            add_ids(self._waits.accepts.setdefault(link, []), first, len(messages))
        self._arm()

    def _times_of(
        self, node: QueueNode, messages: list[bytes], *, timed: bool, moved: bool, waited_ms: Sequence[int]
    ) -> list[tuple[int, int]] | None:
        """When these messages, which are about to be put on this queue, expire and may be given out; None: no time for any.
        `moved`: they come from another store, where their delay was kept."""
        if self.version < TIMES_SINCE:
            return None
        now_ms = self.now_ms
        say = [lifetimes.said(each) if timed else lifetimes.NOTHING for each in messages]
        if moved:
            say = [each._replace(delay_ms=0) for each in say]
        waits = waited_ms or repeat(0, len(say))
        found = [lifetimes.when(each, now_ms, node.ttl_ms, waited) for each, waited in zip(say, waits, strict=True)]
        return found if any(map(any, found)) else None

    def _put_times(self, number: int, first_seq: int, times: Sequence[tuple[int, int]]) -> None:
        """Note the times of messages of this queue, which follow one another."""
        for what, column in zip((EXPIRES, AVAILABLE), zip(*times, strict=True), strict=True):
            if any(column):
                self._builder.times(number, what, first_seq, array("Q", column))

    def _displace(
        self, node: QueueNode, displacing: Displacing, messages: list[bytes], times: list[tuple[int, int]] | None
    ) -> tuple[int, int]:
        """Put messages on a queue that others leave for them, in the same batch. Returns how many stay, and their bytes."""
        assert node.messages is not None
        number, seqs, lane_for = node.messages.number, node.proposed_seqs, node.messages.order.lane_for
        stay = stay_bytes = 0
        gone = self._builder.dequeues_for(number)
        displacing.begin()
        for at, each in enumerate(messages):
            lane = lane_for(each)
            leave = displacing.put(seqs[lane], each, len(each))
            if leave is not None:
                gone.extend(leave)
                if times is not None:
                    self._put_times(number, seqs[lane], times[at : at + 1])
                self._builder.messages_for(number, seqs[lane]).append(each)
                seqs[lane] += 1
                stay += 1
                stay_bytes += len(each)
        if not stay:  # its producers still need their outcomes
            self._waits.calls.append(_nothing)
        return stay, stay_bytes

    def put_part(self, data: bytes) -> int:
        """Put a part of a large message into the store of parts. Returns its sequence there."""
        sequence, self._next_part = self._next_part, self._next_part + 1
        self._builder.enqueue_at(PARTS_QUEUE, sequence, [data])
        self._waits.nbytes += len(data)
        self._inflow.came(len(data))
        self._arm()
        return sequence

    def _hold(self, origin: int, sequences: Sequence[int]) -> None:
        for first, count in runs_of(sequences):
            self._builder.hold(origin, first, count)
        self._waits.held.append((origin, sequences))
        self._coming.setdefault(origin, set()).update(sequences)

    def forget(self, origin: int, runs: Iterable[tuple[int, int]]) -> None:
        """These messages of an origin (first sequence, count) have left the queue that they came from."""
        for first, count in runs:
            self._builder.forget(origin, first, count)
        self._arm()

    def own(self, number: int, groups: Sequence[bytes], owner: bytes) -> None:
        """Give these groups of a queue, by their digests, to an owner, or free them (b"")."""
        for at in range(0, len(groups), GROUPS_AT_ONCE):
            self._builder.own(number, groups[at : at + GROUPS_AT_ONCE], owner)
            self._arm()

    def has(self, origin: int, sequence: int) -> bool:
        """Whether this message of an origin was put, committed or not: a wait for the next commit includes it."""
        held = self.state.held.get(origin)
        return (held is not None and sequence in held) or sequence in self._coming.get(origin, ())

    def stretches(self, origin: int, sequences: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
        """Cut messages of an origin, given by their sequences, into stretches that were put (see `has`) and stretches that were
        not, as (start, stop, whether they were). What a caller does with a stretch counts for the next ones."""
        count, start = len(sequences), 0
        if count and self._has_none(origin, min(sequences), max(sequences) + 1):
            yield 0, count, False
            return
        while start < count:
            known, stop = self.has(origin, sequences[start]), start + 1
            while stop < count and self.has(origin, sequences[stop]) is known:
                stop += 1
            yield start, stop, known
            start = stop

    def _has_none(self, origin: int, first: int, end: int) -> bool:
        """Whether none of these messages was put, which is how nearly all arrive; False if there are too many to look at."""
        if end - first > _MOST_LOOKED_AT:
            return False
        held = self.state.held.get(origin)
        if held is not None and held.covered(first, end - first)[0]:
            return False
        return self._coming.get(origin, _NONE_COMING).isdisjoint(range(first, end))

    def put_large(
        self,
        queues: Iterable[tuple[QueueNode, int]],
        manifest: Manifest,
        head: bytes = b"",
        held: tuple[int, Sequence[int]] | None = None,
        says: Said = lifetimes.NOTHING,
        times: tuple[int, int] | None = None,
    ) -> bool:
        """Put the manifest of a complete large message on these queues, each given with the message's lane. `head` is its
        beginning, with all sections before the body. `held`: the number of its origin and its sequence there, for the same batch.
        `says`: its own statements about expiry and delay. `times`: these times instead, whatever it says.

        Returns whether any of these queues keeps it. If none does, its parts are left alone, because other queues may refer to
        them.
        """
        encoded = manifest.to_bytes()
        if held is not None:
            self._hold(*held)
        stays = False
        for node, lane in queues:
            assert node.messages is not None
            if node.displacing is not None:
                node.displacing.begin()
                leave = node.displacing.put(node.proposed_seqs[lane], head, manifest.nbytes)
                if leave is None:
                    continue
                self._builder.dequeues_for(node.messages.number).extend(leave)
            stays = True
            if self.version >= TIMES_SINCE:
                found = lifetimes.when(says, self.now_ms, node.ttl_ms) if times is None else times
                self._put_times(node.messages.number, node.proposed_seqs[lane], [found])
            self._builder.large(node.messages.number, node.proposed_seqs[lane], encoded)
            node.proposed_seqs[lane] += 1
            node.proposed += 1
            node.proposed_bytes += manifest.nbytes
        self._arm()
        return stays

    def drop_parts(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Remove parts (first sequence, count) that no message refers to."""
        for first, count in ranges:
            self.dequeue(PARTS_QUEUE, range(first, first + count))

    def begin_parts(self) -> None:
        """A term begins: remove the parts of incomplete messages. The next part gets a sequence after all others."""
        self._next_part = self.state.parts.next_seq
        self.drop_parts(self.state.parts.orphans())

    def put_letter(self, node: QueueNode, letter: bytes) -> None:
        """Put a dead letter on a queue."""
        self._waits.letters += len(letter)
        self.letter_bytes += len(letter)
        self._inflow.letter_bytes += len(letter)
        self.enqueue(node, [letter], len(letter))

    def dequeue(
        self, number: int, sequences: Iterable[int], link: Sender | None = None, runs: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Take messages off for good; these runs (first id, count) of `link` are settled when that is committed."""
        self._builder.dequeues_for(number).extend(sequences)
        if link is not None:
            self._waits.settles.setdefault(link, []).extend([(first, count, ACCEPTED) for first, count in runs])
        self._arm()

    def settle(self, link: Sender, first: int, count: int, outcome: int) -> None:
        """Settle these deliveries with this outcome when everything that was put so far in this turn is committed."""
        self._waits.settles.setdefault(link, []).append((first, count, outcome))
        self._waits.calls.append(_nothing)  # perhaps nothing was put
        self._arm()

    def count(self, number: int, sequence: int, by: int = 1) -> None:
        """Raise a message's delivery count."""
        self._builder.count(number, sequence, by)
        self._arm()

    def note(self, number: int, sequence: int, encoded: bytes) -> None:
        """Note something on a message that is on its queue."""
        self._builder.note(number, sequence, encoded)
        self._arm()

    def let_wait(self, number: int, sequence: int, wait_ms: int) -> None:
        """Let a message that is on its queue be given out in so many ms, and not before."""
        self._builder.times(number, AVAILABLE, sequence, array("Q", (min(self.now_ms + wait_ms, MAX_MS),)))
        self._arm()

    def end_wait(self, number: int, sequence: int) -> None:
        """Let a message that waits be given out. One that does not wait any more when this is committed stays as it is."""
        self._builder.times(number, AVAILABLE, sequence, array("Q", (OVER,)))
        self._arm()

    def change(self, command: Command, answer: Callable[[str], None]) -> None:
        """Propose a command; `answer` gets "" when it is committed and carried out, or why it changed nothing."""
        self._builder.define_text(command.text)
        self._waits.answers.append(answer)
        self._waits.commands.append(command)
        if isinstance(command, QueueDel | QueueDelIfEmpty | ExchangeDel):
            self._waits.going.append(command.uuid)
            self._going[command.uuid] += 1
        self._arm()

    def under_way(self) -> Iterator[Command]:
        """The commands that wait to be proposed, or to be committed."""
        for waits in self._all_waits():
            yield from waits.commands

    def is_going(self, uuid: str) -> bool:
        """Whether one of them deletes this queue or exchange. It costs the same however many there are."""
        return uuid in self._going

    def _all_waits(self) -> tuple[_Waits, ...]:
        return (*(waits for _, waits in self._proposed), *(waits for _, waits in self._full), self._waits)

    def passes(self, exchange: str, passage: Passage) -> None:
        """Messages that are put in now have gone through this exchange: the log is to say so with them, or before."""
        self._passages[exchange] = passage
        self._arm()

    def when_committed(self, call: Callable[[], None]) -> None:
        """Call when everything that was put so far in this turn is committed."""
        self._waits.calls.append(call)
        self._arm()

    def when_applied(self, call: Callable[[], None]) -> None:
        """As `when_committed`, but call before anything else acts on the new state."""
        self._waits.returns.append(call)
        self._arm()

    @contextmanager
    def one_batch(self, nbytes: int) -> Iterator[None]:
        """Everything that is put within this context, messages of `nbytes` bytes, goes into one batch, whatever its size. Within
        another one: into that one's batch."""
        if self._whole:
            yield
            return
        before = self._builder.nbytes
        if self._builder.has_large or (before and before + nbytes > self._pace.batch_bytes):
            self._cut()
        self._whole = True
        try:
            yield
        finally:
            self._whole = False
            self._arm()

    # ---- turns

    def _arm(self) -> None:
        if self._closed or self._whole:
            return
        if self._builder.nbytes >= self._pace.batch_bytes:
            self._cut()
        late = not self._full and self._may_wait()
        if self._turn_call is None:
            self._turn_call = self._clock.callLater(DEQUEUE_DELAY_S if late else 0, self._turn)
            self._turn_is_late = late
        elif self._turn_is_late and not late:
            self._turn_call.reset(0)
            self._turn_is_late = False

    def _cut(self) -> None:
        """Later content goes into the next batch."""
        self._say_what_passed()
        self._full.append((self._builder, self._waits))
        self._builder, self._waits = BatchBuilder(), _Waits()

    def _say_what_passed(self) -> None:
        """Once a batch for each exchange, however many messages went through."""
        for exchange, passage in self._passages.items():
            self._builder.define_text(passage.command(exchange).text)
            self._waits.answers.append(_heard)
        self._passages.clear()

    def _may_wait(self) -> bool:
        return self._builder.only_dequeues and not (
            self._waits.settles or self._waits.calls or self._waits.returns or self._passages
        )

    def _turn(self) -> None:
        self._turn_call = None
        self.pump()

    def pump(self) -> None:
        """Propose the waiting batches, as far as the log accepts them."""
        log = self.log
        if log is None or not self.serving:
            return
        while log.may_propose:
            self._say_what_passed()
            if self._full:
                builder, waits = self._full.popleft()
            elif self._builder or self._waits.calls or self._waits.returns:
                builder, waits = self._builder, self._waits
                self._builder, self._waits = BatchBuilder(), _Waits()
            else:
                return
            if builder:
                waits.proposed_s = self.moved_s = self._clock.seconds()
                index = log.propose(builder)
                self._proposed.append((index, waits))
            else:
                index = self._proposed[-1][0] if self._proposed else self.state.index
                self._proposed.append((index, waits))
                if index <= self.state.index:
                    self._end_waits({})

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be proposed, and nothing that was proposed waits to be committed."""
        waits = self._waits
        return not (self._proposed or self._full or self._builder or waits.calls or waits.returns or self._passages)

    def close(self) -> None:
        """Stop: nothing more is proposed."""
        if self._turn_call is not None and self._turn_call.active():
            self._turn_call.cancel()
        self._turn_call = None
        self._closed = True
        self.log = None

    # ---- LogListener

    def on_committed(self, batches: list[Batch]) -> None:
        """Apply, end the waits, tell the owner: once for all of these batches."""
        fed: set[int] = set()
        drained: set[int] = set()
        emptied: set[int] = set()
        changes: list[tuple[Change, str]] = []
        reasons: dict[int, list[str]] = {}
        met: CannotApply | None = None
        self.moved_s = self._clock.seconds()
        for batch in batches:
            try:
                applied = self.state.apply(batch)
            except CannotApply as error:
                met = error
                break
            fed |= applied.fed
            drained |= applied.drained
            emptied |= applied.emptied
            if applied.changes:
                changes += applied.changes
                reasons[batch.header.index] = [reason for _, reason in applied.changes]
        self._end_waits(reasons)
        self._owner.ledger_applied(self, fed, drained, emptied, changes)
        if met is not None:
            raise met

    def _end_waits(self, reasons: dict[int, list[str]]) -> None:
        """End the waits of applied batches. `reasons` has, by index, the result of each change in a batch."""
        answered: list[tuple[Callable[[str], None], str]] = []
        calls: list[Callable[[], None]] = []
        returns: list[Callable[[], None]] = []
        while self._proposed and self._proposed[0][0] <= self.state.index:
            index, waits = self._proposed.popleft()
            self._inflow.gone(waits.nbytes)
            self.letter_bytes -= waits.letters
            self._inflow.letter_bytes -= waits.letters
            if waits.nbytes:
                self._pace.took(waits.nbytes, self._clock.seconds() - waits.proposed_s)
            for link, runs in waits.accepts.items():
                for first, count in runs:
                    link.settle(first, count, ACCEPTED)
                if link.open and link.context is not None:
                    link.context.accepted(sum([count for _, count in runs]))
            for sender, settled in waits.settles.items():
                for first, count, outcome in settled:
                    sender.settle(first, count, outcome)
                if sender.context is not None:
                    sender.context.session.touch()
            for origin, sequences in waits.held:
                coming = self._coming.get(origin)
                if coming is not None:
                    coming.difference_update(sequences)
                    if not coming:
                        del self._coming[origin]
            for uuid in waits.going:
                self._going[uuid] -= 1
                if not self._going[uuid]:
                    del self._going[uuid]
            if waits.answers:
                answered += zip(waits.answers, reasons[index], strict=True)
            calls += waits.calls
            returns += waits.returns
        for call in returns:
            call()
        if answered or calls:
            self._clock.callLater(0, self._answer, answered, calls)

    def _answer(self, answered: list[tuple[Callable[[str], None], str]], calls: list[Callable[[], None]]) -> None:
        for answer, reason in answered:
            answer(reason)
        for call in calls:
            call()
        self._owner.flush()

    def on_state(self, state: str, epoch: int, primary: str) -> None:
        """A term begins or ends."""
        began, self._leads = self._leads, state in SERVING
        self.state.keeps_bodies = self._leads
        if not self._leads:
            self.state.drop_bodies()
            self._void()
        elif not began:
            self._time.begin(self._clock.seconds(), self._wall(), self.state.made_ms)
            self._owner.ledger_begins(self)
        self._owner.ledger_state(self, state, epoch, primary)
        self.pump()

    def _void(self) -> None:
        self._inflow.gone(sum(waits.nbytes for waits in self._all_waits()))
        self._inflow.letter_bytes -= self.letter_bytes
        self.letter_bytes = 0
        self._proposed.clear()
        self._full.clear()
        self._coming.clear()
        self._going.clear()
        self._passages.clear()
        self._builder, self._waits = BatchBuilder(), _Waits()

    def on_reset(self, batches: Iterable[Batch], index: int) -> None:
        """Start again from a snapshot."""
        self._void()
        state = State(self.state.version, residency=self.residency, keeps_bodies=self._leads)
        for batch in batches:
            state.apply(batch, snapshot=True)
        state.index = index
        self.state.discard()
        self.state = state
        self._owner.ledger_reset(self)

    def on_writable(self) -> None:
        """The log takes another batch."""
        if self.storage_text and not self.low:
            self.storage_text = ""
            self._owner.ledger_writable(self)
        self.pump()

    def on_quiesce(self, within_s: float, done: Callable[[], None]) -> None:
        """Another broker is to take over."""
        self._owner.ledger_quiesces(self, within_s, done)

    def on_resume(self) -> None:
        """The handover was cancelled."""
        self._owner.ledger_resumes(self)

    def on_storage_error(self, text: str, fatal: bool) -> None:
        """Remember that the disk is full, so that producers wait; pass it on."""
        self.storage_text = text
        self._owner.ledger_storage_error(self, text, fatal)

    def on_storage_low(self, text: str, spare_bytes: int = 0) -> None:
        """Note whether the disk is nearly full, so that only producers wait."""
        self.low, self._spare_bytes = bool(text), spare_bytes
        self._letters_spare_bytes = self._letter_most_bytes = 0
        if text:
            self.on_storage_error(text, fatal=False)
        elif self.storage_text:
            self.storage_text = ""
            self._owner.ledger_writable(self)

    def on_storage_spare(self, spare_bytes: int, most_bytes: int = 0) -> None:
        """Note that the disk, which is nearly full, takes some more dead letters, or one large one. Those that are not written
        yet, in any log, are among them."""
        coming = self._inflow.letter_bytes
        self._letters_spare_bytes = max(spare_bytes - coming, 0)
        self._letter_most_bytes = max(self._letters_spare_bytes, most_bytes - coming)

    def snapshot(self) -> Iterable[BatchBuilder]:
        """The state as batches."""
        return self.state.snapshot()

    def live_bytes(self) -> int:
        """Bytes of messages alive."""
        return self.state.live_bytes

    def live_by_file(self) -> Mapping[int, int]:
        """Bytes of messages alive, by file."""
        return self.state.live_by_file

    def live_runs_in(self, file: int) -> Iterator[tuple[int, LiveRun]]:
        """The live bodies of a file."""
        return self.state.live_runs_in(file)

    def moved(self, queue: int, moves: Iterable[Move]) -> None:
        """Messages lie elsewhere now."""
        self.state.moved(queue, moves)
