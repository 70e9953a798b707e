"""Which pods of a cluster in Kubernetes must be given another role, so that a Service follows the primary.

Each pod has a role, as a label, and the epoch in which it was given, as an annotation. Invariants: an epoch never replaces a
higher one, on whichever pod that stands; the new primary is labelled before the others lose the label, so that there is always
one where there was one; a primary whose pod is not known changes nothing, and neither does a cluster that has no primary: a
daemon that cannot see the primary takes nobody's clients away.

Pure: pods in, changes out, each with the version of the pod to which it applies.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

PRIMARY, BACKUP = "primary", "backup"
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as it was read. `role` is "" and `epoch` NO_EPOCH without one; `version` is its resourceVersion."""

    name: str
    role: str
    epoch: int
    version: str


def changes(primary: str, epoch: int, pods: Collection[Pod]) -> list[Pod]:
    """The pods as they should be, of those that are not; each has still the version that was read."""
    if primary not in {pod.name for pod in pods} or any(pod.epoch > epoch for pod in pods):
        return []
    wanted = [replace(pod, role=PRIMARY if pod.name == primary else BACKUP, epoch=epoch) for pod in pods]
    wanted.sort(key=lambda pod: pod.role == BACKUP)
    return [pod for pod in wanted if pod not in pods]


def pod_of(address: str) -> str:
    """The name of a broker's pod, by the rule of a StatefulSet: the first label of its host's name. "" for an IP address."""
    host = address.rpartition(":")[0]
    return "" if host.replace(".", "").isdigit() or ":" in host else host.partition(".")[0]
