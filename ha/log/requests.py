"""The requests to a log: promotions, handovers, changes of membership.

Life of a request: it goes to the core, and is noted here with a Deferred. The core reports its end once, at once or much later.
Then it is removed from here, and answered after everything before it was passed on to the listener.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, assert_never

from twisted.internet.defer import Deferred

from ha.core.effects import Effect, MembershipEnded, PromotionEnded, TransferEnded
from ha.core.membership import Change
from ha.core.replica import Replica

Ended = PromotionEnded | TransferEnded | MembershipEnded


class Requests:
    """See the module. `seconds` is the core's time, `take` executes its effects, `new_id` gives unique ids."""

    def __init__(
        self,
        replica: Replica,
        seconds: Callable[[], float],
        take: Callable[[list[Effect]], None],
        new_id: Callable[[], str],
    ) -> None:
        self.replica = replica
        self._seconds = seconds
        self._take = take
        self._new_id = new_id
        self._by_id: dict[str, Deferred[Any]] = {}
        self._transfers: dict[str, list[Deferred[TransferEnded]]] = {}
        """By candidate: the core knows one handover to each."""

    # ---- to become the primary

    def promote(self, *, insist: bool = False, refusing: Mapping[str, str] | None = None) -> Deferred[PromotionEnded]:
        """Become the primary. Fires when this broker is active, or when the request is refused. `insist`, `refusing`: see
        `Replica.promote`."""
        return self._noted(partial(self.replica.promote, insist=insist, refusing=refusing))

    def bootstrap(self) -> Deferred[PromotionEnded]:
        """Begin a new cluster from this blank store, without the silent members. Fires when active, or when refused."""
        return self._noted(self.replica.bootstrap)

    def take_over(self, cluster_id: str) -> Deferred[PromotionEnded]:
        """Begin a new lineage with the data here; the store already has its id. Fires when active, or when refused."""
        return self._noted(partial(self.replica.take_over, cluster_id=cluster_id))

    def obstacle_to_takeover(self) -> str:
        """Why no new lineage can begin here; "" if it can."""
        return self.replica.obstacle_to_takeover(self._seconds())

    def obstacle_to_bootstrap(self) -> str:
        """Why no new cluster can begin with this store; "" if it can."""
        return self.replica.obstacle_to_bootstrap(self._seconds())

    # ---- of a primary

    def transfer(self, candidate: str, patience_s: float | None = None, within_s: float | None = None) -> Deferred[TransferEnded]:
        """Hand over to this backup. `patience_s`, `within_s`: see `Replica.transfer`."""
        ended: Deferred[TransferEnded] = Deferred()
        self._transfers.setdefault(candidate, []).append(ended)
        self._take(self.replica.transfer(self._seconds(), candidate, patience_s, within_s))
        return ended

    def add_member(self, address: str, *, witness: bool = False) -> Deferred[MembershipEnded]:
        """Add a broker to the cluster, or a witness."""
        return self._noted(lambda now, id_: self.replica.add_member(now, address, id_, witness=witness))

    def change_member(self, address: str, change: Change) -> Deferred[MembershipEnded]:
        """Change one member."""
        return self._noted(lambda now, id_: self.replica.change_member(now, address, id_, change=change))

    def remove_member(self, address: str) -> Deferred[MembershipEnded]:
        """Remove a broker from the cluster."""
        return self._noted(lambda now, id_: self.replica.remove_member(now, address, id_))

    # ---- ends

    def ended(self, effect: Ended) -> list[Deferred[Any]]:
        """Remove and return the Deferreds that wait for this end."""
        match effect:
            case PromotionEnded(request_id) | MembershipEnded(request_id):
                return [self._by_id.pop(request_id)]
            case TransferEnded(candidate):
                return list(self._transfers.pop(candidate, []))
            case _:
                assert_never(effect)

    def _noted(self, ask: Callable[[float, str], list[Effect]]) -> Deferred[Any]:
        request_id, ended = self._new_id(), Deferred[Any]()
        self._by_id[request_id] = ended
        self._take(ask(self._seconds(), request_id))
        return ended
