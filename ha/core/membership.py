"""The members of a cluster: voters, one of which may be a witness, learners, and the cluster's id.

A membership is part of a log entry. It is in force as soon as the entry is appended, committed or not (dissertation
§4.1). If the entry is truncated, the previous membership is in force again. At index 0 is the membership of the brokers
URL, without a cluster id. The first entry of every epoch repeats the membership, so the first primary's entry gives
every store the id.

A learner will get a vote, or stays a learner: a broker of a second site, which follows the first one (`standby`).

A witness (see `witness.py`) has a vote and no messages. It has nothing to catch up with, so it is never a learner.

Invariants: addresses are sorted and appear once. One change of a membership adds, removes, promotes or demotes only one
member, so that any majority before the change and any majority after it share a voter (dissertation §4.1). There is at
most one witness, and a voter beside it. With a witness, the addresses are short enough for its record (`MAX_TEXT`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, assert_never

MAX_TEXT = 3000
"""The maximum bytes of addresses in the record of a witness, which has one block of its disk."""
_QUOTES = 4
"""The bytes around each address."""


class BadMembership(ValueError):
    """This membership, or this change of it, is not possible. The text says why."""


class Change(Enum):
    """The possible changes of a membership, each with one address."""

    ADD = "as a learner, which becomes a voter when it has caught up"
    ADD_WITNESS = "as the witness"
    ADD_STANDBY = "as a learner that stays one"
    LET_VOTE = "a standby learner may vote: it becomes a voter when it has caught up"
    LOWER = "a voter that becomes a learner that stays one"
    REMOVE = "no more"


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a cluster, by address `host:port`. `cluster_id` is "" until a primary has given one; `witness` is
    the voter that stores no messages, "" without one; `standby` are the learners that stay learners.
    """

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    cluster_id: str = ""
    witness: str = ""
    standby: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        voters: Iterable[str],
        learners: Iterable[str] = (),
        cluster_id: str = "",
        witness: str = "",
        standby: Iterable[str] = (),
    ) -> Membership:
        """A membership of these addresses, in any order. BadMembership if one appears twice or there is no voter."""
        made = cls(tuple(sorted(voters)), tuple(sorted(learners)), cluster_id, witness, tuple(sorted(standby)))
        if not made.voters:
            raise BadMembership("a cluster needs at least one voting member")
        if not set(made.standby) <= set(made.learners):
            raise BadMembership(f"{', '.join(made.standby)} stay learners, and not all are ones")
        if witness:
            made._check_witness()
        for address in made.addresses:
            if not address:
                raise BadMembership("a member's address is empty")
        if len(set(made.addresses)) != len(made.addresses):
            raise BadMembership(f"an address appears twice among the members {', '.join(made.addresses)}")
        return made

    @classmethod
    def from_dict(cls, fields: Any) -> Membership:
        """The membership that `to_dict` described. BadMembership if `fields` is not such a description."""
        standby = fields.get("standby", []) if isinstance(fields, dict) else []
        match fields:
            case {"voters": list(voters), "learners": list(learners), "cluster_id": str(cluster_id)} if isinstance(
                standby, list
            ) and all(isinstance(address, str) for address in (*voters, *learners)):
                return cls.of(voters, learners, cluster_id, str(fields.get("witness", "")), map(str, standby))
        raise BadMembership(f"not a description of a cluster's members: {fields!r:.200}")

    def to_dict(self) -> dict[str, Any]:
        """As an object for JSON."""
        found = {"voters": list(self.voters), "learners": list(self.learners), "cluster_id": self.cluster_id}
        found |= {"witness": self.witness} if self.witness else {}
        return found | ({"standby": list(self.standby)} if self.standby else {})

    def _check_witness(self) -> None:
        if self.witness not in self.voters:
            raise BadMembership(f"the witness {self.witness} is not among the voting members {', '.join(self.voters)}")
        if self.voters == (self.witness,):
            raise BadMembership(f"{self.witness} is a witness, and somebody has to store the messages")
        if sum(len(address.encode()) + _QUOTES for address in (*self.addresses, *self.standby)) > MAX_TEXT:
            raise BadMembership(f"a witness can note members whose addresses have {MAX_TEXT} bytes in all, and these have more")

    @property
    def stores(self) -> tuple[str, ...]:
        """The voters that store messages: all but the witness."""
        return tuple(address for address in self.voters if address != self.witness)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every member, voters first."""
        return self.voters + self.learners

    @property
    def majority(self) -> int:
        """The number of voters that are a majority."""
        return len(self.voters) // 2 + 1

    def role(self, address: str) -> str:
        """Its role: "voter", "witness" (which also votes), "learner", or "" for a broker that is not a member."""
        if address in self.voters:
            return "witness" if address == self.witness else "voter"
        return "learner" if address in self.learners else ""

    def changed(self, change: Change, address: str) -> Membership:
        """The membership after one change."""
        match change:
            case Change.ADD:
                return self.with_learner(address)
            case Change.ADD_WITNESS:
                return self.with_witness(address)
            case Change.ADD_STANDBY:
                return self.with_learner(address)._stay((*self.standby, address))
            case Change.LET_VOTE:
                return self._let_vote(address)
            case Change.LOWER:
                return self._lowered(address)
            case Change.REMOVE:
                return self.without(address)
        assert_never(change)

    def with_learner(self, address: str) -> Membership:
        """With one more learner."""
        if self.role(address):
            raise BadMembership(f"{address} is a member already")
        return self._changed(self.voters, (*self.learners, address))

    def with_witness(self, address: str) -> Membership:
        """With this broker as the witness."""
        if self.role(address):
            raise BadMembership(f"{address} is a member already")
        if self.witness:
            raise BadMembership(f"{self.witness} is the witness of this cluster already, and one is enough")
        return Membership.of((*self.voters, address), self.learners, self.cluster_id, address, self.standby)

    def with_voter(self, learner: str) -> Membership:
        """With this learner as a voter."""
        if learner not in self.learners:
            raise BadMembership(f"{learner} is not a learner of this cluster")
        return self._changed((*self.voters, learner), (a for a in self.learners if a != learner))

    def without(self, address: str) -> Membership:
        """Without this member."""
        if not self.role(address):
            raise BadMembership(f"{address} is not a member of this cluster ({', '.join(self.addresses)})")
        if self.voters == (address,):
            raise BadMembership(f"{address} is the last voting member and cannot be removed")
        if self.stores == (address,):
            raise BadMembership(f"{address} alone stores the messages and cannot be removed")
        return self._changed((a for a in self.voters if a != address), (a for a in self.learners if a != address))

    def _changed(self, voters: Iterable[str], learners: Iterable[str]) -> Membership:
        left = tuple(voters)
        still = tuple(learners)
        standby = [address for address in self.standby if address in still]
        return Membership.of(left, still, self.cluster_id, self.witness if self.witness in left else "", standby)

    def _stay(self, standby: Iterable[str]) -> Membership:
        return Membership.of(self.voters, self.learners, self.cluster_id, self.witness, standby)

    def _let_vote(self, address: str) -> Membership:
        if address not in self.standby:
            raise BadMembership(f"{address} is not a learner that stays one ({', '.join(self.standby) or 'there is none'})")
        return self._stay(each for each in self.standby if each != address)

    def _lowered(self, address: str) -> Membership:
        if address not in self.stores:
            raise BadMembership(f"{address} is not a voting member that stores messages ({', '.join(self.stores)})")
        if self.stores == (address,):
            raise BadMembership(f"{address} is the last voting member that stores messages")
        voters = (each for each in self.voters if each != address)
        return self._changed(voters, (*self.learners, address))._stay((*self.standby, address))

    def named(self, cluster_id: str) -> Membership:
        """With this cluster id."""
        return replace(self, cluster_id=cluster_id)
