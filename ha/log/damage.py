"""What a broker does about bodies that are damaged on its disk.

Life of a fault: bodies are read, for a consumer, a compaction or another broker, and the disk fails or a checksum is wrong. If
another broker has what is committed here, this one gives its log up: the journal notes it, the broker stops, and it gets
everything from another one when it is started again. Otherwise the broker continues without these messages, because a broker with
a damaged log is better than none: readers get an error, and no other broker can get a copy of the log (`Snapshots.obstacle`)
until the messages of the damaged file have left their queues.

Invariant: a log of one broker is never given up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

from twisted.logger import Logger

from broker.disk.bodies import file_of
from broker.disk.durable import StorageError
from broker.disk.journal import Journal
from ha.core.effects import State
from ha.core.membership import Membership
from ha.core.replica import Replica

_log = Logger(namespace="ha")


class Verdict(Enum):
    """What becomes of a file that is damaged, and that another broker needs."""

    NEEDLESS = auto()
    """No message is alive in it: a new checkpoint does without it."""
    GIVEN_UP = auto()
    """The whole log is given up."""
    KEPT = auto()
    """No other broker has it, so the log cannot be copied."""


def stores_alone(me: str, members: dict[str, Any]) -> bool:
    """Whether, by this last membership of a log, no other broker stores what this one does."""
    last = Membership.from_dict(members)
    return {*last.stores, *last.learners} == {me}


class Damage:
    """See the module. `live_by_file` maps files to what is alive in them; `end(text)` stops the log and its broker; `single`: it
    is the log of one broker."""

    def __init__(
        self,
        replica: Replica,
        journal: Journal,
        me: str,
        seconds: Callable[[], float],
        live_by_file: Callable[[], Mapping[int, int]],
        end: Callable[[str], None],
        *,
        single: bool,
    ) -> None:
        self._replica = replica
        self._journal = journal
        self._me = me
        self._seconds = seconds
        self._live_by_file = live_by_file
        self._end = end
        self._single = single

    def found(self, place: int, text: str) -> None:
        """Bodies are damaged at this place."""
        if self._others_have_it():
            self._give_up(place, text)
        else:
            _log.error("{text}; no other broker is known to have it, so this one continues without it", text=text)

    def found_in_file(self, place: int, text: str) -> Verdict:
        """As `found`, for a file that another broker needs, which is reported by whoever sends it."""
        if not self._live_by_file().get(file_of(place)):
            return Verdict.NEEDLESS
        if not self._others_have_it():
            return Verdict.KEPT
        self._give_up(place, text)
        return Verdict.GIVEN_UP

    def _give_up(self, place: int, text: str) -> None:
        try:
            self._journal.damaged(place, text)
        except StorageError as error:
            text = f"{text}; {error}"
        self._end(f"{text}; the broker stops, and fetches everything from another one when it is started again")

    def _others_have_it(self) -> bool:
        """Whether another broker has, as far as this one knows, what is committed here: a start with damage begins anew. A
        primary knows who has acknowledged it; any other member is not the only one that stores it."""
        if self._single:
            return False
        status = self._replica.status(self._seconds())
        if status.state in (State.RECOVERING, State.ACTIVE):
            return any(each.connected and each.stores and each.match_index >= status.commit_index for each in status.peers)
        return any(each != self._me for each in (*status.members.stores, *status.members.learners))
