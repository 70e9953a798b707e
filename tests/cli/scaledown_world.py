"""A small Kubernetes around the pure half of qpid-scaledown: sets, pods, volumes, and brokers that write to these.

Life of a `World`: the objects are in the stand-in of an API server, which is called without a connection; the set's controller,
brokers, drainers and our controller each do one thing at a time when they are told to. What our controller writes is on its way
for as long as the test likes, also when it has been killed and another has looked since. A volume ends with its claim, and
`check` says so when messages were on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cli.scaledown import claims, drainer
from cli.scaledown.claims import Brokers, Claim, Write
from cli.scaledown.steps import Do, decide
from tests.resource_manager.api_server import ApiServer, Refusal, Thing, manifests

NAME = "queues"
_PLACES = {"Pod": "pods", "PersistentVolumeClaim": "persistentvolumeclaims", "StatefulSet": "statefulsets"}


def a_set(replicas: int, **spec: Any) -> Thing:
    """The set of the manifests, with the label."""
    [thing] = [thing for thing in manifests("scale-down/brokers.yaml") if thing["kind"] == "StatefulSet"]
    thing["metadata"]["labels"] = {"app": NAME, claims.SELECTED: "yes"}
    return thing | {"spec": thing["spec"] | {"replicas": replicas} | spec}


def a_claim(ordinal: int) -> Thing:
    """As the set's controller makes it."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": f"store-{NAME}-{ordinal}", "labels": {"app": NAME}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def a_pod(ordinal: int) -> Thing:
    """A broker's, as the set's controller makes it."""
    volume = {"name": "store", "persistentVolumeClaim": {"claimName": f"store-{NAME}-{ordinal}"}}
    spec = {"containers": [{"name": "qpidd", "image": "registry.example/understudy:0.2.0"}], "volumes": [volume]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{NAME}-{ordinal}", "labels": {"app": NAME}}, "spec": spec}


@dataclass
class Volume:
    """A store: its messages, whether its broker leaves, and whether its log says that it was released."""

    messages: list[int] = field(default_factory=list)
    leaves: bool = False
    released: bool = False


class Objects(ApiServer):
    """The stand-in without its port. What is written here over and over is not held against its schema."""

    def start(self) -> None:
        """It listens nowhere."""

    def validate(self, resource: str, thing: Thing) -> None:
        """See the class."""


class World:
    """See the module. `deletes`: our controller deletes claims."""

    def __init__(self, *, deletes: bool) -> None:
        self.server = server = Objects()
        self._deletes = deletes
        self.volumes: dict[str, Volume] = {}
        self.moved: list[int] = []
        self.sent = 0
        self.on_the_way: list[tuple[Write, Brokers | None]] = []
        """What our controllers have written and the server has not got. With a set: only if that is still what it was."""
        server.create("statefulsets", "default", a_set(3))

    # ---- objects

    def all(self, resource: str) -> list[Thing]:
        return list(self.server.get_all(resource, "default", {})["items"])

    @property
    def replicas(self) -> int:
        return int(self.server.get_one(("statefulsets", "default", NAME))["spec"]["replicas"])

    def scale(self, replicas: int) -> None:
        self.server.patch(("statefulsets", "default", NAME), {"spec": {"replicas": replicas}})

    def reconcile(self) -> None:
        """The set's controller: pods and claims for what is wanted, none for what is not."""
        thing = self.server.get_one(("statefulsets", "default", NAME))
        there = {pod["metadata"]["name"] for pod in self.all("pods")}
        for ordinal in range(4):
            name = f"{NAME}-{ordinal}"
            if ordinal >= thing["spec"]["replicas"]:
                if name in there:
                    self.server.remove(("pods", "default", name), {})
                continue
            with suppress(Refusal):
                self.server.create("persistentvolumeclaims", "default", a_claim(ordinal))
            claim = self.server.get_one(("persistentvolumeclaims", "default", f"store-{NAME}-{ordinal}"))
            if name not in there and "deletionTimestamp" not in claim["metadata"]:
                self.server.create("pods", "default", a_pod(ordinal))
        status = {"replicas": thing["spec"]["replicas"], "observedGeneration": thing["metadata"]["generation"]}
        self.server.patch(("statefulsets", "default", NAME), {"status": status}, "/status")

    def volume_of(self, claim: str) -> Volume:
        uid = self.server.get_one(("persistentvolumeclaims", "default", claim))["metadata"]["uid"]
        return self.volumes.setdefault(uid, Volume())

    # ---- what runs in pods

    def serve(self) -> None:
        """Each broker gets a message, unless it leaves."""
        for pod in self.all("pods"):
            if pod["metadata"]["labels"].get("app") == NAME:
                volume = self.volume_of(pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"])
                if not volume.leaves:
                    self.sent += 1
                    volume.messages.append(self.sent)

    def drain(self, *, fails: bool = False) -> None:
        """Each drainer takes a step: it moves a message, or ends. It fails while a broker has the store."""
        there = self.all("pods")
        for pod in there:
            if claims.DRAINS not in pod["metadata"]["labels"] or "status" in pod:
                continue
            claim = pod["spec"]["volumes"][-1]["persistentVolumeClaim"]["claimName"]
            has_broker = f"{NAME}-{claim.rpartition('-')[2]}" in {each["metadata"]["name"] for each in there}
            volume = self.volume_of(claim)
            if fails or has_broker:
                self._ended(pod, 1, "qpid-drain: no")
                continue
            volume.leaves = True
            if volume.messages:
                self.moved.append(volume.messages.pop(0))
            else:
                volume.released = True
                end = {"event": "end", "empty": True, "drain": "d", "queues": 1, "messages": 1, "bytes": 1}
                self._ended(pod, 0, json.dumps(end))

    def _ended(self, pod: Thing, code: int, message: str) -> None:
        state = {"terminated": {"exitCode": code, "message": message}}
        container = {"name": "qpid-drain", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [container]}
        self.server.patch(("pods", "default", pod["metadata"]["name"]), {"status": status}, "/status")

    # ---- our controller

    def look(self, parallel: int = 1) -> bool:
        """See all that there is now, and put what follows on its way. Whether there was anything to do."""
        brokers = claims.brokers_of(self.server.get_one(("statefulsets", "default", NAME)))
        found = {
            each.ordinal: each for each in claims.claims_of(brokers, self.all(_PLACES["PersistentVolumeClaim"]), self.all("pods"))
        }
        began = False
        for claim in found.values():
            write = claims.upkeep(brokers, claim, deletes=self._deletes)
            if write is not None:
                began = True
                self.on_the_way.append((write, brokers if write.verb == "delete" and write.kind == claims.CLAIM else None))
        stores = [claims.store(brokers, claim, leaves=self._leaves(brokers, claim)) for claim in found.values()]
        for step, ordinal in decide(brokers.wanted, stores, parallel):
            began = True
            self._begin(step, brokers, found[ordinal])
        return began

    def _leaves(self, brokers: Brokers, claim: Claim) -> bool:
        return bool(claim.broker and claims.may_call_off(claim) and self.volume_of(claim.name).leaves)

    def _begin(self, step: Do, brokers: Brokers, claim: Claim) -> None:
        if step is Do.CALL_OFF:
            volume = self.volume_of(claim.name)
            volume.leaves = volume.released = False
        elif step is Do.STOP or claim.drainer is not None:
            write = claims.room(claim)
            if write is not None:
                self.on_the_way.append((write, None))
        else:
            pod = drainer.pod(brokers, claim, ["t:1"], ())
            self.on_the_way.append((Write("create", "Pod", pod["metadata"]["name"], pod), brokers))

    def arrive(self, at: int) -> None:
        """One of the writes gets to the server: whether its set is unchanged was looked at before."""
        if self.on_the_way:
            write, _ = self.on_the_way.pop(at % len(self.on_the_way))
            with suppress(Refusal):
                self._carry_out(write)

    def leave_out(self) -> None:
        """Those whose set has changed are not sent."""
        now = claims.brokers_of(self.server.get_one(("statefulsets", "default", NAME))).moment
        self.on_the_way = [(write, brokers) for write, brokers in self.on_the_way if brokers is None or brokers.moment == now]

    def _carry_out(self, write: Write) -> None:
        key = _PLACES[write.kind], "default", write.name
        match write.verb:
            case "create":
                self.server.create(key[0], "default", write.body)
            case "patch":
                self.server.patch(key, write.body)
            case _:
                self.server.remove(key, write.body)

    # ---- what must be so

    def check(self) -> None:
        """No volume has gone with a message, and no message is there twice or nowhere."""
        there = {claim["metadata"]["uid"] for claim in self.all("persistentvolumeclaims")}
        lost = {uid: volume.messages for uid, volume in self.volumes.items() if uid not in there and volume.messages}
        assert not lost, f"claims were deleted with messages: {lost}"
        stored = [message for volume in self.volumes.values() for message in volume.messages]
        assert sorted(stored + self.moved) == list(range(1, self.sent + 1))

    def settle(self) -> None:
        """Nobody changes anything any more, and everybody goes on until nothing is left to be done."""
        for _ in range(200):
            self.reconcile()
            self.drain()
            began = self.look()
            while self.on_the_way:
                self.arrive(0)
            self.check()
            if not began and not self._under_way():
                return
        raise AssertionError("it does not come to an end")

    def _under_way(self) -> bool:
        return any(claims.DRAINS in pod["metadata"]["labels"] and "status" not in pod for pod in self.all("pods"))

    def orphans(self) -> Iterator[tuple[Thing, Volume]]:
        """Claims of brokers that are not wanted."""
        for claim in self.all("persistentvolumeclaims"):
            if int(claim["metadata"]["name"].rpartition("-")[2]) >= self.replicas:
                yield claim, self.volume_of(claim["metadata"]["name"])
