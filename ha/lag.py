"""How far each backup is behind, measured once for each interval and passed to telemetry.

On a primary there is a row for each backup and the whole log, and one for each backup and replicated queue. A backup has one
row, with its own view of the whole log. A witness stores nothing that could be late, so it has no row and writes none.

A queue's lag is exact for a backup that lacks a few batches, because these are in memory and are searched. For a backup that
is further behind, the lag comes from marks (`ha.core.queue_lag`): it is rounded up to the mark before, and is at most the lag
of the whole log.

Invariants: the cost of a sample depends on the numbers of queues and backups, never on the number of waiting messages. At
most `ROWS_PER_S` rows are made: with more queues the interval grows, and each row reports it. The reactor is busy for at most
`SLICE` rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from operator import is_

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.core.nodes import CLUSTER, QueueNode
from broker.core.records import message_runs
from broker.service import Broker
from broker.telemetry import TelemetryWriter, delay_to_next_sample_s
from ha.core.queue_lag import Marks, Standstill, Totals, totals
from ha.core.status import ReplicaStatus
from ha.log.retention import GROWTH
from ha.progress_clock import Lag, ProgressClock
from ha.replicated_log import ReplicatedLog
from telemetry.lines import LagSample, QueueLag, queue_text, rate_text, rate_texts

_log = Logger(namespace="ha")
ROWS_PER_S = 4000
SLICE = 250
_FEW_BATCHES = 256
_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class _Queues:
    """The replicated queues, in the order of their names, and the facts that stay the same until the queues change."""

    nodes: list[QueueNode]
    numbers: tuple[int, ...]
    names: list[str]
    texts: list[str]


@dataclass(frozen=True, slots=True)
class _Interval:
    """The facts that all samples of one moment share."""

    at: float
    now_s: float
    status: ReplicaStatus
    queues: _Queues
    counted: Totals
    rates: list[str]
    runs: dict[int, list[tuple[int, int, int]]]
    """The contents of the newest batches, which several backups may lack."""


class LagReporter:
    """Samples at every `interval_ms` of the telemetry. `wall` gives seconds since 1970; `rows_per_s` limits the rows."""

    def __init__(
        self,
        clock: IReactorTime,
        broker: Broker,
        log: ReplicatedLog,
        me: str,
        telemetry: TelemetryWriter,
        wall: Callable[[], float],
        rows_per_s: int = ROWS_PER_S,
    ) -> None:
        self._clock = clock
        self._rows_per_s = rows_per_s
        self._broker = broker
        self._log = log
        self._me = me
        self._telemetry = telemetry
        self._wall = wall
        self._interval_ms = telemetry.interval_ms
        self._epoch = -1
        self._marks = Marks()
        self._standing: dict[str, Standstill] = {}
        self._queues = _Queues([], (), [], [])
        self._found: list[QueueNode] = []
        self._told = ProgressClock()
        self._committed: tuple[float, int, int, int] | None = None
        self._work: Iterator[None] | None = None
        self._work_call: IDelayedCall | None = None
        self._call: IDelayedCall | None = None

    def start(self) -> None:
        """Begin to sample."""
        delay = delay_to_next_sample_s(self._wall(), self._interval_ms)
        self._call = self._clock.callLater(delay, self._sample)

    def stop(self) -> None:
        """Stop, and close the telemetry: samples already taken are written."""
        for call in (self._call, self._work_call):
            if call is not None and call.active():
                call.cancel()
        self._telemetry.close()

    def _sample(self) -> None:
        self.start()
        with self._telemetry.measured():
            self._take_sample()

    def _take_sample(self) -> None:
        news = self._telemetry.news_of_loss()
        if news:
            _log.warn("{news}", news=news)
        status = self._log.status()
        if status.epoch != self._epoch:
            self._epoch, self._marks, self._committed, self._told = status.epoch, Marks(), None, ProgressClock()
            self._standing.clear()
        if self._broker.state in ("active", "recovering"):
            self._sample_backups(status)
            return
        self._telemetry.no_roster()
        if not self._log.replica.is_witness:
            self._stretch(1)
            self._telemetry.samples(epoch=status.epoch, primary=status.primary, rows=[self._own_row(status)])

    # ---- on a primary

    def _sample_backups(self, status: ReplicaStatus) -> None:
        self._look_at_queues()
        lags = self._log.lag()
        at = self._wall()
        if not self._is_due(at, len(lags) * (1 + len(self._queues.nodes))):
            return
        self._finish()
        members = status.members
        self._telemetry.roster(
            epoch=status.epoch,
            primary=self._me,
            backups=sorted(address for address in members.addresses if address not in (self._me, members.witness)),
            queues=self._queues.names,
            voters=members.voters,
            witness=members.witness,
            witness_connected=any(peer.connected for peer in status.peers if peer.address == members.witness),
        )
        interval = self._interval(status, at)
        self._work = self._rows(interval, lags)
        self._next_slice()

    def _is_due(self, at: float, rows: int) -> bool:
        """Whether the samples of this moment are due, if they have so many rows."""
        times = max(1, ceil(rows / (self._rows_per_s * self._interval_ms / 1000)))
        self._stretch(times)
        return int(at * 1000 / self._interval_ms) % times == 0

    def _stretch(self, times: int) -> None:
        self._telemetry.interval_ms = self._interval_ms * times

    def _go_on(self) -> None:
        with self._telemetry.measured():
            self._next_slice()

    def _next_slice(self) -> None:
        """Make some of the rows, and schedule the rest."""
        self._work_call = None
        assert self._work is not None
        for _ in self._work:
            self._work_call = self._clock.callLater(_PAUSE_S, self._go_on)
            return
        self._work = None

    def _finish(self) -> None:
        """Make the remaining rows of the last interval now, because the reactor is late."""
        if self._work_call is not None:
            self._work_call.cancel()
        for _ in self._work or ():
            pass
        self._work = self._work_call = None

    def _rows(self, interval: _Interval, lags: dict[str, Lag]) -> Iterator[None]:
        """Pass on all rows, in slices."""
        status, queues = interval.status, interval.queues
        committed, synced = self._commit_rate(status, interval.now_s), self._log.syncs.take()
        described = []
        for lag in lags.values():
            records = self._waiting(lag, interval)
            standing = self._standing.setdefault(lag.address, Standstill())
            behind: list[object] = [queues.numbers[position] for position in records]
            stalls = standing.stalls_ms(lag.acked_index, interval.now_s, [None, *behind] if lag.lag_records else behind)
            waiting: dict[int, QueueLag] = {
                position: (n, nbytes, lag_ms, stall_ms)
                for (position, (n, nbytes, lag_ms)), stall_ms in zip(
                    records.items(), map(stalls.__getitem__, behind), strict=True
                )
            }
            described.append((self._whole(lag, status, stalls.get(None, 0.0), committed, synced), waiting))
        self._telemetry.samples(epoch=status.epoch, primary=self._me, rows=[whole for whole, _ in described], at=interval.at)
        self._marks.add(interval.counted)
        for whole, waiting in described:
            for first in range(0, len(queues.nodes), SLICE):
                last = first + SLICE
                self._telemetry.queue_samples(
                    epoch=status.epoch,
                    primary=self._me,
                    whole=whole,
                    queues=queues.texts[first:last],
                    waiting=_slice(waiting, first, last) if len(queues.nodes) > SLICE else waiting,
                    rates=interval.rates[first:last],
                    at=interval.at,
                )
                yield

    def _whole(
        self,
        lag: Lag,
        status: ReplicaStatus,
        stall_ms: float,
        committed: tuple[float, float] | None,
        synced: tuple[float, float] | None,
    ) -> LagSample:
        return LagSample(
            backup=lag.address,
            queue=None,
            replicate="all",
            commit_index=status.commit_index,
            sent_index=lag.sent_index,
            received_index=lag.received_index,
            acked_index=lag.acked_index,
            applied_index=None,
            lag_records=lag.lag_records,
            lag_bytes=lag.lag_bytes,
            lag_ms=lag.lag_ms,
            stall_ms=stall_ms,
            state=lag.state,
            in_sync=lag.connected and lag.state == "ready",
            connected=lag.connected,
            headroom_bytes=self._headroom_bytes(lag),
            role="primary",
            sync_ms=None if synced is None else synced[0] * 1000,
            sync_max_ms=None if synced is None else synced[1] * 1000,
            round_trip_ms=None if lag.round_trip_s is None or not lag.connected else lag.round_trip_s * 1000,
            records_per_s=None if committed is None else committed[0],
            bytes_per_s=None if committed is None else committed[1],
        )

    def _headroom_bytes(self, lag: Lag) -> int:
        """The bytes that may be committed before a backup needs a snapshot.

        Of the log before it, each checkpoint keeps at least `checkpoint_bytes` for a connected backup: this is a lower bound. For
        another backup it keeps nothing: this estimate assumes that the next checkpoint is due because the log has grown. One that
        frees files comes sooner.
        """
        log, size, checkpoint = self._log.replica.log, self._log.retention.checkpoint_bytes, self._log.journal.checkpoint
        if lag.acked_index + 1 < log.first_index:
            return 0
        if lag.connected:
            return max(0, size - log.bytes_between(lag.acked_index, log.last_index))
        grown = log.bytes_between(0 if checkpoint is None else checkpoint.index, self._broker.lead.state.index)
        return max(0, max(size, GROWTH * (0 if checkpoint is None else checkpoint.nbytes)) - grown)

    # ---- queues

    def _look_at_queues(self) -> None:
        known = self._broker.nodes.queues.values()
        nodes = [node for node in known if node.messages is not None and node.messages_log == CLUSTER]
        if len(nodes) != len(self._found) or not all(map(is_, nodes, self._found)):
            self._found = nodes.copy()
            nodes.sort(key=_name)
            numbers = tuple(node.messages.number for node in nodes if node.messages is not None)
            texts = [queue_text(node.name, node.definition.level) for node in nodes]
            self._queues = _Queues(nodes, numbers, [node.name for node in nodes], texts)

    def _interval(self, status: ReplicaStatus, at: float) -> _Interval:
        queues, now_s = self._queues, self._clock.seconds()
        messages = [node.messages for node in queues.nodes if node.messages is not None]
        counted = totals(
            self._broker.lead.state.index,
            now_s,
            queues.numbers,
            [each.enqueued + each.dequeued for each in messages],
            [each.enqueued_bytes for each in messages],
        )
        return _Interval(at, now_s, status, queues, counted, self._rates(counted), {})

    def _rates(self, counted: Totals) -> list[str]:
        before = self._marks.newest
        if before is None or counted.at_s <= before.at_s:
            return [rate_text(None, None)] * len(counted.numbers)
        records, nbytes = counted.since(before)
        return rate_texts(records, nbytes, counted.at_s - before.at_s)

    def _waiting(self, lag: Lag, interval: _Interval) -> dict[int, tuple[int, int, float]]:
        """The unacknowledged messages of this backup by position of the queue: records, bytes, and the age of the oldest in
        ms."""
        last = interval.status.last_index
        if lag.acked_index >= last:
            return {}
        batches = self._log.cached(lag.acked_index + 1, last) if last - lag.acked_index <= _FEW_BATCHES else None
        if batches is not None:
            return self._within(lag.acked_index + 1, batches, interval)
        mark = self._marks.acknowledged(lag.acked_index)
        records, nbytes = interval.counted.since(mark)
        most, most_bytes, age_ms = lag.lag_records, lag.lag_bytes, lag.lag_ms
        return {
            position: (n if n < most else most, size if size < most_bytes else most_bytes, age_ms)
            for position, (n, size) in enumerate(zip(records, nbytes, strict=True))
            if n
        }

    def _within(self, first: int, batches: Sequence[bytes], interval: _Interval) -> dict[int, tuple[int, int, float]]:
        positions = {number: position for position, number in enumerate(interval.queues.numbers)}
        found: dict[int, tuple[int, int, float]] = {}
        for index, data in enumerate(batches, first):
            age_ms = self._log.progress.age_ms(index, interval.now_s)
            runs = interval.runs.get(index)
            if runs is None:
                runs = interval.runs[index] = message_runs(data)
            for queue, count, size in runs:
                position = positions.get(queue)
                if position is not None:
                    records, nbytes, oldest_ms = found.get(position, (0, 0, age_ms))
                    found[position] = (records + count, nbytes + size, oldest_ms)
        return found

    # ---- on both

    def _commit_rate(self, status: ReplicaStatus, now_s: float) -> tuple[float, float] | None:
        """Records and bytes committed in a second since the last call, as far as this broker knows; None at the first call."""
        records, nbytes = self._log.replica.log.totals_at(status.commit_index)
        before, self._committed = self._committed, (now_s, status.commit_index, records, nbytes)
        if before is None or now_s <= before[0] or records < before[2] or nbytes < before[3]:
            return None
        elapsed_s = now_s - before[0]
        return (records - before[2]) / elapsed_s, (nbytes - before[3]) / elapsed_s

    def _own_row(self, status: ReplicaStatus) -> LagSample:
        """A backup's own view: its durable log compared with the commit index that it knows, and since when it has known
        that."""
        now_s, log = self._clock.seconds(), self._log.replica.log
        durable, commit, last = status.durable_index, status.told_commit, status.last_index
        behind = commit > durable
        if self._told.since(durable) is None:  # the first sample of this epoch: what is missing now counts from now on
            self._told.proposed(min(durable, commit), now_s)
        since_s = self._told.since(durable) if behind else None
        self._told.proposed(commit, now_s)
        standing = self._standing.setdefault(self._me, Standstill())
        stalls = standing.stalls_ms(durable, now_s, [None] if behind else [])
        committed, synced = self._commit_rate(status, now_s), self._log.syncs.take()
        return LagSample(
            backup=self._me,
            queue=None,
            replicate="all",
            commit_index=commit,
            sent_index=None,
            received_index=status.last_index,
            acked_index=durable,
            applied_index=self._broker.lead.state.index,
            lag_records=log.records_between(durable, min(commit, last)) + max(commit - last, 0),
            lag_bytes=log.bytes_between(durable, min(commit, last)),
            lag_ms=0.0 if since_s is None else max(0.0, now_s - since_s) * 1000,
            stall_ms=stalls.get(None, 0.0),
            state=self._broker.state,
            in_sync=self._broker.state == "ready",
            connected=bool(status.primary),
            headroom_bytes=None,
            role="backup",
            sync_ms=None if synced is None else synced[0] * 1000,
            sync_max_ms=None if synced is None else synced[1] * 1000,
            round_trip_ms=None,
            records_per_s=None if committed is None else committed[0],
            bytes_per_s=None if committed is None else committed[1],
        )


def _slice(waiting: dict[int, QueueLag], first: int, last: int) -> dict[int, QueueLag]:
    return {position - first: each for position, each in waiting.items() if first <= position < last}


def _name(node: QueueNode) -> str:
    return node.name
