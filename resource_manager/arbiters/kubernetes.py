"""The arbiter that uses Kubernetes: one daemon at a time has its turn, by a Lease; a Service follows the primary, by labels.

Life: `watch` begins: the daemon reads the Lease, makes it if there is none, and writes an annotation into it, so that it is known
at once whether it may (`core.candidate` decides what is asked when). In a need it writes itself into the Lease, by the resource
version that it has read: of two that do, one gets a conflict and reads again. While it has its turn it renews the Lease; a Lease
whose spec has not changed for its duration, by this daemon's own clock, is free (`core.observed`). At the end of the turn it
takes its name out. Who is the primary is told by the labels of the brokers' pods (`roles`).

Invariants: no answer counts that is older than one before; a record that is this daemon's and was found, not written, is renewed
before it counts, so that no turn runs longer than others wait for it; times of the machine's clock are written for people alone;
no call waits; nothing but `make` raises.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, assert_never

from twisted.internet.defer import Deferred, ensureDeferred, succeed

from broker.options import Option, file
from resource_manager.arbiters.leased import LeasedArbiter
from resource_manager.arbiters.options import TIMES, endpoint, read, timeout, tls_files
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
    Trouble,
)
from resource_manager.core.observed import Observed, Record
from resource_manager.net.kubernetes import CONFLICT, LEASE, NOT_FOUND, KubernetesClient, Server, version_of
from resource_manager.net.tls import Tls
from resource_manager.net.web import StoreError

INTERFACE = arbiter.INTERFACE
OURS, OTHERS = 1, 2
"""What stands for a lease where a `Holder` names one: that of this daemon, and that of whichever other."""
_ATTEMPTS = 3
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REACHED_BY = "understudy/reached-by"
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_SELECTOR = re.compile(r"[-./\w]+=[-.\w]*(,[-./\w]+=[-.\w]*)*", re.ASCII)

Thing = dict[str, Any]


def _server(value: str) -> str:
    return endpoint(value, 443, "`kubectl proxy` on this host")


def _object_name(value: str) -> str:
    if not _NAME.fullmatch(value) or len(value) > 253:
        raise ValueError(f"{value!r} is no name of an object: small letters, digits, `-` and `.`")
    return value


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
        found[address] = _object_name(pod)
    return found


OPTIONS = (
    Option("server", _server, None, "URL", "The API server, as https://host:6443. Default: that of the pod's own cluster."),
    Option("namespace", _object_name, None, "NAME", "Where Lease and pods are. Default: the pod's own."),
    Option("lease", _object_name, None, "NAME", "The Lease. Default: understudy- and the cluster's name."),
    Option("token-file", file, None, "FILE", "File with the bearer token; read for each call. Default: the pod's own."),
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
"""What `--arbiter-option` takes with `--arbiter kubernetes`."""


def make(settings: ArbiterSettings, reactor: Any, daemon: str) -> KubernetesArbiter:
    """See `resource_manager.core.arbiter.Plugin`."""
    return _make(settings, reactor, daemon, os.environ)


def _make(settings: ArbiterSettings, reactor: Any, daemon: str, environ: Mapping[str, str]) -> KubernetesArbiter:
    values = read(OPTIONS, settings.options, "kubernetes")
    if values["pod_names"] and not values["pods"]:
        raise ValueError("pod-names is of no use without pods")
    lease = values["lease"]
    if lease is None:
        if not settings.cluster:
            raise ValueError("a name for the cluster is needed, so that two clusters do not meet: give --cluster-name")
        try:
            lease = _object_name(f"understudy-{settings.cluster}")
        except ValueError:
            raise ValueError(f"--cluster-name {settings.cluster!r} cannot be a part of a Lease's name: give lease=NAME") from None
    timeout_s = timeout(values)
    if values["server"] is None:
        values = _in_cluster(values, environ)
    if values["namespace"] is None:
        raise ValueError("with server a namespace is needed: give namespace=NAME")
    token_file: Path | None = values["token_file"]
    server = Server(values["server"], values["namespace"], str if token_file is None else lambda: _token(token_file))
    server.token()  # that it can be read now is said at the start
    tls = Tls(values["ca_file"], values["certificate"], values["key"])
    if server.url.startswith("https:"):
        tls.read()
    elif tls.files:
        raise ValueError(f"{tls.files[0]} is of no use: the server is not https")
    client = KubernetesClient(reactor, server, timeout_s, tls)
    lease_of = LeaseOf(lease, f"{daemon}_{uuid.uuid4()}", values["ttl"])
    roles = Roles(reactor, client, values["pods"], values["pod_names"]) if values["pods"] else None
    return KubernetesArbiter(reactor, client, Candidate(CandidateSettings(ttl_s=float(values["ttl"]))), lease_of, roles)


def _in_cluster(values: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """What a pod finds in its environment and its file system, where nothing else was given."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ValueError("this is no pod (KUBERNETES_SERVICE_HOST is not set): give server=https://host:6443")
    found: dict[str, Any] = {"server": _server(f"https://{f'[{host}]' if ':' in host else host}:{port}")}
    if values["namespace"] is None:
        found["namespace"] = _object_name(_content(_ACCOUNT / "namespace"))
    if values["token_file"] is None and values["certificate"] is None:
        found |= {"token_file": _ACCOUNT / "token"}
    if values["ca_file"] is None:
        found |= {"ca_file": _ACCOUNT / "ca.crt"}
    return values | found


