"""The owners of one queue's message groups, on the broker that serves: who they are, and when their groups become free.

Life of an owner: a receiving link attaches to a queue with `qpid.group_owner_timeout`. Its user, container id and link name
are the owner; for a route, its user and its identity, because each broker of its target has other names for its links. It gets
groups by records (broker.core.queues.owned). When its client ends the link for good, its groups become free at once, by a
record. When the link ends otherwise, the owner is absent: its groups wait for it, and become free by a record when the timeout
is over. When a term begins, all owners in the log are absent, and each has its full time. An owner that attaches again goes on
with its groups.

An owner may have many groups. Those of all owners that have left become free in pieces: the next piece is proposed when the one
before is committed (`_free_some`). An owner that attaches again meanwhile keeps the groups for which nothing is proposed yet.

Invariants: an owner has one link, and a later one ends the earlier one; an absent owner with groups has a time on the schedule,
or is among those that have left; at most `limits.GROUPS_FREED_AT_ONCE` groups are about to become free because their owners have
left, so that no turn proposes or applies more; only the broker that serves proposes records, and only it measures time.
"""

from __future__ import annotations

from typing import Protocol

from twisted.logger import Logger

from broker.amqp.data import Condition
from broker.core import limits
from broker.core.nodes import QueueNode
from broker.core.queues.owned import Owned, Owner
from broker.sessions.attach import Attach
from broker.sessions.consumer import Subscription
from broker.sessions.due import Due
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.schedule import Schedule

_log = Logger()


class Grouped(Protocol):
    """The queue."""

    node: QueueNode
    ledger: Ledger
    due: Due

    def dispatch_soon(self) -> None:
        """Dispatch at the end of this turn."""


