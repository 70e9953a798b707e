"""A replicated log: a Replica (ha.core), a Journal (broker.disk) and links to the other members, as one CommitLog.

Life of a batch on a primary: `propose` seals it with the next index; the same bytes go to the journal and to each backup; when
the core says Commit, it is parsed and passed to the listener. On a backup: it arrives in an Append, is checked, goes to the
journal, is acknowledged when synced, and is passed to the listener when the primary reports it as committed. Both apply it only
when it is durable here: then its place on disk is known, and its bodies need not stay in memory. Both keep the order of the
core's effects: data to save is saved before data to send leaves.

Ownership: the core decides (`replica`); `ha.log.applying` calls the listener, in order; `ha.log.proposing` says when another
batch may be proposed; `ha.log.sending` and the outbox send; `ha.log.requests` asks the core for promotions and changes, and has
the callers that wait; `ha.log.members` reports and proposes the membership; `ha.log.retention` limits the disk usage;
`ha.log.snapshot_effects` and `ha.snapshots` send and receive snapshots; `ha.log.damage` decides what happens when the disk has
damaged something. This module executes the core's effects with them.

A batch that this release must not apply ends this life: the listener gets nothing more, no checkpoint is written, and this
member cannot be the primary; it still stores batches and votes (docs/adr/0015). If it is the local log of a broker, the broker
stops.

Invariants: the listener is never called from within `propose`; bytes with a wrong checksum never reach core, journal or
listener; a batch is in memory until it is durable here and applied here, or only committed if nothing more is applied; at most
one checkpoint is written, and one received, at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.commit_log import LogListener
from broker.core.queues.reading import Body
from broker.core.records import BatchBuilder
from broker.disk.durable import StorageError
from broker.disk.store import Store
from broker.host import new_uuid
from ha.awake_clock import AwakeClock
from ha.batch_cache import BatchCache
from ha.core import effects as do
from ha.core.effects import Effect, MembershipEnded, PromotionEnded, State, TransferEnded
from ha.core.log import Log
from ha.core.membership import Membership
from ha.core.messages import Append, Message, Position, SnapshotChunk
from ha.core.replica import Replica
from ha.core.settings import ReplicaSettings
from ha.core.status import ReplicaStatus
from ha.core.witness import attested_fields, attested_from
from ha.log.applying import Applying
from ha.log.bodies import read_verified
from ha.log.damage import Damage, stores_alone
from ha.log.members import Members
from ha.log.proposing import Proposing
from ha.log.requests import Ended, Requests
from ha.log.retention import CHECKPOINT_BYTES, Retention
from ha.log.sending import BatchSender
from ha.log.snapshot_effects import SnapshotEffects
from ha.outbox import NoPeers, Outbox, Peers
from ha.progress_clock import Lag, ProgressClock, SyncTimes
from ha.received import BadMessage, check_chunk, checked_append, stored_log
from ha.snapshots import Snapshots, Transfers

_log = Logger(namespace="ha")
_SERVING = (State.ACTIVE, State.STANDALONE)


class ReplicatedLog:
    """Fulfils broker.commit_log.CommitLog. Everything is called in the reactor thread.

    The edge calls `start`, then `connected` / `disconnected` / `receive` as links come and go and messages arrive.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        me: str,
        settings: ReplicaSettings,
        members: Membership,
        clock: IReactorTime,
        wall: Callable[[], float],
        listener: LogListener,
        call_in_reactor: Callable[[Callable[[], None]], None],
        in_thread: Callable[[Callable[[], object]], Deferred[Any]],
        peers: Peers | None = None,
        on_members: Callable[[Membership], None] = lambda members: None,
        on_event: Callable[..., None] = lambda kind, **fields: None,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        new_id: Callable[[], str] = new_uuid,
        first_format: Callable[[], bool] = lambda: False,
        before_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the log `name` of the store; blocks while it is read.

        `members` are used if the store has none. `wall` gives seconds since 1970; `in_thread` runs a function in another
        thread; `new_id` gives unique ids; `on_event` takes the events for telemetry; `first_format` says whether a member
        reads only batches of the first format; `before_end` is called before this broker, as the primary, lets another one
        take over, and before anyone is told that its term has ended. DamagedStore, StorageError, BadBatch.
        """
        self.name, self.me = name, me
        self._clock = clock
        self._awake = AwakeClock(clock.seconds, settings.heartbeat_s)
        self._wall = wall
        self._listener = listener
        self._in_thread = in_thread
        self._peers: Peers = peers if peers is not None else NoPeers()
        self._on_event = on_event
        self._first_format = first_format
        self._before_end = before_end
        self.journal, found = store.journal(
            name,
            call_in_reactor=call_in_reactor,
            on_error=self._storage_error,
            alone=settings.standalone or partial(stores_alone, me),
        )
        for note in found.notes:
            _log.warn("{name} log: {note}", name=name, note=note)
        log = stored_log(self.journal, members, found)
        self.replica = Replica(
            me,
            settings,
            epoch=found.epoch,
            voted_for=found.voted_for,
            log=log,
            commit_index=log.base_index if found.attested is None else 0,  # what a witness attests need not be committed
            blank=found.blank,
            vote_floor=None if found.floor is None else Position(found.floor.epoch, found.floor.index),
            cluster_id="" if settings.standalone else store.cluster_id,
            attested=None if found.attested is None else attested_from(found.attested),
        )
        self._first_checkpoint = found.checkpoint
        self._cache = BatchCache(log.last_index + 1)
        self._applying = Applying(self, listener, self.journal, self._cache, clock, self.replica, self.replica.commit_index)
        self._proposing = Proposing()
        self._effects: deque[Effect] = deque()
        self._members = Members(self.replica, self._applying, self._peers, on_members, new_id)
        self._running = self._stopped = False
        self._received: list[bytes] = []
        self._received_first = 0
        """The data beside the message that the core steps now, and the index of the first batch, if it is batches."""
        self._outbox = Outbox(self._peers)
        self._damage = Damage(
            self.replica,
            self.journal,
            me,
            self._awake.seconds,
            listener.live_by_file,
            self._end,
            single=settings.standalone,
        )
        folder, transfers = store.data_dir / name, Transfers(clock.seconds, on_event)
        self.retention = Retention(name, self.journal, self, listener, clock, wall, checkpoint_bytes)
        self._snapshots = self.retention.snapshots = Snapshots(
            self.journal, folder, in_thread, self._outbox, self.retention.checkpoint, self._damage.found_in_file, transfers
        )
        self.progress, self.syncs = ProgressClock(), SyncTimes()
        self._snapshot_effects = SnapshotEffects(
            self.replica,
            self.journal,
            self._cache,
            self._applying,
            self._snapshots,
            self._peers,
            self._awake.seconds,
            self._take,
            self.retention.checkpoint,
            lambda: self._stopped,
            self._disk_refuses,
            self._disk_takes,
        )
        self._sender = BatchSender(
            self._outbox, self._cache, self.journal, in_thread, lambda: self.replica.epoch, self._snapshot_effects.unreadable
        )
        self.requests = Requests(self.replica, self._awake.seconds, self._take, new_id)
        self.bad_batches = 0
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = clock
        self._tick_s = None if settings.standalone else settings.heartbeat_s / 2

    def misfit(self, settings: ReplicaSettings) -> str:
        """Why a broker with these settings must not run with this store; "" if it may. A witness needs a store without
        a log of batches, and only a witness can use the store of a witness."""
        attested = self.replica.attested
        if settings.witness and attested is None and self.log.last_index:
            return (
                f"holds the log of a broker, and {self.me} is the witness (--ha-witness): a witness begins with an empty folder"
            )
        if attested is not None and not settings.witness:
            return f"is that of a witness, which stores no messages: give --ha-witness {self.me}, or another --data-dir"
        return ""

    # ---- CommitLog

    @property
    def state(self) -> State:
        """joining, catchup, ready, recovering, active or standalone, as the listener knows it."""
        return self._applying.state

    @property
    def epoch(self) -> int:
        """The epoch that this broker is in."""
        return self.replica.epoch

    @property
    def primary(self) -> str:
        """The primary's address, or ""."""
        return self.replica.primary

    @property
    def may_propose(self) -> bool:
        """Whether this broker is a primary that may write, the disk accepts writes, and few enough batches are in progress."""
        welcome = (
            self.serving
            and self.replica.writable
            and self._members.due is None
            and not self._stopped
            and self._proposing.has_room(self.replica.log, self._applying.applicable)
        )
        if not welcome:
            self._proposing.declined = True
        return welcome

    def propose(self, builder: BatchBuilder) -> int:
        """Seal and replicate a batch; returns its index."""
        assert self.serving, "a batch was proposed while the log takes none"
        self._applying.held = True
        try:
            return self._propose(builder, None)
        finally:
            self._applying.held = False

    def _propose(self, builder: BatchBuilder, members: Membership | None) -> int:
        index = self.replica.next_index
        data = builder.seal(self.replica.epoch, index, round(self._wall() * 1000), first_format=self._first_format())
        self._cache.put(index, data)
        self._proposing.proposed(index, len(data))
        self.progress.proposed(index, self._clock.seconds())
        self._take(self.replica.propose(self._awake.seconds(), len(data), builder.n_records, members))
        return index

    # ---- events from the edge

    def start(self) -> None:
        """Start: from now on the listener is called."""
        if self._first_checkpoint is not None:
            self._applying.load(self._first_checkpoint)
        self._take(self.replica.start(self._awake.seconds()))
        if self._tick_s is not None:  # a log of one broker needs no timers
            self._ticker.start(self._tick_s, now=False).addErrback(self.broken)

    def cannot_apply(self, why: str) -> None:
        """This release must not apply what is committed: report it once, and stop applying."""
        self._applying.halted = f"{why}; nothing more is applied here: upgrade this broker"
        self.retention.stop()  # a checkpoint would lack the batches that are not applied
        if self._tick_s is None:
            self._stopped = True
            self._applying.stop()
            self._storage_error(f"the {self.name} log was written by a newer release: {why}: upgrade this broker", True)
            return
        _log.error("{name} log: {reason}", name=self.name, reason=self.halted)
        self._take(self.replica.halt(self._awake.seconds(), f"{self.me} cannot apply its log: {self.halted}"))

    def stop(self) -> Deferred[None]:
        """Stop: nothing more is sent, proposed or passed on. The journal stays open until the store closes it."""
        if not self._stopped:
            self._stopped = True
            self.retention.stop()
            self._snapshots.cut_short("the broker stops")
            if self._ticker.running:
                self._ticker.stop()
            self._applying.stop()
        return succeed(None)

    def connected(self, peer: str) -> None:
        """A link to this member is up."""
        self._take(self.replica.connected(self._awake.seconds(), peer))

    def disconnected(self, peer: str) -> None:
        """The link to this member is down."""
        self._outbox.clear(peer)
        self._snapshots.cut_short("the link was lost", peer)
        self._take(self.replica.disconnected(self._awake.seconds(), peer))

    def receive(self, peer: str, message: Message, payload: bytes | memoryview) -> None:
        """A message has arrived; `payload` is the data beside it: whole batches end to end, or a chunk of a snapshot."""
        if self._stopped:
            return
        try:
            match message:
                case Append():
                    message, self._received = checked_append(message, payload)
                    self._received_first = message.first
                case SnapshotChunk():
                    check_chunk(message, payload)
                    self._received = [bytes(payload)]
                case _:
                    pass
        except BadMessage as error:
            self.bad_batches += 1
            _log.error("nothing of a message from {peer} was stored: {error}", peer=peer, error=str(error))
            self._peers.close(peer, str(error))
            return
        self._take(self.replica.step(self._awake.seconds(), peer, message))

    def heard(self, peer: str) -> None:
        """A part of a large message from this member has arrived."""
        self._take(self.replica.heard(self._awake.seconds(), peer))

    def _tick(self) -> None:
        self._take(self.replica.tick(self._awake.seconds()))
        self._snapshot_effects.end_needless()

    # ---- views

    def silence_s(self) -> float | None:
        """See `Replica.silence_s`."""
        return self.replica.silence_s(self._awake.seconds())

    def status(self) -> ReplicaStatus:
        """The replica's own figures."""
        return self.replica.status(self._awake.seconds())

    @property
    def applied(self) -> int:
        """The index up to which the listener has applied."""
        return self._applying.applied

    @property
    def halted(self) -> str:
        """Why no more batches are applied; "" while they are."""
        return self._applying.halted

    @property
    def serving(self) -> bool:
        """Whether producers may write to this log here."""
        return self._applying.state in _SERVING

    @property
    def log(self) -> Log:
        """The log as the core sees it."""
        return self.replica.log

    def lag(self, status: ReplicaStatus | None = None) -> dict[str, Lag]:
        """How far each other member is behind, by address, without the witness; empty unless this broker is the primary. A
        caller that already has the status passes it."""
        return self.progress.lag(status or self.status(), self._clock.seconds())

    def cached(self, first: int, last: int) -> list[bytes] | None:
        """Batches in memory; None if some of them are not in memory."""
        return self._cache.span(first, last)

    # ---- effects

    def _take(self, effects: list[Effect]) -> None:
        """Execute effects in order, and after them the effects that arise meanwhile."""
        self._effects.extend(effects)
        if self._running or self._stopped:
            return
        if self._effects or self._members.due is not None:
            self._execute_all()
        self._applying.go_on()
        if self._proposing.declined:
            self.told()

    def _execute_all(self) -> None:
        self._running = True
        try:
            while self._effects or self._members.due is not None:
                if self._effects:
                    self._execute(self._effects.popleft())
                else:
                    members, builder = self._members.take_due()
                    self._propose(builder, members)
        except StorageError as error:
            self._end(str(error))  # data that was not saved must not be sent, now or at a later request
        finally:
            self._running = False

    def _execute(self, effect: Effect) -> None:
        match effect:
            case do.SendEntries(peer, append):  # the most frequent first
                self._sender.send(peer, append)
            case do.StoreEntries(first, last):
                self._store(first, last)
            case do.Commit(index):
                self._members.committed_after(self._applying.commit(index))
            case do.Send(peer, message):
                self._outbox.send(peer, message, ())
            case do.SaveHardState() | do.StoreWhole():
                self._save(effect)
            case do.TruncateLog(from_index):
                assert from_index > self.applied, f"batch {from_index} is applied and cannot be taken back"
                self._cache.truncate(from_index)
                self.journal.truncate(from_index, lambda: None)
            case do.Strange(peer, theirs):
                self._peers.close(
                    peer, f"it speaks as the primary of {f'cluster {theirs}' if theirs else 'a new cluster'}, not ours"
                )
            case do.SendSnapshot() | do.StoreChunk() | do.LeaveSnapshot() | do.InstallSnapshot():
                self._snapshot_effects.execute(effect, self._received)
            case do.ProposeMembers(members):
                self._members.due = members
            case do.MembershipChanged() | do.MembersCommitted():
                self._members.follow(effect)
            case do.StateChanged():
                self._state_changed(effect)
            case do.WritableChanged():
                pass  # requested by `may_propose` when the broker has something to propose
            case do.Quiesce() | do.Resume():
                self._quiesce(effect)
            case PromotionEnded() | TransferEnded() | MembershipEnded() | do.TermEnded():
                self._ended_with(effect)
            case _:
                assert_never(effect)

    def _state_changed(self, effect: do.StateChanged) -> None:
        if effect.state in (State.READY, State.RECOVERING):
            self._snapshots.give_up_receiving()
        if effect.state is State.RECOVERING:  # the times of an earlier term would be those of other batches
            self.progress = ProgressClock()
            self.progress.proposed(self.replica.log.last_index, self._clock.seconds())
        self._applying.state_changed(effect.state, effect.epoch, effect.primary)

    def _save(self, effect: do.SaveHardState | do.StoreWhole) -> None:
        if isinstance(effect, do.SaveHardState):
            attested = None if effect.attested is None else attested_fields(effect.attested)
            self.journal.save_hard_state(effect.epoch, effect.voted_for, attested)
        else:
            self.journal.floor_passed()

    def _quiesce(self, effect: do.Quiesce | do.Resume) -> None:
        if isinstance(effect, do.Quiesce):
            self._listener.on_quiesce(effect.within_s, self._quiesced)
        else:
            self._listener.on_resume()

    def _quiesced(self) -> None:
        self._before_end()
        self._take(self.replica.quiesced(self._awake.seconds()))

    def _ended_with(self, effect: Ended | do.TermEnded) -> None:
        """A request or a term has ended."""
        if isinstance(effect, do.TermEnded):
            self._term_ended(effect.reason, effect.planned)
            return
        for waiting in self.requests.ended(effect):
            self._applying.answer(waiting, effect)

    # ---- storing

    def _store(self, first: int, last: int) -> None:
        if first not in self._cache:
            for index in range(first, last + 1):
                self._cache.put(index, self._received[index - self._received_first])
        batches = self._cache.span(first, last)
        assert batches is not None
        self.journal.append(batches, self._durable)

    def _durable(self, index: int, epoch: int, sync_s: float) -> None:
        self.syncs.add(sync_s)
        self._disk_takes()
        if not self._stopped:
            self._applying.durable()
            self._take(self.replica.stored(self._awake.seconds(), index, epoch))

    def broken(self, failure: Failure) -> None:
        """An error in this software occurred in a timer or while batches were applied: the log must not continue."""
        self._stopped = True
        _log.failure("the {name} log cannot go on", failure=failure, name=self.name)
        self._storage_error(f"the {self.name} log cannot go on: {failure.getErrorMessage()}", True)

    def _end(self, text: str) -> None:
        """Stop, and let the broker stop with this text."""
        self.stop()
        self._storage_error(text, True)

    def _disk_refuses(self, text: str) -> None:
        """The disk has no room: say so once, until it takes writes again."""
        if not self._proposing.refused:
            self._storage_error(text, False)

    def _disk_takes(self) -> None:
        """The disk has taken a write. The listener is told now, unless `told` does so in this turn: a backup never gets there."""
        if not self._proposing.refused:
            return
        self._proposing.refused = False
        _log.info("the disk takes writes again ({name} log)", name=self.name)
        if not self._stopped and not self.may_propose:
            self._listener.on_writable()

    def _storage_error(self, text: str, fatal: bool) -> None:
        self._proposing.refuse()
        self._listener.on_storage_error(text, fatal)

    # ---- bodies

    def read_bodies(self, bodies: list[Body]) -> Deferred[list[bytes | str]]:
        """Read these bodies from disk in another thread: the bytes of each, or the text why it cannot be read."""
        return self._in_thread(lambda: read_verified(self.journal, bodies))

    @property
    def obstacle(self) -> str:
        """See `Snapshots.obstacle`."""
        return self._snapshots.obstacle

    def rotten(self, place: int, text: str) -> None:
        """See `Damage.found`."""
        self._damage.found(place, text)

    def compacted(self, first_index: int) -> None:
        """A checkpoint is written, and the log before this index may be deleted."""
        self._take(self.replica.compacted(first_index))

    # ---- calls for `ha.log.applying`

    def _term_ended(self, reason: str, planned: bool) -> None:
        self._before_end()
        _log.info("no primary any more: {reason}", reason=reason)
        self._snapshots.cut_short("the primary is none any more")
        if not planned:
            self._on_event("fenced", epoch=self.replica.epoch, detail=reason)

    def is_active(self) -> None:
        """The listener is about to be told that this broker is the primary, or standalone: no batch in the log is in
        progress."""
        self._proposing.begin_after(self.replica.log.last_index)

    def held_by_all(self) -> int:
        """The index up to which all connected backups have the log on disk; without backups, the last index of this broker."""
        needing = [peer.match_index for peer in self.status().peers if peer.connected and peer.stores]
        return min([self.replica.log.last_index, *needing])

    def applied_more(self) -> None:
        """Batches were applied: a checkpoint or a compaction may be due."""
        self.retention.applied()

    def cannot_read(self, why: str) -> None:
        """A committed batch cannot be read back."""
        self._stopped = True
        self._storage_error(f"a committed batch cannot be read back: {why}", True)

    def told(self) -> None:
        """Tell the listener that proposals have become welcome, if it waits for that."""
        if self._proposing.declined and self.may_propose:
            self._proposing.declined = False
            self._listener.on_writable()
