"""The checks together: observers on production objects, what they tell the checkers, and what a run asks of them.

Life: within `with Checks(history)`, the methods that carry out effects, apply batches and deliver messages are wrapped,
for all brokers of this process. Each call tells the checkers what it is about to do or has done. A broker is known by
its member address. The cluster's log has one reference for all brokers. A broker's local log has its own reference,
which is known by the store's identity and outlives the process. `step` raises what the checkers found; `finish` makes
the final checks.

Disks are watched too: a file is renamed only when it is synced. No part of a log is deleted for a checkpoint that a
power cut could still remove. When a part of a log was deleted, no file has its bytes any more. Messages between members
are also watched: a message of an older epoch changes nothing.

Invariants: an observer never raises into production code (whose own handlers would swallow it), never changes what it
watches, and never reads a log again. Leaving the `with` restores every method.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from broker.amqp.sender import Sender
from broker.core.commands import TIMES_SINCE, Command
from broker.core.nodes import CLUSTER, LOCAL, QueueNode
from broker.core.queues.blocks import Lot
from broker.core.queues.discipline import Discipline
from broker.core.queues.groups import Groups
from broker.core.queues.lane import LANE_SHIFT
from broker.core.records import AVAILABLE, EXPIRES, Batch, Kind, parse_header
from broker.core.state import Messages
from broker.disk.checkpoint import Checkpoint
from broker.disk.compaction import Read
from broker.disk.journal import Journal
from broker.disk.segments import SUFFIX
from broker.disk.store import Store
from broker.service import Broker
from broker.sessions.consumer import Subscription
from broker.sessions.due import Due
from broker.sessions.ledger import Ledger
from broker.sessions.queue_terminus import QueueTerminus
from broker.sessions.returns import Returns
from ha.core import effects as do
from ha.core.effects import PromotionEnded
from ha.core.effects import State as Role
from ha.core.messages import (
    Append,
    AppendReply,
    Message,
    Position,
    PreVote,
    PreVoteReply,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    TransferRequest,
    Vote,
    VoteReply,
)
from ha.log.proposing import SMALL_WINDOW
from ha.log.requests import Requests
from ha.received import members_in
from ha.replicated_log import ReplicatedLog
from ha.service import Process
from tests.broker.clients import MemoryLog
from tests.simulation.checks.accounting import Totals, account
from tests.simulation.checks.book import Book
from tests.simulation.checks.consensus import Consensus, StoredEntry
from tests.simulation.checks.lifetimes import Lifetimes
from tests.simulation.checks.limits import broken_limits
from tests.simulation.checks.reference import Queue, Reference, digest_of, has_rot, rank, size_of
from tests.simulation.checks.room import overfull
from tests.simulation.checks.versions import Releases
from tests.simulation.disk import SimulatedDisk
from tests.simulation.history import History, Key, Violation, read
from tests.simulation.promises import newest_mark

_WHOLE_EVERY = 16
_LOOK_BACK = 8
_OF_A_TERM = (Append, AppendReply, SnapshotChunk, SnapshotReply, TimeoutNow)
"""Messages that count in the epoch in which they were sent alone."""


class Checks:
    """See the module."""

    def __init__(self, history: History) -> None:
        self.faults: list[str] = []
        self.history = history
        self.book = Book()
        self.reference = Reference(history, self.faults, self.book)
        self.consensus = Consensus(self.faults)
        self.releases = Releases(self.faults)
        self.lifetimes = Lifetimes(history, self.faults)
        self.acquired: Counter[Key] = Counter()
        self._own: dict[str, Reference] = {}
        """What each broker's own log says, by the store's identity."""
        self._own_of: dict[Ledger, Reference] = {}
        self._stores: dict[str, str] = {}
        self._given_to: dict[tuple[str, int, int], Sender] = {}
        self._left_behind: set[tuple[str, int, int]] = set()
        """The messages of consumers that have ended whose failure was not committed then, until somebody gets them."""
        self._in_a_row: dict[tuple[str, int, int], tuple[int, int]] = {}
        """Broker, queue and epoch -> the level that was given out last, and how many of it in a row."""
        self._last_got: dict[tuple[str, int, str, str, int, int], int] = {}
        self._dropped: dict[Journal, tuple[str, Path, list[tuple[int, int]]]] = {}
        """The log's member and folder, and what is about to be dropped from it."""
        self._folders: dict[ReplicatedLog, Path] = {}
        self._decayed: set[str] = set()
        """Members on whose disks bodies may have rotted, which nobody knows before they are read."""
        self._returning: set[int] = set()
        """Messages of the consumer that ends which return when what was put for them is committed."""
        self._undo: list[tuple[type, str, Any]] = []

    def __enter__(self) -> Checks:
        self.history.observer = self
        self._wrap(ReplicatedLog, "__init__", self._opened)
        self._wrap(ReplicatedLog, "_execute", self._execute)
        self._wrap(ReplicatedLog, "_durable", self._synced)
        self._wrap(Requests, "promote", self._asked)
        self._wrap(Requests, "bootstrap", self._forced)
        self._wrap(ReplicatedLog, "receive", self._received)
        self._wrap(ReplicatedLog, "broken", self._broken)
        self._wrap(Journal, "truncate", self._truncates)
        self._wrap(Journal, "reset", self._resets)
        self._wrap(Journal, "release", self._releases)
        self._wrap(SimulatedDisk, "replace", self._renames)
        self._wrap(SimulatedDisk, "unlink", self._removes)
        self._wrap(Ledger, "change", self._changes)
        self._wrap(Ledger, "enqueue", self._enqueues)
        self._wrap(Due, "_leave", self._lets_expire)
        self._wrap(Ledger, "on_committed", self._committed)
        self._wrap(Ledger, "on_reset", self._reset)
        self._wrap(Ledger, "on_state", self._state)
        for name in ("add", "forget", "attached", "left"):
            self._wrap(QueueTerminus, name, self._stirs)
        self._wrap(Subscription, "deliver", self._deliver)
        self._wrap(Subscription, "end", self._ended)
        self._wrap(Returns, "_when_committed", self._returns)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.history.observer = None
        while self._undo:
            owner, name, method = self._undo.pop()
            setattr(owner, name, method)

    def _wrap(self, owner: type, name: str, observer: Callable[..., Any]) -> None:
        method = owner.__dict__[name]
        self._undo.append((owner, name, method))

        def observed(this: Any, *arguments: Any, **named: Any) -> Any:
            return observer(method, this, *arguments, **named)

        setattr(owner, name, observed)

    # ---- what a run asks

    def step(self, now: float) -> None:
        """Raise the first thing that was found wrong."""
        if self.faults:
            raise Violation(f"{self.faults[0]} (at {now:.6f} s)")

    def limits(self, processes: Iterable[Process]) -> None:
        """Look at the bounds of these brokers; cheap enough for every hundredth step."""
        for process in processes:
            for fault in broken_limits(process.broker):
                self.faults.append(f"limits: {fault}")

    def wiped(self, address: str) -> None:
        """This member's disk is replaced by an empty one."""
        self.consensus.wiped(address)
        self._decayed.discard(address)
        own = self._own.pop(self._stores.pop(address, ""), None)
        if own is not None:
            own.abandon()

    def is_gone(self, ledger: Ledger, number: int, sequence: int) -> bool:
        """Whether a batch that this broker has applied took that message off its queue."""
        reference = self._reference(ledger)
        queue = None if reference is None else reference.queues.get(number)
        return queue is not None and queue.gone.get(sequence, ledger.state.index + 1) <= ledger.state.index

    def decayed(self, address: str) -> None:
        """Something on this member's disk was altered or lost at rest."""
        self.consensus.decayed(address)
        self._decayed.add(address)

    def has_decayed(self, address: str) -> bool:
        """Whether anything was altered or lost on this member's disk since it had it."""
        return address in self._decayed

    def rots(self, address: str, ledger: Ledger) -> bool:
        """Whether a body on this member's disk has rotted, which it finds out when it reads it. One that is stopping, and has let
        go of its log, cannot be asked: it may have."""
        return address in self._decayed and (ledger.log is None or has_rot(ledger.state, _reader(ledger)))

    def finish(self, processes: Sequence[Process], now: float) -> Totals:
        """Judge the end, with all members of the cluster: all is healed, and there was time enough to recover and to drain."""
        states = sorted(process.broker.state for process in processes)
        if states != [Role.ACTIVE] + [Role.READY] * (len(states) - 1):
            self.faults.append(f"liveness: the brokers are {', '.join(states)}, where one is to be active and all others ready")
        for process in processes:
            log, ledger = process.logs[CLUSTER], process.broker.ledgers[CLUSTER]
            if log.replica.is_witness:
                continue
            if ledger.state.index < self.reference.index - SMALL_WINDOW:  # few are under way at any time
                self.faults.append(f"liveness: {log.me} has applied {ledger.state.index} of {self.reference.index} batches")
            self._judge_state(ledger, whole=True)
            self._judge_own(log.me, process.broker.ledgers[LOCAL])
        for key in self.reference.left():
            if key.queue not in self.history.undrained:
                self.faults.append(f"liveness: {key} is still on its queue")
        self.faults += self.reference.passing.left_owing(self.reference.epoch)
        self.limits(processes)
        self.faults += [f"room: {fault}" for fault in overfull(processes)]
        totals = self.totals()
        self.faults += totals.faults()
        self.step(now)
        return totals

    def totals(self) -> Totals:
        """The account as it stands."""
        return account(self.history, self.book, [key for each in (self.reference, *self._own.values()) for key in each.left()])

    def _judge_own(self, me: str, ledger: Ledger) -> None:
        """At the end a broker's own log has all that it ever had."""
        own = self._own_of[ledger]
        if ledger.state.index < own.index:
            self.faults.append(f"durability: the own log of {me} ends with batch {ledger.state.index}, and had {own.index}")
        self._judge_state(ledger, whole=True)

    # ---- history's observer

    def on_accepted(self, key: Key) -> None:
        """A producer was told that its message is safe."""
        if key not in self.book.enqueued and key not in self.book.gone:
            self.faults.append(f"accepted: {key} was accepted, and no committed batch holds it")

    def on_received(self, client: str, link: int, key: Key) -> None:
        """A consumer got a message: one that is committed, and after those of its level that the same link sent before it."""
        copied = key.queue in self.history.volatile
        if key not in self.book.enqueued and not copied:
            self.faults.append(f"unexpected: {client} got {key}, and no committed batch holds it")
        if key in self.book.letters or self.history.notes[key].delay_ms or key in self.history.given_back:
            return  # they come in the order in which they were rejected, or sent again, or when their time has come
        self._judge_receiver(client, key)
        line = (client, link, key.queue, key.client, key.link, self.history.line_of(key))
        before = self._last_got.get(line, -1)
        if key.number < before and (copied or self.acquired[key] == 1):
            # What was given out before, to whomever, comes later when it has been given back.
            self.faults.append(f"order: {client} got {key} after message {before} of the same link, and for the first time")
        elif key.number == before and copied:
            self.faults.append(f"duplicated: {client} got {key} twice on one link")
        self._last_got[line] = max(before, key.number)

    def _judge_receiver(self, client: str, key: Key) -> None:
        """Where groups have owners, this one is or was the owner of the message's group."""
        for queue in self.reference.queues.values() if key.queue in self.history.groups else ():
            if queue.owned and queue.name == key.queue:
                owners = self.reference.owners.ever(queue.number, queue.group_of(key))
                if all(container != client for _, container, _ in owners):
                    self.faults.append(f"owner: {client} got {key}, and no committed batch gives it that group")

    def on_unselected(self, client: str, key: Key) -> None:
        """A consumer got what its selector does not name."""
        self.faults.append(f"selected: {client} got {key}, which its selector does not name")

    def on_overdrawn(self, client: str, link: int, count: int) -> None:
        """A consumer got messages that it had given no credit for."""
        self.faults.append(f"credit: {client} got messages on its link {link} beyond the credit that it had given: {count}")

    def on_settled(self, key: Key) -> None:
        """A consumer was told that its message is gone for good."""
        if key not in self.book.dequeued and key not in self.book.gone and key.queue not in self.history.volatile:
            self.faults.append(f"settled: the accept of {key} was confirmed, and no committed batch takes it off its queue")

    def on_unsubscribed(self, queue: str) -> None:
        """A client was told that its subscription is gone for good."""
        if self.reference.has_queue(queue):
            self.faults.append(f"unsubscribed: a client has heard that {queue} is gone, and by what is committed it is there")

    # ---- observers of the log

    def _opened(self, method: Any, log: ReplicatedLog, store: Store, *arguments: Any, **named: Any) -> None:
        method(log, store, *arguments, **named)
        if log.name == LOCAL:
            own = self._own.get(store.store_id)
            if own is None:
                names = self.reference.names
                own = Reference(self.history, self.faults, self.book, store_id=store.store_id, names=names)
                self._own[store.store_id] = own
            self._own_of[named["listener"]] = own
        else:
            self.releases.started(log.me, named["listener"].state.version)
            self._stores[log.me] = store.store_id
            self._folders[log] = store.data_dir / log.name
            member = log.replica._member
            self.consensus.started(
                log.me, log.replica.log, member.epoch, member.voted_for, blank=member.blank, floor=member.floor
            )
            self.consensus.of(log.me).witness = log.replica.is_witness

    def _execute(self, method: Any, log: ReplicatedLog, effect: do.Effect) -> None:
        if log.name != CLUSTER:
            method(log, effect)
            return
        me, consensus = log.me, self.consensus
        match effect:
            case do.SendEntries():
                pass
            case do.StoreEntries(first, last):
                method(log, effect)
                consensus.stored(me, [_entry(batch) for batch in log.cached(first, last) or []])
                return
            case do.SaveHardState(epoch, voted_for, attested):
                method(log, effect)
                consensus.saved(me, epoch, voted_for)
                if attested is not None:
                    consensus.attested(me, attested.epoch, attested.index, attested.primary)
                return
            case do.Send(peer, AppendReply(accepted=True, match_index=index)):
                consensus.acknowledged(me, index)
            case do.Send(peer, VoteReply(granted=True, for_epoch=epoch, provisional=provisional)):
                consensus.granted(me, epoch, peer, provisional=provisional)
            case do.Send(peer, PreVoteReply(granted=True, provisional=provisional)):
                consensus.would_grant(me, peer, provisional=provisional)
            case do.StoreWhole():
                consensus.counts_as_whole(me)
                method(log, effect)
                consensus.noted_whole(me)
                return
            case do.TruncateLog(from_index):
                self._drops(log, consensus.truncated(me, from_index))
            case do.Commit(index):
                consensus.commits(me, index, members=log.replica.members)
            case do.StateChanged(state, epoch, _):
                primary, voters = state in (Role.RECOVERING, Role.ACTIVE), log.replica.members.voters
                consensus.announces(me, epoch, primary=primary, active=state is Role.ACTIVE, voters=voters)
            case do.InstallSnapshot(index, epoch, _):
                self._drops(log, consensus.installed(me, index, epoch))
                self._judge_durable(log.journal, log._snapshots._received, "drops its log")
            case PromotionEnded():
                consensus.answered(me)
            case _:
                pass
        method(log, effect)

    def _synced(self, method: Any, log: ReplicatedLog, index: int, epoch: int, sync_s: float) -> None:
        if log.name == CLUSTER:
            self.consensus.synced(log.me, index, epoch)
        method(log, index, epoch, sync_s)

    def _asked(self, method: Any, requests: Requests, **how: Any) -> Any:
        self.consensus.asked(requests.replica._member.me)
        return method(requests, **how)

    def _forced(self, method: Any, requests: Requests) -> Any:
        self.consensus.asked(requests.replica._member.me)
        self.consensus.forced(requests.replica._member.me)
        return method(requests)

    def _received(self, method: Any, log: ReplicatedLog, peer: str, message: Message, payload: bytes) -> None:
        if _is_late(log, message):
            before, epoch = _standing(log), log.replica.epoch
            method(log, peer, message, payload)
            if _standing(log) != before:
                name = type(message).__name__
                self.faults.append(
                    f"late: a message of epoch {message.epoch}, {name} of {peer}, counts at {log.me} in epoch {epoch}"
                )
            return
        if isinstance(message, TimeoutNow):
            self.consensus.let_go(log.me)
        elif isinstance(message, TransferRequest):
            if message.stand == log.replica.epoch:
                self.consensus.let_go(log.me)
        elif isinstance(message, Vote | PreVote):
            self.consensus.vote_wanted(log.me, peer, Position(message.last_epoch, message.last_index))
        method(log, peer, message, payload)

    def _broken(self, method: Any, log: ReplicatedLog, failure: Any) -> None:
        self.faults.append(
            f"crash: the {log.name} log of {log.me} cannot go on: {failure.type.__name__} {failure.getErrorMessage()}"
        )
        method(log, failure)

    # ---- observers of the disk

    def _renames(self, method: Any, disk: SimulatedDisk, path: Path, target: Path) -> None:
        if not target.name.startswith("damaged-") and str(path) in disk.paths() and not disk.is_synced(str(path)):
            self.faults.append(f"disk: {path} is renamed to {target.name}, and what it holds is not synced")
        method(disk, path, target)

    def _removes(self, method: Any, disk: SimulatedDisk, path: Path) -> None:
        if path.suffix == ".checkpoint":
            newer = [each for each in disk.names(path.parent) if each.endswith(path.suffix) and each > path.name]
            if newer and not any(disk.is_durable(str(path.with_name(each))) for each in newer):
                self.faults.append(f"disk: {path} is removed for {newer[-1]}, which a power cut may still take away")
        method(disk, path)

    def _judge_durable(self, journal: Journal, checkpoint: Checkpoint | None, doing: str) -> None:
        disk = journal.disk
        if checkpoint is not None and isinstance(disk, SimulatedDisk) and not disk.is_durable(str(checkpoint.path)):
            self.faults.append(f"disk: a broker {doing} for {checkpoint.path}, which a power cut may still take away")

    def _releases(self, method: Any, journal: Journal, below_index: int) -> None:
        if below_index:  # else only what was kept for a snapshot goes, which no checkpoint lists
            self._judge_durable(journal, journal.checkpoint, "lets go of its log's beginning")
        method(journal, below_index)

    def _drops(self, log: ReplicatedLog, entries: list[tuple[int, int]]) -> None:
        """The log's journal is asked next to drop these; the first and the last are looked for afterwards."""
        if isinstance(log.journal.disk, SimulatedDisk) and log in self._folders:
            self._dropped[log.journal] = (log.me, self._folders[log], entries)

    def _truncates(self, method: Any, journal: Journal, from_index: int, done: Callable[[], None]) -> None:
        method(journal, from_index, self._then_judge(journal, done))

    def _resets(
        self,
        method: Any,
        journal: Journal,
        index: int,
        epoch: int,
        done: Callable[[], None] | None = None,
        received: Checkpoint | None = None,
    ) -> None:
        method(journal, index, epoch, self._then_judge(journal, done), received)

    def _then_judge(self, journal: Journal, done: Callable[[], None] | None) -> Callable[[], None] | None:
        """Look, when it is done, whether the files still have what was dropped."""
        dropped = self._dropped.pop(journal, None)
        if dropped is None:
            return done

        def judge() -> None:
            me, folder, entries = dropped
            disk = journal.disk
            assert isinstance(disk, SimulatedDisk)
            gone = self.consensus.bytes_of(me, entries)
            paths = [path for path in disk.paths() if path.startswith(f"{folder}/") and path.endswith(SUFFIX)]
            for path in [path for path in paths if "/damaged-" not in path] if gone else ():
                content = disk.content(path)
                for index, epoch in dict.fromkeys((min(gone), max(gone))):
                    if gone[index, epoch] in content:
                        self.faults.append(f"disk: {me} has dropped batch {index} of its log, and {path} still has it")
                mark = newest_mark(content).last
                if (mark.index, mark.epoch) in gone:
                    self.faults.append(f"disk: {me} has dropped batch {mark.index} of its log, and {path} is marked up to there")
            if done is not None:
                done()

        return judge

    # ---- observers of the state

    def _committed(self, method: Any, ledger: Ledger, batches: list[Batch]) -> None:
        reference = self._reference(ledger)
        if reference is None:
            method(ledger, batches)
            return
        me = _name_of(ledger, reference)
        for expected, batch in enumerate(batches, ledger.state.index + 1):
            if batch.header.index != expected:
                self.faults.append(f"state: {me} applies batch {batch.header.index} where batch {expected} comes next")
            reference.applied(me, batch)
        before = ledger.state.index
        try:
            method(ledger, batches)
        finally:  # what a member must not apply ends this with an exception
            if ledger.name == CLUSTER and isinstance(ledger.log, ReplicatedLog):  # a log in memory has no members
                members_at = ledger.log.replica.log.members_at
                for batch in batches:
                    if before < batch.header.index <= ledger.state.index:
                        self.releases.applied(me, batch, members_at(batch.header.index).addresses)
        if any(run.kind is Kind.DEFINE for batch in batches for run in batch.runs[:1]):
            self.lifetimes.defined(ledger, _broker_of(ledger).logs)
        index = ledger.state.index
        if ledger.name == CLUSTER and isinstance(ledger.log, ReplicatedLog):
            self.releases.stands(me, index)
        self._judge_state(ledger, whole=index // _WHOLE_EVERY != (index - len(batches)) // _WHOLE_EVERY)

    def _reset(self, method: Any, ledger: Ledger, batches: Iterable[Batch], index: int) -> None:
        method(ledger, batches, index)
        self.lifetimes.defined(ledger, _broker_of(ledger).logs)
        self._judge_state(ledger, whole=True)

    def _reference(self, ledger: Ledger) -> Reference | None:
        """What this ledger's log says; None for a broker's own that was not seen to open."""
        return self.reference if ledger.name == CLUSTER else self._own_of.get(ledger)

    def _judge_state(self, ledger: Ledger, *, whole: bool) -> None:
        state, reference = ledger.state, self._reference(ledger)
        if reference is None:
            return
        me = _name_of(ledger, reference)
        if state.index not in reference.digests:
            self.faults.append(f"state: {me} is at batch {state.index}, which nobody has applied")
        elif size_of(state) != reference.sizes[state.index]:
            (depth, sequences), (right, given) = size_of(state), reference.sizes[state.index]
            self.faults.append(
                f"state: {me} has {depth} messages of {sequences} ever after batch {state.index}; the log says {right} of {given}"
            )
        elif whole and not self.rots(me, ledger) and digest_of(state, _reader(ledger)) != reference.digests[state.index]:
            self.faults.append(f"state: {me} has another state after batch {state.index} than its log says")

    def _state(self, method: Any, ledger: Ledger, state: str, epoch: int, primary: str) -> None:
        if ledger.name == CLUSTER and state == Role.ACTIVE and self.reference.epochs.get(ledger.state.index) != epoch:
            self.faults.append(
                f"term: {_name_of(ledger, self.reference)} serves in epoch {epoch} with batch {ledger.state.index} applied, "
                "which is older"
            )
        logs = _broker_of(ledger).logs
        served = logs.serving
        method(ledger, state, epoch, primary)
        reference = self._reference(ledger)
        if reference is not None and not ledger.serving:
            # Its consumers have nothing any more. Whoever gets one of their messages in its next term is known when it is sent.
            me = _name_of(ledger, reference)
            self._given_to = {place: link for place, link in self._given_to.items() if place[0] != me}
            self._left_behind = {place for place in self._left_behind if place[0] != me}
        if logs.serving and not served:
            self.lifetimes.begins(logs)

    def _changes(self, method: Any, ledger: Ledger, command: Command, answer: Callable[[str], None]) -> None:
        broker = _broker_of(ledger)
        node = broker.nodes.queue_by_uuid(getattr(command, "uuid", ""))
        terminus = None if node is None else broker.queues.at(node)
        users = 0 if terminus is None else len(terminus.subscriptions) + len(terminus.producers)
        self.lifetimes.proposes(broker.logs, command, users)
        method(ledger, command, answer)

    def _enqueues(
        self, method: Any, ledger: Ledger, node: QueueNode, messages: list[bytes], *arguments: Any, **named: Any
    ) -> None:
        reference = self._reference(ledger)
        queue = None if reference is None or node.messages is None else reference.queues.get(node.messages.number)
        if queue is not None and queue.watched and not queue.for_letters and ledger.version >= TIMES_SINCE:
            for data in messages:
                note = self.history.notes.get(cast(Key, read(data, queue.name)))
                if note is not None and (note.ttl_ms or note.delay_ms):
                    note.arrived_ms = ledger.now_ms
        method(ledger, node, messages, *arguments, **named)

    def _lets_expire(self, method: Any, due: Due, messages: Messages, sequences: list[int]) -> None:
        ledger = due._queue.ledger
        reference = self._reference(ledger)
        queue = None if reference is None else reference.queues.get(messages.number)
        for sequence in sequences if queue is not None else ():
            assert queue is not None
            if sequence not in queue.keys or sequence in queue.gone:
                continue  # it may have left already by a batch that this broker has still to apply
            left_ms = queue.times[EXPIRES].get(sequence, 1 << 63) - ledger.now_ms
            if left_ms > 0:
                self.faults.append(f"expired: {queue.keys[sequence]} is let go {left_ms} ms before it expires")
            self.history.let_expire(queue.keys[sequence])
        method(due, messages, sequences)

    def _stirs(self, method: Any, terminus: QueueTerminus, *arguments: Any, **named: Any) -> Any:
        result = method(terminus, *arguments, **named)
        self.lifetimes.stirs(terminus)
        return result

    # ---- observers of what is given out

    def _deliver(self, method: Any, subscription: Subscription, lots: list[Any]) -> None:
        ledger, messages = subscription.queue.ledger, subscription.node.messages
        reference = self._reference(ledger)
        if reference is not None and messages is not None and not subscription.browse:
            queue = reference.queues.get(messages.number)
            if queue is not None:
                self._judge_lots(queue, lots, subscription, ledger, reference)
        method(subscription, lots)
        if subscription.link.credit < 0:
            # The engine keeps these back, so that the client never sees them; but nobody else gets them either.
            name, beyond = subscription.node.name, -subscription.link.credit
            self.faults.append(f"credit: a consumer of {name} is given messages beyond its credit: {beyond}")

    def _judge_lots(
        self, queue: Queue, lots: list[Lot], subscription: Subscription, ledger: Ledger, reference: Reference
    ) -> None:
        """What goes out is the oldest of the highest level that is there for anybody to have, and comes in that order."""
        assert subscription.node.messages is not None
        order = subscription.node.messages.order
        newest, me = rank(lots[0].first_seq), _name_of(ledger, reference)
        for lot in lots:
            for sequence in range(lot.first_seq, lot.first_seq + lot.n_messages):
                key = queue.keys.get(sequence)
                if key is None:
                    continue
                if queue.gone.get(sequence, ledger.state.index + 1) <= ledger.state.index:
                    self.faults.append(f"came back: {key} is given out, and batch {queue.gone[sequence]} took it off its queue")
                failed = order.lane_of(sequence).delivery_count(sequence)
                if queue.limit and failed >= queue.limit:
                    self.faults.append(f"limit: {key} is given out, though its delivery has failed {failed} times")
                expires_ms, from_ms = (queue.times[what].get(sequence, 0) for what in (EXPIRES, AVAILABLE))
                if 0 < expires_ms <= ledger.now_ms:
                    self.faults.append(f"expired: {key} is given out {ledger.now_ms - expires_ms} ms after it has expired")
                if from_ms > ledger.now_ms:
                    self.faults.append(f"delayed: {key} is given out {from_ms - ledger.now_ms} ms before its time")
                if any(map(order.lane_of(sequence).is_live, queue.newer_values(sequence))):
                    self.faults.append(f"value: {key} is given out, and a newer message with its key is on {queue.name}")
                newest = self._judge_turn(queue, sequence, newest, (me, queue.number, reference.epoch), order)
                self.acquired[key] += 1
                place = (me, queue.number, sequence)
                holder = self._given_to.get(place)
                if holder is not None and holder.open and any(sequence in run for run in holder.account.unsettled()):
                    self.faults.append(f"acquired: {key} is given out, and another consumer has it and has not settled it")
                self._given_to[place] = subscription.link
                self._left_behind.discard(place)
        if queue.groups:
            self._judge_groups(queue, lots, subscription, me)
        if queue.owned:
            self._judge_owner(queue, lots, subscription, ledger, reference)
        if queue.groups or queue.share:
            return
        selector = subscription.selector
        for sequence in queue.heads(_LOOK_BACK):
            if rank(sequence) >= newest:
                break
            if selector is not None and str(queue.keys[sequence].number % 3) not in selector.text:
                continue  # another consumer's
            if order.lane_of(sequence).is_live(sequence) and not order.is_acquired(sequence):
                self.faults.append(
                    f"order: {queue.keys.get(sequence)} is passed over, and what comes later on {queue.name} goes out"
                )

    def _judge_turn(
        self, queue: Queue, sequence: int, newest: tuple[int, int], term: tuple[str, int, int], order: Discipline
    ) -> tuple[int, int]:
        """A message comes after what comes before it, or by the shares of levels. Returns the rank of the newest so far."""
        if queue.share:
            self._judge_share(queue, sequence, term, order)
        elif rank(sequence) < newest:
            key = queue.keys[sequence]
            self.faults.append(f"order: {key} is given out in one turn after one that comes later on {queue.name}")
        return max(newest, rank(sequence))

    def _judge_share(self, queue: Queue, sequence: int, term: tuple[str, int, int], order: Discipline) -> None:
        """A level gives out no more than its share in a row while another one has something to give. What has expired, or is to
        wait still, takes the turn of its level and goes to nobody: where there are such messages turns cannot be told."""
        if any(queue.times.values()):
            return
        level, (before, count) = sequence >> LANE_SHIFT, self._in_a_row.get(term, (-1, 0))
        count = count + 1 if level == before else 1
        others = [other for other in queue.live if other >> LANE_SHIFT != level]
        if count > queue.share and any(order.lane_of(each).is_live(each) and not order.is_acquired(each) for each in others):
            self.faults.append(f"share: {queue.keys[sequence]} is the {count}th of its level in a row, and others wait")
        self._in_a_row[term] = (level, (count - 1) % queue.share + 1)

    def _judge_groups(self, queue: Queue, lots: list[Lot], subscription: Subscription, me: str) -> None:
        """Of the group of what goes out, nobody else has a message, and none that is older is there for anybody to have."""
        assert subscription.node.messages is not None
        order = subscription.node.messages.order
        for sequence in chain.from_iterable(range(lot.first_seq, lot.first_seq + lot.n_messages) for lot in lots):
            for other in queue.of_its_group(sequence):
                place = (me, queue.number, other)
                holder = self._given_to.get(place)
                if queue.owned and holder and holder.name == subscription.link.name and place not in self._left_behind:
                    holder = subscription.link  # its owner has accepted it, which is not committed yet, and attached again
                if holder not in (None, subscription.link) and order.is_acquired(other) and _has(holder, order, other):
                    self.faults.append(
                        f"group: {queue.keys[sequence]} is given out, and another consumer has {queue.keys[other]}"
                    )
                if other < sequence and order.lane_of(other).is_live(other) and not order.is_acquired(other):
                    self.faults.append(f"group: {queue.keys[sequence]} is given out before {queue.keys[other]}")

    def _judge_owner(
        self, queue: Queue, lots: list[Lot], subscription: Subscription, ledger: Ledger, reference: Reference
    ) -> None:
        """By what this broker has applied, the groups of what goes out are this consumer's."""
        session = subscription.session
        owner = session.principal.user, session.container, subscription.link.name
        for sequence in chain.from_iterable(range(lot.first_seq, lot.first_seq + lot.n_messages) for lot in lots):
            key = queue.keys[sequence]
            found = reference.owners.owner_at(queue.number, queue.group_of(key), ledger.state.index)
            if found != owner:
                self.faults.append(f"owner: {key} is given out to {owner}, and its group is that of {found or 'nobody'}")

    def _returns(self, method: Any, returns: Returns, sequences: list[int], then: Any) -> None:
        self._returning.update(sequences)
        method(returns, sequences, then)

    def _ended(self, method: Any, subscription: Subscription) -> None:
        """What the consumer had is available now, or when the higher count of its failures is committed."""
        held = list(chain.from_iterable(subscription.link.account.unsettled()))
        self._returning.clear()
        method(subscription)
        ledger, messages = subscription.queue.ledger, subscription.node.messages
        reference = self._reference(ledger)
        if reference is not None and messages is not None and not subscription.browse:
            queue, me = reference.queues.get(messages.number), _name_of(ledger, reference)
            self._left_behind.update((me, messages.number, sequence) for sequence in self._returning)
            for sequence in (each for each in held if each not in self._returning):
                if queue is not None and sequence in queue.keys and messages.order.is_acquired(sequence):
                    self.faults.append(f"acquired: {queue.keys[sequence]} is kept for a consumer that is gone")


def _reader(ledger: Ledger) -> Read:
    """What gives the bytes at places on the disk of this ledger's log."""
    log = ledger.log
    return log.journal.read_spans if isinstance(log, ReplicatedLog) else cast(MemoryLog, log).files.read_spans


def _has(holder: Sender | None, order: Discipline, sequence: int) -> bool:
    """Whether a consumer that got this acquired message has it still. A message that has come back, and is to expire or to wait,
    is set aside: nobody has it. One that is accepted, which is not committed yet, is not set aside."""
    if isinstance(order, Groups) and sequence in order._aside:
        return holder is not None and holder.open and any(sequence in run for run in holder.account.unsettled())
    return True


def _broker_of(ledger: Ledger) -> Broker:
    return cast(Broker, ledger._owner)


def _name_of(ledger: Ledger, reference: Reference) -> str:
    if reference.store_id:
        return f"the own log of {reference.store_id[:8]}"
    return ledger.log.me if isinstance(ledger.log, ReplicatedLog) else "a broker that is stopping"


def _is_late(log: ReplicatedLog, message: Message) -> bool:
    """Whether a message is of an older term, or answers an older campaign than the one that is under way."""
    replica, campaign = log.replica, log.replica._candidacy.campaign
    match message:
        case VoteReply():
            return message.epoch <= replica.epoch and message.for_epoch < replica.epoch
        case PreVoteReply():
            return campaign is not None and message.campaign != campaign.number
        case _:
            return isinstance(message, _OF_A_TERM) and message.epoch < replica.epoch


def _standing(log: ReplicatedLog) -> tuple[Any, ...]:
    """What a message may change of a member: its role, its log, its votes, and what it knows of the others' logs."""
    it, campaign = log.replica.status(0.0), log.replica._candidacy.campaign
    votes = campaign and (campaign.round, sorted(campaign.tally.granted), sorted(campaign.tally.provisional))
    peers = tuple((peer.address, peer.progress, peer.match_index, peer.received_index, peer.sent_index) for peer in it.peers)
    return it.state, it.epoch, it.primary, it.last_index, it.last_epoch, it.commit_index, it.told_commit, peers, votes


def _entry(batch: bytes) -> StoredEntry:
    header = parse_header(batch)
    return StoredEntry(header.index, header.epoch, batch, members_in(batch) if header.holds_members else None)