def _content(path: Path) -> str:
    try:
        return path.expanduser().read_text().strip()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: it is no text") from None


def _token(path: Path) -> str:
    token = _content(path)
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{path}: there is no token of one line")
    return token


@dataclass(frozen=True, slots=True)
class LeaseOf:
    """The Lease's name; who this daemon is in it, as no other is or was; for how long its record counts after a renewal."""

    name: str
    identity: str
    ttl_s: int


class KubernetesArbiter(LeasedArbiter):
    """Fulfils `resource_manager.core.arbiter.Arbiter`. `roles` labels the pods; None when that is not wanted."""

    def __init__(self, reactor: Any, client: KubernetesClient, candidate: Candidate, lease: LeaseOf, roles: Roles | None) -> None:
        super().__init__(reactor, candidate, "Kubernetes")
        self._client = client
        self._lease = lease
        self._roles = roles
        self._observed = Observed()
        self._known: Thing | None = None
        self._version = 0
        self._tried = 0
        self._may_be_ours = False

    def publish(self, view: Published) -> None:
        """To the pods' labels."""
        if self._roles is not None:
            self._roles.publish(view)

    def follow(self, revision: int, on_change: Callable[[Holder], None]) -> Deferred[str]:
        """Watch the Lease, from what it is now: no change since that revision is left out."""

        def changed(thing: Thing, deleted: bool) -> None:
            version = version_of(thing)
            if version < self._version:
                return
            if deleted:
                self._version, self._known = version, None
                on_change(Holder(NO_LEASE, "", version))
            else:
                self._sees(thing)
                on_change(self._holder())

        return self._client.watch(self._lease.name, changed)

    def release(self) -> Deferred[None]:
        """Take this daemon's name out of the Lease, if it may be there."""
        if self._roles is not None:
            self._roles.close()
        resigned: Deferred[Any] = ensureDeferred(self._resign()) if self._may_be_ours else succeed(None)
        closed: Deferred[None] = resigned.addErrback(lambda _: None).addCallback(lambda _: self._client.close())
        return closed

    # ---- what the candidate asks for

    async def carry_out(self, request: Request) -> Answer:
        """By readings and writes of the Lease."""
        match request:
            case Grant(ttl_s):
                await self._try_to_write()
                return Granted(OURS, ttl_s)
            case Renew():
                return await self._renew()
            case Campaign():
                self._may_be_ours = True
                await self._change(self._taken)
                return Campaigned(self._holder())
            case Resign():
                await self._resign()
                return Resigned(self._version)
            case Publish():
                return PublishDone()
            case _:
                assert_never(request)

    async def _try_to_write(self) -> None:
        """Make the Lease if there is none; leave a mark in it, which says that this daemon can."""
        try:
            await self._read()
        except StoreError as error:
            if error.status != NOT_FOUND:
                raise
            empty = {"apiVersion": "coordination.k8s.io/v1", "kind": LEASE, "metadata": {"name": self._lease.name}, "spec": {}}
            try:
                self._sees(await self._client.call("create", LEASE, body=empty))
            except StoreError as other:
                if other.status != CONFLICT:
                    raise
                await self._read()
        self._tried += 1

        def marked(lease: Thing) -> Thing:
            notes = lease["metadata"].get("annotations") or {}
            mark = {_REACHED_BY: f"{self._lease.identity} {self._tried}"}
            return lease | {"metadata": lease["metadata"] | {"annotations": notes | mark}}

        await self._change(marked)

    async def _renew(self) -> Renewed:
        """Read, and renew the record when it is this daemon's. What is not this daemon's any more has expired here, too."""
        if self._observed.record.holder != self._lease.identity:
            await self._read()
        written = await self._change(self._renewed)
        return Renewed(float(self._lease.ttl_s), self._holder(), written)

    async def _resign(self) -> None:
        await self._change(self._given_up)
        self._may_be_ours = False

    # ---- the Lease

    def _taken(self, lease: Thing) -> Thing | None:
        """With this daemon's record, unless another's counts."""
        holder, spec, now = self._observed.holder(self._now_s()), lease.get("spec") or {}, _now()
        if holder not in ("", self._lease.identity):
            return None
        taken = {"leaseDurationSeconds": self._lease.ttl_s, "renewTime": now}
        if self._observed.record.holder != self._lease.identity:
            taken |= {"holderIdentity": self._lease.identity, "acquireTime": now}
            taken["leaseTransitions"] = self._observed.record.transitions + 1
        return lease | {"spec": spec | taken}

    def _renewed(self, lease: Thing) -> Thing | None:
        if self._observed.record.holder != self._lease.identity:
            return None
        return lease | {"spec": lease["spec"] | {"leaseDurationSeconds": self._lease.ttl_s, "renewTime": _now()}}

    def _given_up(self, lease: Thing) -> Thing | None:
        """Without a holder; the transitions stay."""
        if self._observed.record.holder != self._lease.identity:
            return None
        spec = {field: value for field, value in lease["spec"].items() if field != "holderIdentity"}
        return lease | {"spec": spec | {"leaseDurationSeconds": 1, "renewTime": _now()}}

    async def _read(self) -> Thing:
        try:
            return self._sees(await self._client.call("get", LEASE, self._lease.name))
        except StoreError as error:
            raise self._gone(error) from None

    def _gone(self, error: StoreError) -> StoreError:
        """What that error means for the lease."""
        if error.status != NOT_FOUND:
            return error
        return StoreError(Trouble.LEASE_GONE, f"the Lease is not there: {error}", status=NOT_FOUND)

    async def _change(self, change: Callable[[Thing], Thing | None]) -> bool:
        """Write the Lease as `change` makes it of what is known, by its version; read it again after a conflict. False when
        `change` wants nothing written any more."""
        for _ in range(_ATTEMPTS):
            known = self._known or await self._read()
            wanted = change(known)
            if wanted is None:
                return False
            try:
                self._sees(await self._client.call("update", LEASE, self._lease.name, wanted))
            except StoreError as error:
                self._known = None  # without an answer it may have been written
                if error.status != CONFLICT:
                    raise self._gone(error) from None
                conflict = error
            else:
                return True
        raise conflict

    def _sees(self, lease: Thing) -> Thing:
        """Take note of the Lease as it is now. StoreError when it is older than what was known."""
        if lease.get("kind") != LEASE or lease["metadata"]["name"] != self._lease.name:
            raise ValueError("the answer is another object")
        version = version_of(lease)
        if version < self._version:
            raise StoreError(
                Trouble.AWAY,
                f"a stale answer, of resource version {version} after {self._version}; if the cluster of Kubernetes was restored "
                "from a backup, restart this daemon",
            )
        record = _record(lease.get("spec") or {})
        self._known, self._version = lease, version
        self._observed.sees(record, self._now_s())
        return lease

    def _holder(self) -> Holder:
        """Who has the turn by what is known."""
        if self._known is None:
            return Holder(NO_LEASE, "", self._version)
        if self._observed.record.holder == self._lease.identity:
            return Holder(OURS, self._lease.identity, self._version)
        holder = self._observed.holder(self._now_s())
        return Holder(OTHERS if holder else NO_LEASE, holder, self._version)


def _record(spec: Thing) -> Record:
    """What counts of a Lease's spec."""
    return Record(
        str(spec.get("holderIdentity") or ""),
        float(spec.get("leaseDurationSeconds") or 0),
        str(spec.get("renewTime") or ""),
        str(spec.get("acquireTime") or ""),
        int(spec.get("leaseTransitions") or 0),
    )


def _now() -> str:
    """The machine's clock, as a Lease has it: with a fraction of a second, always."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
