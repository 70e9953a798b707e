"""A client's sending link: its credit, and the outcomes of its messages. Where they go is its terminus's business.

Life of a producer: its link attaches to a `Target`; it gets credit for the target's window; each batch of messages that comes is
handed to the target with their delivery ids, and each message gets its outcome when that is known, for most of them when a batch
of the log is committed; with the outcome its credit comes back, unless the target has no room.

Invariants: a message gets `accepted` only when every queue that it was routed to holds it durably (or no queue wanted it), and
`released` while one of them has no place for messages on this broker yet, which takes a moment on a new primary; credit out plus
messages that wait for their outcome never exceed the window: the link of a client that sends more than it has credit for ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.amqp.links import Condition, Receiver
from broker.core import message
from broker.core.links import ACCEPTED, REJECTED, RELEASED
from broker.core.nodes import Unplaced
from broker.sessions.attach import Attach, LinkEnd, Output


class Full(Exception):
    """A queue takes no more; the text says which and why."""


class Target(Protocol):
    """A terminus that messages are sent to."""

    @property
    def window(self) -> int:
        """Messages that one link may send ahead of their outcomes."""

    @property
    def serves_queues(self) -> bool:
        """Whether its links end when this broker serves no more."""

    def admit(self, attach: Attach) -> None:
        """A link is about to attach here: Condition when it may not."""

    def attached(self, producer: Producer) -> None:
        """It has attached."""

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """Messages of this producer, with the ids from `first` on. Each gets its outcome through the producer, now or later."""

    def may_flow(self, producer: Producer) -> bool:
        """Whether more messages are welcome now; if not, the producer is told to `resume` when they are."""

    def left(self, producer: Producer) -> None:
        """Its link has ended."""


class Producer(LinkEnd):
    """See the module."""

    __slots__ = ("link", "target")

    def __init__(self, session: Output, link: Receiver, target: Target) -> None:
        super().__init__(session)
        self.link = link
        self.target = target

    @property
    def serves_queues(self) -> bool:
        """As its target."""
        return self.target.serves_queues

    def start(self) -> None:
        """Give the first credit."""
        self._grant(self.target.window)

    def accepted(self, count: int) -> None:
        """So many of its messages have their outcome: the credit they took may come back."""
        self._grant(count)

    def _grant(self, count: int) -> None:
        self.link.flow(count, self.target.may_flow(self))
        self.session.touch()

    def resume(self) -> None:
        """Give back credit that was held, if there is room again."""
        if self.link.account.held and self.link.open:
            self._grant(0)

    def detached(self) -> None:
        """The link has ended."""
        self.target.left(self)

    # ---- messages

    def take(self) -> None:
        """Hand on what has come on the link."""
        link = self.link
        first, messages = link.take()
        if link.account.credit < 0:
            self._end_heedless(-link.account.credit)
        else:
            self.target.receive(self, first, messages)

    def _end_heedless(self, beyond: int) -> None:
        """More came than was asked for (part 2.6.7): nothing bounds what such a client would have us keep."""
        link = self.link
        self.detached()
        link.context = None
        text = f"{beyond} more messages came than this link had credit for: send only while there is credit"
        link.close(Condition("amqp:link:transfer-limit-exceeded", text))
        self.session.touch()

    def one_by_one(self, first: int, messages: list[bytes], put: Callable[[Producer, int, bytes], None]) -> None:
        """Let `put` place each message by its id. What it raises is the message's outcome: Unplaced, Full, BadMessage, or
        LookupError where the node that the message names is not there."""
        for delivery_id, data in enumerate(messages, first):
            try:
                put(self, delivery_id, data)
            except Unplaced:
                self._refuse(delivery_id, RELEASED, None)
            except Full as error:
                self._refuse(delivery_id, REJECTED, Condition("amqp:resource-limit-exceeded", str(error)))
            except message.BadMessage as error:
                self._refuse(delivery_id, REJECTED, Condition("amqp:decode-error", str(error)))
            except LookupError as error:
                self._refuse(delivery_id, REJECTED, Condition("amqp:not-found", str(error.args[0])))

    def done(self, delivery_id: int) -> None:
        """This message is where it should be."""
        if self.link.open:
            self.link.settle(delivery_id, 1, ACCEPTED)
            self.accepted(1)

    def _refuse(self, delivery_id: int, outcome: int, condition: Condition | None) -> None:
        self.link.settle(delivery_id, 1, outcome, condition)
        self.accepted(1)
