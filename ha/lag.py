"""How far each backup is behind, taken once an interval and handed to telemetry.

On a primary: a row per backup for the whole log, and one per backup and replicated queue; on a backup, its own view of the
whole log. A queue's lag is what the batches that a backup has not acknowledged hold for it. A backup so far behind that its
batches are no longer in memory has the whole log's row alone: its queues' share is not known without reading the disk, and a
sample must not do that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core.nodes import CLUSTER, QueueNode
from broker.core.records import Batch, Kind
from broker.service import Broker
from broker.telemetry import LagSample, StallMeter, TelemetryWriter, delay_to_next_sample_s
from ha.progress_clock import Lag
from ha.replicated_log import ReplicatedLog

_MOST_BATCHES = 4096


class LagReporter:
    """Samples every `interval_ms`. `wall` gives seconds since 1970."""

    def __init__(
        self,
        clock: IReactorTime,
        broker: Broker,
        log: ReplicatedLog,
        me: str,
        telemetry: TelemetryWriter,
        wall: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._broker = broker
        self._log = log
        self._me = me
        self._telemetry = telemetry
        self._wall = wall
        self._stalls = StallMeter()
        self._call: IDelayedCall | None = None

    def start(self) -> None:
        """Begin to sample."""
        delay = delay_to_next_sample_s(self._wall(), self._telemetry.interval_ms)
        self._call = self._clock.callLater(delay, self._sample)

    def stop(self) -> None:
        """End; what was taken is written."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._telemetry.close()

    def _sample(self) -> None:
        self.start()
        status = self._log.status()
        if self._broker.state == "active":
            rows = list(self._primary_rows())
            queues = [node.name for node in self._replicated_queues()]
            backups = [address for address in status.members.addresses if address != self._me]
            self._telemetry.roster(epoch=status.epoch, primary=self._me, backups=backups, queues=queues)
            self._telemetry.samples(epoch=status.epoch, primary=self._me, rows=rows)
        else:
            self._telemetry.samples(epoch=status.epoch, primary=status.primary, rows=[self._own_row()])

    def _replicated_queues(self) -> list[QueueNode]:
        return [node for node in self._broker.nodes.queues.values() if node.messages_log == CLUSTER and node.messages is not None]

    def _primary_rows(self) -> Iterator[LagSample]:
        now, status = self._clock.seconds(), self._log.status()
        queues = self._replicated_queues()
        keys: list[object] = []
        for lag in self._log.lag().values():
            keys.append(lag.address)
            whole = self._row(lag, None, status.commit_index, lag.lag_records, lag.lag_bytes, now)
            yield whole
            waiting = self._by_queue(lag.acked_index + 1, status.last_index)
            if waiting is not None:
                for node in queues:
                    assert node.messages is not None
                    records, nbytes = waiting.get(node.messages.number, (0, 0))
                    keys.append((lag.address, node.name))
                    row = self._row(lag, node, status.commit_index, records, nbytes, now)
                    yield row if records else row._replace(lag_ms=0.0)
        self._stalls.keep(keys)

    def _row(self, lag: Lag, node: QueueNode | None, commit_index: int, records: int, nbytes: int, now: float) -> LagSample:
        key: object = lag.address if node is None else (lag.address, node.name)
        return LagSample(
            backup=lag.address,
            queue=None if node is None else node.name,
            replicate="all" if node is None else str(node.definition["level"]),
            commit_index=commit_index,
            sent_index=lag.sent_index,
            received_index=lag.sent_index,
            acked_index=lag.acked_index,
            applied_index=None,
            lag_records=records,
            lag_bytes=nbytes,
            lag_ms=lag.lag_ms,
            stall_ms=self._stalls.stall_ms(key, lag.acked_index, records, now),
            state=lag.state,
            in_sync=lag.connected and lag.state == "ready",
            connected=lag.connected,
            headroom_bytes=None,
        )

    def _by_queue(self, first: int, last: int) -> dict[int, tuple[int, int]] | None:
        """Records and bytes by queue number in these batches; None when they are too many or not in memory."""
        if last < first:
            return {}
        batches = self._log.cached(first, last) if last - first < _MOST_BATCHES else None
        if batches is None:
            return None
        waiting: dict[int, tuple[int, int]] = {}
        for data in batches:
            for run in Batch.parse(data, verified=True).runs:
                if run.kind in (Kind.ENQUEUE, Kind.DEQUEUE):
                    records, nbytes = waiting.get(run.queue, (0, 0))
                    size = run.offsets[-1] - run.offsets[0] if run.offsets else 0
                    waiting[run.queue] = (records + run.count, nbytes + size)
        return waiting

    def _own_row(self) -> LagSample:
        """A backup's own view: what it holds against what it knows to be committed."""
        status = self._log.status()
        behind = max(0, status.commit_index - status.durable_index)
        return LagSample(
            backup=self._me,
            queue=None,
            replicate="all",
            commit_index=status.commit_index,
            sent_index=None,
            received_index=status.last_index,
            acked_index=status.durable_index,
            applied_index=self._broker.lead.state.index,
            lag_records=self._log.replica.log.records_between(status.durable_index, status.commit_index) if behind else 0,
            lag_bytes=self._log.replica.log.bytes_between(status.durable_index, status.commit_index) if behind else 0,
            lag_ms=0.0,
            stall_ms=0.0,
            state=self._broker.state,
            in_sync=self._broker.state == "ready",
            connected=bool(status.primary),
            headroom_bytes=None,
        )
