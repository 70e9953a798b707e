"""A Lease of Kubernetes that one of several daemons holds at a time.

Life of a `Lease`: `mark` creates it if it does not exist, and writes an annotation into it, so that it is known whether
this daemon may write. `take` writes this daemon's record into it if no other record is valid, with the resource version
that was read: if two daemons do this, one gets a conflict and reads again. `renew` writes the record again. If the spec
of a Lease has not changed for its duration, by this daemon's own clock, the Lease is free (`core.observed`). `give_up`
removes this daemon's name.

Invariants: an answer that is older than what was known before the question is an error, because the server is behind. An
answer that a watch has overtaken is none, but what is known from the watch stays. If a record of this daemon was found and not
written now, it is renewed before it counts, so that no turn is longer than others wait for it. A Lease that does not
exist has no record. Times of the machine's clock are only written for people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from resource_manager.core.candidate import Trouble
from resource_manager.core.observed import Observed, Record
from resource_manager.net.kubernetes import CONFLICT, LEASE, NOT_FOUND, KubernetesClient, version_of
from resource_manager.net.web import StoreError

_ATTEMPTS = 3
_REACHED_BY = "understudy/reached-by"

Thing = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LeaseOf:
    """The Lease's name; this daemon's unique identity in it; the duration of its record after a renewal."""

    name: str
    identity: str
    ttl_s: int


class Lease:
    """See the module. `clock` gives the daemon's own time in seconds. Calls raise StoreError."""

    def __init__(self, client: KubernetesClient, of: LeaseOf, clock: Callable[[], float]) -> None:
        self._client = client
        self._of = of
        self._clock = clock
        self._observed = Observed()
        self._known: Thing | None = None
        self._version = 0
        self._marks = 0

    @property
    def name(self) -> str:
        """The name of the object."""
        return self._of.name

    @property
    def identity(self) -> str:
        """This daemon's identity in it."""
        return self._of.identity

    @property
    def ttl_s(self) -> int:
        """The duration of a record after its renewal."""
        return self._of.ttl_s

    @property
    def version(self) -> int:
        """The newest version that was seen."""
        return self._version

    @property
    def is_known(self) -> bool:
        """Whether its present state is known."""
        return self._known is not None

    @property
    def is_ours(self) -> bool:
        """Whether the last record that was seen is this daemon's."""
        return self._observed.record.holder == self._of.identity

    @property
    def holder(self) -> str:
        """Its holder, as far as known; "" for none."""
        return self._observed.holder(self._clock())

    async def mark(self) -> None:
        """Create the Lease if it does not exist, and write a mark into it, which shows that this daemon can write."""
        try:
            await self.read()
        except StoreError as error:
            if error.status != NOT_FOUND:
                raise
            empty = {"apiVersion": "coordination.k8s.io/v1", "kind": LEASE, "metadata": {"name": self._of.name}, "spec": {}}
            try:
                await self._asked("create", body=empty)
            except StoreError as other:
                if other.status != CONFLICT:
                    raise
                await self.read()
        self._marks += 1

        def marked(lease: Thing) -> Thing:
            notes = lease["metadata"].get("annotations") or {}
            mark = {_REACHED_BY: f"{self._of.identity} {self._marks}"}
            return lease | {"metadata": lease["metadata"] | {"annotations": notes | mark}}

        await self._change(marked)

    async def take(self) -> bool:
        """Write this daemon's record, unless another one's is valid. Returns whether it was written."""
        return await self._change(self._taken)

    async def renew(self) -> bool:
        """Read the Lease, and write the record again if it is this daemon's. If it is no longer this daemon's, it has
        expired here too.
        """
        if not self.is_ours:
            await self.read()
        return await self._change(self._renewed)

    async def give_up(self) -> None:
        """Remove this daemon's name."""
        await self._change(self._given_up)

    async def read(self) -> Thing:
        """Read the Lease."""
        try:
            return await self._asked("get", self._of.name)
        except StoreError as error:
            raise self._gone(error) from None

    async def _asked(self, verb: str, name: str = "", body: Thing | None = None) -> Thing:
        """Make a call, and record the Lease in the answer. Returns the newest one that is known. StoreError."""
        known_before = self._version
        answer = await self._client.call(verb, LEASE, name, body)
        return self.sees(answer, known_before)

    def sees(self, lease: Thing, known_before: int = 0) -> Thing:
        """Record this Lease, unless a newer one is known, and return the newest one. StoreError if it is older than
        `known_before`, or if the Lease was deleted since.
        """
        if lease.get("kind") != LEASE or lease["metadata"]["name"] != self._of.name:
            raise ValueError("the answer is another object")
        version = version_of(lease)
        if version < known_before:
            raise StoreError(
                Trouble.AWAY,
                f"a stale answer, of resource version {version} after {known_before}; if the cluster of Kubernetes was restored "
                "from a backup, restart this daemon",
            )
        if version < self._version:
            if self._known is None:
                raise StoreError(Trouble.LEASE_GONE, "the Lease was deleted meanwhile", status=NOT_FOUND)
            return self._known
        record = _record(lease.get("spec") or {})
        self._known, self._version = lease, version
        self._observed.sees(record, self._clock())
        return lease

    def is_gone(self, version: int) -> None:
        """It was deleted, as of this version."""
        self._version, self._known = version, None

    # ---- what is written

    def _taken(self, lease: Thing) -> Thing | None:
        """The Lease with this daemon's record, unless another one's is valid."""
        spec, now = lease.get("spec") or {}, _now()
        if self.holder not in ("", self._of.identity):
            return None
        taken = {"leaseDurationSeconds": self._of.ttl_s, "renewTime": now}
        if not self.is_ours:
            taken |= {"holderIdentity": self._of.identity, "acquireTime": now}
            taken["leaseTransitions"] = self._observed.record.transitions + 1
        return lease | {"spec": spec | taken}

    def _renewed(self, lease: Thing) -> Thing | None:
        if not self.is_ours:
            return None
        return lease | {"spec": lease["spec"] | {"leaseDurationSeconds": self._of.ttl_s, "renewTime": _now()}}

    def _given_up(self, lease: Thing) -> Thing | None:
        """The Lease without a holder; the transitions stay."""
        if not self.is_ours:
            return None
        spec = {field: value for field, value in lease["spec"].items() if field != "holderIdentity"}
        return lease | {"spec": spec | {"leaseDurationSeconds": 1, "renewTime": _now()}}

    async def _change(self, change: Callable[[Thing], Thing | None]) -> bool:
        """Write the known Lease with the changes of `change`, by its version; read it again after a conflict. Returns
        False if `change` wants no write any more.
        """
        for _ in range(_ATTEMPTS):
            known = self._known or await self.read()
            wanted = change(known)
            if wanted is None:
                return False
            try:
                await self._asked("update", self._of.name, wanted)
            except StoreError as error:
                self._known = None  # without an answer we do not know whether it was written
                if error.status != CONFLICT:
                    raise self._gone(error) from None
                conflict = error
            else:
                return True
        raise conflict

    def _gone(self, error: StoreError) -> StoreError:
        """Handle the meaning of this error for the lease."""
        if error.status != NOT_FOUND:
            return error
        self._known = None
        self._observed.sees(Record(), self._clock())
        return StoreError(Trouble.LEASE_GONE, f"the Lease is not there: {error}", status=NOT_FOUND)


def _record(spec: Thing) -> Record:
    """The relevant part of a Lease's spec."""
    return Record(
        str(spec.get("holderIdentity") or ""),
        float(spec.get("leaseDurationSeconds") or 0),
        str(spec.get("renewTime") or ""),
        str(spec.get("acquireTime") or ""),
        int(spec.get("leaseTransitions") or 0),
    )


def _now() -> str:
    """The machine's clock in the format of a Lease, always with a fraction of a second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