class GroupOwners:
    """See the module. An absent owner keeps its groups for `kept_s` seconds."""

    __slots__ = ("_absent", "_goes_on", "_gone", "_kept_s", "_logs", "_queue", "_schedule", "attached")

    def __init__(self, queue: Grouped, logs: Logs, schedule: Schedule, kept_s: int) -> None:
        self._queue = queue
        self._logs = logs
        self._schedule = schedule
        self._kept_s = kept_s
        self.attached: dict[Owner, Subscription] = {}
        self._absent: set[Owner] = set()
        """Those that have a time on the schedule."""
        self._gone: dict[Owner, None] = {}
        """Those that have left and may still have groups for which no record is proposed."""
        self._goes_on = False
        """Whether the next piece of their groups waits for a commit."""

    @property
    def _order(self) -> Owned | None:
        messages = self._queue.node.messages
        if messages is None:
            return None
        assert isinstance(messages.order, Owned), "the queue has the argument"
        return messages.order

    def admit(self, attach: Attach, route: str) -> Owner:
        """The owner that attaches; with the identity of its route, if it is one's. Condition, when it cannot be an owner."""
        session, name, order = attach.session, self._queue.node.name, self._order
        names = ("", route) if route else (session.container, attach.link.name)
        owner = Owner(session.principal.user, *names)
        if not (route or (owner.container and owner.link)):
            text = f"queue {name!r} has owners of message groups: its consumers need a container id and a name of the link"
            raise Condition("amqp:invalid-field", text)
        if max(map(len, owner)) > limits.MAX_OWNER_CHARS:
            text = f"a user, a container id and a link name of an owner of message groups (queue {name!r})"
            raise Condition("amqp:invalid-field", f"{text} may have {limits.MAX_OWNER_CHARS} characters each")
        if order is not None and order.n_owners >= limits.MAX_OWNERS and not order.has(owner):
            text = f"queue {name!r} has {limits.MAX_OWNERS} owners of message groups, its limit"
            raise Condition("amqp:resource-limit-exceeded", text)
        return owner

    def joined(self, owner: Owner, subscription: Subscription) -> None:
        """The owner is here, on this link. An earlier link of it ends."""
        subscription.owner = owner
        earlier, self.attached[owner] = self.attached.get(owner), subscription
        self._come_back(owner)
        if earlier is not None:
            earlier.end_link(Condition("amqp:link:stolen", "another link of this owner of message groups has attached"))

    def left(self, subscription: Subscription) -> None:
        """This link has ended."""
        owner = subscription.owner
        if subscription.drains:
            self.drained(begins=False)
        if owner is None or self.attached.get(owner) is not subscription:
            return
        del self.attached[owner]
        if subscription.is_over:
            self._give_up(owner)
        else:
            self._wait_for(owner)

    def drained(self, *, begins: bool) -> None:
        """A drain takes all messages, or has ended: no group is an owner's meanwhile."""
        if self._order is not None:
            self._order.open_to_all(opened=begins)
            self._queue.dispatch_soon()

    def begin(self) -> None:
        """A term begins: the owners of the last one have their full time to come."""
        self._absent.clear()
        self._gone.clear()
        self._goes_on = False
        order = self._order
        for owner in () if order is None else dict.fromkeys((*order.owners, *order.takers)):
            if owner not in self.attached:
                self._wait_for(owner)

    def clear(self) -> None:
        """The queue was deleted."""
        for owner in list(self._absent):
            self._come_back(owner)
        self._gone.clear()
        self.attached.clear()

    def awaits(self, subscription: Subscription) -> bool:
        """Whether this link is about to get groups, or groups become free that it may ask for."""
        owner, order = subscription.owner, self._order
        if owner is None or order is None:
            return False
        return order.asks(owner) or order.frees or (bool(self._gone) and order.available > 0)

    def withhold(self) -> int:
        """Ask for no group because of a message that cannot be delivered now: such messages are set aside. Returns how many."""
        messages, order = self._queue.node.messages, self._order
        return 0 if messages is None or order is None or not order.asked_for else self._queue.due.withhold(messages, order)

    def propose(self) -> None:
        """Propose the records that give groups to their owners, and those that free them."""
        messages, order = self._queue.node.messages, self._order
        if messages is not None and order is not None:
            for owner, groups in order.take_changes():
                self._queue.ledger.own(messages.number, groups, b"" if owner is None else owner.to_bytes())

    # ---- owners that are away

    @property
    def _serves(self) -> bool:
        return self._logs.serving and self._queue.ledger.serving

    def _wait_for(self, owner: Owner) -> None:
        if self._serves and self._order is not None and self._order.has(owner):
            self._absent.add(owner)
            self._schedule.after(self._key(owner), self._kept_s, lambda: self._due(owner))

    def _come_back(self, owner: Owner) -> None:
        self._gone.pop(owner, None)
        if owner in self._absent:
            self._absent.discard(owner)
            self._schedule.cancel(self._key(owner))

    def _key(self, owner: Owner) -> tuple[str, str, Owner]:
        return "owner", self._queue.node.uuid, owner

    def _due(self, owner: Owner) -> None:
        """The time of this owner is over. While this broker leaves, a drain has all groups, which may be called off."""
        self._absent.discard(owner)
        if self._logs.closed:
            self._wait_for(owner)
        elif self._serves and owner not in self.attached:
            text = "message groups of queue {name!r} are free: link {link!r} of {container!r} was away for {s} s"
            _log.info(text, name=self._queue.node.name, link=owner.link, container=owner.container, s=self._kept_s)
            self._give_up(owner)

    def _give_up(self, owner: Owner) -> None:
        if self._serves:
            self._gone[owner] = None
            self._free_some()

    def _free_some(self) -> None:
        """Propose that groups of the owners that have left become free, as many as may be under way."""
        order = self._order
        if order is None or not self._serves:
            return
        while self._gone and order.n_freeing < limits.GROUPS_FREED_AT_ONCE:
            owner = next(iter(self._gone))
            if not order.let_go(owner, limits.GROUPS_FREED_AT_ONCE - order.n_freeing):
                del self._gone[owner]
        self.propose()
        if self._gone and not self._goes_on:
            self._goes_on = True
            self._queue.ledger.pending.when_committed(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self._free_some()
        self._queue.dispatch_soon()  # a consumer that drains its credit has waited for these groups
