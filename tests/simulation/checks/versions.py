"""The release of each member, and what it may therefore apply of the cluster's log (docs/adr/0015).

Life: `started` gives the machine version of a member's process, which stays valid while the member is away. `applied`
checks each batch of the cluster's log that a member has applied, and `stands` the index that it says it has reached.
The version that a batch needs is read from its records here, without the production code that decides it.

Promises: the cluster's version rises only to a version that every member knew when it was last seen. No member applies
a batch that needs a later version than its own, or skips such a batch by a snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from broker.core.records import Batch, Kind


class Releases:
    """See the module. What is wrong is added to `faults`, in sentences."""

    def __init__(self, faults: list[str]) -> None:
        self._faults = faults
        self._machine: dict[str, int] = {}
        self._raised: dict[int, int] = {}
        """Index -> the version to which that batch raises the cluster."""

    def started(self, me: str, machine: int) -> None:
        """A process of this member begins, of this machine version."""
        self._machine[me] = machine

    def applied(self, me: str, batch: Batch, members: Iterable[str]) -> None:
        """A member has applied this batch; `members` are those of the log at that place."""
        index = batch.header.index
        for run in batch.runs:
            if run.kind is not Kind.DEFINE:
                continue
            command = json.loads(batch.payload(run))
            needs = int(command.get("needs", 1))
            if needs > self._machine[me]:
                what = f"batch {index}, whose {command['op']} needs version {needs}"
                self._faults.append(f"version: {me} applies {what}, and is of version {self._machine[me]}")
            if command["op"] == "machine-version" and index not in self._raised:
                self._raised[index] = needs
                for member in members:
                    if self._machine.get(member, needs) < needs:
                        self._faults.append(
                            f"version: batch {index} raises the cluster to {needs}, and {member} is of {self._machine[member]}"
                        )

    def stands(self, me: str, index: int) -> None:
        """A member says that it has applied everything up to here."""
        version = max((needs for raised, needs in self._raised.items() if raised <= index), default=1)
        if version > self._machine[me]:
            self._faults.append(
                f"version: {me} has come to batch {index}, where the cluster has version {version}, and is of {self._machine[me]}"
            )
