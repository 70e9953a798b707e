"""A broker's figures as Prometheus metrics: the answer to `/metrics` of its admin port.

Life of a scrape: `Metrics.text` returns the families one after the other, as pieces of text. It can be interrupted between any
two families and between any two queues while the reactor does other work. The figures of queues are collected first, because the
samples of a family must be together.

Invariants: nothing here changes the broker. Only the broker that serves reports queues, so that a sum over the brokers of a
cluster counts no message twice; the state of a backup's copy is reported as lag. A counter never falls while the process lives; a
queue's counters begin at zero with the queue. At most `limits.METRICS_QUEUES` queues have their own series; the number of the
others is reported.

Reference: docs/reference/metrics.md. Names and units are those of prometheus.io, "Metric and label naming": seconds, bytes, and
`_total` for counters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from broker.core import limits, management
from broker.host import resident_bytes
from broker.service import Broker
from telemetry.exposition import COUNTER, Family, labels, lines

NONE: Final = "none"
SUMS: Final = "sums"
QUEUES: Final = "queues"
LEVELS: Final = (NONE, SUMS, QUEUES)
"""Of `--metrics`: no page; figures of the broker and sums over its queues; series for each queue, too."""

_OF_A_QUEUE: Final = (
    ("messages", "messages", "Messages on the queue, those that consumers hold among them.", False),
    ("bytes", "bytes", "Size of these messages.", False),
    ("consumers", "consumers", "Subscriptions of the queue.", False),
    ("enqueued_messages_total", "messagesIn", "Messages that were put on the queue.", True),
    ("enqueued_bytes_total", "bytesIn", "Size of the messages that were put on the queue.", True),
    ("dequeued_messages_total", "messagesOut", "Messages that have left the queue, however they did.", True),
    ("dequeued_bytes_total", "bytesOut", "Size of the messages that have left the queue.", True),
    ("expired_messages_total", "expired", "Messages that left the queue because their time to live was over.", True),
    ("rejected_messages_total", "rejected", "Messages that a consumer rejected.", True),
    ("over_limit_messages_total", "overLimit", "Messages that were delivered in vain too often.", True),
)
"""Metric, field of the queue's item of management, meaning, whether it is a counter."""
_SUMMED: Final = ("messages", "bytes", "consumers")


class Metrics:
    """See the module. `level` is one of LEVELS except NONE. `others` makes further families. `certificates` returns the first
    expiry of a certificate or revocation list, in s since 1970; None: there is none."""

    def __init__(
        self,
        broker: Broker,
        level: str,
        *,
        version: str,
        wall: Callable[[], float],
        free_bytes: Callable[[], int],
        certificates: Callable[[], float | None] = lambda: None,
        others: Callable[[], Iterable[Family]] = tuple,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._broker = broker
        self._level = level
        self._version = version
        self._wall = wall
        self._free_bytes = free_bytes
        self._certificates = certificates
        self._others = others
        self._cpu_s = cpu_s
        self._started = wall()

    def text(self) -> Iterator[str]:
        """The page in pieces, some of them empty. The caller may do other work between any two."""
        for family in (*self._of_the_process(), *self._of_the_broker(), *self._others()):
            yield _text(family)
        if self._broker.logs.serving:
            yield from self._of_the_queues()

    def _of_the_process(self) -> Iterator[Family]:
        yield _one("process_start_time_seconds", "When the process began, in s since 1970.", self._started)
        yield _one("process_cpu_seconds_total", "Processor time that the process has used.", self._cpu_s(), COUNTER)
        yield _one("process_resident_memory_bytes", "Memory of the process.", resident_bytes())

    def _of_the_broker(self) -> Iterator[Family]:
        broker, logs, slow = self._broker, self._broker.logs, self._broker.slow
        admission = broker.admission
        about = labels({"version": self._version, "broker_id": broker.broker_id})
        yield Family("understudy_build_info", "1, with the release and the broker's id.", [(about, 1)])
        yield _one("understudy_serves", "1 while the broker serves clients.", int(logs.serving))
        yield _one("understudy_leaving", "1 while a drain empties the broker, and after it.", int(logs.closed))
        yield _one("understudy_drain_origins", "Queues of other brokers that drains bring here.", broker.origins.count)
        yield _one("understudy_connections", "Connections: clients, members and administrators.", len(admission.connections))
        yield _one("understudy_connections_max", "Clients that may be connected at a time.", broker.max_connections)
        received, sent = admission.messages()
        yield _one("understudy_received_messages_total", "Messages that clients have sent.", received, COUNTER)
        yield _one("understudy_sent_messages_total", "Messages that clients were given.", sent, COUNTER)
        yield _one("understudy_slow_consumers", "Consumers that are slow now.", slow.count)
        yield _one("understudy_slow_consumers_ended_total", "Slow consumers that were ended.", slow.ended, COUNTER)
        yield _one("understudy_body_memory_bytes", "Memory that bodies of messages take.", logs.residency.held_bytes)
        yield _one("understudy_body_memory_limit_bytes", "What they may take.", logs.residency.limit_bytes)
        yield _one("understudy_uncommitted_bytes", "Messages that were received and are not committed.", logs.inflow.nbytes)
        yield _one("understudy_disk_free_bytes", "Free space of the store's disk.", self._free_bytes())
        yield _one("understudy_disk_low", "1 while producers wait because the disk is full.", int(self._low))
        yield _one(
            "understudy_certificate_expiry_timestamp_seconds",
            "When the first certificate or list of the revoked expires, in s since 1970.",
            self._certificates(),
        )

    @property
    def _low(self) -> bool:
        return any(ledger.room.text for ledger in self._broker.ledgers.values())

    def _of_the_queues(self) -> Iterator[str]:
        nodes, consumers = self._broker.nodes, self._broker.queues.consumers
        sums = dict.fromkeys(_SUMMED, 0)
        told: list[tuple[str, dict[str, Any]]] = []
        many = 0
        for found in management.queue_items(nodes, "", consumers):
            yield ""
            if found is None:
                continue
            _, item = found
            many += 1
            for field in _SUMMED:
                sums[field] += item[field]
            if self._level == QUEUES and len(told) < limits.METRICS_QUEUES:
                told.append((labels({"queue": item["name"]}), {field: item[field] for _, field, _, _ in _OF_A_QUEUE}))
        yield _text(_one("understudy_queues", "Queues.", many))
        yield _text(_one("understudy_messages", "Messages on all queues.", sums["messages"]))
        yield _text(_one("understudy_message_bytes", "Size of these messages.", sums["bytes"]))
        yield _text(_one("understudy_consumers", "Subscriptions of all queues.", sums["consumers"]))
        if self._level == QUEUES:
            yield _text(_one("understudy_queues_left_out", "Queues without series of their own.", many - len(told)))
            for name, field, meaning, counts in _OF_A_QUEUE:
                samples = [(at, item[field]) for at, item in told]
                kind = {"kind": COUNTER} if counts else {}
                yield from _slices(Family(f"understudy_queue_{name}", meaning, samples, **kind))


def _one(name: str, meaning: str, value: float | None, kind: str = "gauge") -> Family:
    return Family(name, meaning, [("", value)], kind)


def _text(family: Family) -> str:
    return "".join(f"{line}\n" for line in lines(family))


def _slices(family: Family) -> Iterator[str]:
    """Many lines, some at a time."""
    rest = lines(family)
    while some := list(islice(rest, 50)):
        yield "\n".join(some) + "\n"
