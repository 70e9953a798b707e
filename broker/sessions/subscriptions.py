"""Named subscriptions to exchanges: durable ones, those with a lifetime, and those that several links share
(docs/adr/0045-subscriptions-that-last.md).

Life of a subscription: the first attach with its name creates its queue and the binding, in one batch of the log that has the
exchange. When this is committed, the link is attached to the queue. Later attaches find the queue by its name. An attach with
other terms gets a new queue instead of the old one, but only if nobody uses the old one. A detach or a lost connection does not
change the subscription. A closed link ends it, and the close is answered when this is committed. A link that is closed while its
attach waits ends it as well: then the close is answered at once. A shared subscription that is not durable ends with its last
link. An attach without a source returns the terms of the subscription with the link's name.

A queue that ends, or is replaced, first sends its messages through its alternate exchange (broker.sessions.removal). If they
cannot go, the subscription stays, and the close or the attach is answered with the reason.

Invariants: while a change of a subscription's queue is in progress, attaches to it wait; this broker proposes at most one change
at a time for each subscription; a lasting subscription has its queue in the cluster's log if its exchange is there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from broker.amqp.data import Condition
from broker.amqp.links import Link, Standing
from broker.amqp.sender import Sender
from broker.core.acl import questions
from broker.core.acl.questions import Lookup, Lookups
from broker.core.commands import Bind, Command, QueueDel, Unbind, unstorable
from broker.core.exchange import fault_of
from broker.core.filters import NO_LOCAL
from broker.core.nodes import ExchangeNode, QueueNode, Refused
from broker.core.planning import binding_of, plan_subscription, with_policy
from broker.core.subscriptions import DELIMITER, GLOBAL, SHARED, Terms, base64_of, named
from broker.sessions.attach import Attach, refused
from broker.sessions.consumer import Subscription
from broker.sessions.guard import UNAUTHORIZED
from broker.sessions.logs import Logs
from broker.sessions.queue_terminus import QueueTerminus
from broker.sessions.queues import Queues
from broker.sessions.quota import QueueQuota
from broker.sessions.removal import Cause, by_itself
from broker.sessions.selecting import selector_of

Answer = Callable[[str], None]


def check_binding(exchange: ExchangeNode, key: str, arguments: dict[str, Any]) -> None:
    """Condition, when a queue cannot be bound so."""
    fault = fault_of(exchange.definition.kind, key, arguments)
    if fault:
        raise Condition("amqp:invalid-field", f"the filter of this subscription cannot be: {fault}")
    for argument, value in arguments.items():
        if not isinstance(value, str | int | float | None):
            text = f"the filter compares {argument!r} with a value that is not a string, number or boolean"
            raise Condition("amqp:invalid-field", text)
        odd = unstorable(value)
        if odd:
            raise Condition("amqp:invalid-field", f"the filter compares {argument!r} with a value that is not allowed: {odd}")


def deleted(exchange: str) -> Condition:
    """The condition for a link whose exchange, of this name, was deleted."""
    return Condition("amqp:resource-deleted", f"exchange {exchange!r} was deleted")


class Subscriptions:
    """See the module. Fulfils `queue_terminus.Keeper`. `new_id` makes identities."""

    def __init__(self, logs: Logs, queues: Queues, quota: QueueQuota, new_id: Callable[[], str]) -> None:
        self._logs = logs
        self._queues = queues
        self._quota = quota
        self._new_id = new_id
        self._under_way: dict[str, list[Callable[[], None]]] = {}
        """Name of a queue that is being created or deleted -> the calls that wait for this."""
        queues.keeper = self

    def void(self) -> None:
        """This broker stops serving: it gets no result for proposals in progress."""
        self._under_way.clear()

    # ---- attaching

    def subscribe(self, attach: Attach, link: Sender, exchange: ExchangeNode, key: str, arguments: dict[str, Any]) -> None:
        """Attach this link to the subscription that it asks for, with this binding; Condition when that cannot be."""
        terms = _terms(attach)
        needs = self._needs(attach, exchange, key, terms)
        attach.demand(needs)
        check_binding(exchange, key, arguments)
        selector_of(attach)
        if terms.shared and any(each.name == NO_LOCAL for each in attach.asked.filters):
            raise Condition(
                "amqp:not-implemented", "a shared subscription cannot have a no-local filter, because it has several clients"
            )
        binding = Bind(exchange=exchange.uuid, queue="", key=key, arguments=arguments)
        self._when_settled(attach, link, terms.queue, lambda: self._attach(attach, link, terms, binding, needs))

    def _when_settled(self, attach: Attach, link: Link, name: str, then: Callable[[], None]) -> None:
        """Make this call, at once or after the change of that queue that is in progress; a Condition refuses the link."""
        node = self._logs.nodes.queues.get(name)
        waiting = self._under_way.get(name, None if node is None else self._logs.closing_queues.get(node.uuid))
        if waiting is None:
            then()
            return

        def go_on() -> None:
            if link.open:
                try:
                    self._logs.must_serve()
                    self._when_settled(attach, link, name, then)
                except Condition as condition:
                    link.refuse(condition)
                attach.session.touch()

        waiting.append(go_on)

    def _attach(self, attach: Attach, link: Sender, terms: Terms, binding: Bind, needs: Lookups) -> None:
        node, keep_s = self._logs.nodes.queues.get(terms.queue), attach.asked.keep_s or 0
        if node is None:
            self._make(attach, link, terms, binding, needs, None)
            return
        stands = node.terms
        if stands is None:
            raise Condition("amqp:resource-locked", f"there is a queue named {node.name!r}, and it is not subscription's")
        if stands.shared != terms.shared:
            kind = "shared" if stands.shared else "not shared"
            raise Condition("amqp:not-allowed", f"subscription {terms.name!r} is {kind}: unsubscribe first")
        if terms.means(stands) and keep_s == node.auto_delete_s:
            bind = self._bind(binding, node.uuid)
            if self._logs.nodes.is_bound(node, bind):
                self._join(attach, link, node, binding.exchange)
            else:  # its exchange was deleted and created again
                made = partial(self._made, attach, link, node.name, bind, needs)
                self._change(node.log, node.name, [bind], made)
            return
        if self._queues.consumers(node):
            text = f"subscription {terms.name!r} is in use, with another address or other filters"
            raise Condition("amqp:resource-locked", text)
        attach.demand(questions.unsubscribe(node))
        if self._queues.removals.goes_at_once(node):
            self._make(attach, link, terms, binding, needs, node)
            return

        def replace(told: str) -> None:
            try:
                if link.open:
                    self._make(attach, link, terms, binding, needs, node)
            except Condition as condition:
                stays(condition)
            if not self._logs.nodes.is_going(node.uuid):  # nothing was proposed: the old queue stays
                self._go_on(node.name)

        def stays(condition: Condition) -> None:
            if link.open:
                link.refuse(condition)
                attach.session.touch()

        self._remove(node, replace, lambda why: stays(Condition("amqp:resource-locked", why)))

    def _bind(self, binding: Bind, queue: str) -> Bind:
        """This binding, which names no queue yet, for the queue of that identity."""
        nodes = self._logs.nodes
        try:
            exchange = nodes.exchange_by_uuid(binding.exchange)
            return binding_of(nodes, exchange, queue, binding.key, dict(binding.arguments))
        except KeyError:
            raise Condition("amqp:not-found", "the exchange of this subscription was deleted meanwhile") from None
        except Refused as refusal:
            raise refused(refusal) from None

    def _needs(self, attach: Attach, exchange: ExchangeNode, key: str, terms: Terms) -> Lookups:
        nodes = self._logs.nodes
        auto_delete = bool(attach.asked.keep_s) or not terms.lasting
        attributes = {"durable": terms.lasting, "autoDelete": auto_delete, "exclusive": not terms.shared}
        made_with = with_policy(nodes, "queue", terms.queue, attributes, own=True)
        asked = questions.subscribe(exchange, terms.queue, key, made_with, nodes.default_queue_bytes)
        return *asked, Lookup("consume", "queue", {"name": terms.queue})

    def _make(
        self, attach: Attach, link: Sender, terms: Terms, binding: Bind, needs: Lookups, instead_of: QueueNode | None
    ) -> None:
        nodes, user, uuid = self._logs.nodes, attach.session.rights.user, self._new_id()
        full = self._quota.denial(user, nodes) if instead_of is None else ""
        if full:
            raise Condition("amqp:resource-limit-exceeded", full)
        bind = self._bind(binding, uuid)
        keep_s, owner = attach.asked.keep_s or 0, self._quota.owner(user)
        try:
            log, commands = plan_subscription(nodes, terms, uuid, bind, keep_s=keep_s, owner=owner, instead_of=instead_of)
        except Refused as refusal:
            raise refused(refusal) from None
        counted = self._quota.proposed(user, uuid, log)

        def made(reason: str) -> None:
            counted(reason)
            if reason:  # a queue of that name was created meanwhile
                clear = Unbind(exchange=bind.exchange, queue=uuid, key=bind.key)
                self._logs.ledgers[log].change(clear, lambda gone: None)
            self._made(attach, link, terms.queue, bind, needs, reason)

        self._change(log, terms.queue, commands, made)

    def _made(self, attach: Attach, link: Sender, name: str, bind: Bind, needs: Lookups, reason: str) -> None:
        """The queue and its binding are committed, or not, with the reason."""
        node = self._logs.nodes.queues.get(name)
        if link.open:
            try:
                if reason or node is None or node.terms is None:
                    raise Condition("amqp:resource-deleted", f"the queue of the subscription is not there: {reason or 'deleted'}")
                if self._logs.nodes.find_exchange(bind.exchange) is None:
                    raise deleted(node.terms.address)
                denial = attach.session.rights.denial(needs)  # the ACL may have changed meanwhile
                if denial:
                    raise Condition(UNAUTHORIZED, denial)
                self._add(attach, link, self._queues.at(node), needs, bind.exchange)
            except Condition as condition:
                link.refuse(condition)
            attach.session.touch()
        if not link.open and node is not None and self._ends_with(attach, link, node) and not self._queues.consumers(node):
            self.delete(node)

    def _ends_with(self, attach: Attach, link: Sender, node: QueueNode) -> bool:
        """Whether this subscription ends, unless another link has it, with a link that has ended before it was attached."""
        if node.terms is None or not node.terms.lasting:
            return node.terms is not None
        unsubscribes = link.closed_by_peer and not attach.session.rights.denial(questions.unsubscribe(node))
        return unsubscribes and not self._logs.closed

    def _join(self, attach: Attach, link: Sender, node: QueueNode, exchange: str, standing: Standing | None = None) -> None:
        """Attach this link to an existing queue, of a subscription to the exchange of this identity."""
        needs = questions.take_from_queue(node)
        attach.demand(needs)
        queue = self._queues.at(node)
        queue.admit(attach)
        self._add(attach, link, queue, needs, exchange, standing)

    def _add(
        self, attach: Attach, link: Sender, queue: QueueTerminus, needs: Lookups, exchange: str, standing: Standing | None = None
    ) -> None:
        earlier = self._earlier(attach, queue) if queue.node.definition.exclusive else []
        terms = queue.node.terms
        if terms is not None and terms.lasting:
            link.kept_s = queue.node.auto_delete_s
        end = queue.add(attach, link, needs, browse=False, standing=standing, instead_of=earlier)
        end.by_name, end.exchange = True, exchange
        for each in earlier:
            each.end_slow(Condition("amqp:link:stolen", "this subscription's client has attached it over another connection"))

    def _earlier(self, attach: Attach, queue: QueueTerminus) -> list[Subscription]:
        """The same link attaches over another connection, which ends the old link (part 2.6.1). The old connection is probably
        dead."""
        return [each for each in queue.subscriptions if each.session is not attach.session and each.by_name]

    # ---- asking for what stands

    def asked(self, attach: Attach) -> _Unnamed | None:
        """For a link without a source: the subscription with its name."""
        return None if attach.asked.exists else _Unnamed(self)

    def resume(self, attach: Attach, link: Sender) -> None:
        """Attach this link, which names no source, to the subscription of its name; Condition when there is none."""
        self._logs.must_serve()
        name, _, suffix = link.name.partition(DELIMITER)
        container = "" if suffix.startswith(GLOBAL) else attach.session.container
        wanted = [Terms(container, each, "", shared=False, lasting=True) for each in (link.name, name)]
        found = next((terms.queue for terms in wanted if self._is_there(terms.queue)), "")
        if not found:
            text = f"there is no subscription named {name!r}, which a link without a source asks for"
            raise Condition("amqp:not-found", text)

        def go_on() -> None:
            node = self._logs.nodes.queues.get(found)
            if node is None or node.terms is None:
                raise Condition("amqp:not-found", f"there is no subscription named {name!r}")
            terms = node.terms
            capabilities = (*((SHARED,) if terms.shared else ()), *(() if terms.container else (GLOBAL,)))
            exchange = self._logs.nodes.exchange_at(terms.address)
            standing = Standing(terms.address, terms.encoded_filters, capabilities)
            self._join(attach, link, node, "" if exchange is None else exchange[0].uuid, standing)

        self._when_settled(attach, link, found, go_on)

    def _is_there(self, name: str) -> bool:
        node = self._logs.nodes.queues.get(name)
        return name in self._under_way or (node is not None and node.terms is not None)

    # ---- the end

    def closed(self, queue: QueueTerminus, subscription: Subscription) -> None:
        """A client has closed its link: it unsubscribes, unless others use the subscription. Links to the queue itself do not
        count: they end with it."""
        node, link = queue.node, subscription.link
        assert node.terms is not None
        if not node.terms.lasting:
            queue.unsubscribed()
            return
        denial = subscription.session.rights.denial(questions.unsubscribe(node))
        if denial:
            link.end_condition = Condition(UNAUTHORIZED, denial)
        elif (others := sum(each.by_name for each in queue.subscriptions)) or node.name in self._under_way:
            text = f"subscription {node.terms.name!r} stays: {others} other links are attached to it"
            if not link.source.exists:  # the client attached only in order to unsubscribe
                link.end_condition = Condition("amqp:resource-locked", text)
        elif self._logs.serving and not self._logs.closed:
            link.ends_later = True
            self._remove(
                node,
                lambda told: self._change(
                    node.log, node.name, [QueueDel(uuid=node.uuid)], lambda reason: self._ended(subscription)
                ),
                partial(self._not_ended, subscription),
            )
            return
        queue.unsubscribed()

    def _not_ended(self, subscription: Subscription, why: str) -> None:
        """Messages are left on the queue and cannot go: the subscription stays."""
        subscription.link.end_condition = Condition("amqp:resource-locked", why)
        self._ended(subscription)
        node = self._logs.nodes.queue_by_uuid(subscription.node.uuid)
        if node is not None:
            self._queues.at(node).unsubscribed()

    def _ended(self, subscription: Subscription) -> None:
        subscription.link.answer_end()
        subscription.session.touch()

    def delete(self, node: QueueNode) -> None:
        """Let this queue go, with which its last consumer has gone."""
        if node.terms is None or node.name in self._under_way:
            cause = by_itself(lambda: not self._queues.consumers(node), lambda: self._logs.delete_queue(node))
        else:
            cause = by_itself(
                lambda: not self._queues.consumers(node),
                lambda: self._change(node.log, node.name, [QueueDel(uuid=node.uuid)], lambda reason: None),
            )
        self._queues.removals.remove(node, cause)

    # ---- changes

    def _remove(self, node: QueueNode, propose: Callable[[str], None], stays: Callable[[str], None]) -> None:
        """Let a subscription's queue go, on request: attaches wait until that is over."""
        self._under_way[node.name] = []

        def stayed(why: str) -> None:
            stays(why)
            self._go_on(node.name)

        self._queues.removals.remove(node, Cause(propose, stayed))

    def _go_on(self, name: str) -> None:
        """The change of this queue is over: let the attaches that wait for it go on."""
        for each in self._under_way.pop(name, []):
            each()
        self._queues.turn.flush()

    def _change(self, log: str, name: str, commands: list[Command], done: Answer) -> None:
        """Propose these in one batch; `done` gets "" or why the last but one, or the only one, changed nothing."""
        self._under_way.setdefault(name, [])
        reasons: list[str] = []

        def answered(reason: str) -> None:
            reasons.append(reason)
            if len(reasons) == len(commands):
                waiting = self._under_way.pop(name, [])
                done(reasons[-2] if len(reasons) > 1 else reasons[-1])
                for each in waiting:
                    each()
                self._queues.turn.flush()

        ledger = self._logs.ledgers[log]
        with ledger.pending.one_batch(0):
            for command in commands:
                ledger.change(command, answered)


class _Unnamed:
    """The terminus of an attach without a source. Fulfils `termini.Source`."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    def knows_filter(self, name: str) -> bool:
        """None: there is no source to apply it to."""
        return False

    def subscribe(self, attach: Attach, link: Sender) -> None:
        """Attach the link to the existing subscription."""
        self._subscriptions.resume(attach, link)


def _terms(attach: Attach) -> Terms:
    """The requested terms; Condition when a named subscription cannot have them."""
    asked = attach.asked
    shared = SHARED in asked.capabilities
    container = "" if shared and GLOBAL in asked.capabilities else attach.session.container
    name = named(attach.link.name, shared=shared)
    if not name or not (container or GLOBAL in asked.capabilities):
        text = "a subscription that lasts or is shared is known by its link's name and its client's container id: name both"
        raise Condition("amqp:invalid-field", text)
    return Terms(container, name, asked.address, shared, asked.keep_s is not None, base64_of(asked.encoded_filters))
