"""Planted bugs of queues whose message groups have owners in the log (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_OWNERS = {
    "gives-what-is-not-given": Bug(
        "delivers messages of a group before the record is committed that gives the group to the consumer",
        "broker.core.queues.owned",
        "Owned._place",
        """\
        if group in self._asked or group in self._freeing:
            return None
        owner = self.owner_of.get(group)
""",
        """\
        owner = self.owner_of.get(group, self._asked.get(group))
""",
    ),
    "begins-without-owners": Bug(
        "as a new primary, assigns groups as if none had an owner",
        "broker.sessions.group_owners",
        "GroupOwners.begin",
        "self._absent.clear()",
        "self._absent.clear(); self._order and self._order.own(list(self._order.owner_of), None)",
    ),
    "checkpoint-forgets-owners": Bug(
        "does not write the owners of groups into a checkpoint",
        "broker.core.state",
        "_snapshot_batches",
        "(BatchBuilder.own, each) for each in owned",
        "(BatchBuilder.own, each) for each in ()",
    ),
}
