"""A stand-in for the parts of a Kubernetes cluster beside its API server, for one StatefulSet of brokers on one machine: the
controller of the set, the scheduler and the kubelet.

Life of a `Node`: a thread reads the stand-in of the API server again and again. It creates the claims and pods of the set,
and removes the highest ordinals first. It runs brokers' pods and drainers' pods as real processes on a folder for each
claim's volume, and reports their ends with their termination messages. A deleted pod is stopped first. `close` stops all of
them.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.scaledown import claims
from cli.scaledown.drainer import TERMINATION_LOG
from tests.cli.running import Forked
from tests.cli.scaledown_world import NAME, a_claim, a_pod, a_set
from tests.resource_manager.api_server import ApiServer, Refusal, Thing
from tests.system.harness import BrokerProcess, Place, free_ports, spawn

_PAUSE_S = 0.05
_ORDINALS = range(5)


@dataclass
class _Drains:
    process: Forked
    message: Path
    log: Path


class Node:
    """See the module. Broker N is at 127.0.0.(N+1), all at one port."""

    def __init__(self, server: ApiServer, folder: Path, replicas: int) -> None:
        self._server = server
        self._folder = folder
        [self.port] = free_ports(1)
        self.brokers = [
            BrokerProcess(folder / f"broker{number}", self.port, [], Place(f"127.0.0.{number + 1}")) for number in _ORDINALS
        ]
        self.deleted: list[str] = []
        """Claims whose volumes are gone, in order."""
        self._drains: dict[str, _Drains] = {}
        self._volumes: dict[str, str] = {}
        self._closing = threading.Event()
        self.failed: BaseException | None = None
        thing = a_set(replicas)
        thing["metadata"]["annotations"] = {claims.TO: self.brokers[0].address}
        server.create("statefulsets", "default", thing)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def template(self) -> str:
        """Where brokers are, for --brokers."""
        return f"127.0.0.{{1+ordinal}}:{self.port}"

    def scale(self, replicas: int) -> None:
        """As `kubectl scale`."""
        self._server.patch(("statefulsets", "default", NAME), {"spec": {"replicas": replicas}})

    def all(self, resource: str) -> dict[str, Thing]:
        """Objects by name."""
        return {thing["metadata"]["name"]: thing for thing in self._server.get_all(resource, "default", {})["items"]}

    def marks(self) -> dict[int, Thing]:
        """What claims say of their release, by ordinal."""
        found = self.all("persistentvolumeclaims")
        return {int(name.rpartition("-")[2]): mark for name in found if (mark := claims._json(_note(found[name])))}

    def close(self) -> None:
        """End all processes."""
        self._closing.set()
        self._thread.join(60)
        for drains in self._drains.values():
            drains.process.kill()
        for broker in self.brokers:
            broker.kill()

    # ---- the loop

    def _run(self) -> None:
        try:
            while not self._closing.wait(_PAUSE_S):
                with suppress(Refusal):
                    self._reconcile()
                for name, pod in self.all("pods").items():
                    with suppress(Refusal):
                        self._keep(name, pod)
                self._free()
        except BaseException as error:
            self.failed = error
            raise

    def _reconcile(self) -> None:
        """The set's controller."""
        thing = self._server.get_one(("statefulsets", "default", NAME))
        wanted, pods = claims.brokers_of(thing).wanted, self.all("pods")
        for ordinal in reversed(_ORDINALS):
            name, pod = f"{NAME}-{ordinal}", pods.get(f"{NAME}-{ordinal}")
            if ordinal not in wanted:
                if pod is not None and "deletionTimestamp" not in pod["metadata"]:
                    self._server.remove(("pods", "default", name), {})
                continue
            with suppress(Refusal):
                self._server.create("persistentvolumeclaims", "default", a_claim(ordinal))
            if (
                pod is None
                and "deletionTimestamp" not in self.all("persistentvolumeclaims")[f"store-{NAME}-{ordinal}"]["metadata"]
            ):
                self._server.create("pods", "default", a_pod(ordinal))
        status = {"replicas": len(wanted), "observedGeneration": thing["metadata"]["generation"]}
        self._server.patch(("statefulsets", "default", NAME), {"status": status}, "/status")

    def _keep(self, name: str, pod: Thing) -> None:
        """The scheduler and the kubelet, for one pod."""
        key, drains = ("pods", "default", name), claims.DRAINS in pod["metadata"]["labels"]
        if "deletionTimestamp" in pod["metadata"]:
            self._end(name, drains=drains)
            self._server.remove(key, {"gracePeriodSeconds": 0})
        elif "nodeName" not in pod["spec"]:
            self._server.patch(key, {"spec": {"nodeName": "here"}})
            volume = self._folder / self._volume_of(pod)
            if drains:
                self._drain(name, pod, volume)
            else:
                broker = self.brokers[int(name.rpartition("-")[2])]
                broker.store = volume
                broker.start()
            self._server.patch(key, {"status": {"phase": "Running"}}, "/status")
        elif drains and "containerStatuses" not in pod["status"]:
            self._report(key, self._drains[name])
        elif not drains and not self.brokers[int(name.rpartition("-")[2])].running:  # a drainer had its store still
            self.brokers[int(name.rpartition("-")[2])].start()

    def _volume_of(self, pod: Thing) -> str:
        claim = pod["spec"]["volumes"][-1]["persistentVolumeClaim"]["claimName"]
        uid = str(self.all("persistentvolumeclaims")[claim]["metadata"]["uid"])
        self._volumes[uid] = claim
        (self._folder / uid).mkdir(exist_ok=True)
        return uid

    def _drain(self, name: str, pod: Thing, volume: Path) -> None:
        [container] = pod["spec"]["containers"]
        [mount] = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "store"]
        message, log = self._folder / f"{name}.message", self._folder / f"{name}.log"
        message.unlink(missing_ok=True)
        log.unlink(missing_ok=True)
        there = {mount: str(volume), TERMINATION_LOG: str(message)}
        program, *words = [there.get(word, word) for word in container["command"]]
        self._drains[name] = _Drains(spawn(log, program, *words), message, log)

    def _report(self, key: tuple[str, str, str], drains: _Drains) -> None:
        """How it has ended, if it has."""
        code = drains.process.poll()
        if code is None:
            return
        message = drains.message.read_text() if drains.message.exists() else drains.log.read_text()[-2048:] if code else ""
        state = {"terminated": {"exitCode": code, "message": message}}
        container = {"name": "qpid-drain", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        phase = "Failed" if code else "Succeeded"
        self._server.patch(key, {"status": {"phase": phase, "containerStatuses": [container]}}, "/status")

    def _end(self, name: str, *, drains: bool) -> None:
        if not drains:
            self.brokers[int(name.rpartition("-")[2])].stop()
        elif name in self._drains:
            process = self._drains.pop(name).process
            process.terminate()
            process.wait()

    def _free(self) -> None:
        """Volumes go with their claims."""
        there = {thing["metadata"]["uid"] for thing in self.all("persistentvolumeclaims").values()}
        for uid in self._volumes.keys() - there:
            self.deleted.append(self._volumes.pop(uid))
            shutil.rmtree(self._folder / uid)


def _note(claim: Thing) -> Any:
    return (claim["metadata"].get("annotations") or {}).get(claims.MARK)


@contextmanager
def node(server: ApiServer, folder: Path, replicas: int) -> Iterator[Node]:
    """One that runs, with its brokers."""
    running = Node(server, folder, replicas)
    try:
        for broker in running.brokers[:replicas]:
            broker.wait_for("standalone")
        yield running
    finally:
        running.close()
    assert running.failed is None, running.failed
