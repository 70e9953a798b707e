"""The management node as a terminus: each message is a request, and is accepted when it was handled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.amqp import management_node
from broker.core import limits
from broker.core.acl.questions import Lookups
from broker.core.nodes import Routed
from broker.sessions.attach import Attach, Output
from broker.sessions.producer import Producer, Upload
from broker.sessions.uploads import Gathering


class TakeRequest(Protocol):
    """The object that serves requests."""

    def take(
        self, producer: Producer, request_bytes: bytes, delivery_id: int, unanswered: Callable[[], object] = lambda: None
    ) -> None:
        """A request has come over this link: it gets its outcome when it has had its turn. `unanswered` is called if it is
        rejected, or dropped because its link has ended."""


class ManagementTerminus:
    """`$management`: there for everybody, on a backup too."""

    __slots__ = ("_requests",)
    window = limits.MANAGEMENT_WINDOW
    serves_queues = False
    takes_large = False
    in_transactions = False
    in_any_order = False
    of_any_user = False
    identity = ""

    def __init__(self, requests: TakeRequest) -> None:
        self._requests = requests

    def named(self, address: str) -> ManagementTerminus | None:
        """Itself, by its address."""
        return self if address == management_node.ADDRESS else None

    def needs_of_sender(self, session: Output) -> Lookups:
        """Nothing: the lookups of each request are checked when it is served."""
        return ()

    def admit(self, attach: Attach) -> None:
        """Everybody may ask."""

    def attached(self, producer: Producer) -> None:
        """Nothing is stored for the link."""

    def left(self, producer: Producer) -> None:
        """Nothing was kept of it."""

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """Requests, in order."""
        for delivery_id, data in enumerate(messages, first):
            self._requests.take(producer, data, delivery_id)

    def begin(self, producer: Producer, head: bytes) -> Upload:
        """A large request from a link that is not to management alone: it is put together, and judged then."""
        return Gathering(producer, self.receive, management_node.ADDRESS)

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        """None: it takes no part in transactions."""
        return Routed([])

    def may_flow(self, producer: Producer) -> bool:
        """Always: the window limits the waiting requests."""
        return True
