"""Interprets the objects of Kubernetes that concern the stores of brokers, and decides what to write to them next.
Pure.

A StatefulSet with the label SELECTED has one store in each claim of its volume claim template. The claim of a broker
that is no longer wanted is an orphan when no pod uses it. Life of an orphan: a drainer pod, with one name for each
claim, drains it. The drainer ends, and its termination message is the last event of qpid-drain. The claim gets a mark
with the content of this event, and the drainer is deleted. The claim is also deleted, if this was requested.

A released store accepts no clients, whichever broker is started on it, until its drain is cancelled. A mark says that
the store was released, and is removed before this module's caller cancels a drain. A mark is valid only for the set's
uid and generation in it; each change of the set's spec raises the generation. So a scale-up and a cancellation by hand
while no controller ran are not missed: an older mark is only a hint, and the drainer checks the store again.

A claim is deleted with the version that has the mark as a condition, so it is not deleted after the mark was removed. A
broker that was started on it just before has an empty store and accepts no clients. Its pod is deleted, so that the
claim can be deleted, and its set creates both again.

Invariants: no claim that may have a message is deleted. Each write names the version that it changes, or creates an
object that can exist only once. There is one write at a time about a claim. So after a failure, the next controller
sees the state and continues.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cli.scaledown.steps import Do, Store

Thing = dict[str, Any]
POD, CLAIM = "Pod", "PersistentVolumeClaim"
SELECTED = "understudy/scale-down"
"""The label of a StatefulSet whose stores are drained. Its value is `yes`."""
MARK = "understudy/released"
"""The annotation of a claim whose store was released: JSON with the drain, what was moved, and the set's uid and
generation.
"""
DRAINS = "understudy/drains"
"""The label of a drainer pod: the uid of its claim."""
MOMENT = "understudy/moment"
"""The annotation of a drainer pod: the set's uid and generation when the pod was made."""
TO = "understudy/drain-to"
"""The annotation of a set that names the brokers for its messages, instead of the set's broker with the lowest ordinal."""


@dataclass(frozen=True, slots=True)
class Brokers:
    """A StatefulSet. `moment`: its uid and generation; `settled`: its controller has seen this generation; `unfit`: why
    its stores cannot be drained, "" if they can; `claims`: the part of its claims' names before the ordinal.
    """

    name: str
    wanted: range
    moment: str
    settled: bool
    claims: str
    unfit: str
    thing: Thing


@dataclass(frozen=True, slots=True)
class Drainer:
    """A drainer pod. `status`: the exit code of qpid-drain, None before its end; `says`: its last event; `why`: the end
    of its log, or why it does not start.
    """

    name: str
    uid: str
    moment: str
    going: bool
    status: int | None = None
    says: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim of a set. `taken`: a pod other than its drainer uses it; `broker`: the uid of its
    broker's pod, "" without one; `going`: it is being deleted.
    """

    name: str
    uid: str
    version: str
    ordinal: int
    mark: Mapping[str, Any]
    going: bool
    taken: bool = False
    broker: str = ""
    drainer: Drainer | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """A call to the API server. `event`: the event to report, "" for none."""

    verb: str
    kind: str
    name: str
    body: Thing
    event: str = ""


# ---- what is seen


def brokers_of(thing: Thing) -> Brokers:
    """The StatefulSet in this object, which has the label."""
    metadata, spec = thing["metadata"], thing["spec"]
    start = int((spec.get("ordinals") or {}).get("start") or 0)
    replicas = spec.get("replicas")
    wanted = range(start, start + (1 if replicas is None else int(replicas)))
    if "deletionTimestamp" in metadata:
        wanted = range(0)
    generation = int(metadata.get("generation") or 0)
    templates = [str(each["metadata"]["name"]) for each in spec.get("volumeClaimTemplates") or ()]
    retention = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    unfit = ""
    if retention.get("whenScaled") == "Delete":
        unfit = "its persistentVolumeClaimRetentionPolicy deletes claims when it is scaled down: set whenScaled to Retain"
    elif len(templates) != 1:
        unfit = f"it has {len(templates)} volumeClaimTemplates: its stores are drained if it has one"
    return Brokers(
        str(metadata["name"]),
        wanted,
        f"{metadata['uid']} {generation}",
        int((thing.get("status") or {}).get("observedGeneration") or 0) >= generation,
        f"{templates[0] if templates else ''}-{metadata['name']}",
        unfit,
        thing,
    )


def claims_of(brokers: Brokers, claims: Iterable[Thing], pods: Iterable[Thing]) -> list[Claim]:
    """The claims of this set, with the pods that use them."""
    there, found = list(pods), list[Claim]()
    for thing in claims:
        metadata = thing["metadata"]
        before, dash, digits = str(metadata["name"]).rpartition("-")
        if before != brokers.claims or not dash or str(_ordinal(digits)) != digits:
            continue
        name, uid, own = str(metadata["name"]), str(metadata["uid"]), f"{brokers.name}-{digits}"
        drainers = [pod for pod in there if (pod["metadata"].get("labels") or {}).get(DRAINS) == uid]
        claim = Claim(
            name,
            uid,
            str(metadata["resourceVersion"]),
            int(digits),
            _json((metadata.get("annotations") or {}).get(MARK)),
            "deletionTimestamp" in metadata,
            any(pod not in drainers and (_uses(pod, name) or pod["metadata"]["name"] == own) for pod in there),
            next((str(pod["metadata"]["uid"]) for pod in there if pod["metadata"]["name"] == own), ""),
            _drainer(drainers[0]) if drainers else None,
        )
        found.append(claim)
    return found


def _ordinal(digits: str) -> int:
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else -1


def _uses(pod: Thing, claim: str) -> bool:
    """Whether this pod may write to that claim now."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return any((volume.get("persistentVolumeClaim") or {}).get("claimName") == claim for volume in volumes)


