"""Changes of the members at the request of management: the checks before a change, and the removed brokers.

Life of a change on the primary: `add` first opens a link to the new broker, so that no unreachable learner is added. `remove`
first checks the members that would be left. A failed check is answered with 409 and the next step for the operator; `force`
skips these checks, except one: a change is never requested while no majority of the voters after it is connected. A membership
is in force when it is appended, so such a change would never be committed, and the cluster would have no primary. Then the change
is requested from the log, and the answer comes when it is committed.

A removed broker no longer hears a primary. When it connects, the others tell it from which index of the log on it is no
member (`ha.net.peers`). From then on it knows that it is removed, until its own log has a newer membership.

Invariant: nothing here changes the members; the log does, one at a time.
"""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet.defer import Deferred, succeed

from broker.core import urls
from ha.core.effects import MembershipEnded
from ha.core.membership import BadMembership, Change, Membership
from ha.replicated_log import ReplicatedLog

Answer = tuple[int, str, dict[str, Any]]
REACH_S = 3.0
"""How long a new broker may take to answer the primary's link."""
SAFE_VOTERS = 3
"""With fewer voters, the loss of one broker stops the cluster."""
SAFE_STORES = 2
"""Beside a witness: with fewer brokers that store messages, one disk has all of them."""
_NEW_CHANGES = (Change.ADD_WITNESS, Change.ADD_STANDBY, Change.LOWER)
_OTHERWISE = {
    True: "runs as a witness: add it with --witness",
    False: "does not run as a witness: start it with --ha-witness, its own address, or add it without --witness",
}


class Reach(Protocol):
    """The part of the links to the other members that is needed here."""

    def reach(self, address: str, within_s: float) -> Deferred[str]:
        """Open a link to this broker, member or not. Fires with "" when messages can pass, else with the reason why not."""

    def set_members(self, members: Membership) -> None:
        """Keep links to these members."""

    def of_older_release(self) -> list[str]:
        """The connected members that know neither a witness nor learners that stay learners."""

    def runs_as_witness(self, address: str) -> bool:
        """Whether the broker at this address reports that it is a witness."""


