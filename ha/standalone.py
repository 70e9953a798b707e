"""The management and the role of a broker that is in no cluster: its answers to requests that are meant for a cluster member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from broker.amqp.data import Condition
from broker.core.nodes import Refused
from broker.service import Broker
from broker.sessions.connection import Connection, Session
from broker.sessions.principal import Principal
from ha.net.peers import PEER_PROPERTY

ANSWER_S = 0.1
"""The time that a stopping broker has to send its answer."""
_log = Logger()


class Standalone:
    """Fulfils `broker.administration.Extension` and `broker.sessions.connection.Role`."""

    def __init__(self, broker: Broker, end: Callable[[], object] = lambda: None) -> None:
        """`end` stops the process in order, a moment later."""
        self._broker = broker
        self._end = end
        broker.administration.extensions["ha"] = self
        broker.admission.roles[PEER_PROPERTY] = self

    def accept(self, connection: Connection, value: str) -> Session:
        """Another broker considers this one a member: refuse it."""
        raise Condition("amqp:not-allowed", "this broker is not in a cluster")

    def items(self) -> list[dict[str, Any]]:
        """The one item of `QUERY ha`."""
        return [
            {
                "status": self._broker.state,
                "brokerId": self._broker.broker_id,
                "address": "",
                "brokersUrl": "",
                "publicUrl": "",
                "disk": "; ".join(ledger.room.text for ledger in self._broker.ledgers.values() if ledger.room.text),
                "notice": self._broker.logs.leaving_text,
                "members": [],
            }
        ]

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[tuple[int, str, dict[str, Any]]]:
        """Refuse the operations of a cluster; stopping the broker is possible."""
        if operation == "STOP":
            _log.info("management asks this broker to stop")
            self._end()
            return succeed((202, "the broker stops", {}))
        raise Refused(409, "this broker is standalone: it was started without --ha-cluster yes")
