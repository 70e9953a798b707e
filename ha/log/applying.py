"""Calls the listener of a log in order: with committed batches once they are durable here, and with the states between them.

Life of a batch here: `commit` reports up to which index the log is committed. When the batch is also durable on this broker, it
is parsed with its place on disk and passed on. A long log is passed on in slices, so that a broker that replays stays
responsive. A state in which this broker serves waits until all earlier committed batches have been passed on; other states are
passed on at once.

If the log cannot be opened because too many files are open, this is not damage: it is tried again a little later, until it can.

A batch that this release must not apply ends this life: nothing more is passed on, and later batches stay in memory only until
they are committed and durable here (docs/adr/0015).

Invariants: batches are passed on once each, by ascending index; the listener is never called from within itself, nor while
`held`; `applied` is at most the committed and at most the durable index.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.commit_log import LogListener
from broker.core.records import BadBatch, Batch, UnknownRecord, parse_header
from broker.core.state import CannotApply
from broker.disk.checkpoint import Checkpoint
from broker.disk.durable import NO_DESCRIPTORS
from broker.disk.journal import Journal
from ha.batch_cache import BatchCache
from ha.core.effects import State
from ha.core.settings import MIB

SLICE_BYTES = 8 * MIB
SLICE_BATCHES = 64
"""A slice has no more than this: small batches, such as those that create queues or hold one message, cost time and not bytes."""
_DESCRIPTOR_WAIT_S = 0.05
_log = Logger(namespace="ha")


class Durable(Protocol):
    """What is known of this broker's disk: `Replica` fulfils it."""

    @property
    def durable_index(self) -> int:
        """The highest index that is synced here."""


class Owner(Protocol):
    """The owner of the log: `ReplicatedLog` fulfils it."""

    def held_by_all(self) -> int:
        """The index up to which all connected backups have the log on disk."""

    def cannot_apply(self, why: str) -> None:
        """This release must not apply the next batch."""

    def cannot_read(self, why: str) -> None:
        """A committed batch cannot be read back."""

    def applied_more(self) -> None:
        """Batches were passed on."""

    def is_active(self) -> None:
        """The listener is about to be told that this broker is the primary, or standalone."""

    def told(self) -> None:
        """Everything that was due in this turn was passed on."""

    def broken(self, failure: Failure) -> None:
        """An error in this software: no later batch must be applied to the state that it has left."""