def _drainer(pod: Thing) -> Drainer:
    metadata, status = pod["metadata"], pod.get("status") or {}
    moment = str((metadata.get("annotations") or {}).get(MOMENT) or "")
    name, uid, going = str(metadata["name"]), str(metadata["uid"]), "deletionTimestamp" in metadata
    state = next((each.get("state") or {} for each in status.get("containerStatuses") or ()), {})
    if status.get("phase") not in ("Succeeded", "Failed"):
        unscheduled = [each for each in status.get("conditions") or () if each.get("status") == "False" and each.get("message")]
        waiting = state.get("waiting") or {}
        why = " ".join(str(waiting[part]) for part in ("reason", "message") if waiting.get(part))
        why = why or (str(unscheduled[0]["message"]) if unscheduled and "running" not in state else "")
        return Drainer(name, uid, moment, going, why=why[:300])
    ended = state.get("terminated") or {}
    text = str(ended.get("message") or "")
    code = int(ended.get("exitCode", 0 if status["phase"] == "Succeeded" else -1))
    says = _json(text)
    why = "" if says else " ".join((text.strip().splitlines() or [str(status.get("message") or status.get("reason") or "")])[-1:])
    return Drainer(name, uid, moment, going, code, says, why[:300])


def _json(text: Any) -> dict[str, Any]:
    """A JSON object; {} if the text is not one."""
    try:
        found = json.loads(str(text or "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# ---- what is so


def is_released(brokers: Brokers, claim: Claim) -> bool:
    """Whether its store was found empty and released, and no broker can have used it since."""
    return claim.mark.get("moment") == brokers.moment


def has_emptied(brokers: Brokers, drainer: Drainer | None) -> bool:
    """Whether this drainer reports that the store is released, for the set's present uid and generation."""
    return (
        drainer is not None
        and not drainer.status
        and drainer.status is not None
        and drainer.says.get("empty") is True
        and drainer.moment == brokers.moment
    )


def store(
    brokers: Brokers,
    claim: Claim,
    *,
    leaves: bool = False,
    denies: bool = False,
    at_work: Do | None = None,
    waits: bool = False,
) -> Store:
    """The claim as `steps.decide` needs it. `at_work`: a process of this controller works on it; `waits`: it is too
    early for another step.
    """
    work, drainer = at_work, claim.drainer
    if work is None and drainer is not None and drainer.status is None:
        work = Do.STOP if drainer.going else Do.DRAIN
    drained = has_emptied(brokers, drainer)
    going = claim.going or (drainer is not None and drainer.going)
    waits = waits or drained or going or not brokers.settled or (claim.taken and claim.ordinal not in brokers.wanted)
    released = is_released(brokers, claim)
    return Store(claim.ordinal, released=released, leaves=leaves, denies=denies, work=work, waits=waits)


# ---- what is written


def upkeep(brokers: Brokers, claim: Claim, *, deletes: bool) -> Write | None:
    """The next write about this claim, apart from drains. `deletes`: released claims are deleted."""
    drainer, wanted = claim.drainer, claim.ordinal in brokers.wanted
    if not brokers.wanted:
        return None
    if claim.going:
        if claim.mark and claim.broker and wanted:
            return Write("delete", POD, f"{brokers.name}-{claim.ordinal}", {"preconditions": {"uid": claim.broker}}, "made anew")
        return None
    if wanted:
        if claim.mark:
            return _patch(claim, None, "wanted again")
        return room(claim) if drainer is not None and drainer.status is not None else None
    if not is_released(brokers, claim):
        return _marked(brokers, claim, drainer) if drainer is not None and has_emptied(brokers, drainer) else None
    if drainer is not None:
        return room(claim)
    if not deletes or claim.taken:
        return None
    body = {"preconditions": {"uid": claim.uid, "resourceVersion": claim.version}}
    return Write("delete", CLAIM, claim.name, body, "deleting")


def room(claim: Claim) -> Write | None:
    """Delete its drainer, or make room for another one; None if the drainer is already being deleted."""
    drainer = claim.drainer
    if drainer is None or drainer.going:
        return None
    return Write("delete", POD, drainer.name, {"preconditions": {"uid": drainer.uid}})


def may_call_off(claim: Claim) -> bool:
    """Whether its broker may accept clients again: its store is not about to be deleted."""
    return not claim.mark and not claim.going


def _marked(brokers: Brokers, claim: Claim, drainer: Drainer) -> Write:
    says = drainer.says
    mark = {"drain": says.get("drain"), "moment": brokers.moment}
    mark |= {what: says[what] for what in ("queues", "messages", "bytes") if isinstance(says.get(what), int)}
    return _patch(claim, json.dumps(mark), "released")


def _patch(claim: Claim, mark: str | None, event: str) -> Write:
    """Change this version of the claim."""
    metadata = {"uid": claim.uid, "resourceVersion": claim.version, "annotations": {MARK: mark}}
    return Write("patch", CLAIM, claim.name, {"metadata": metadata}, event)
