"""Nodes that are created because a client attaches to them (docs/adr/0045-subscriptions-that-last.md).

Life of such a node: an attach requests a dynamic node, or names a node that does not exist and matches a pattern. The node is
proposed. When it is committed, the attach continues as if it had named this node. A dynamic node exists only on this broker. When
the link that created it has ended, its lifetime policy decides when it is deleted: at once, when its last link has ended, or when
it is empty. It always ends with the process of its broker, and no attach creates it again. A node that was created by a pattern
stays, like any other.

A dynamic source without further fields is a mailbox (broker.sessions.mailboxes), which has the same contract and writes nothing
to the log.

Invariants: an attach is answered when its node is committed; its rights are checked like those of a management request; a queue
whose creating link has ended is checked when a link or its last message has left it: no batch costs more because there are many.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Final

from broker.amqp.data import Condition
from broker.core.acl import questions
from broker.core.addresses import exchange_in, queue_in
from broker.core.commands import Command, ExchangeDel, QueueAdd, QueueDel, QueueDelIfEmpty
from broker.core.dynamic import LifetimePolicy, matches, policy_of
from broker.core.nodes import LOCAL, QueueNode, Refused
from broker.core.planning import plan_dynamic, plan_exchange, plan_queue, policy_for, with_policy
from broker.sessions.attach import Attach, refused
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.queues import Queues
from broker.sessions.quota import QueueQuota
from broker.sessions.removal import by_itself

TOPICS: Final = frozenset({"topic", "temporary-topic"})
"""Capabilities by which a client asks for a topic."""
QUEUES: Final = frozenset({"queue", "temporary-queue"})
"""Capabilities by which it asks for a queue."""
_DYNAMIC: Final = "temporary."
"""How the names of dynamic nodes begin."""
_NOT_BY_USE: Final = ("$", _DYNAMIC)
"""How the names begin of nodes that no client creates by its use: a node of that name has never been there, or is gone."""


class Making:
    """See the module. `new_id` makes names and identities. `queue_patterns`, `topic_patterns`: names that are made by use."""

    def __init__(
        self,
        logs: Logs,
        queues: Queues,
        quota: QueueQuota,
        new_id: Callable[[], str],
        *,
        queue_patterns: Collection[str] = (),
        topic_patterns: Collection[str] = (),
    ) -> None:
        self._logs = logs
        self._queues = queues
        self._quota = quota
        self._new_id = new_id
        self._patterns = {"queue": tuple(queue_patterns), "exchange": tuple(topic_patterns)}
        self.left: dict[str, LifetimePolicy] = {}
        """Identity of a queue that its maker has left -> when it goes."""
        queues.on_left = self._look

    # ---- dynamic nodes

    def dynamic(self, attach: Attach, then: Callable[[Attach], None]) -> bool:
        """Create the dynamic node that this attach requests, then continue the attach; False if it requests a mailbox or no node.
        Condition."""
        asked, link = attach.asked, attach.link
        if not asked.dynamic:
            return False
        try:
            policy = policy_of(asked.properties)
        except ValueError as error:
            raise Condition("amqp:invalid-field", str(error)) from None
        kinds = (TOPICS | QUEUES).intersection(asked.capabilities)
        if link.is_sender and policy is LifetimePolicy.ON_CLOSE and not kinds and not asked.copy:
            return False
        self._logs.must_serve()
        kind = "exchange" if TOPICS & kinds else "queue"
        if kind == "exchange" and policy is not LifetimePolicy.ON_CLOSE:
            raise Condition("amqp:not-implemented", f"a topic goes with the link that made it: it has no policy {policy}")
        uuid = self._new_id()
        name, user = f"{_DYNAMIC}{uuid}", attach.session.rights.user
        nodes = self._logs.nodes
        topic = {"exchangeType": "topic"}
        self._demand(attach, kind, name, topic if kind == "exchange" else with_policy(nodes, kind, name, {}, own=True))
        try:
            log, command = plan_dynamic(nodes, kind, name, uuid, policy, self._quota.owner(user))
        except Refused as refusal:
            raise refused(refusal) from None
        undo = partial(self._maker_left, kind, uuid, policy)

        def made() -> None:
            asked.address, asked.dynamic = name, False
            link.made_address = name
            then(attach)
            attach.session.has_made(link, undo)

        self._propose(attach, log, command, made, undo)
        return True

    def _maker_left(self, kind: str, uuid: str, policy: LifetimePolicy) -> None:
        """The link that has made this node is gone."""
        if kind == "exchange":
            self._logs.ledgers[LOCAL].change(ExchangeDel(uuid=uuid), lambda reason: None)
            return
        node = self._logs.nodes.queue_by_uuid(uuid)
        if node is not None:
            self.left[uuid] = policy
            self._look(node)

    def emptied(self, ledger: Ledger, numbers: Iterable[int]) -> None:
        """The last message has left these queues of a ledger."""
        for number in numbers if self.left else ():
            messages = ledger.state.messages.get(number)
            node = None if messages is None else self._logs.nodes.queue_by_uuid(messages.uuid)
            if node is not None:
                self._look(node)

    def gone(self, node: QueueNode) -> None:
        """This queue was deleted."""
        self.left.pop(node.uuid, None)

    def _look(self, node: QueueNode) -> None:
        """Something has left this queue: its maker, another link, or its last message."""
        policy = self.left.get(node.uuid)
        if policy is None or not policy.ends(self._queues.users(node), self._depth(node)):
            return
        del self.left[node.uuid]
        by_messages = policy in (LifetimePolicy.ON_NO_MESSAGES, LifetimePolicy.ON_NO_LINKS_OR_MESSAGES)
        command: Command = QueueDelIfEmpty(uuid=node.uuid) if by_messages else QueueDel(uuid=node.uuid)

        def ends() -> bool:
            return policy.ends(self._queues.users(node), self._depth(node))

        def kept() -> None:
            if self._logs.nodes.queue_by_uuid(node.uuid) is not None:
                self.left[node.uuid] = policy

        def answered(reason: str) -> None:
            # Not deleted, because a message arrived meanwhile. It may have left again.
            still = self._logs.nodes.queue_by_uuid(node.uuid)
            if reason and still is not None:
                self.left[node.uuid] = policy
                self._look(still)

        propose = partial(self._logs.ledgers[node.log].change, command, answered)
        if by_messages:
            propose()
        else:
            self._queues.removals.remove(node, by_itself(ends, propose, kept))

    def _depth(self, node: QueueNode) -> int:
        """How many messages this queue has, with those that a transaction is about to put on it."""
        return node.depth + self._logs.promised[node.uuid]

    # ---- names that match a pattern

    def by_name(self, attach: Attach, then: Callable[[Attach], None]) -> bool:
        """Create the missing node that this attach names, then continue the attach; False if no pattern matches."""
        kind, name = self._named(attach)
        if not kind or attach.made:
            return False
        nodes, owner, uuid = self._logs.nodes, self._quota.owner(attach.session.rights.user), self._new_id()
        wanted = with_policy(nodes, kind, name, {})
        body: dict[str, Any] = {"exchangeType": wanted.get("exchangeType", "topic")} if kind == "exchange" else {}
        self._demand(attach, kind, name, wanted | body)
        try:
            plan = plan_queue(nodes, name, uuid, body, owner) if kind == "queue" else plan_exchange(nodes, name, uuid, body)
        except Refused as refusal:
            raise refused(refusal) from None
        log, command = plan

        def made() -> None:
            node = nodes.queues.get(name)
            if kind == "queue" and node is not None and node.messages is None:  # its messages are not set up yet
                self._logs.ledgers[LOCAL].pending.when_committed(lambda: self._go_on(attach, made, None))
                return
            attach.made = True
            then(attach)

        self._propose(attach, log, command, made, None)
        return True

    def _named(self, attach: Attach) -> tuple[str, str]:
        """Kind and name of the node that this attach creates by its address; "" for none."""
        address, capabilities = attach.asked.address, set(attach.asked.capabilities)
        names = {"queue": queue_in(address) or address, "exchange": exchange_in(address)[0] or address.partition("/")[0]}
        kinds = ("exchange",) if TOPICS & capabilities else ("queue",) if QUEUES & capabilities else ("queue", "exchange")
        for kind in kinds:
            name = names[kind]
            if name and not name.startswith(_NOT_BY_USE) and (matches(self._patterns[kind], name) or self._by_policy(kind, name)):
                return kind, name
        return "", ""

    def _by_policy(self, kind: str, name: str) -> bool:
        """Whether the policy for this name creates nodes on use."""
        policy = policy_for(self._logs.nodes, kind, name)
        return policy is not None and policy.by_use

    # ---- both

    def _demand(self, attach: Attach, kind: str, name: str, body: dict[str, Any]) -> None:
        self._logs.must_serve()
        bytes_of = self._logs.nodes.default_queue_bytes
        attach.demand((questions.request("CREATE", kind, name, body, queue=None, exchange=None, default_bytes=bytes_of),))

    def _propose(
        self, attach: Attach, log: str, command: Command, made: Callable[[], None], undo: Callable[[], None] | None
    ) -> None:
        user = attach.session.rights.user
        full = self._quota.denial(user, self._logs.nodes) if isinstance(command, QueueAdd) else ""
        if full:
            raise Condition("amqp:resource-limit-exceeded", full)
        counted = self._quota.proposed(user, command.uuid, log) if isinstance(command, QueueAdd) else None

        def answered(reason: str) -> None:
            if counted is not None:
                counted(reason)
            self._go_on(attach, made, undo)

        self._logs.ledgers[log].change(command, answered)

    def _go_on(self, attach: Attach, made: Callable[[], None], undo: Callable[[], None] | None) -> None:
        link = attach.link
        if link.open:
            try:
                self._logs.must_serve()
                made()
            except Condition as condition:
                link.refuse(condition)
            attach.session.touch()
        if not link.open and undo is not None:
            undo()
        self._queues.turn.flush()