class Applying:
    """See the module. `base_index` is the index of the checkpoint that the log begins with."""

    def __init__(
        self,
        owner: Owner,
        listener: LogListener,
        journal: Journal,
        cache: BatchCache,
        clock: IReactorTime,
        replica: Durable,
        base_index: int,
    ) -> None:
        self.applied = self.committed = base_index
        self.state = State.JOINING
        """The state that was last passed to the listener."""
        self.halted = ""
        """Why no more batches are applied; "" while they are."""
        self.due = self.held = False
        self._owner = owner
        self._listener = listener
        self._journal = journal
        self._cache = cache
        self._clock = clock
        self._replica = replica
        self._states: deque[tuple[int, State, int, str]] = deque()
        """States to be passed on, each with the index up to which batches come before it."""
        self._answers: list[tuple[Deferred[Any], Any]] = []
        self._call: IDelayedCall | None = None
        self._running = self._stopped = False
        self._waits = False
        """Whether too many files were open at the last attempt to read the log."""

    @property
    def applicable(self) -> int:
        """The index up to which committed batches may be applied: a batch that is not durable here has no place on disk yet."""
        durable, committed = self._replica.durable_index, self.committed
        return committed if committed < durable else durable

    def load(self, checkpoint: Checkpoint) -> None:
        """Pass on a checkpoint as the first state."""
        batches = (Batch.parse(data, verified=True) for data in Checkpoint.read(checkpoint.path, disk=self._journal.disk))
        try:
            self._listener.on_reset(batches, checkpoint.index)
        except (CannotApply, UnknownRecord) as error:
            self._owner.cannot_apply(str(error))

    def install(self, checkpoint: Checkpoint) -> None:
        """Pass on a checkpoint while the log is in use: waiting states are passed on after it. If it cannot be loaded, nothing
        more is passed on: the listener has the state before it."""
        self.applied = self.committed = checkpoint.index
        self._states = deque((checkpoint.index, state, epoch, primary) for _, state, epoch, primary in self._states)
        try:
            self.load(checkpoint)
        except Exception:
            self._stopped = True
            self._owner.broken(Failure())  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Stop: pass on nothing more."""
        self._stopped = True
        if self._call is not None and self._call.active():
            self._call.cancel()

    # ---- what is to be passed on

    def commit(self, index: int) -> int:
        """Everything up to `index` is committed. Returns the commit index before."""
        before, self.committed = self.committed, max(self.committed, index)
        self.due = True
        return before

    def durable(self) -> None:
        """More batches are durable here: batches committed before may be applied now."""
        self.due = self.due or self.applied < self.committed

    def state_changed(self, state: State, epoch: int, primary: str) -> None:
        """The state of this broker has changed."""
        if state in (State.ACTIVE, State.STANDALONE):
            self._states.append((self.committed, state, epoch, primary))
        else:
            if state is not State.RECOVERING:  # the end of a term is passed on at once: its proposals are void
                self._states.clear()
            self._states.append((self.applied, state, epoch, primary))
        self.due = True

    def answer(self, deferred: Deferred[Any], result: Any) -> None:
        """Fire this after everything before it was passed on: `active` waits for this member's own disk, which may be slower
        than those of the majority.
        """
        self._answers.append((deferred, result))
        self.due = True

    # ---- passing on

    def go_on(self) -> None:
        """Pass on what is due, unless this is already in progress."""
        if self.due and not self._running and not self.held and not self._stopped:
            self._apply()

    def _apply_later(self) -> None:
        if self._call is None and not self._stopped:
            self._call = self._clock.callLater(_DESCRIPTOR_WAIT_S if self._waits else 0, self._apply)

    def _apply(self) -> None:
        """Pass on what is due. More than one slice continues in the next turn, so that a long log does not block the reactor."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None
        self.due = False
        self._running = True
        try:
            self._tell_slice()
        except CannotApply as error:
            self.applied = error.index - 1
            self._owner.cannot_apply(str(error))
        except Exception:  # an error in this software, or damage that no checksum shows
            self._stopped = True
            self._owner.broken(Failure())  # type: ignore[no-untyped-call]
        finally:
            self._running = False
        if self.due or self._may_tell_more():
            self._apply_later()
        elif self._answers and not self._states:
            answers, self._answers = self._answers, []
            for deferred, result in answers:
                deferred.callback(result)
        self._owner.told()

    def _may_tell_more(self) -> bool:
        if not self.halted and self.applied < self.applicable:
            return True
        return bool(self._states) and self._states[0][0] <= self.applied

    def _tell_slice(self) -> None:
        """Pass on states and committed batches in order, as many as fit in one slice."""
        while self._states and self._states[0][0] <= self.applied:
            _, self.state, epoch, primary = self._states.popleft()
            if self.state in (State.ACTIVE, State.STANDALONE):
                self._owner.is_active()
            self._listener.on_state(str(self.state), epoch, primary)
        if self.applied < self.applicable and not self.halted:
            try:
                batches = self._next_batches()
            except (BadBatch, LookupError) as error:
                self._stopped = True
                self._owner.cannot_read(str(error))
                return
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                self._wait_for_descriptors(error)
                return
            self._waits = False
            self.applied = batches[-1].header.index
            self._listener.on_committed(batches)
            self._trim_cache()
            self._owner.applied_more()
        elif self.halted:
            self._trim_cache()

    def _wait_for_descriptors(self, error: OSError) -> None:
        if not self._waits:
            text = "batch {index} waits until it can be read: {error}; close connections, or raise the limit of open files"
            _log.error(text, index=self.applied + 1, error=str(error))
        self._waits = True

    def _trim_cache(self) -> None:
        """Drop batches from memory that are not needed there. Once halted, this broker applies none, so committed and durable
        ones are not."""
        if self._cache.nbytes > 2 * self._cache.least_bytes:  # not each time, because it looks at every backup
            done = self.applicable if self.halted else min(self.applied, self._replica.durable_index)
            self._cache.trim(done + 1, min(done, self._owner.held_by_all()) + 1)

    def _next_batches(self) -> list[Batch]:
        first = self.applied + 1
        last = min(self.applicable, self.applied + SLICE_BATCHES)
        if self._states:
            last = min(last, max(self._states[0][0], first))
        found = self._cache.some(first, last, SLICE_BYTES)
        if not found:
            # Batches in memory may be truncated and rewritten on disk at this moment; earlier ones do not change.
            found = self._journal.read(first, min(last, self._cache.first - 1), SLICE_BYTES)
            if not found:
                raise LookupError(f"batch {first} is neither in memory nor on disk")
        places = self._journal.places(first, first + len(found) - 1)
        batches: list[Batch] = []
        for data, place in zip(found, places, strict=True):
            try:
                batches.append(Batch.parse(data, place=place, verified=True))
            except UnknownRecord as error:
                if not batches:
                    raise CannotApply(parse_header(data).index, str(error)) from None
                break  # the batches before it are applied first
        return batches