class MemberChanges:
    """See the module. `me` is this broker's address."""

    def __init__(self, me: str, log: ReplicatedLog, links: Reach) -> None:
        self._me = me
        self._log = log
        self._links = links
        self._removed_at = 0

    @property
    def removed(self) -> bool:
        """Whether this broker is no longer a member, as far as it can know."""
        replica = self._log.replica
        if not replica.members.role(self._me):
            return replica.log.members_index <= replica.commit_index
        return self._removed_at > replica.log.members_index

    def is_removed_from(self, index: int) -> None:
        """Another member reports that this broker is not a member, by the membership at `index` of the log."""
        self._removed_at = max(self._removed_at, index)

    def removed_at(self, address: str) -> int:
        """The index of the log from which on a broker is not a member; 0 if it is one, or if its removal is not committed."""
        replica = self._log.replica
        if replica.members.role(address) or replica.log.members_index > replica.commit_index:
            return 0
        return replica.log.members_index

    def add(self, text: str, *, force: bool, change: Change = Change.ADD) -> Deferred[Answer]:
        """Answer ADD-BROKER. `change` says in which role the broker is added."""
        witness = change is Change.ADD_WITNESS
        address = _address(text)
        if isinstance(address, tuple):
            return succeed(address)
        older = self._older(change)
        if older:
            return succeed(older)
        stores = self._log.replica.members.stores
        if witness and len(stores) % 2 and not force and self._log.serving:
            there = ", ".join(stores)
            text = (
                f"beside {len(stores)} voting members that store messages ({there}) a witness makes the number of votes even, "
                f"so that no "
                "broker more may fail with it than without; to add it anyway use --force"
            )
            return succeed((409, f"nothing was changed: {text}", {}))
        if (force and not witness) or self._log.replica.members.role(address) or not self._log.serving:
            return self._log.requests.change_member(address, change).addCallback(_ended)

        def reached(trouble: str) -> Answer | Deferred[Answer]:
            runs_as_witness = self._links.runs_as_witness(address)
            if not trouble and runs_as_witness != witness:
                obstacle = f"{address} {_OTHERWISE[runs_as_witness]}"
            elif trouble and not force:
                obstacle = f"{address} {trouble}; start that broker first, with this cluster's brokers"
            else:
                obstacle = self._no_majority_after(change, address, newly_connected="" if trouble else address)
            if not obstacle:
                return self._log.requests.change_member(address, change).addCallback(_ended)
            self._links.set_members(self._log.replica.members)
            return 409, f"nothing was changed: {obstacle}", {}

        return self._links.reach(address, REACH_S).addCallback(reached)

    def set_role(self, text: str, role: str, *, force: bool) -> Deferred[Answer]:
        """Answer SET-ROLE: a permanent learner becomes a voter when it has caught up; a voter becomes a permanent learner."""
        if role == "learner":
            return self._take_vote(text, Change.LOWER, force=force, abrupt=False)
        address = _address(text)
        if isinstance(address, tuple):
            return succeed(address)
        if role != "voter":
            return succeed((400, f"a broker's role is voter or learner, not {role!r:.80}", {}))
        return self._log.requests.change_member(address, Change.LET_VOTE).addCallback(_ended)

    def remove(self, text: str, *, force: bool, abrupt: bool = False) -> Deferred[Answer]:
        """Answer REMOVE-BROKER. `abrupt`: a primary that is to be removed leaves at once, without a handover."""
        return self._take_vote(text, Change.REMOVE, force=force, abrupt=abrupt)

    def _take_vote(self, text: str, change: Change, *, force: bool, abrupt: bool) -> Deferred[Answer]:
        address = _address(text)
        if isinstance(address, tuple):
            return succeed(address)
        older = self._older(change)
        if older:
            return succeed(older)
        if self._log.serving:
            obstacle = self._no_majority_after(change, address)
            if not (obstacle or force or abrupt):
                obstacle = self._obstacle_to_removal(address)
            if obstacle:
                return succeed((409, f"nothing was changed: {obstacle}", {}))
            if not abrupt and address == self._me and self._log.replica.members.voters != (address,):
                text = f"{address} is the primary: let it hand over first (qpid-ha switchover), and ask the next primary"
                return succeed((421, f"nothing was changed: {text}", {}))
        return self._log.requests.change_member(address, change).addCallback(_ended)

    def _older(self, change: Change) -> Answer | None:
        """The answer if a connected member would not understand the members after this change; None otherwise."""
        older = self._links.of_older_release() if change in _NEW_CHANGES else []
        if not older or not self._log.serving:
            return None
        return (
            409,
            f"nothing was changed: {', '.join(older)} would not understand it, because of an older release: upgrade first",
            {},
        )

    def _obstacle_to_removal(self, address: str) -> str:
        members = self._log.replica.members
        if address not in members.voters or members.voters == (address,):
            return ""  # removing a learner loses no vote; the log itself refuses strangers and the last voter
        left = [voter for voter in members.voters if voter != address]
        if address in members.stores and len(members.stores) == SAFE_STORES and members.witness:
            others = ", ".join(store for store in members.stores if store != address)
            return (
                f"without {address} the messages are on {others} alone, which needs the witness {members.witness} beside; to put "
                "another broker in its place use qpid-ha replace-broker, to go on use --force"
            )
        if len(left) < SAFE_VOTERS:
            count, loss = "is one voting member", "its loss"
            if len(left) > 1:
                count, loss = f"are {len(left)} voting members", "the loss of one of them"
            return (
                f"without {address} there {count} ({', '.join(left)}), and {loss} stops the cluster or loses the messages that "
                "only it has; to put another broker in its place use qpid-ha replace-broker, to go on use --force"
            )
        return ""

    def _no_majority_after(self, change: Change, address: str, newly_connected: str = "") -> str:
        """Why this change of the voters could not be committed, or ""."""
        members = self._log.replica.members
        try:
            voters = members.changed(change, address).voters
        except BadMembership:
            return ""  # the log itself says why
        connected = {peer.address for peer in self._log.status().peers if peer.connected} | {self._me, newly_connected}
        away = [voter for voter in voters if voter not in connected]
        if voters == members.voters or 2 * len(away) < len(voters):
            return ""
        return (
            f"of the {len(voters)} voting members after it only {len(voters) - len(away)} are connected, so it could not be "
            f"committed, and the cluster would have no primary until {', '.join(away)} is connected"
        )


def _address(text: str) -> str | Answer:
    """The one address in this text, or the answer that refuses it."""
    try:
        addresses = urls.parse(text).addresses
    except urls.BadUrl as error:
        return 400, str(error), {}
    if len(addresses) != 1:
        return 400, f"give the one address to add or remove, host:port, not {text!r}", {}
    return addresses[0].name


def _ended(ended: MembershipEnded) -> Answer:
    return (200, ended.reason or "done", {}) if ended.done else (409, ended.reason, {})
