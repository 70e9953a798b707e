"""Clients of a simulated cluster that subscribe to an exchange and return, and that unsubscribe.

Life of a subscriber: it attaches a durable subscription, whose queue the cluster creates. It leaves, or its connection
breaks, and it returns and gets the messages that were published in the meantime. A publisher starts late, when the
subscription exists. From then on each message that matches the subscription's selector must be on its queue, and no
other message. Life of a leaver: it attaches a durable subscription, closes the link after a time, is told that the
subscription has ended, and begins again. At the end it has unsubscribed for good.

Invariant: messages of a leaver's subscription are not checked. The history checks that the subscription no longer
exists when the broker says so.
"""

from __future__ import annotations

from typing import Any

from cproton_ffi import lib

from tests.simulation.amqp_client import ACCEPTED, ClientConnection
from tests.simulation.clients import Consumer, Producer


class SubscriberConnection(ClientConnection):
    """One whose receiving link is durable, as Qpid JMS attaches it."""

    def _receiver(self, name: bytes, address: str) -> Any:
        link = super()._receiver(name, address)
        source = lib.pn_link_source(link)
        lib.pn_terminus_set_durability(source, lib.PN_DELIVERIES)
        lib.pn_terminus_set_expiry_policy(source, lib.PN_EXPIRE_NEVER)
        return link


class LeaverConnection(SubscriberConnection):
    """One whose link is closed while the connection stays."""

    user: Leaver
    _leaves = False

    def unsubscribe(self) -> None:
        """Close the link."""
        self._leaves = True
        lib.pn_link_close(self.link)
        self.flush()

    def _control(self, kind: int, event: Any) -> None:
        done = self._leaves and kind == lib.PN_LINK_REMOTE_CLOSE
        if done and not lib.pn_condition_is_set(lib.pn_link_remote_condition(lib.pn_event_link(event))):
            self.user.unsubscribed()
        else:
            super()._control(kind, event)


class Publisher(Producer):
    """Sends to an exchange; what the subscription selects comes to its queue, and the rest to none."""

    def _places_of(self, number: int) -> tuple[str, ...]:
        return self.places if number % 3 in self.plan.selects else ()


class Subscriber(Consumer):
    """Comes and goes; at the end it stays and takes everything."""

    connects = SubscriberConnection

    def __init__(self, *arguments: Any) -> None:
        self._stays = False
        super().__init__(*arguments)

    def enough(self) -> None:
        """Stay."""
        self._stays, self.slow = True, False

    def _leave(self, connection: ClientConnection) -> None:
        if not self._stays:
            super()._leave(connection)


class Leaver(Consumer):
    """See the module."""

    connects = LeaverConnection

    def __init__(self, *arguments: Any) -> None:
        self._last = False
        super().__init__(*arguments)

    def enough(self) -> None:
        """Unsubscribe once more, and for good."""
        self._last = True

    def message(self, delivery: Any, data: bytes) -> None:
        """Take it."""
        assert self.connection is not None
        self.connection.dispose(delivery, ACCEPTED, settle=True)
        self.connection.grant(1)

    def _leave(self, connection: ClientConnection) -> None:
        if connection is self.connection and connection.alive:
            assert isinstance(connection, LeaverConnection)
            connection.unsubscribe()

    def unsubscribed(self) -> None:
        """The broker has said so."""
        self.history.unsubscribed(self.places[0])
        if self._last:
            self.stop()
        elif self.connection is not None:
            super()._leave(self.connection)
