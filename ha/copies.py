"""On how many disks all committed batches are, as the primary knows, and a warning while they are on only one.

With a witness (ha.core.witness) a cluster continues to serve when only one broker is left; then that broker's disk has the
only copy. Life: `tick` is called regularly. When there has been one copy for `SETTLED_S`, the log and telemetry report
`one_copy`; when there are more copies again, they report `more_copies`. `notice` is the text that management shows meanwhile.

Invariant: no commit waits for this module: it only counts the copies.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from ha.core.effects import State
from ha.core.status import ReplicaStatus

_log = Logger(namespace="ha")
SETTLED_S = 1.0


def copies(status: ReplicaStatus) -> int:
    """How many disks have all committed batches; 0 on a broker that is not the primary, because it does not know."""
    if status.state is not State.ACTIVE:
        return 0
    others = sum(peer.stores and peer.match_index >= status.commit_index for peer in status.peers)
    return others + (status.durable_index >= status.commit_index)


def notice(status: ReplicaStatus) -> str:
    """The warning for an operator while there is one copy and a witness; "" otherwise."""
    if not status.members.witness or copies(status) != 1:
        return ""
    others = [
        f"{peer.address} {'is behind' if peer.connected else 'is not connected'} and has acknowledged batch {peer.match_index}"
        for peer in status.peers
        if peer.stores
    ]
    return (
        f"one copy: the committed batches up to {status.commit_index} are only on the disk of {status.primary}, with "
        f"{status.members.witness} as witness; {'; '.join(others) or 'no other broker stores messages'}"
    )


class Copies:
    """See the module. `note` reports an event to telemetry."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._told = False
        self._since: float | None = None

    def tick(self, status: ReplicaStatus, now_s: float) -> None:
        """Time has passed."""
        text = notice(status)
        if not text:
            self._since = None
            if self._told:
                self._told = False
                if status.state is State.ACTIVE:
                    _log.info("all committed batches are on more than one disk again")
                    self._note("more_copies", epoch=status.epoch, index=status.commit_index)
            return
        if self._since is None:
            self._since = now_s
        if not self._told and now_s - self._since >= SETTLED_S:
            self._told = True
            _log.warn("{text}", text=text)
            self._note("one_copy", epoch=status.epoch, index=status.commit_index, detail=text)
