"""A pack that has arrived on a packed link (`broker.core.packs`), until all of its messages have an outcome."""

from __future__ import annotations

from typing import Any

from cproton_ffi import lib

from broker.amqp.data import Condition, put_value
from broker.core import packs
from broker.core.links import ACCEPTED


class ArrivedPack:
    """A delivery that is a pack: the messages from id `first` on, with their tags. `left` of them have no outcome yet."""

    __slots__ = ("_said", "_whole", "delivery", "first", "left", "tags")

    def __init__(self, delivery: Any, first: int, tags: list[bytes]) -> None:
        self.delivery = delivery
        self.first = first
        self.tags = tags
        self.left = len(tags)
        self._whole = True
        """Whether all messages that have an outcome were accepted, and none was withheld."""
        self._said: list[packs.Outcome] = []

    @property
    def end(self) -> int:
        """The id after its last message."""
        return self.first + len(self.tags)

    def settle(self, first: int, count: int, outcome: int, condition: Condition | None) -> None:
        """These messages have an outcome, or none at all (0). With the last one the delivery is settled."""
        self.left -= count
        self._whole = self._whole and outcome == ACCEPTED
        if outcome:
            text = "" if condition is None else str(condition)
            self._said.append(packs.Outcome(first - self.first, count, outcome, text))
        if self.left:
            return
        state = ACCEPTED if self._whole else packs.OUTCOMES
        if not self._whole:
            put_value(lib.pn_disposition_data(lib.pn_delivery_local(self.delivery)), packs.outcomes(sorted(self._said)))
        lib.pn_delivery_update(self.delivery, state)
        lib.pn_delivery_settle(self.delivery)
