"""Who belongs to a cluster: voters, learners, and the cluster's id.

A membership is carried by a log entry and is in force from the moment that the entry is appended, committed or not (dissertation
§4.1); when the entry is truncated, the one before it is in force again. At index 0 stands the membership of the brokers URL,
without a cluster id; the first entry of every epoch repeats the membership, so the first primary's gives every store the id.

Invariants: addresses are sorted and appear once; one step away from a membership adds, removes, promotes or demotes one member
only, so that any majority before the step and any majority after it share a voter (dissertation §4.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


class BadMembership(ValueError):
    """This membership, or this change of it, is not possible. The text says why."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a cluster, by address `host:port`. `cluster_id` is "" until a primary has given one."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    cluster_id: str = ""

    @classmethod
    def of(cls, voters: Iterable[str], learners: Iterable[str] = (), cluster_id: str = "") -> Membership:
        """A membership of these addresses, in any order. BadMembership when one appears twice or nobody votes."""
        made = cls(tuple(sorted(voters)), tuple(sorted(learners)), cluster_id)
        if not made.voters:
            raise BadMembership("a cluster needs at least one voting member")
        for address in made.addresses:
            if not address:
                raise BadMembership("a member's address is empty")
        if len(set(made.addresses)) != len(made.addresses):
            raise BadMembership(f"an address appears twice among the members {', '.join(made.addresses)}")
        return made

    @classmethod
    def from_dict(cls, fields: Any) -> Membership:
        """The membership that `to_dict` described. BadMembership when `fields` is not such a description."""
        match fields:
            case {"voters": list(voters), "learners": list(learners), "cluster_id": str(cluster_id)} if all(
                isinstance(address, str) for address in (*voters, *learners)
            ):
                return cls.of(voters, learners, cluster_id)
        raise BadMembership(f"not a description of a cluster's members: {fields!r:.200}")

    def to_dict(self) -> dict[str, Any]:
        """As an object for JSON."""
        return {"voters": list(self.voters), "learners": list(self.learners), "cluster_id": self.cluster_id}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every member, voters first."""
        return self.voters + self.learners

    @property
    def majority(self) -> int:
        """How many voters make a majority."""
        return len(self.voters) // 2 + 1

    def role(self, address: str) -> str:
        """ "voter", "learner", or "" for a stranger."""
        if address in self.voters:
            return "voter"
        return "learner" if address in self.learners else ""

    def with_learner(self, address: str) -> Membership:
        """With one more learner."""
        if self.role(address):
            raise BadMembership(f"{address} is a member already")
        return Membership.of(self.voters, (*self.learners, address), self.cluster_id)

    def with_voter(self, learner: str) -> Membership:
        """With this learner as a voter."""
        if learner not in self.learners:
            raise BadMembership(f"{learner} is not a learner of this cluster")
        return Membership.of((*self.voters, learner), (a for a in self.learners if a != learner), self.cluster_id)

    def without(self, address: str) -> Membership:
        """Without this member."""
        if not self.role(address):
            raise BadMembership(f"{address} is not a member of this cluster ({', '.join(self.addresses)})")
        if self.voters == (address,):
            raise BadMembership(f"{address} is the last voting member and cannot be removed")
        return Membership.of(
            (a for a in self.voters if a != address), (a for a in self.learners if a != address), self.cluster_id
        )

    def named(self, cluster_id: str) -> Membership:
        """With this cluster id."""
        return replace(self, cluster_id=cluster_id)
