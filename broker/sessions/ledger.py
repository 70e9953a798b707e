"""The broker's side of one log: what is put into it, and its committed state.

Life of a ledger: messages, outcomes and changes of one reactor turn are put into a batch (`broker.sessions.pending`), which is
proposed at the end of the turn. When the log reports the batch as committed, the state applies it. Only then do producers get
their outcome, consumers their settlement and requests their answer. All of this is done by the batch.

Invariants: only committed batches are applied; nothing is proposed before the log reports that it serves, which it does when all
earlier batches are applied; when a term ends, all its waits end without an answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Protocol

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.amqp.receiver import Receiver
from broker.amqp.sender import Sender
from broker.commit_log import CommitLog
from broker.core import lifetimes, limits
from broker.core.commands import MACHINE_VERSION, TIMES_SINCE, Command
from broker.core.definitions import Change
from broker.core.lifetimes import Said
from broker.core.links import ACCEPTED, add_ids
from broker.core.log_time import LogTime
from broker.core.nodes import CLUSTER, QueueNode
from broker.core.parts import PARTS_QUEUE, Manifest
from broker.core.queues.blocks import LiveRun, Move
from broker.core.queues.displacement import Displacing
from broker.core.queues.residency import Residency
from broker.core.queues.times import MAX_MS, OVER
from broker.core.records import AVAILABLE, EXPIRES, GROUPS_AT_ONCE, Batch, BatchBuilder, runs_of
from broker.core.state import CannotApply, State
from broker.host import REAL_HOST
from broker.sessions.arriving import Arriving
from broker.sessions.disk_room import DiskRoom
from broker.sessions.inflow import Inflow
from broker.sessions.pending import Pending

SERVING = ("active", "standalone")
"""The states of a log in which this broker may write to it."""
_log = Logger()


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
        self._clock = clock
        self._wall = wall
        self._time = LogTime()
        self._owner = owner
        inflow = inflow if inflow is not None else Inflow(limits.INFLOW_BYTES)
        self.room = DiskRoom(inflow)
        self.arriving = Arriving(lambda: self.state.held)
        self.pending = Pending(
            clock,
            inflow,
            self.arriving,
            writable=lambda: self.log if self.serving else None,
            index=lambda: self.state.index,
            flush=owner.flush,
        )
        self._next_part = 1
        self._leads = False

    # ---- what the broker puts in

    @property
    def serving(self) -> bool:
        """Whether this broker may write to the log now."""
        return self._leads and self.log is not None and self.log.state in SERVING

    @property
    def now_ms(self) -> int:
        """Ms since 1970 by the log's time, while it serves."""
        return self._time.now_ms(self._clock.seconds())

    @property
    def version(self) -> int:
        """The highest machine version that a proposal may need."""
        if self.name != CLUSTER:
            return self.state.version
        return max(self.state.definitions.machine_version, self.pending.rises_to)

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
        pending = self.pending
        if pending.builder.has_large:
            pending.cut()
        if held is not None:
            pending.hold(*held)
        number, seqs, count = node.messages.number, node.proposed_seqs, len(messages)
        if times is None and (timed or node.ttl_ms):
            times = self._times_of(node, messages, timed=timed, moved=moved, waited_ms=waited_ms)
        if node.displacing is not None:
            count, nbytes = self._displace(node, node.displacing, messages, times)
        elif len(seqs) == 1:
            if times is not None:
                self._put_times(number, seqs[0], times)
            pending.builder.messages_for(number, seqs[0]).extend(messages)
            seqs[0] += len(messages)
        else:
            lane_for = node.messages.order.lane_for
            for at, each in enumerate(messages):
                lane = lane_for(each)
                if times is not None:
                    self._put_times(number, seqs[lane], times[at : at + 1])
                pending.builder.messages_for(number, seqs[lane]).append(each)
                seqs[lane] += 1
        pending.builder.add_bytes(nbytes)
        pending.count_bytes(nbytes)
        node.proposed += count
        node.proposed_bytes += nbytes
        if node.detects_duplicates:
            node.under_way.put(messages, node.proposed, node.messages.enqueued)
        if link is not None:
            add_ids(pending.waits.accepts.setdefault(link, []), first, len(messages))
        pending.arm()

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
                self.pending.builder.times(number, what, first_seq, array("Q", column))

    def _displace(
        self, node: QueueNode, displacing: Displacing, messages: list[bytes], times: list[tuple[int, int]] | None
    ) -> tuple[int, int]:
        """Put messages on a queue that others leave for them, in the same batch. Returns how many stay, and their bytes."""
        assert node.messages is not None
        number, seqs, lane_for = node.messages.number, node.proposed_seqs, node.messages.order.lane_for
        stay = stay_bytes = 0
        gone = self.pending.builder.dequeues_for(number)
        displacing.begin()
        for at, each in enumerate(messages):
            lane = lane_for(each)
            leave = displacing.put(seqs[lane], each, len(each))
            if leave is not None:
                gone.extend(leave)
                if times is not None:
                    self._put_times(number, seqs[lane], times[at : at + 1])
                self.pending.builder.messages_for(number, seqs[lane]).append(each)
                seqs[lane] += 1
                stay += 1
                stay_bytes += len(each)
        if not stay:  # its producers still need their outcomes
            self.pending.in_order()
        return stay, stay_bytes

    def put_part(self, data: bytes) -> int:
        """Put a part of a large message into the store of parts. Returns its sequence there."""
        sequence, self._next_part = self._next_part, self._next_part + 1
        self.pending.builder.enqueue_at(PARTS_QUEUE, sequence, [data])
        self.pending.count_bytes(len(data))
        self.pending.arm()
        return sequence

    def forget(self, origin: int, runs: Iterable[tuple[int, int]]) -> None:
        """These messages of an origin (first sequence, count) have left the queue that they came from."""
        for first, count in runs:
            self.pending.builder.forget(origin, first, count)
        self.pending.arm()

    def own(self, number: int, groups: Sequence[bytes], owner: bytes) -> None:
        """Give these groups of a queue, by their digests, to an owner, or free them (b"")."""
        for at in range(0, len(groups), GROUPS_AT_ONCE):
            self.pending.builder.own(number, groups[at : at + GROUPS_AT_ONCE], owner)
            self.pending.arm()

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
            self.pending.hold(*held)
        stays = False
        for node, lane in queues:
            assert node.messages is not None
            if node.displacing is not None:
                node.displacing.begin()
                leave = node.displacing.put(node.proposed_seqs[lane], head, manifest.nbytes)
                if leave is None:
                    continue
                self.pending.builder.dequeues_for(node.messages.number).extend(leave)
            stays = True
            if self.version >= TIMES_SINCE:
                found = lifetimes.when(says, self.now_ms, node.ttl_ms) if times is None else times
                self._put_times(node.messages.number, node.proposed_seqs[lane], [found])
            self.pending.builder.large(node.messages.number, node.proposed_seqs[lane], encoded)
            node.proposed_seqs[lane] += 1
            node.proposed += 1
            node.proposed_bytes += manifest.nbytes
        self.pending.arm()
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
        self.pending.count_letter(len(letter))
        self.enqueue(node, [letter], len(letter))

    def dequeue(
        self, number: int, sequences: Iterable[int], link: Sender | None = None, runs: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Take messages off for good; these runs (first id, count) of `link` are settled when that is committed."""
        self.pending.builder.dequeues_for(number).extend(sequences)
        if link is not None:
            self.pending.waits.settles.setdefault(link, []).extend([(first, count, ACCEPTED) for first, count in runs])
        self.pending.arm()

    def settle(self, link: Sender, first: int, count: int, outcome: int) -> None:
        """Settle these deliveries with this outcome when everything that was put so far in this turn is committed."""
        self.pending.waits.settles.setdefault(link, []).append((first, count, outcome))
        self.pending.in_order()
        self.pending.arm()

    def count(self, number: int, sequence: int, by: int = 1) -> None:
        """Raise a message's delivery count."""
        self.pending.builder.count(number, sequence, by)
        self.pending.arm()

    def note(self, number: int, sequence: int, encoded: bytes) -> None:
        """Note something on a message that is on its queue."""
        self.pending.builder.note(number, sequence, encoded)
        self.pending.arm()

    def let_wait(self, number: int, waits: Mapping[int, int]) -> None:
        """Let messages that are on their queue be given out in so many ms each (by sequence), and not before."""
        now_ms = self.now_ms
        for first, count in runs_of(waits):
            column = array("Q", [min(now_ms + waits[sequence], MAX_MS) for sequence in range(first, first + count)])
            self.pending.builder.times(number, AVAILABLE, first, column)
        self.pending.arm()

    def end_wait(self, number: int, sequence: int) -> None:
        """Let a message that waits be given out. One that does not wait any more when this is committed stays as it is."""
        self.pending.builder.times(number, AVAILABLE, sequence, array("Q", (OVER,)))
        self.pending.arm()

    def change(self, command: Command, answer: Callable[[str], None]) -> None:
        """Propose a command; `answer` gets "" when it is committed and carried out, or why it changed nothing."""
        self.pending.change(command, answer)

    def close(self) -> None:
        """Stop: nothing more is proposed."""
        self.pending.close()
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
        self.pending.moved_s = self._clock.seconds()
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
        self.pending.end(reasons)
        self._owner.ledger_applied(self, fed, drained, emptied, changes)
        if met is not None:
            raise met

    def on_state(self, state: str, epoch: int, primary: str) -> None:
        """A term begins or ends."""
        began, self._leads = self._leads, state in SERVING
        self.state.keeps_bodies = self._leads
        if not self._leads:
            self.state.drop_bodies()
            self.pending.void()
        elif not began:
            self._time.begin(self._clock.seconds(), self._wall(), self.state.made_ms)
            self._owner.ledger_begins(self)
        self._owner.ledger_state(self, state, epoch, primary)
        self.pending.pump()

    def on_reset(self, batches: Iterable[Batch], index: int) -> None:
        """Start again from a snapshot."""
        self.pending.void()
        state = State(self.state.version, residency=self.residency, keeps_bodies=self._leads)
        for batch in batches:
            state.apply(batch, snapshot=True)
        state.index = index
        self.state.discard()
        self.state = state
        self._owner.ledger_reset(self)

    def on_writable(self) -> None:
        """The log takes another batch."""
        if self.room.writes_again():
            self._owner.ledger_writable(self)
        self.pending.pump()

    def on_quiesce(self, within_s: float, done: Callable[[], None]) -> None:
        """Another broker is to take over."""
        self._owner.ledger_quiesces(self, within_s, done)

    def on_resume(self) -> None:
        """The handover was cancelled."""
        self._owner.ledger_resumes(self)

    def on_storage_error(self, text: str, fatal: bool) -> None:
        """Remember that the disk is full, so that producers wait; pass it on."""
        self.room.text = text
        self._owner.ledger_storage_error(self, text, fatal)

    def on_storage_low(self, text: str, spare_bytes: int = 0) -> None:
        """Note whether the disk is nearly full, so that only producers wait."""
        if text:
            self.room.falls(text, spare_bytes)
            self._owner.ledger_storage_error(self, text, fatal=False)
        elif self.room.recovers():
            self._owner.ledger_writable(self)

    def on_storage_spare(self, spare_bytes: int, most_bytes: int = 0) -> None:
        """Note that the disk, which is nearly full, takes some more dead letters, or one large one."""
        self.room.spares(spare_bytes, most_bytes)

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
