"""The membership of a log: reported to the broker when it is committed, and proposed when the core wants that.

Invariant: a membership is reported only when it is committed: before that, another one may still replace it. The links to the
other members are changed earlier, as soon as it is in the log.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.core.records import BatchBuilder
from ha.core.effects import MembersCommitted, MembershipChanged
from ha.core.membership import Membership
from ha.core.replica import Replica
from ha.log.applying import Applying
from ha.outbox import Peers


class Members:
    """See the module. `report` takes each committed membership; `new_id` gives the id of a new cluster."""

    def __init__(
        self,
        replica: Replica,
        applying: Applying,
        peers: Peers,
        report: Callable[[Membership], None],
        new_id: Callable[[], str],
    ) -> None:
        self.due: Membership | None = None
        """The membership that must be proposed next; until then no other batch is."""
        self._replica = replica
        self._applying = applying
        self._peers = peers
        self._report = report
        self._new_id = new_id

    def follow(self, effect: MembershipChanged | MembersCommitted) -> None:
        """The core has another membership, or knows that one is committed."""
        if isinstance(effect, MembersCommitted):
            self._report(effect.members)
        else:
            self._peers.set_members(effect.members)
            self.committed_after(-1)

    def committed_after(self, before: int) -> None:
        """The log was committed up to `before`, and now is further: report the membership, if its batch is one of those since."""
        if before < self._replica.log.members_index <= self._applying.committed:
            self._report(self._replica.log.members)

    def take_due(self) -> tuple[Membership, BatchBuilder]:
        """The membership that is due, and the batch that proposes it."""
        members, self.due = self.due, None
        assert members is not None, "a membership is due"
        if not members.cluster_id:
            members = members.named(self._new_id())
        builder = BatchBuilder()
        builder.members(members.to_dict())
        return members, builder
