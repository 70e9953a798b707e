"""The versions of members, and when the cluster's version may rise.

In the Open of each link, a member states `machine`, the newest machine version whose commands it applies (see
broker.core.commands), and `wire` down to `wire_oldest`, the forms of messages (ha.core.messages) that it reads. Release
0.1 states nothing; all its versions are 1, and it continues after commands that it does not know.

The cluster's version is a record of its log. The primary proposes a rise when every member is connected and has stated
that it applies the new version. The statement of an absent member does not count, because it may have changed.

Invariants: a link between members that cannot read each other is refused with a text. So is a link of a member that
would not stop at an unknown command, once the cluster has risen above its version, and of a member that runs as a
witness and is not the witness, or the reverse. The version never falls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ha.core.membership import Membership

WIRE_VERSION = 3
"""The newest form of messages between members that this release reads and writes.

1: release 0.1, which drops a link over a field that it does not know. 2: such fields are ignored; `cluster_id` in votes and
batches. 3: `Attest`, and a witness among the members.
"""
SNAPSHOTS_SINCE = 2
"""The form of messages since which a member reads this release's checkpoints, and so its snapshots: release 0.1 does not."""
WITNESS_SINCE = 3
"""The form of messages that brought witnesses, and learners that stay learners."""
WIRE_OLDEST = 1
"""The oldest form that it still reads and writes."""
_MACHINE, _WIRE, _WIRE_OLDEST = "qpid.ha-machine-version", "qpid.ha-wire-version", "qpid.ha-wire-oldest"
_WITNESS = "qpid.ha-witness"


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of a member. `stated` is false for a release that does not state them and does not stop at unknown
    commands; `witness`: it stores no messages (`--ha-witness`).
    """

    machine: int
    wire: int = WIRE_VERSION
    wire_oldest: int = WIRE_OLDEST
    stated: bool = True
    witness: bool = False

    def wire_with(self, other: Versions) -> int:
        """The newest form of messages that both read."""
        return min(self.wire, other.wire)

    def properties(self) -> dict[str, int]:
        """The versions as properties of an Open."""
        found = {_MACHINE: self.machine, _WIRE: self.wire, _WIRE_OLDEST: self.wire_oldest}
        return found | {_WITNESS: 1} if self.witness else found


def versions_of(properties: Mapping[str, Any]) -> Versions:
    """The versions in the properties of a peer's Open."""
    found = [properties.get(name) for name in (_MACHINE, _WIRE, _WIRE_OLDEST)]
    if all(type(each) is int and each > 0 for each in found):
        machine, wire, wire_oldest = found
        return Versions(machine, wire, wire_oldest, witness=properties.get(_WITNESS) == 1)  # type: ignore[arg-type]
    return Versions(1, 1, 1, stated=False)


def objection_to(theirs: Versions, mine: Versions, peer: str, cluster: int) -> str:
    """Why there can be no link with this peer in a cluster of version `cluster`, or ""."""
    if theirs.wire < mine.wire_oldest or mine.wire < theirs.wire_oldest:
        old, new = (peer, "this broker") if theirs.wire < mine.wire else ("this broker", peer)
        return (
            f"{peer} uses wire versions {theirs.wire_oldest} to {theirs.wire}, this broker {mine.wire_oldest} to {mine.wire}: "
            f"{old} must be upgraded before it can connect to {new}"
        )
    if not theirs.stated and cluster > 1:
        return (
            f"{peer} runs release 0.1, and this cluster has risen to version {cluster}, which that release would misunderstand: "
            f"upgrade {peer}"
        )
    return ""


def objection_to_part(theirs: Versions, peer: str, members: Membership) -> str:
    """Why there can be no link with this peer because of the witness among the `members` in force here, or ""."""
    role, witness = members.role(peer), members.witness
    if witness and theirs.wire < WITNESS_SINCE:
        return f"{peer} is of a release that knows no witness, and {witness} is the witness of this cluster: upgrade {peer}"
    if members.standby and theirs.wire < WITNESS_SINCE:
        stay = ", ".join(members.standby)
        return f"{peer} is of a release that would let {stay} vote, which are to stay learners: upgrade {peer}"
    if not role or theirs.witness == (role == "witness"):
        return ""
    if theirs.witness:
        return f"{peer} runs as a witness, and is a {role} among this broker's members: give every broker the same --ha-witness"
    return f"{peer} is the witness among this broker's members, and does not run as one: start it with --ha-witness {peer}"


def next_version(mine: int, cluster: int, me: str, members: Iterable[str], said: Mapping[str, int]) -> int:
    """The version that the primary may propose to a cluster of version `cluster`; the same version if it must not rise.

    `mine` is the primary's own version; `said` has the versions that the connected members stated.
    """
    return max(cluster, min([mine, *(said.get(member, 0) for member in members if member != me)]))
