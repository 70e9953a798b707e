"""The Protocol of a replicated log, as the broker uses it.

The broker gathers records in a `BatchBuilder` and proposes it. The log seals it, makes it durable here and on a majority, and
returns committed batches in the order of their indexes, on a primary and on a backup alike. `ha.replicated_log` implements this
Protocol with one member (standalone brokers and the local log) or many (the cluster log).

Life of a log for the broker: `on_state` reports joining / catchup / ready on a backup, and recovering, then active on a primary
whose first own batch is committed. The broker may propose only in `active` and `standalone`. When the log leaves these states,
all proposals that have not been passed to `on_committed` are void for the broker: their producers get no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from twisted.internet.defer import Deferred

from broker.core.queues.blocks import LiveRun, Move
from broker.core.queues.reading import Body
from broker.core.records import Batch, BatchBuilder


class LogListener(Protocol):
    """The broker's side: called in the reactor thread, never inside a call of `propose`."""

    def on_committed(self, batches: list[Batch]) -> None:
        """These batches are committed, next in order; apply them all before returning.

        CannotApply (broker.core.state) when this release must not apply one of them: all before it are applied, and nothing from
        it on ever will be.
        """

    def on_state(self, state: str, epoch: int, primary: str) -> None:
        """The log's state is now `state` (Qpid's words), in `epoch`, with that primary ("" when unknown)."""

    def on_reset(self, batches: Iterable[Batch], index: int) -> None:
        """Drop the applied state: the state up to `index` is the content of these snapshot batches. After CannotApply it is
        unchanged."""

    def on_writable(self) -> None:
        """`may_propose` has become true again, or only the disk takes writes again: on a broker that is not the primary, too."""

    def on_quiesce(self, within_s: float, done: Callable[[], None]) -> None:
        """Another broker will take over: let the clients settle their messages, and call `done` when all their input is answered,
        in any case after `within_s` seconds. Do not call it within this call."""

    def on_resume(self) -> None:
        """It does not take over: serve the clients again. `done` of the last `on_quiesce` is not to be called any more."""

    def on_storage_error(self, text: str, fatal: bool) -> None:
        """The disk refused a write. Full: producers must wait (`fatal` false). Failed sync: the broker must stop."""

    def on_storage_low(self, text: str, spare_bytes: int = 0) -> None:
        """The disk is nearly full: producers must wait, while consumers continue and free space; "" when there is enough again.
        Messages of `spare_bytes` may still be proposed, because clients have credit for them."""

    def on_storage_spare(self, spare_bytes: int, most_bytes: int = 0) -> None:
        """The disk is still nearly full, and takes messages of `spare_bytes` that replace others; or one of up to `most_bytes`,
        with all its copies, if that is more."""

    def snapshot(self) -> Iterable[BatchBuilder]:
        """The applied state, as builders of snapshot batches. It is taken at once and consumed later in another thread: it
        contains only immutable data and copies."""

    def live_bytes(self) -> int:
        """Bytes of messages alive."""

    def live_by_file(self) -> Mapping[int, int]:
        """Bytes of messages alive, by the number of the file that they lie in; a file with none may be missing."""

    def live_runs_in(self, file: int) -> Iterator[tuple[int, LiveRun]]:
        """Queue number and run, for each run in this file of which something is alive. The state may change in between."""

    def moved(self, queue: int, moves: Iterable[Move]) -> None:
        """Messages of this queue were copied to other places. Messages that have left, or have another place meanwhile, do not
        change."""


class CommitLog(Protocol):
    """The log's side."""

    @property
    def state(self) -> str:
        """joining, catchup, ready, recovering, active or standalone."""

    @property
    def epoch(self) -> int:
        """The epoch that this broker is in."""

    @property
    def may_propose(self) -> bool:
        """Active, and few enough batches in flight that a new one would not just lie in a queue."""

    def read_bodies(self, bodies: list[Body]) -> Deferred[list[bytes | str]]:
        """Read these bodies from disk in another thread: for each the bytes, or the text why they cannot be read. The bytes have
        passed their checksum. The place of a body may have become invalid since the request: see `rotten`.
        """

    def rotten(self, place: int, text: str) -> None:
        """A body that lies at this place still cannot be read. In a cluster this broker stops, and gets a copy from another."""

    def propose(self, builder: BatchBuilder) -> int:
        """Seal and replicate; returns the batch's index. Call only while `may_propose`."""
