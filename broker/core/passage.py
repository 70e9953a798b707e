"""Exchanges that number their messages (`qpid.msg_sequence`) or keep the last one (`qpid.ive`).

Life of a number: the primary routes a message through an exchange that numbers. The message gets the next number as an
annotation, which replaces the number of another exchange. The same batch records how many messages the exchange has numbered, in
an `exchange-passed` command. A new primary continues from there. So no two committed messages have the same number of one
exchange. If a batch is never committed, its numbers are given again.

Life of a value: an exchange that keeps values has the last message that has passed through it; the same command records it. A
queue that is bound to the exchange is owed this message, if its binding matches it (`owes`, in broker.core.commands). When the
binding exists, the primary puts the message on the queue, and records that the debt is paid.

Invariants: an exchange counts and keeps in the order in which messages are put; a kept value is never older than the last message
that has passed: a message that is too long to be kept leaves no value.

Source: qpidd's `Exchange::PreRoute` and `Exchange::routeIVE`. There, every bound queue gets the value again when one is bound,
and the value gets a new number. Here it is the same message, and only the new binding's queue gets it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from broker.core import lifetimes, limits, message
from broker.core.commands import PASSAGE_SINCE, Bind, ExchangePassed
from broker.core.exchange import Exchange
from broker.core.message import BadMessage
from broker.core.subscriptions import NOWHERE, Origin
from broker.core.values import Symbol, encode

SEQUENCE, INITIAL_VALUE = "qpid.msg_sequence", "qpid.ive"
NAMES = frozenset((SEQUENCE, INITIAL_VALUE))
_ANNOTATION = frozenset((SEQUENCE,))
_KEY = encode(Symbol(SEQUENCE))


class Value(NamedTuple):
    """The last message that has passed through an exchange, with its routing key, its expiry, and the time when it may be
    delivered. `origin`: where it came from, in this term; the log does not have it."""

    key: str
    data: bytes
    expires_ms: int
    available_ms: int
    origin: Origin = NOWHERE

    def is_for(self, kind: str, binding: Bind) -> bool:
        """Whether this binding to an exchange of this kind matches it."""
        alone: Exchange[str] = Exchange("", kind)
        alone.bind(binding.queue, binding.key, binding.arguments)
        try:
            return bool(alone.route(self.key, lambda: message.application_properties(self.data)))
        except BadMessage:
            return False


class Passage:
    """See the module. Of one exchange, on the primary."""

    __slots__ = ("keeps", "numbers", "sequence", "value")

    def __init__(self, *, numbers: bool, keeps: bool) -> None:
        self.numbers = numbers
        self.keeps = keeps
        self.sequence = 0
        """The number of messages that have passed, if the exchange numbers them."""
        self.value: Value | None = None

    def go_on(self, passed: ExchangePassed | None) -> None:
        """A term begins: take the state from the log."""
        self.sequence = 0 if passed is None else passed.sequence
        self.value = None
        if passed is not None and passed.value:
            data = base64.b64decode(passed.value)
            self.value = Value(passed.key, data, passed.expires_ms, passed.available_ms)

    def takes(self, nbytes: int) -> bool:
        """Whether a message of so many bytes can be kept, if it is to be."""
        return not self.keeps or nbytes <= limits.MAX_INITIAL_VALUE_BYTES

    def pass_on(self, key: str, data: bytes, now_ms: int, origin: Origin = NOWHERE) -> bytes:
        """A message passes through, with this routing key and origin. Returns it with its number. Bytes that are not an AMQP
        message get no number."""
        if self.numbers:
            self.sequence += 1
            with suppress(BadMessage):
                data = message.with_annotations(data, _ANNOTATION, _KEY + encode(self.sequence))
        if self.keeps:
            self.value = None
            if self.takes(len(data)):
                self.value = Value(key, data, *lifetimes.when(lifetimes.said(data), now_ms, 0), origin)
        return data

    def command(self, exchange: str) -> ExchangePassed:
        """The state for the log."""
        value = self.value
        if value is None:
            return ExchangePassed(exchange=exchange, sequence=self.sequence)
        return ExchangePassed(
            exchange=exchange,
            sequence=self.sequence,
            key=value.key,
            value=base64.b64encode(value.data).decode(),
            expires_ms=value.expires_ms,
            available_ms=value.available_ms,
        )


def passage_of(arguments: Mapping[str, Any], needs: int) -> Passage | None:
    """The passage of an exchange with these arguments; None if it neither numbers nor keeps. `needs`: the machine version of its
    definition. An older release accepted these arguments without effect."""
    numbers, keeps = bool(arguments.get(SEQUENCE)), bool(arguments.get(INITIAL_VALUE))
    return Passage(numbers=numbers, keeps=keeps) if needs >= PASSAGE_SINCE and (numbers or keeps) else None


def fault_of(arguments: Mapping[str, Any]) -> str:
    """The fault of these arguments, as a text for people; "" if they have none."""
    for name in (SEQUENCE, INITIAL_VALUE):
        if arguments.get(name, 0) not in (0, 1):
            return f"{name} is 1 or true, or 0 or false, and not {arguments[name]!r}"
    return ""
