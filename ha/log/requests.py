"""The requests to a log that have not ended: promotions, handovers, changes of membership.

Life of a request: it is noted with a Deferred when it goes to the core. The core reports its end once, at once or much later.
Then it is removed from here, and answered after everything before it was passed on to the listener.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from twisted.internet.defer import Deferred

from ha.core.effects import MembershipEnded, PromotionEnded, TransferEnded

Ended = PromotionEnded | TransferEnded | MembershipEnded


class Requests:
    """See the module. `new_id` gives unique ids."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._by_id: dict[str, Deferred[Any]] = {}
        self._transfers: dict[str, list[Deferred[TransferEnded]]] = {}
        """By candidate: the core knows one handover to each."""

    def promotion(self) -> tuple[str, Deferred[PromotionEnded]]:
        """A promotion, or the bootstrap of a cluster: its id, and the Deferred that fires at its end."""
        return self._noted()

    def change(self) -> tuple[str, Deferred[MembershipEnded]]:
        """A change of membership: its id, and the Deferred that fires at its end."""
        return self._noted()

    def _noted(self) -> tuple[str, Deferred[Any]]:
        request_id, ended = self._new_id(), Deferred[Any]()
        self._by_id[request_id] = ended
        return request_id, ended

    def transfer(self, candidate: str) -> Deferred[TransferEnded]:
        """A handover to this backup."""
        ended: Deferred[TransferEnded] = Deferred()
        self._transfers.setdefault(candidate, []).append(ended)
        return ended

    def take(self, effect: Ended) -> list[Deferred[Any]]:
        """Remove and return the Deferreds that wait for this end."""
        match effect:
            case PromotionEnded(request_id) | MembershipEnded(request_id):
                return [self._by_id.pop(request_id)]
            case TransferEnded(candidate):
                return list(self._transfers.pop(candidate, []))
            case _:
                assert_never(effect)
