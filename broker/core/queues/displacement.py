"""The interface for messages that leave a queue when another one arrives. Only the primary asks, for each message that it will
propose.

The dequeues of the leaving messages are proposed in the same batch as the new message. They are ordinary records, and a backup
needs no rule. Most queues do not have this, and it costs them nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from broker.core.queues import arguments
from broker.core.queues.last_value import LastValue
from broker.core.queues.ring import Held, Ring


class Displacing(Protocol):
    """A primary's view of one queue: its content when all proposals are applied. It ends with the term. The limits may be changed
    at any time; 0: none."""

    max_count: int
    max_bytes: int

    @property
    def ready(self) -> bool:
        """Whether the messages may be delivered."""

    def begin(self) -> None:
        """Messages will be put: update the view from the applied state."""

    def put(self, sequence: int, data: bytes, nbytes: int) -> Sequence[int] | None:
        """A message of so many bytes gets this sequence: those that leave for it; None, and it gets none, when it cannot stay."""

    def leaves(self, sequence: int) -> bool:
        """Whether it is proposed that this message, which is on the queue, leaves for another one: it must not be put anywhere
        else, because the parts of a large one go with it."""

    def fault(self, count: int, nbytes: int, largest: int = 0) -> str:
        """Why so many messages of so many bytes in all cannot be put now, or ""; several may be refused that fit one by one.
        `largest`: the bytes of the largest of them; 0: it is not known, and counts as if it had all of the bytes."""


def displacing_of(asked: Mapping[str, Any], held: Held, max_count: int, max_bytes: int) -> Displacing | None:
    """The view for a queue with these arguments, which are in force; None for most queues."""
    key = asked.get(arguments.LAST_VALUE_KEY)
    if key:
        return LastValue(held, key, max_count, max_bytes)
    policy = arguments.policy_of(asked)
    if policy == arguments.REJECT:
        return None
    return Ring(held, max_count, max_bytes, strict=policy == arguments.RING_STRICT)
