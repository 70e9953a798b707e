"""A replicated log: a Replica (ha.core), a Journal (broker.disk) and links to the other members, as one CommitLog.

Life of a batch on a primary: `propose` seals it with the next index; the same bytes go to the journal and to each backup; when
the core says Commit, it is parsed and handed to the listener. On a backup: it comes in an Append, is checked, goes to the
journal, is acknowledged when synced, and handed to the listener when the primary says that it is committed. Both apply it only
once it is durable here: then its place on disk is known, and its bodies need not stay in memory. In both cases the order of the
core's effects is kept: what it wants saved is saved before what it wants sent leaves.

What the listener is told comes in order too: a state is told only after everything committed before it was applied. A long log is
applied in slices, so that a broker which replays stays responsive.

A batch that this release must not apply ends that life: the listener is told nothing more, no checkpoint is written, and this
member leads nobody; it goes on storing and voting (docs/adr/0015). A log of this broker alone ends the broker then.

Invariants: the listener is never called from within `propose`; bytes that fail their checksum never reach core, journal or
listener; a batch is in memory until it is applied here and durable here; at most one checkpoint is written, and one received, at
a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, assert_never

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.commit_log import LogListener
from broker.core.queues.reading import Body
from broker.core.records import BadBatch, Batch, BatchBuilder, UnknownRecord, parse_header
from broker.core.state import CannotApply
from broker.disk.checkpoint import Checkpoint
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
from ha.core.replica import Replica, ReplicaStatus
from ha.core.settings import MIB, ReplicaSettings
from ha.log.bodies import read_verified
from ha.log.retention import CHECKPOINT_BYTES, Retention
from ha.outbox import NoPeers, Outbox, Peers
from ha.progress_clock import Lag, ProgressClock, SyncTimes
from ha.received import BadMessage, check_chunk, checked_append, stored_log
from ha.snapshots import Snapshots, Transfers

_log = Logger(namespace="ha")
LARGE_BATCH_BYTES = 64 * 1024
FULL_BATCH_BYTES = 512 * 1024
SMALL_WINDOW = 4
FULL_WINDOW_BYTES = 3 * MIB
"""What waits while a batch is under way makes the next one larger, and so cheaper: one large batch is enough. One that is full
already gains nothing by waiting, so that several follow each other, as long as they do not make the wait of what comes then long.
"""
APPLY_SLICE_BYTES = 8 * MIB


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
    ) -> None:
        """Open the log `name` of the store; blocks while it is read.

        `members` are those of a store that knows of none. `wall` gives seconds since 1970; `in_thread` runs a function in
        another thread; `new_id` gives ids that nothing else has; `on_event` takes what telemetry tells; `first_format` says
        whether a member reads batches of the first format alone. DamagedStore, StorageError, BadBatch.
        """
        self.name, self.me = name, me
        self._clock = clock
        self._awake = AwakeClock(clock.seconds, settings.heartbeat_s)
        self._wall = wall
        self._listener = listener
        self._in_thread = in_thread
        self._peers: Peers = peers if peers is not None else NoPeers()
        self._on_members, self._on_event = on_members, on_event
        self._new_id = new_id
        self._first_format = first_format
        self.journal, found = store.journal(name, call_in_reactor=call_in_reactor, on_error=self._storage_error)
        for note in found.notes:
            _log.warn("{name} log: {note}", name=name, note=note)
        log = stored_log(self.journal, members, found.checkpoint, found.entries)
        self.replica = Replica(
            me,
            settings,
            epoch=found.epoch,
            voted_for=found.voted_for,
            log=log,
            commit_index=log.base_index,
            blank=found.blank,
            vote_floor=None if found.floor is None else Position(found.floor.epoch, found.floor.index),
            cluster_id="" if settings.standalone else store.cluster_id,
        )
        self._first_checkpoint = found.checkpoint
        self._cache = BatchCache(log.last_index + 1)
        self._applied = log.base_index
        self._committed = log.base_index
        self._state = State.JOINING
        self._told: deque[tuple[int, State, int, str]] = deque()
        self._apply_call: IDelayedCall | None = None
        self._due = self._applying = self._proposing = False
        self._effects: deque[Effect] = deque()
        self._members_due: Membership | None = None
        self._proposed_through = self._last_proposed_bytes = self._received_first = 0
        self._running = self._disk_refuses = self._was_writable = self._stopped = False
        self._received: list[bytes] = []
        self._outbox = Outbox(self._peers)
        folder, transfers = store.data_dir / name, Transfers(clock.seconds, on_event)
        self.retention = Retention(name, self.journal, self, listener, clock, wall, checkpoint_bytes)
        self._snapshots = self.retention.snapshots = Snapshots(
            self.journal, folder, in_thread, self._outbox, self.retention.checkpoint, self.rotten, transfers
        )
        self.progress, self.syncs = ProgressClock(), SyncTimes()
        self._requests: dict[str, Deferred[PromotionEnded]] = {}
        self._transfers: dict[str, list[Deferred[TransferEnded]]] = {}
        self._changes: dict[str, Deferred[MembershipEnded]] = {}
        self._ended: list[tuple[Deferred[Any], Any]] = []
        self.bad_batches = 0
        self.halted = ""
        """Why nothing more is applied, "" while it is."""
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = clock
        self._tick_s = None if settings.standalone else settings.heartbeat_s / 2

    # ---- CommitLog

    @property
    def state(self) -> State:
        """joining, catchup, ready, recovering, active or standalone, as the listener knows it."""
        return self._state

    @property
    def epoch(self) -> int:
        """The epoch that this broker is in."""
        return self.replica.epoch

    @property
    def primary(self) -> str:
        """The primary's address, or ""."""
        return self.replica.primary

    @property
    def _applicable(self) -> int:
        """How far committed batches may be applied: what is not durable here has no place yet."""
        return min(self._committed, self.replica.durable_index)

    @property
    def may_propose(self) -> bool:
        """Writable, the disk willing, and few enough batches under way: a few when they are small or full, one in between."""
        if self._state not in (State.ACTIVE, State.STANDALONE) or not self.replica.writable:
            return False
        if self._disk_refuses or self._members_due is not None or self._stopped:
            return False
        under_way = self._proposed_through - self._applicable
        if self._last_proposed_bytes < LARGE_BATCH_BYTES:
            return under_way < SMALL_WINDOW
        if self._last_proposed_bytes < FULL_BATCH_BYTES or not under_way:
            return under_way < 1
        return self.replica.log.bytes_between(self._applicable, self._proposed_through) <= FULL_WINDOW_BYTES

    def propose(self, builder: BatchBuilder) -> int:
        """Seal and replicate; returns the batch's index."""
        assert self.may_propose, "a batch was proposed while the log takes none"
        self._proposing = True
        try:
            return self._propose(builder, None)
        finally:
            self._proposing = False

    def _propose(self, builder: BatchBuilder, members: Membership | None) -> int:
        index = self.replica.next_index
        data = builder.seal(self.replica.epoch, index, round(self._wall() * 1000), first_format=self._first_format())
        self._cache.put(index, data)
        self._proposed_through = index
        self._last_proposed_bytes = len(data)
        self.progress.proposed(index, self._clock.seconds())
        self._take(self.replica.propose(self._awake.seconds(), len(data), parse_header(data).n_records, members))
        return index

    # ---- what the edge tells

    def start(self) -> None:
        """Begin: from here on the listener is called."""
        if self._first_checkpoint is not None:
            self._load(self._first_checkpoint)
        self._take(self.replica.start(self._awake.seconds()))
        if self._tick_s is not None:  # a log of one broker waits for nobody
            self._ticker.start(self._tick_s, now=False).addErrback(self._broken)

    def _load(self, checkpoint: Checkpoint) -> None:
        batches = (Batch.parse(data, verified=True) for data in Checkpoint.read(checkpoint.path, disk=self.journal.disk))
        try:
            self._listener.on_reset(batches, checkpoint.index)
        except (CannotApply, UnknownRecord) as error:
            self._halt(str(error))

    def _halt(self, why: str) -> None:
        """This release must not apply what is committed: say so, once, and stop applying."""
        self.halted = f"{why}; nothing more is applied here: upgrade this broker"
        self.retention.stop()  # a checkpoint would leave out what is not applied
        if self._tick_s is None:
            self._stopped = True
            self._storage_error(f"the {self.name} log was written by a newer release: {why}: upgrade this broker", True)
            return
        _log.error("{name} log: {reason}", name=self.name, reason=self.halted)
        self._take(self.replica.halt(self._awake.seconds(), f"{self.me} cannot apply its log: {self.halted}"))

    def stop(self) -> Deferred[None]:
        """End: nothing more is sent, proposed or told. The journal is left open, for the store to close."""
        if not self._stopped:
            self._stopped = True
            self.retention.stop()
            self._snapshots.cut_short("the broker stops")
            if self._ticker.running:
                self._ticker.stop()
            if self._apply_call is not None and self._apply_call.active():
                self._apply_call.cancel()
        return succeed(None)

    def connected(self, peer: str) -> None:
        """A link to this member is up."""
        self._take(self.replica.connected(self._awake.seconds(), peer))

    def disconnected(self, peer: str) -> None:
        """The link to this member is gone."""
        self._outbox.clear(peer)
        self._snapshots.cut_short("the link was lost", peer)
        self._take(self.replica.disconnected(self._awake.seconds(), peer))

    def receive(self, peer: str, message: Message, payload: bytes) -> None:
        """A message came; `payload` is what stood beside it: whole batches end to end, or a chunk of a snapshot."""
        if self._stopped:
            return
        try:
            match message:
                case Append():
                    message, self._received = checked_append(message, payload)
                    self._received_first = message.first
                case SnapshotChunk():
                    check_chunk(message, payload)
                    self._received = [payload]
                case _:
                    pass
        except BadMessage as error:
            self.bad_batches += 1
            _log.error("nothing of a message from {peer} was stored: {error}", peer=peer, error=str(error))
            self._peers.close(peer, str(error))
            return
        self._take(self.replica.step(self._awake.seconds(), peer, message))

    def heard(self, peer: str) -> None:
        """More of a large message has come from this member, which is not whole yet."""
        self._take(self.replica.heard(self._awake.seconds(), peer))

    def _tick(self) -> None:
        self._take(self.replica.tick(self._awake.seconds()))

    # ---- requests

    def promote(self, reason: str) -> Deferred[PromotionEnded]:
        """Become the primary; fires when active, or when refused."""
        del reason
        return self._stand(self.replica.promote)

    def bootstrap(self) -> Deferred[PromotionEnded]:
        """Begin a new cluster from this blank store, without the members that are silent; fires when active, or when refused."""
        return self._stand(self.replica.bootstrap)

    def obstacle_to_bootstrap(self) -> str:
        """Why no new cluster can begin with this store, or ""."""
        return self.replica.obstacle_to_bootstrap(self._awake.seconds())

    def _stand(self, ask: Callable[[float, str], list[Effect]]) -> Deferred[PromotionEnded]:
        request_id = self._new_id()
        ended: Deferred[PromotionEnded] = Deferred()
        self._requests[request_id] = ended
        self._take(ask(self._awake.seconds(), request_id))
        return ended

    def transfer(self, candidate: str) -> Deferred[TransferEnded]:
        """Hand over to this backup (on a primary)."""
        ended: Deferred[TransferEnded] = Deferred()
        self._transfers.setdefault(candidate, []).append(ended)
        self._take(self.replica.transfer(self._awake.seconds(), candidate))
        return ended

    def add_member(self, address: str) -> Deferred[MembershipEnded]:
        """Add a broker to the cluster (on a primary)."""
        return self._change(self.replica.add_member, address)

    def remove_member(self, address: str) -> Deferred[MembershipEnded]:
        """Remove a broker from the cluster (on a primary)."""
        return self._change(self.replica.remove_member, address)

    def _change(self, change: Callable[[float, str, str], list[Effect]], address: str) -> Deferred[MembershipEnded]:
        request_id = self._new_id()
        ended: Deferred[MembershipEnded] = Deferred()
        self._changes[request_id] = ended
        self._take(change(self._awake.seconds(), address, request_id))
        return ended

    # ---- views

    def status(self) -> ReplicaStatus:
        """The replica's own figures."""
        return self.replica.status(self._awake.seconds())

    @property
    def applied(self) -> int:
        """The index up to which the listener has applied."""
        return self._applied

    @property
    def serving(self) -> bool:
        """Whether producers may write to it here."""
        return self._state in (State.ACTIVE, State.STANDALONE)

    @property
    def log(self) -> Log:
        """The log as the core sees it."""
        return self.replica.log

    def lag(self, status: ReplicaStatus | None = None) -> dict[str, Lag]:
        """How far each other member is behind, by address; empty unless this broker is primary. Whoever has just asked for the
        status gives it."""
        return self.progress.lag(status or self.status(), self._clock.seconds())

    def cached(self, first: int, last: int) -> list[bytes] | None:
        """Batches that are in memory; None when not all are."""
        return self._cache.span(first, last)

    # ---- effects

    def _take(self, effects: list[Effect]) -> None:
        """Carry out effects in order, those that arise meanwhile after them."""
        self._effects.extend(effects)
        if self._running or self._stopped:
            return
        self._running = True
        try:
            while self._effects or self._members_due is not None:
                if self._effects:
                    self._execute(self._effects.popleft())
                elif self._members_due is not None:
                    self._propose_members(self._members_due)
        except StorageError as error:
            self.stop()  # what was not saved must not be said, now or when it is asked for again
            self._storage_error(str(error), True)
        finally:
            self._running = False
        if self._due and not self._applying and not self._proposing:
            self._apply()
        self._tell_writable()

    def _execute(self, effect: Effect) -> None:
        match effect:
            case do.SaveHardState(epoch, voted_for):
                self.journal.save_hard_state(epoch, voted_for)
            case do.StoreWhole():
                self.journal.floor_passed()
            case do.StoreEntries(first, last):
                self._store(first, last)
            case do.TruncateLog(from_index):
                assert from_index > self._applied, f"batch {from_index} is applied and cannot be taken back"
                self._cache.truncate(from_index)
                self.journal.truncate(from_index, lambda: None)
            case do.Commit(index):
                before, self._committed = self._committed, max(self._committed, index)
                self._tell_members(before)
                self._due = True
            case do.Send(peer, message):
                self._outbox.send(peer, message, ())
            case do.Strange(peer, theirs):
                self._peers.close(
                    peer, f"it speaks as the primary of {f'cluster {theirs}' if theirs else 'a new cluster'}, not ours"
                )
            case do.SendEntries(peer, append):
                self._send_entries(peer, append)
            case do.SendSnapshot(peer, epoch, index, offset):
                self._send_snapshot(peer, epoch, index, offset)
            case do.StoreChunk() | do.InstallSnapshot():
                self._take_snapshot(effect)
            case do.ProposeMembers(members):
                self._members_due = members
            case do.MembershipChanged(members):
                self._peers.set_members(members)
                self._tell_members(-1)
            case do.StateChanged(state, epoch, primary):
                self._state_changed(state, epoch, primary)
            case do.WritableChanged():
                pass  # asked for by `may_propose` after each list of effects
            case PromotionEnded() | TransferEnded() | MembershipEnded() | do.ReignEnded():
                self._ended_with(effect)
            case _:
                assert_never(effect)

    def _tell_members(self, after: int) -> None:
        """Tell of the membership if its index is above `after` and committed: before that it may yet give way to another one."""
        if after < self.replica.log.members_index <= self._committed:
            self._on_members(self.replica.log.members)

    def _ended_with(self, effect: PromotionEnded | TransferEnded | MembershipEnded | do.ReignEnded) -> None:
        """A request has come to its end, or a reign."""
        match effect:
            case do.ReignEnded(reason, planned):
                self._reign_ended(reason, planned)
            case PromotionEnded(request_id):
                self._end(self._requests.pop(request_id), effect)
            case TransferEnded(candidate):
                for ended in self._transfers.pop(candidate, []):
                    self._end(ended, effect)
            case MembershipEnded(request_id):
                self._end(self._changes.pop(request_id), effect)
            case _:
                assert_never(effect)

    def _end(self, ended: Deferred[Any], effect: Any) -> None:
        """Fire outside of the effects, and after the states that came before it were told: `active` waits for this member's own
        disk, which may be slower than those of the majority."""
        self._ended.append((ended, effect))
        self._due = True

    def _propose_members(self, members: Membership) -> None:
        self._members_due = None
        if not members.cluster_id:
            members = Membership(members.voters, members.learners, self._new_id())
        builder = BatchBuilder()
        builder.members(members.to_dict())
        self._propose(builder, members)

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
        if self._disk_refuses:
            self._disk_refuses = False
            _log.info("the disk takes writes again ({name} log)", name=self.name)
        if not self._stopped:
            self._due = self._due or self._applied < self._committed  # what was committed before may be applied now
            self._take(self.replica.stored(self._awake.seconds(), index, epoch))

    def _broken(self, failure: Failure) -> None:
        """Our own bug, met while time passed or batches were applied: a log that has lost its way must not go on."""
        _log.failure("the {name} log cannot go on", failure=failure, name=self.name)
        self._storage_error(f"the {self.name} log cannot go on: {failure.getErrorMessage()}", True)

    def _storage_error(self, text: str, fatal: bool) -> None:
        self._disk_refuses, self._was_writable = True, False
        self._listener.on_storage_error(text, fatal)

    # ---- sending

    def _send_entries(self, peer: str, append: Append) -> None:
        if append.last < append.first:
            self._outbox.send(peer, append, ())
            return
        batches = self._cache.span(append.first, append.last)
        if batches is not None:
            self._outbox.send(peer, append, batches)
            return
        reign = self.replica.epoch
        # What is in memory goes from there: on disk it may be truncated and written anew just now.
        on_disk = min(self._cache.first - 1, append.last)
        in_memory = self._cache.span(on_disk + 1, append.last) or []

        def read() -> list[bytes]:
            found: list[bytes] = []
            while len(found) < on_disk - append.first + 1:
                more = self.journal.read(append.first + len(found), on_disk, 1 << 40)
                if not more:
                    raise LookupError(f"batch {append.first + len(found)} is neither in memory nor on disk")
                found += more
            return found + in_memory

        self._outbox.send_later(peer, append, self._in_thread(read), lambda: self.replica.epoch == reign, self._unreadable)

    def _unreadable(self, peer: str, error: Exception) -> None:
        """A backup needs batches that cannot be read: damaged, or released meanwhile. A new checkpoint covers them."""
        _log.error("batches for {peer} cannot be read: {error}; it gets a snapshot instead", peer=peer, error=str(error))
        self.retention.checkpoint(spared=0)
        self._peers.close(peer, "batches for it cannot be read, so it is sent a snapshot when it comes back")

    def _send_snapshot(self, peer: str, epoch: int, index: int, offset: int) -> None:
        if self.journal.checkpoint is None:
            self.retention.checkpoint()
            self._snapshots.wait(peer, epoch)
        else:
            if any(each.address == peer and each.match_index >= index for each in self.status().peers):
                index = offset = 0  # it has that one, by what it said last, and lacks what came after: send the newest
            self._snapshots.send(peer, epoch, index, offset)

    # ---- snapshots and checkpoints

    def _take_snapshot(self, effect: do.StoreChunk | do.InstallSnapshot) -> None:
        if isinstance(effect, do.StoreChunk):
            self._store_chunk(effect.chunk)
        else:
            self._install(effect.index, effect.epoch)

    def _store_chunk(self, chunk: SnapshotChunk) -> None:
        stored = self._snapshots.store(chunk, self._received[0], self.primary)
        stored.addCallbacks(self._chunk_stored, self._chunk_failed, callbackArgs=(chunk,), errbackArgs=(chunk,))

    def _chunk_stored(self, checkpoint: Checkpoint | None, chunk: SnapshotChunk) -> None:
        if self._stopped:
            return
        now = self._awake.seconds()
        if checkpoint is None:
            self._take(self.replica.chunk_stored(now, chunk.index))
        else:
            members = Membership.from_dict(checkpoint.members)
            self._take(self.replica.snapshot_stored(now, checkpoint.index, checkpoint.epoch, members))

    def _chunk_failed(self, failure: Failure, chunk: SnapshotChunk) -> None:
        _log.error("the snapshot of batch {index} cannot be kept: {why}", index=chunk.index, why=failure.getErrorMessage())
        if not self._stopped:
            self._take(self.replica.snapshot_failed(self._awake.seconds(), chunk.index))

    def _install(self, index: int, epoch: int) -> None:
        checkpoint = self._snapshots.take_received()
        assert checkpoint.index == index
        self.journal.reset(index, epoch, received=checkpoint)
        self._cache.clear(index + 1)
        self._applied = self._committed = index
        self._told = deque((index, state, at, primary) for _, state, at, primary in self._told)
        self._load(checkpoint)

    # ---- bodies

    def read_bodies(self, bodies: list[Body]) -> Deferred[list[bytes | str]]:
        """Read these bodies from disk in another thread: the bytes of each, or the text why they cannot be read."""
        return self._in_thread(lambda: read_verified(self.journal, bodies))

    def rotten(self, place: int, text: str) -> None:
        """Bodies have rotted here. In a cluster another broker has them still: this one stops, and gets a snapshot when it comes
        back. A log of one broker says it and goes on: whoever asks for these bodies does not get them.
        """
        if self._tick_s is None:
            _log.error("{text}; no other broker has it", text=text)
            return
        try:
            self.journal.damaged(place, text)
        except StorageError as error:
            text = f"{text}; {error}"
        self.stop()
        self._storage_error(f"{text}; the broker stops, and fetches everything from another one when it is started again", True)

    def compacted(self, first_index: int) -> None:
        """A checkpoint stands, and the log before this index may be forgotten."""
        self._take(self.replica.compacted(first_index))

    # ---- telling the listener, in order

    def _state_changed(self, state: State, epoch: int, primary: str) -> None:
        if state in (State.ACTIVE, State.STANDALONE):
            self._told.append((self._committed, state, epoch, primary))
        else:
            if state is not State.RECOVERING:  # a reign that ended is told at once: what it had proposed is void
                self._told.clear()
            self._told.append((self._applied, state, epoch, primary))
        self._due = True

    def _reign_ended(self, reason: str, planned: bool) -> None:
        _log.info("no primary any more: {reason}", reason=reason)
        self._snapshots.cut_short("the primary is none any more")
        if not planned:
            self._on_event("fenced", epoch=self.replica.epoch, detail=reason)

    def _apply_later(self) -> None:
        if self._apply_call is None and not self._stopped:
            self._apply_call = self._clock.callLater(0, self._apply)

    def _apply(self) -> None:
        """Tell what is due; what is more than one slice in the next turn, so that a long log keeps nobody waiting."""
        if self._apply_call is not None and self._apply_call.active():
            self._apply_call.cancel()
        self._apply_call = None
        self._due = False
        self._applying = True
        try:
            self._tell_slice()
        except CannotApply as error:
            self._applied = error.index - 1
            self._halt(str(error))
        except Exception:  # of ours, or damage that no checksum shows: what comes next must not be applied to what this has left
            self._stopped = True
            self._broken(Failure())  # type: ignore[no-untyped-call]
        finally:
            self._applying = False
        if self._due or self._may_tell_more():
            self._apply_later()
        elif self._ended and not self._told:
            ended, self._ended = self._ended, []
            for deferred, effect in ended:
                deferred.callback(effect)
        self._tell_writable()

    def _may_tell_more(self) -> bool:
        if self.halted:
            return bool(self._told) and self._told[0][0] <= self._applied
        return self._applied < self._applicable or (bool(self._told) and self._told[0][0] <= self._applied)

    def _tell_slice(self) -> None:
        """Tell states and committed batches in order, as much as one slice holds."""
        while self._told and self._told[0][0] <= self._applied:
            _, state, epoch, primary = self._told.popleft()
            if state in (State.ACTIVE, State.STANDALONE):
                self._proposed_through = max(self._proposed_through, self.replica.log.last_index)
            self._state = state
            self._listener.on_state(str(state), epoch, primary)
        if self._applied < self._applicable and not self.halted:
            try:
                batches = self._next_batches()
            except (BadBatch, LookupError) as error:
                self._stopped = True
                self._storage_error(f"a committed batch cannot be read back: {error}", True)
                return
            self._applied = batches[-1].header.index
            self._listener.on_committed(batches)
            if self._cache.nbytes > self._cache.max_bytes:
                self._cache.trim(min(self._applied, self.status().durable_index) + 1)
            self.retention.applied()

    def _next_batches(self) -> list[Batch]:
        first, last = self._applied + 1, self._applicable
        if self._told:
            last = min(last, max(self._told[0][0], first))
        if first in self._cache:
            nbytes, stop = 0, first
            while stop <= last and stop in self._cache and nbytes < APPLY_SLICE_BYTES:
                nbytes += len(self._cache[stop])
                stop += 1
            found = self._cache.span(first, stop - 1)
            assert found is not None
        else:
            # What is in memory may be truncated and written anew on disk just now; what is before it stands.
            found = self.journal.read(first, min(last, self._cache.first - 1), APPLY_SLICE_BYTES)
            if not found:
                raise LookupError(f"batch {first} is neither in memory nor on disk")
        places = self.journal.places(first, first + len(found) - 1)
        batches: list[Batch] = []
        for data, place in zip(found, places, strict=True):
            try:
                batches.append(Batch.parse(data, place=place, verified=True))
            except UnknownRecord as error:
                if not batches:
                    raise CannotApply(parse_header(data).index, str(error)) from None
                break  # what comes before it is applied first
        return batches

    def _tell_writable(self) -> None:
        """Say, each time when it has become so, that proposals are welcome."""
        writable = self.may_propose
        became, self._was_writable = writable and not self._was_writable, writable
        if became:
            self._listener.on_writable()
