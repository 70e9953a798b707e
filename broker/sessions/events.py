"""Events about a broker's queues, for programs: messages through the exchange `qmf.default.topic`, as in qpidd.

Life of an event: something happens on the serving broker; a message about it is routed through the exchange, if that exists, and
put on each queue that is bound for it and has room. Nothing waits for it.

Invariant: an event changes nothing else. Without the exchange, or on a broker that does not serve or is leaving, there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.logger import Logger

from broker.core import message
from broker.sessions import routing
from broker.sessions.logs import Logs
from broker.sessions.passing import pass_on
from broker.sessions.room import has_room

EXCHANGE = "qmf.default.topic"
"""A topic exchange, which a user of the events creates."""
WARNING, NOTICE = 4, 5
"""Severities of QMF 2."""
_PACKAGE = "org.apache.qpid.broker"
_WORDS = {WARNING: "warn", NOTICE: "notice"}
_log = Logger()


class Events:
    """See the module. `wall` gives seconds since 1970."""

    def __init__(self, logs: Logs, wall: Callable[[], float], broker_id: str) -> None:
        self._logs = logs
        self._wall = wall
        self._broker_id = broker_id

    def send(self, event: str, severity: int, values: Mapping[str, object]) -> None:
        """Send an event of this class."""
        exchange = self._logs.nodes.exchanges.get(EXCHANGE)
        if exchange is None or self._logs.closed or not self._logs.serving:
            return
        key = f"agent.ind.event.{_PACKAGE.replace('.', '_')}.{event}.{_WORDS[severity]}.apache_org.qpidd.{self._broker_id}"
        data = self._encoded(key, event, severity, values)
        routed = routing.route(self._logs.nodes, exchange, key, data)
        data = pass_on(self._logs, routed, data)
        for queue in routed.queues:
            ledger = self._logs.ledger_of(queue)
            if queue.messages is not None and has_room(queue, 1, len(data)) and ledger.room.takes(len(data)):
                ledger.enqueue(queue, [data], len(data))
            else:
                _log.warn("an event was dropped: queue {name!r} has no room for it", name=queue.name)

    def _encoded(self, key: str, event: str, severity: int, values: Mapping[str, object]) -> bytes:
        """An event as QMF 2 has it: a list of one map."""
        said = {
            "_schema_id": {"_package_name": _PACKAGE, "_class_name": event, "_type": "_event"},
            "_timestamp": int(self._wall() * 1_000_000_000),
            "_severity": severity,
            "_values": dict(values),
        }
        properties = {
            "method": "indication",
            "qmf.opcode": "_data_indication",
            "qmf.content": "_event",
            "qmf.agent": f"apache.org:qpidd:{self._broker_id}",
            "x-amqp-0-10.app-id": "qmf2",
        }
        return message.encoded(to=EXCHANGE, subject=key, correlation_id=None, properties=properties, body=[said])
