"""A takeover by force: one broker begins a new lineage of its cluster with its own data, and gives the other brokers
up.

It is for a lost site: the voters that a majority needs do not return, and a broker that followed (a learner, which
cannot be elected) must serve with the data that it has. It asks for no votes. Messages that the lost voters had
accepted and that this broker did not get are lost. They may reappear if those voters return.

Life of a takeover: an operator requests it at one broker. `obstacle` says why it is refused, and what to do. The edge
durably gives the store the id of a new cluster. The broker begins a new epoch as the primary, and its first batch has a
membership of this broker only, with that id. When this batch is on this broker's disk, it is committed, and all batches
before it.

Invariant: the new id is on disk before the first batch of the new lineage is made. So a member of the old cluster never
exchanges a vote or a batch with the new one (`election.stranger`), even if this process ends in between.
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
        return _instead(member, there)
    return ""


def _instead(member: Member, there: list[str]) -> str:
    """For people: what to do while these voters are connected. They may have a newer log, and would go on as members of
    the old cluster, so they are never given up while they run.
    """
    members = member.log.members
    votes = len({*there, member.me} & set(members.voters))
    names = ", ".join(there)
    verbs = ("votes", "is") if len(there) == 1 else ("vote", "are")
    vote = f"{names} {verbs[0]} in this cluster and {verbs[1]} connected"
    give_up = f"stop {names} first, whose data is given up (compare the stores with qpid-ha store-info), and repeat this command"
    if votes < members.majority:
        return f"{vote}, but {votes} of {len(members.voters)} votes are no majority: if the others are lost for good, {give_up}"
    text = f"{vote}: qpid-ha failover promotes a broker without a loss"
    if members.witness in there:
        return f"{text}; if {members.witness} refuses, because it attests the log of a broker that is lost for good, {give_up}"
    return text


def alone(me: str, cluster_id: str) -> Membership:
    """The membership that a new lineage begins with."""
    return Membership.of([me], cluster_id=cluster_id)
