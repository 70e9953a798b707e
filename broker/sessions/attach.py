"""The object behind a client's link, and a client's attach while it is being answered.

Each link of a client has a `LinkEnd` (`link.context`) from its attach until it ends: a producer, a subscription, or a mailbox.
The engine passes the events of a link to its link end, and no code asks which kind it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from broker.amqp.asked import Asked
from broker.amqp.data import Condition
from broker.amqp.links import Link
from broker.core.acl.questions import Lookups
from broker.core.nodes import Refused
from broker.core.subscriptions import Origin
from broker.sessions.guard import UNAUTHORIZED, Rights
from broker.sessions.principal import Principal
from broker.sessions.transactions import Transactions


class Output(Protocol):
    """The session that a link belongs to, as far as its link end needs it."""

    @property
    def principal(self) -> Principal:
        """The principal that it acts for."""

    @property
    def number(self) -> int:
        """Its connection's."""

    @property
    def container(self) -> str:
        """Its client's, as its Open names it."""

    @property
    def origin(self) -> Origin:
        """The origin of its messages: the number and the container id of the connection."""

    @property
    def rights(self) -> Rights:
        """The rights of the connection."""

    def touch(self) -> None:
        """There is output for it in this turn."""

    def end_link(self, link: Link, condition: Condition) -> None:
        """End this link of it, and say why: its link end is detached, and what it has made is undone."""

    def brought_parts(self) -> None:
        """Parts of a large message have come over it: while there are too many, it is not read."""

    def choke(self) -> None:
        """Too much output waits: let every link end `resume` when that has gone."""

    def unsettled_left(self, n_unsettled: int) -> int:
        """How many more deliveries to its peer may be unsettled on a link that has so many: as many as are left of one half
        of the connection's limit, or of its share of the other half, which no other link takes."""

    def await_outcomes(self) -> None:
        """Too many are: let every link end `resume` when some of them are settled."""

    @property
    def is_stuffed(self) -> bool:
        """Whether as much waits for its peer to read as may wait on all of its links."""

    @property
    def now_s(self) -> float:
        """The reactor's time."""

    @property
    def unread_s(self) -> float:
        """For how long its socket has been full; 0 while it is not."""

    @property
    def is_lost(self) -> bool:
        """Whether its client has gone without a word. Links that end only then have lost it."""

    @property
    def is_closed(self) -> bool:
        """Whether its client has closed the connection in order."""

    @property
    def address(self) -> str:
        """Where its client is."""

    def turn_out(self, condition: Condition) -> None:
        """End the connection."""

    large: int
    """Large messages that go out over it at this time."""

    @property
    def transactions(self) -> Transactions:
        """Those that are open on its connection."""


class Attacher(Output, Protocol):
    """The session of a client that attaches a link."""

    @property
    def hostname(self) -> str:
        """The host name in the client's Open; "" if it has none."""

    def has_made(self, link: Link, undo: Callable[[], None]) -> None:
        """A node was made for this link: `undo` is called when the link has ended."""


_CONDITIONS = {400: "amqp:invalid-field", 404: "amqp:not-found", 409: "amqp:resource-limit-exceeded", 501: "amqp:not-implemented"}
"""Status of a refusal -> the condition for a link."""


def refused(refusal: Refused) -> Condition:
    """The condition for a link whose node cannot be created."""
    return Condition(_CONDITIONS[refusal.status], refusal.text)


class LinkEnd:
    """The object behind a client's link. Methods for events that cannot happen on its kind of link do nothing."""

    __slots__ = ("session",)

    def __init__(self, session: Output) -> None:
        self.session = session

    @property
    def serves_queues(self) -> bool:
        """Whether it ends when this broker stops serving, even if its connection stays."""
        return True

    @property
    def waits_for_queues(self) -> bool:
        """Whether something that came here waits for this broker to serve queues: it ends then, too."""
        return False

    @property
    def outstanding(self) -> int:
        """How many messages are on their way to its client, or there and not settled, and return to a queue when it ends."""
        return 0

    def needs(self) -> Lookups:
        """The lookups that must be allowed for it."""
        return ()

    def take(self) -> None:
        """Messages have come."""

    def accepted(self, count: int) -> None:
        """So many messages that came here have their outcome: the credit that they took is due again."""

    def outcomes(self) -> None:
        """Outcomes have come."""

    def credit(self) -> None:
        """The peer has changed the credit, or asks to drain it."""

    def resume(self) -> None:
        """There is room again, in the output or where messages go."""

    def detached(self) -> None:
        """The link ends: undo everything that belongs to it."""

    def describe(self) -> dict[str, Any] | None:
        """Its entry in a query for subscriptions, without the connection's part; None if it is not a subscription."""
        return None


class Attach:
    """A client's attach: the link, the properties that it requests of this side's terminus, and its session."""

    __slots__ = ("asked", "link", "made", "session")

    def __init__(self, link: Link, session: Attacher) -> None:
        self.made = False
        """Whether a node was made for it."""
        self.link = link
        self.session = session
        self.asked: Asked = link.source if link.is_sender else link.target

    @property
    def principal(self) -> Principal:
        """The principal and rights by which a terminus decides on the attach."""
        return self.session.principal

    def demand(self, needs: Lookups) -> None:
        """Condition, unless the client may do all of this."""
        text = self.session.rights.denial(needs)
        if text:
            raise Condition(UNAUTHORIZED, text)

    def demand_either(self, needs: Lookups) -> None:
        """Condition, unless the client may do one of this."""
        texts = [self.session.rights.denial((need,)) for need in needs]
        if all(texts):
            raise Condition(UNAUTHORIZED, texts[0])
