"""A takeover by force: one broker begins a new lineage of its cluster, with what it has, and gives the others up.

It is for a site that is lost: the voters that a majority needs do not come back, and a broker that followed (a learner, which no
election helps) is to serve with what it holds. Nobody is asked for a vote. What the lost voters had accepted and this broker has
not heard of is lost, and may come to light again when they do.

Life of a takeover: an operator asks one broker for it; `obstacle` says why not; the edge gives the store the id of a new cluster,
durably; the broker begins a new epoch as the primary, and the first batch of it carries a membership of this broker alone, with
that id. From the moment that it is on this disk, it is committed, and all before it.

Invariant: the new id is on disk before the first batch of the new lineage is made. A member of the old cluster therefore never
exchanges a vote or a batch with the new one (`election.stranger`), whatever becomes of this process in between.
"""

from __future__ import annotations

from ha.core.member import Member
from ha.core.membership import Membership


def obstacle(member: Member, hears: str) -> str:
    """Why this member must not take over by force, or "". `hears`: the primary that it hears, or is."""
    members = member.log.members
    if hears:
        return f"{hears} is the primary and serves: use qpid-ha switch-site or switchover"
    if member.settings.witness:
        return f"{member.me} is a witness, and stores no messages"
    if member.blank or not member.log.last_index:
        return f"the store of {member.me} is empty; use qpid-ha bootstrap"
    if member.floor is not None:
        return f"the store of {member.me} has lost a part: it once held {member.floor} and ends at {member.position}"
    if member.halted:
        return member.halted
    there = sorted(set(members.voters) & member.connected)
    if there:
        return f"{', '.join(there)} votes in this cluster and is connected: qpid-ha failover promotes a broker without a loss"
    return ""


def alone(me: str, cluster_id: str) -> Membership:
    """The membership that a new lineage begins with."""
    return Membership.of([me], cluster_id=cluster_id)
