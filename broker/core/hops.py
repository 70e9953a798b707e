"""The clusters that a routed message has passed through, in a message annotation, so that no message comes to a cluster twice.

Life of the annotation `x-opt-qpid-hops`, a list of strings: the first route that fetches a message creates it, with the identity
of the source cluster, and with the route's tag if it has one. Each later route adds the same for itself. A route drops a message
if the list contains a name that the route is configured to exclude. If the list contains the identity of the route's own cluster,
the message was there before: the route's intake decides what follows. For a route within one cluster, the queue's identity is
appended to the cluster's. So a message can go from queue to queue, but not in a circle. A route does not pass on a message with
`limits.MAX_ROUTE_HOPS` names or more.

Invariants: nothing else in a message changes: no byte of its bare message, and no other annotation. If a client has written an
annotation that is not a list of strings, it counts as an empty list.
"""

from __future__ import annotations

from collections.abc import Collection

from broker.core import limits, message
from broker.core.values import Symbol, encode, skip

HOPS = "x-opt-qpid-hops"
_NAMES = frozenset((HOPS,))
_KEY = encode(Symbol(HOPS))


class TooFar(ValueError):
    """A message has passed through too many clusters."""


class CameBack(ValueError):
    """A message was in the route's own cluster, or on its queue, before."""


class Hops:
    """The annotation as one route reads and writes it. `here` and `there` are the identities of the route's own cluster and of
    the source cluster; `queue` is the identity of the queue that it fetches from."""

    def __init__(self, here: str, there: str, tag: str = "", exclude: Collection[str] = (), queue: str = "") -> None:
        inside = f"{here}/{queue}"
        self._mine = inside if here == there else here
        self._dropped = frozenset(exclude)
        self._added = [inside if here == there else there, *([tag] if tag else [])]
        self._section = message.with_annotations(b"", _NAMES, _KEY + encode(self._added))

    def mark(self, data: bytes) -> bytes | None:
        """Add this route to the annotation of a message, or of the beginning of a large message, which includes all sections
        before the body. None when the message has a name that is excluded. BadMessage; CameBack; TooFar."""
        at, annotated = _place(data)
        if not annotated:
            return b"".join((data[:at], self._section, data[at:]))
        been = _been(data)
        if not self._dropped.isdisjoint(been):
            return None
        if self._mine in been:
            raise CameBack(f"it has been here before, and has passed through {', '.join(been)}")
        if len(been) >= limits.MAX_ROUTE_HOPS:
            raise TooFar(
                f"it has passed through {', '.join(been)}: routes pass a message through at most {limits.MAX_ROUTE_HOPS} clusters"
            )
        return message.with_annotations(data, _NAMES, _KEY + encode([*been, *self._added]))


def _place(data: bytes) -> tuple[int, bool]:
    """The offset where the message annotations begin or would begin, and whether there are any."""
    position, end = 0, len(data)
    while position < end:
        code, value = message.section_at(data, position, end)
        if code >= message.MESSAGE_ANNOTATIONS:
            return position, code == message.MESSAGE_ANNOTATIONS
        position = skip(data, value, end, 0)
    return position, False


def _been(data: bytes) -> list[str]:
    found = message.message_annotations(data).get(HOPS)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        return []
    return [str(each) for each in found]
