"""The labels by which a Service finds the primary: `role` on the brokers' pods, and its epoch as an annotation.

Life: `publish` begins a round: it lists the pods, and patches those with a wrong role (`core.pod_roles`), each with the
version that was read, so that no daemon undoes a later change of another one. After a conflict the next round begins at
once, after errors with growing pauses. When all roles are right there is a round each _AGAIN_S, because recreated pods
have no role. An error is logged once, and so is its end. It does not affect whether turns can be decided.

Invariants: there is one round at a time. A lower epoch never replaces a higher one. While there is no primary, nothing
is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from resource_manager.core.arbiter import Published
from resource_manager.core.candidate import Trouble
from resource_manager.core.pod_roles import NO_EPOCH, Pod, changes, pod_of
from resource_manager.net.kubernetes import CONFLICT, NOT_FOUND, POD, KubernetesClient
from resource_manager.net.web import StoreError

ROLE = "role"
EPOCH = "understudy/epoch"
_AGAIN_S = 10.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_CONFLICTS = 10
"""After this many conflicts in a row, the conflict counts as an error."""


class Roles:
    """Labels the pods that `selector` selects. `names` are pods by address, for pods that are not named after their
    host.
    """

    log = Logger(namespace="resource_manager")

    def __init__(self, reactor: Any, client: KubernetesClient, selector: str, names: Mapping[str, str]) -> None:
        self._reactor = reactor
        self._client = client
        self._selector = selector
        self._names = names
        self._view: Published | None = None
        self._busy = False
        self._anew = False
        self._timer: Any = None
        self._failures = 0
        self._overtaken = 0
        self._told = ""
        self._closed = False

    def publish(self, view: Published) -> None:
        """The primary has changed. "" changes nothing: a daemon that sees no primary does not know that there is none."""
        if not view.primary or (self._view is not None and view.epoch < self._view.epoch):
            return
        self._view = view
        self._anew = self._busy
        self._round()

    def close(self) -> None:
        """End."""
        self._closed = True
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _round(self) -> None:
        if self._busy or self._closed or self._view is None:
            return
        self._cancel()
        self._busy = True
        ensureDeferred(self._set_roles(self._view)).addCallbacks(self._done, self._failed).addErrback(
            lambda failure: self.log.failure("labels of pods: an internal error of this daemon", failure=failure)
        )

    async def _set_roles(self, view: Published) -> str:
        """Do one round. Returns an error that an early repetition would not repair."""
        name = self._names.get(view.primary) or pod_of(view.primary)
        answer = await self._client.call("list", POD, labelSelector=self._selector)
        pods = [_pod(item) for item in answer.get("items") or ()]
        if name not in {pod.name for pod in pods}:
            which = f"is named {name!r}" if name else "can be told by an IP address: give pod-names"
            return f"{view.primary} is the primary, and no pod of {self._selector} {which}"
        newest = max(pod.epoch for pod in pods)
        self._overtaken = self._overtaken + 1 if newest > view.epoch else 0
        if self._overtaken > 1:  # the first time, the other daemons may only have heard of a promotion earlier
            return f"pods are labelled for epoch {newest}, and the cluster is in {view.epoch}: if it was made anew, delete them"
        for pod in changes(name, view.epoch, pods):
            patch = {
                "metadata": {
                    "resourceVersion": pod.version,
                    "labels": {ROLE: pod.role},
                    "annotations": {EPOCH: str(pod.epoch)},
                }
            }
            await self._client.call("patch", POD, pod.name, patch)
        return ""

    def _done(self, wrong: str) -> None:
        self._failures = 0
        self._tell(wrong)
        self._then(0.0 if self._anew else _AGAIN_S if not wrong else _LONGEST_PAUSE_S)

    def _failed(self, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, KeyError | TypeError | AttributeError | ValueError):
            error = StoreError(Trouble.AWAY, "the list of pods is not one of Kubernetes'")
        if not isinstance(error, StoreError):
            failure.raiseException()
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(self._failures, 30), _LONGEST_PAUSE_S)
        self._failures += 1
        if error.status not in (CONFLICT, NOT_FOUND) or self._failures > _CONFLICTS:
            self._tell(str(error))
        self._then(max(pause_s, error.wait_s))

    def _then(self, delay_s: float) -> None:
        self._busy = self._anew = False
        if not self._closed:
            self._timer = self._reactor.callLater(delay_s, self._round)

    def _tell(self, wrong: str) -> None:
        if wrong == self._told or self._closed:
            return
        if wrong:
            self.log.warn("the pods' roles cannot be set, so Services do not follow the primary: {reason}", reason=wrong)
        else:
            self.log.info("the pods' roles are as they should be again")
        self._told = wrong


def _pod(item: dict[str, Any]) -> Pod:
    metadata = item["metadata"]
    epoch = str((metadata.get("annotations") or {}).get(EPOCH, ""))
    role = str((metadata.get("labels") or {}).get(ROLE, ""))
    return Pod(metadata["name"], role, int(epoch) if epoch.isdecimal() else NO_EPOCH, metadata["resourceVersion"])
