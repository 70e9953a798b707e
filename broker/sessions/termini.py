"""The registry of termini: finds the terminus for an attach of a client.

Life of an attach: it has an address, or requests a dynamic node. Each kind of terminus is asked in turn whether the attach is
for it. The first one that says yes takes the link, or refuses it with a `Condition`.

A new kind of terminus is a module with a class that implements `Target`, `Source` or both, and one line where `broker.service`
creates this registry. No other code depends on the kind of a terminus.

Source: AMQP 1.0 part 3.5 (sources, targets).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from broker.amqp.asked import Asked
from broker.amqp.data import Condition
from broker.amqp.receiver import Receiver
from broker.amqp.sender import Sender
from broker.core import limits
from broker.core.acl import questions
from broker.core.addresses import behind_url
from broker.sessions.attach import Attach
from broker.sessions.logs import Logs
from broker.sessions.making import TOPICS, Making
from broker.sessions.producer import Producer, Target


class Source(Protocol):
    """A terminus that messages come from."""

    def knows_filter(self, name: str) -> bool:
        """Whether it applies a filter of this name (see `broker.core.filters`). Other filters are refused, because the client
        would get messages that it does not want."""

    def subscribe(self, attach: Attach, link: Sender) -> None:
        """Attach this receiving link of a client, and hang its link end on it; Condition when that cannot be."""


FindTarget = Callable[[Attach], Target | None]
FindSource = Callable[[Attach], Source | None]
"""Gives the terminus that an attach asks for, None when it is another's; Condition when it is one that cannot be."""


class Termini:
    """See the module. `targets` and `sources` are asked in order. `max_message_bytes` is announced to producers of termini that
    accept large messages in parts; for others, at most `limits.GATHERED_BYTES`."""

    def __init__(
        self, logs: Logs, making: Making, *, targets: list[FindTarget], sources: list[FindSource], max_message_bytes: int
    ) -> None:
        self._making = making
        self.targets = targets
        self.sources = sources
        self._logs = logs
        self._max_message_bytes = max_message_bytes

    def redirect(self, address: str) -> Condition:
        """The redirect of a node, for clients of a broker that leaves."""
        return self._logs.redirect(address)

    def attach(self, attach: Attach) -> None:
        """Attach a client's link, at once or when its node is created; Condition when it cannot attach."""
        if not self._making.dynamic(attach, self._attach):
            self._attach(attach)

    def _attach(self, attach: Attach) -> None:
        """The same, for a node that exists or is created by its name. A node whose name is the whole address takes precedence
        over the node that a URL names."""
        link = attach.link
        if isinstance(link, Sender):
            for find_source in self.sources:
                source = find_source(attach)
                if source is not None:
                    _check_filters(attach.asked, source)
                    source.subscribe(attach, link)
                    return
        elif isinstance(link, Receiver):
            for find_target in self.targets:
                target = find_target(attach)
                if target is not None:
                    self._attach_producer(attach, link, target)
                    return
        name = behind_url(attach.asked.address, attach.session.hostname)
        if name:
            attach.asked.address = name
            self._attach(attach)
            return
        if self._making.by_name(attach, self._attach):
            return
        attach.demand_either(questions.unknown(attach.asked.address))
        self._logs.must_serve()
        missing = f"there is no queue and no exchange named {attach.asked.address!r:.120}"
        raise Condition("amqp:not-found", f"{missing}; create one with qpid-config add queue or add exchange")

    def _attach_producer(self, attach: Attach, link: Receiver, target: Target) -> None:
        attach.demand(target.needs_of_sender(attach.session))
        target.admit(attach)
        producer = Producer(attach.session, link, target)
        if target.takes_large and self._logs.takes_large:
            link.take_parts(producer, self._max_message_bytes)
        else:
            link.take_whole(min(self._max_message_bytes, limits.GATHERED_BYTES))
        link.accept(max_message_size=link.max_bytes)
        link.context = producer
        target.attached(producer)
        producer.start()


def _check_filters(asked: Asked, source: Source) -> None:
    unknown = [each.name for each in asked.filters if not source.knows_filter(each.name)]
    if unknown:
        names = ", ".join(map(repr, sorted(unknown)))
        raise Condition("amqp:not-implemented", f"this broker does not apply the filter {names}: attach without it")


def by_address(named: Callable[[str], Target | None]) -> FindTarget:
    """Find a target by the address that an attach names."""
    return lambda attach: named(attach.asked.address)


def source_by_address(named: Callable[[str], Source | None]) -> FindSource:
    """Find a source by the address that an attach names."""
    return lambda attach: named(attach.asked.address)


Q = TypeVar("Q")
T = TypeVar("T")


def of_kind(attach: Attach, queue: Callable[[str], Q | None], topic: Callable[[str], T | None]) -> Q | T | None:
    """The node that an attach names. If it requests a topic, an exchange of this name takes precedence over a queue, otherwise
    the queue does."""
    address = attach.asked.address
    if TOPICS.isdisjoint(attach.asked.capabilities):
        return queue(address) or topic(address)
    return topic(address) or queue(address)


def no_anonymous_source(attach: Attach) -> Source | None:
    """Refuse to give out messages of no node."""
    if not attach.asked.address:
        raise Condition("amqp:invalid-field", "a receiving link needs the address of a queue or exchange as its source")
    return None
