"""A client's session: everything that arrives over a connection without another role.

Life: the session exists before the Open arrives, and keeps the links that follow an Open which is not answered yet. After the
answer, each attach goes to its terminus, and every event of a link to its link end. When the connection ends, or this broker
stops serving, every link end is told that its link has ended, before any C object is freed.

Invariant: a link end is told once that its link has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from broker.amqp.data import Condition
from broker.amqp.links import Link
from broker.amqp.receiver import Receiver
from broker.amqp.sender import Sender
from broker.core import limits
from broker.core.bearer import CBS_NODE
from broker.core.subscriptions import Origin
from broker.sessions.attach import Attach, LinkEnd
from broker.sessions.connection import Connection
from broker.sessions.guard import UNAUTHORIZED, Guard, Rights
from broker.sessions.inflow import Inflow
from broker.sessions.principal import Principal
from broker.sessions.termini import Termini
from broker.sessions.transactions import Transactions
from broker.sessions.turn import Turn

_ENDED = "messages that this connection held went back to their queue, because the broker ended their link"


class ClientSession:
    """See the module. Fulfils `connection.Session` towards the connection, and `attach.Output` towards link ends."""

    serves_clients = True

    def __init__(
        self,
        connection: Connection,
        termini: Termini,
        turn: Turn,
        inflow: Inflow,
        guard: Guard,
        transactions: Transactions,
    ) -> None:
        self._connection = connection
        self._termini = termini
        self._turn = turn
        self._inflow = inflow
        self.rights = Rights(guard, connection)
        self.transactions = transactions
        self.large = 0
        self._early_links: list[Link] = []
        self._made: dict[Link, Callable[[], None]] = {}
        """Link that created a node -> the call when it has ended."""

    # ---- attach.Output

    @property
    def principal(self) -> Principal:
        """The principal of the connection."""
        return self._connection.principal

    @property
    def number(self) -> int:
        """The connection's."""
        return self._connection.number

    @property
    def container(self) -> str:
        """The client's."""
        return self._connection.container

    @property
    def origin(self) -> Origin:
        """The origin of its messages: the number and the container id of the connection."""
        return self._connection.number, self._connection.container

    @property
    def hostname(self) -> str:
        """As the client's Open names it."""
        return self._connection.engine.remote.hostname

    def touch(self) -> None:
        """There is output."""
        self._turn.touch(self._connection)

    def has_made(self, link: Link, undo: Callable[[], None]) -> None:
        """A node was made for this link."""
        self._made[link] = undo

    def brought_parts(self) -> None:
        """Parts have come: wait while too many are not committed."""
        self._inflow.brought(self._connection, parts=True)

    def choke(self) -> None:
        """Let the link ends `resume` when the output that waits has gone."""
        self._connection.choked = True

    def unsettled_left(self, n_unsettled: int) -> int:
        """See `attach.Output`."""
        half = limits.MAX_UNSETTLED_PER_CONNECTION // 2
        share = max(1, half // limits.MAX_LINKS_PER_CONNECTION)
        return max(half - self._connection.engine.unsettled, share - n_unsettled)

    def await_outcomes(self) -> None:
        """Let the link ends `resume` when some deliveries are settled."""
        self._connection.loaded = True

    @property
    def now_s(self) -> float:
        """The reactor's time."""
        return self._connection.now_s

    @property
    def unread_s(self) -> float:
        """For how long the client's socket has been full; 0 while it is not."""
        return self._connection.unread_s

    @property
    def is_lost(self) -> bool:
        """Whether the client has gone without a word. Links that end only then have lost it."""
        return self._connection.is_lost

    @property
    def is_closed(self) -> bool:
        """Whether the client has closed the connection in order."""
        return self._connection.is_closed

    @property
    def address(self) -> str:
        """Where the client is."""
        return self._connection.address

    def turn_out(self, condition: Condition) -> None:
        """End the connection."""
        self._connection.turn_out(condition)

    @property
    def is_stuffed(self) -> bool:
        """Whether as much waits for the client to read as may wait on all links."""
        return self._connection.engine.sent_bytes > limits.MAX_SENT_BYTES

    # ---- connection.Session

    def open_properties(self) -> dict[str, Any]:
        """Nothing more than for every peer."""
        return {}

    def opened(self) -> None:
        """The Open is answered: attach the links that came behind it."""
        early, self._early_links = self._early_links, []
        for link in early:
            if link.open:
                self.on_link(link)

    def on_link(self, link: Link) -> None:
        """The client attached a link."""
        if not self._connection.opened:
            self._early_links.append(link)
            return
        try:
            link.check_size()
            attach = Attach(link, self)
            if self.principal.owes_token and attach.asked.address != CBS_NODE:
                raise Condition(UNAUTHORIZED, f"this client has not logged in yet: it may only send a token to {CBS_NODE}")
            self._termini.attach(attach)
        except Condition as condition:
            link.refuse(condition)

    def on_messages(self, link: Receiver) -> None:
        """Messages have come."""
        if link.context is not None:
            link.context.take()
            self._inflow.brought(self._connection)

    def on_lost_post(self, txn_id: bytes) -> None:
        """A message in this transaction came on a link that this side has ended."""
        self.transactions.lost(txn_id)

    def on_outcomes(self, link: Sender) -> None:
        """Outcomes have come."""
        if link.context is not None:
            link.context.outcomes()
        else:
            for first, count, _, _ in link.take_outcomes():
                link.settle(first, count)

    def on_credit(self, link: Sender) -> None:
        """Credit has come."""
        if link.context is not None:
            link.context.credit()

    def resume(self) -> None:
        """There is room for output again."""
        for link in self._connection.engine.links:
            if link.context is not None:
                link.context.resume()

    def on_link_closed(self, link: Link) -> None:
        """A link is gone."""
        end: LinkEnd | None = link.context
        if end is not None:
            end.detached()
            link.context = None
        undo = self._made.pop(link, None)
        if undo is not None:
            undo()

    def end_link(self, link: Link, condition: Condition) -> None:
        """End a link from this side. The engine reports no end of it. An outcome that its client has sent and that has not come
        is passed over, so no transaction that is open is committed without it."""
        if link.context is not None and link.context.outstanding:
            self.transactions.fail_open(_ENDED)
        self.on_link_closed(link)
        link.close(condition)
        self.touch()

    def subscriptions(self, behind: tuple[Any, ...] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
        """The items of its links that are subscriptions, each made when it is asked for."""
        for link in self._connection.engine.links:
            item = link.context.describe() if (link.number,) > behind and link.context is not None else None
            if item is not None:
                yield link.number, item

    def end(self) -> None:
        """All links are gone."""
        for link in (*self._connection.engine.links, *self._made):
            self.on_link_closed(link)

    def end_service(self, condition: Condition) -> None:
        """This broker stops serving: end all links except those of management. An anonymous link ends if any of its messages
        waits for an outcome: this broker will not know it."""
        for link in self._connection.engine.links:
            if link.context is not None and (link.context.serves_queues or link.context.waits_for_queues):
                self.end_link(link, condition)

    def end_producers(self) -> None:
        """This broker leaves: redirect the links that send to its queues."""
        for link in self._connection.engine.links:
            if isinstance(link, Receiver) and link.context is not None and link.context.serves_queues:
                self.end_link(link, self._termini.redirect(link.target.address))

    def look_again(self) -> None:
        """Other rules are in force: end the links that they do not allow."""
        for link in self._connection.engine.links:
            denial = "" if link.context is None else self.rights.denial(link.context.needs())
            if denial:
                self.end_link(link, Condition(UNAUTHORIZED, denial))

    def lost(self) -> None:
        """The connection is gone; its links have ended before."""
        self._inflow.forget(self._connection)
