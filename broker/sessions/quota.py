"""How many queues a user has, and may have: `quota queues` of an ACL, or `--max-queues-per-user`.

Life of a queue here: while there are rules or quotas, a new queue's definition contains the user who created it, for good and on
every broker. It counts from its proposal until it is deleted. Queues that were created without rules and quotas have no owner,
and count for no user.

Invariant: a queue in progress counts once, whether it is applied yet or not, as long as this broker may still get the result.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.core.acl.questions import shown
from broker.core.nodes import Nodes
from broker.sessions.guard import Guard


class QueueQuota:
    """See the module."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._under_way: dict[str, tuple[str, str]] = {}
        """Identity of a queue that is proposed -> its user, and its log."""

    def owner(self, user: str) -> str:
        """The owner in the definition of this user's new queue; "" while there are no rules or quotas."""
        return user if self._guard.owns_queues else ""

    def denial(self, user: str, nodes: Nodes) -> str:
        """Why this user may not make one more queue; "" if it may."""
        most = self._guard.queues_of(user)
        if most is None:
            return ""
        mine = [uuid for uuid, (by, _) in self._under_way.items() if by == user and nodes.queue_by_uuid(uuid) is None]
        has = nodes.queues_of(user) + len(mine)
        where = "--max-queues-per-user" if self._guard.acl is None else "`quota queues` of the ACL"
        return f"{shown(user)} has {has} queues, and may have {most} ({where})" if has >= most else ""

    def proposed(self, user: str, uuid: str, log: str) -> Callable[[str], None]:
        """A queue is proposed to this log; to be called with its answer."""
        self._under_way[uuid] = user, log
        return lambda reason: self._answered(uuid)

    def _answered(self, uuid: str) -> None:
        self._under_way.pop(uuid, None)

    def void(self, log: str) -> None:
        """The proposals to this log get no result any more: if another broker commits them, the queues count when they are
        applied."""
        self._under_way = {uuid: entry for uuid, entry in self._under_way.items() if entry[1] != log}
