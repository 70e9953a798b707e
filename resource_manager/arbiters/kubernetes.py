"""The arbiter that uses Kubernetes: one daemon at a time has its turn, by a Lease; a Service follows the primary, by
labels.

Life: `watch` begins it. The daemon reads the Lease, creates it if it does not exist, and writes an annotation into it,
so that it is known at once whether the daemon may write (`core.candidate` decides the requests). When a promotion is
needed, it writes itself into the Lease with the resource version that it has read: if two daemons do this, one gets a
conflict and reads again. During its turn it renews the Lease. If the spec of a Lease has not changed for its duration,
by this daemon's own clock, the Lease is free (`core.observed`). At the end of the turn it removes its name. The labels
of the brokers' pods show the primary (`roles`).

Invariants: no call waits; only `make` raises; those of the Lease are in `net.lease`.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, assert_never

from twisted.internet.defer import Deferred, ensureDeferred, succeed

from broker.options import Option, file
from resource_manager.arbiters.leased import LeasedArbiter
from resource_manager.arbiters.options import TIMES, read, timeout, tls_files
from resource_manager.arbiters.roles import Roles
from resource_manager.core import arbiter
from resource_manager.core.arbiter import ArbiterSettings, Published
from resource_manager.core.candidate import (
    NO_LEASE,
    Answer,
    Campaign,
    Campaigned,
    Candidate,
    CandidateSettings,
    Grant,
    Granted,
    Holder,
    Publish,
    PublishDone,
    Renew,
    Renewed,
    Request,
    Resign,
    Resigned,
)
from resource_manager.net.api_access import ACCOUNT, access, object_name, server
from resource_manager.net.kubernetes import BOOKMARK, DELETED, LEASE, KubernetesClient, Server, version_of
from resource_manager.net.lease import Lease, LeaseOf

INTERFACE = arbiter.INTERFACE
OURS, OTHERS = 1, 2
"""The values for a lease in a `Holder`: that of this daemon, and that of any other."""
_ACCOUNT = ACCOUNT
_SELECTOR = re.compile(r"[-./\w]+=[-.\w]*(,[-./\w]+=[-.\w]*)*", re.ASCII)

Thing = dict[str, Any]


def _selector(value: str) -> str:
    if not _SELECTOR.fullmatch(value):
        raise ValueError(f"{value!r} is not LABEL=VALUE,..., as in app=understudy")
    return value


def _pod_names(value: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in value.split(","):
        address, equals, pod = part.partition("=")
        if not equals or ":" not in address:
            raise ValueError(f"{part!r} is not HOST:PORT=POD, as in host1:5672=broker-0")
        found[address] = object_name(pod)
    return found


OPTIONS = (
    Option("server", server, None, "URL", "The API server, as https://host:6443. Default: that of the pod's own cluster."),
    Option("namespace", object_name, None, "NAME", "Where Lease and pods are. Default: the pod's own."),
    Option("lease", object_name, None, "NAME", "The Lease. Default: understudy- and the cluster's name."),
    Option(
        "token-file",
        file,
        None,
        "FILE",
        "File with the bearer token; read for each call. Default: the pod's own.",
        hides="its token is",
    ),
    Option("pods", _selector, None, "LABEL=VALUE,...", "Which pods are the brokers'. Without it no pod is labelled."),
    Option(
        "pod-names",
        _pod_names,
        {},
        "HOST:PORT=POD,...",
        "Pods of brokers by address. Default for each: the first label of its host's name.",
    ),
    *TIMES,
    *tls_files("the API server"),
)
"""The options of `--arbiter-option` with `--arbiter kubernetes`."""


def make(settings: ArbiterSettings, reactor: Any, daemon: str) -> KubernetesArbiter:
    """See `resource_manager.core.arbiter.Plugin`."""
    return _make(settings, reactor, daemon, os.environ)


def _make(settings: ArbiterSettings, reactor: Any, daemon: str, environ: Mapping[str, str]) -> KubernetesArbiter:
    values = read(OPTIONS, settings.options, "kubernetes")
    if values["pod_names"] and not values["pods"]:
        raise ValueError("pod-names has no effect without pods")
    lease = values["lease"]
    if lease is None:
        if not settings.cluster:
            raise ValueError("a name for the cluster is needed, so that two clusters do not meet: give --cluster-name")
        try:
            lease = object_name(f"understudy-{settings.cluster}")
        except ValueError:
            raise ValueError(f"--cluster-name {settings.cluster!r} cannot be a part of a Lease's name: give lease=NAME") from None
    timeout_s = timeout(values)
    there = access(values, environ, _ACCOUNT)
    if not there.namespace:
        raise ValueError("with server a namespace is needed: give namespace=NAME")
    client = KubernetesClient(reactor, Server(there.url, there.namespace, there.token), timeout_s, there.tls)
    held = Lease(client, LeaseOf(lease, f"{daemon}_{uuid.uuid4()}", values["ttl"]), reactor.seconds)
    roles = Roles(reactor, client, values["pods"], values["pod_names"]) if values["pods"] else None
    return KubernetesArbiter(reactor, client, Candidate(CandidateSettings(ttl_s=float(values["ttl"]))), held, roles)


class KubernetesArbiter(LeasedArbiter):
    """Fulfils `resource_manager.core.arbiter.Arbiter`. `roles` labels the pods; None if that is not configured."""

    def __init__(self, reactor: Any, client: KubernetesClient, candidate: Candidate, lease: Lease, roles: Roles | None) -> None:
        super().__init__(reactor, candidate, "Kubernetes")
        self._client = client
        self._lease = lease
        self._roles = roles
        self._may_be_ours = False

    def publish(self, view: Published) -> None:
        """Publish it in the pods' labels."""
        if self._roles is not None:
            self._roles.publish(view)

    def follow(self, revision: int, on_change: Callable[[Holder], None]) -> Deferred[str]:
        """Watch the Lease from its present state on, so that no change since that revision is missed. The watch does
        not begin at a version that we know, because the version of a Lease that has not changed for long may no longer
        be in the history.
        """

        def changed(thing: Thing, what: str) -> None:
            version = version_of(thing)
            if what == BOOKMARK or version < self._lease.version:
                return
            if what == DELETED:
                self._lease.is_gone(version)
                on_change(Holder(NO_LEASE, "", version))
            else:
                self._lease.sees(thing)
                on_change(self._holder())

        return self._client.watch(LEASE, changed, fieldSelector=f"metadata.name={self._lease.name}")

    def release(self) -> Deferred[None]:
        """Remove this daemon's name from the Lease, if it may be there."""
        if self._roles is not None:
            self._roles.close()
        resigned: Deferred[Any] = ensureDeferred(self._resign()) if self._may_be_ours else succeed(None)
        closed: Deferred[None] = resigned.addErrback(lambda _: None).addCallback(lambda _: self._client.close())
        return closed

    # ---- what the candidate asks for

    async def carry_out(self, request: Request) -> Answer:
        """Carry out a request by reading and writing the Lease."""
        match request:
            case Grant(ttl_s):
                await self._lease.mark()
                return Granted(OURS, ttl_s)
            case Renew():
                written = await self._lease.renew()
                return Renewed(float(self._lease.ttl_s), self._holder(), written)
            case Campaign():
                self._may_be_ours = True
                await self._lease.take()
                return Campaigned(self._holder())
            case Resign():
                await self._resign()
                return Resigned(self._lease.version)
            case Publish():
                return PublishDone()
            case _:
                assert_never(request)

    async def _resign(self) -> None:
        await self._lease.give_up()
        self._may_be_ours = False

    def _holder(self) -> Holder:
        """The daemon with the turn, as far as known."""
        if not self._lease.is_known:
            return Holder(NO_LEASE, "", self._lease.version)
        if self._lease.is_ours:
            return Holder(OURS, self._lease.identity, self._lease.version)
        holder = self._lease.holder
        return Holder(OTHERS if holder else NO_LEASE, holder, self._lease.version)
