"""Where a routed message has been: a message annotation, by which a message never comes to a cluster a second time.

Life of the annotation `x-opt-qpid-hops`, a list of strings: the first route that takes a message adds it, with the identity of
the cluster that the message was fetched from, and with the route's tag if it has one; each further route adds what is its own. A
route drops a message whose list has the identity of its own cluster, for it has been here, and one whose list has a name that the
route is told to exclude. Within a cluster the identity of the queue stands behind the cluster's, so that a message may go from
queue to queue, but not round. A message with `limits.MAX_ROUTE_HOPS` names or more is not taken any further.

Invariants: nothing else of a message changes, no byte of its bare message and no other annotation; a list that is none, which a
client may have written, counts as an empty one.
"""

from __future__ import annotations

from collections.abc import Collection

from broker.core import limits, message
from broker.core.values import Symbol, encode, skip

HOPS = "x-opt-qpid-hops"
_NAMES = frozenset((HOPS,))
_KEY = encode(Symbol(HOPS))


class TooFar(ValueError):
    """A message has come through too many clusters."""


class Hops:
    """What one route does with the annotation. `here` and `there` are the identities of its own cluster and of its source's;
    `queue` is that of the queue that it fetches from."""

    def __init__(self, here: str, there: str, tag: str = "", exclude: Collection[str] = (), queue: str = "") -> None:
        inside = f"{here}/{queue}"
        self._dropped = frozenset((inside if here == there else here, *exclude))
        self._added = [inside if here == there else there, *([tag] if tag else [])]
        self._section = message.with_annotations(b"", _NAMES, _KEY + encode(self._added))

    def mark(self, data: bytes) -> bytes | None:
        """The message, or the beginning of a large one with all that stands before its body, as this cluster takes it; None when
        it is to be dropped. BadMessage; TooFar."""
        at, annotated = _place(data)
        if not annotated:
            return b"".join((data[:at], self._section, data[at:]))
        been = _been(data)
        if not self._dropped.isdisjoint(been):
            return None
        if len(been) >= limits.MAX_ROUTE_HOPS:
            raise TooFar(
                f"it has passed through {', '.join(been)}: routes pass a message through at most {limits.MAX_ROUTE_HOPS} clusters"
            )
        return message.with_annotations(data, _NAMES, _KEY + encode([*been, *self._added]))


def _place(data: bytes) -> tuple[int, bool]:
    """Where the message annotations begin, or would; whether there are any."""
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
