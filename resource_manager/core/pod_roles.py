"""Decides which pods of a cluster in Kubernetes must get another role, so that a Service follows the primary.

Each pod has its role as a label, and the epoch of this role as an annotation. Invariants: an epoch never replaces a
higher one, on whichever pod that is. The new primary is labelled before the others lose the label, so that there is
always a labelled primary. If the pod of the primary is not known, or the cluster has no primary, nothing changes: a
daemon that cannot see the primary disconnects no clients.

Pure: pods in, changes out, each with the version of the pod to which it applies.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

PRIMARY, BACKUP = "primary", "backup"
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as it was read. Without a role `role` is "", without an epoch `epoch` is NO_EPOCH; `version` is its
    resourceVersion.
    """

    name: str
    role: str
    epoch: int
    version: str


def changes(primary: str, epoch: int, pods: Collection[Pod]) -> list[Pod]:
    """The pods that must change, with their new state and the version that was read."""
    if primary not in {pod.name for pod in pods} or any(pod.epoch > epoch for pod in pods):
        return []
    wanted = [replace(pod, role=PRIMARY if pod.name == primary else BACKUP, epoch=epoch) for pod in pods]
    wanted.sort(key=lambda pod: pod.role == BACKUP)
    return [pod for pod in wanted if pod not in pods]


def pod_of(address: str) -> str:
    """The name of a broker's pod, by the rule of a StatefulSet: the first label of its host name. "" for an IP address."""
    host = address.rpartition(":")[0]
    return "" if host.replace(".", "").isdigit() or ":" in host else host.partition(".")[0]
