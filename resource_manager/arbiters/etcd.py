"""The arbiter that uses etcd: one daemon at a time has its turn, by a key that belongs to a lease.

Life: `watch` begins it. The daemon gets a lease and renews it (`core.candidate` decides the requests, and this module
sends them through `net.etcd`). When a promotion is needed, a transaction creates the key PREFIX/CLUSTER/turn with the
lease, if the key does not exist. The primary is written to PREFIX/CLUSTER/primary, as JSON with `primary` and `epoch`,
and stays there.

Invariants: every answer that decides is linearizable (readings are not serializable ones, and an answer that is older
than an earlier one does not count). No call waits. Only `make` raises. `close` revokes the lease, as far as that
succeeds in the time of one call.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_never

from twisted.internet.defer import Deferred, succeed

from broker.options import Option, file, password_file, text
from resource_manager.arbiters.leased import LeasedArbiter
from resource_manager.arbiters.options import TIMES, read, timeout, tls_files
from resource_manager.core import arbiter
from resource_manager.core.arbiter import ArbiterSettings, Published
from resource_manager.core.candidate import (
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
from resource_manager.net.endpoints import endpoint
from resource_manager.net.etcd import Access, EtcdClient, encoded, holder_of, revision_of
from resource_manager.net.tls import Tls
from resource_manager.net.web import StoreError

INTERFACE = arbiter.INTERFACE
_PUBLISH_ATTEMPTS = 3


def _endpoints(value: str) -> tuple[str, ...]:
    return tuple(endpoint(part.strip(), 2379, "an etcd on this host") for part in value.split(","))


def _prefix(value: str) -> str:
    if not value.startswith("/") or not value.isprintable():
        raise ValueError(f"{value!r} does not begin with /")
    return value.rstrip("/")


OPTIONS = (
    Option("endpoints", _endpoints, None, "URL,...", "etcd's members, as https://host1:2379,https://host2:2379. Needed."),
    Option("prefix", _prefix, "/understudy", "PATH", "What the keys begin with; the cluster's name follows."),
    *TIMES,
    Option("user", text, "", "NAME", "etcd user, with password-file."),
    Option(
        "password-file",
        file,
        None,
        "FILE",
        "File whose first line is the user's password; read at each login.",
        hides="its password is",
    ),
    *tls_files("etcd"),
)
"""The options of `--arbiter-option` with `--arbiter etcd`."""


def make(settings: ArbiterSettings, reactor: Any, daemon: str) -> EtcdArbiter:
    """See `resource_manager.core.arbiter.Plugin`."""
    values = read(OPTIONS, settings.options, "etcd")
    endpoints: tuple[str, ...] | None = values["endpoints"]
    if not endpoints:
        raise ValueError("endpoints are needed: --arbiter-option endpoints=https://host1:2379,https://host2:2379")
    if not settings.cluster:
        raise ValueError("a name for the cluster is needed, so that two clusters in one etcd do not meet: give --cluster-name")
    if settings.cluster != settings.cluster.strip("/") or not settings.cluster.isprintable():
        raise ValueError(f"--cluster-name {settings.cluster!r} cannot be a part of a key")
    timeout_s = timeout(values)
    tls = Tls(values["ca_file"], values["certificate"], values["key"])
    if all(one.startswith("http:") for one in endpoints):
        if tls.files:
            raise ValueError(f"{tls.files[0]} has no effect: no endpoint is https")
    else:
        tls.read()
    client = EtcdClient(reactor, endpoints, _access(values["user"], values["password_file"]), timeout_s, tls)
    candidate = Candidate(CandidateSettings(ttl_s=float(values["ttl"])))
    return EtcdArbiter(reactor, client, candidate, f"{values['prefix']}/{settings.cluster}", daemon)


def _access(user: str, password: Path | None) -> Access:
    if bool(user) != (password is not None):
        raise ValueError("user and password-file belong together: give both")
    if password is None:
        return Access()
    password_file(str(password))  # raises at the start if the file cannot be read
    return Access(user, lambda: password_file(str(password)))


class EtcdArbiter(LeasedArbiter):
    """Fulfils `resource_manager.core.arbiter.Arbiter` for the daemon of this name."""

    def __init__(self, reactor: Any, client: EtcdClient, candidate: Candidate, keys: str, daemon: str) -> None:
        super().__init__(reactor, candidate, "etcd")
        self._client = client
        self._turn_key = f"{keys}/turn".encode()
        self._primary_key = f"{keys}/primary".encode()
        self._daemon = daemon
        self._overtaken: Published | None = None
        """The primary that was not published, because a higher epoch was."""

    def follow(self, revision: int, on_change: Callable[[Holder], None]) -> Deferred[str]:
        """Watch the turn's key."""
        return self._client.watch(self._turn_key, revision, on_change)

    def release(self) -> Deferred[None]:
        """Revoke the lease, and with it the turn."""
        revoked: Deferred[Any] = succeed(None)
        if lease := self._candidate.lease:
            revoked = self._client.call("/v3/lease/revoke", {"ID": str(lease)}, linearizable=False)
        closed: Deferred[None] = revoked.addErrback(lambda _: None).addCallback(lambda _: self._client.close())
        return closed

    async def carry_out(self, request: Request) -> Answer:
        """Carry out a request by calls of the gateway."""
        call = self._client.call
        match request:
            case Grant(ttl_s):
                granted = await call("/v3/lease/grant", {"TTL": str(round(ttl_s))}, linearizable=False)
                return Granted(int(granted["ID"]), float(granted["TTL"]))
            case Renew(lease):
                renewed = await call("/v3/lease/keepalive", {"ID": str(lease)}, linearizable=False)
                ttl_s = float(renewed["result"].get("TTL", 0))
                return Renewed(ttl_s, await self._read_turn())
            case Campaign(lease):
                return Campaigned(await self._campaign(lease))
            case Resign(lease):
                compare = {"key": encoded(self._turn_key), "target": "LEASE", "result": "EQUAL", "lease": str(lease)}
                delete = {"request_delete_range": {"key": encoded(self._turn_key)}}
                answer = await call("/v3/kv/txn", {"compare": [compare], "success": [delete]})
                return Resigned(revision_of(answer))
            case Publish(view):
                await self._publish(view)
                return PublishDone()
            case _:
                assert_never(request)

    async def _read_turn(self) -> Holder:
        answer = await self._client.call("/v3/kv/range", {"key": encoded(self._turn_key)})
        return holder_of((answer.get("kvs") or [{}])[0], revision_of(answer))

    async def _campaign(self, lease: int) -> Holder:
        key = encoded(self._turn_key)
        put = {"request_put": {"key": key, "value": encoded(self._daemon.encode()), "lease": str(lease)}}
        body = {
            "compare": [{"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}],
            "success": [put],
            "failure": [{"request_range": {"key": key}}],
        }
        answer = await self._client.call("/v3/kv/txn", body)
        if answer.get("succeeded"):
            return Holder(lease, self._daemon, revision_of(answer))
        found = answer["responses"][0]["response_range"].get("kvs") or [{}]
        return holder_of(found[0], revision_of(answer))

    async def _publish(self, view: Published) -> None:
        """Publish, unless a higher epoch is known. If another daemon writes at the same time, read again. StoreError while a
        primary has a lower epoch than the key: the first time without a text, because the other daemons may only have heard of a
        promotion earlier.
        """
        key = encoded(self._primary_key)
        value = json.dumps({"primary": view.primary, "epoch": view.epoch}).encode()
        for _ in range(_PUBLISH_ATTEMPTS):
            answer = await self._client.call("/v3/kv/range", {"key": key})
            kv = (answer.get("kvs") or [{}])[0]
            there = b64decode(kv.get("value", ""))
            if there == value or (_epoch(there) > view.epoch and not view.primary):
                return
            if _epoch(there) > view.epoch:
                known, self._overtaken = self._overtaken == view, view
                told = f"{self._primary_key.decode()} has epoch {_epoch(there)}, and the cluster is in {view.epoch}"
                raise StoreError(Trouble.AWAY, f"{told}: if it was made anew, delete this key" if known else "")
            compare = {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(kv.get("mod_revision", 0))}
            put = {"request_put": {"key": key, "value": encoded(value)}}
            answer = await self._client.call("/v3/kv/txn", {"compare": [compare], "success": [put]})
            if answer.get("succeeded"):
                return
        raise StoreError(Trouble.AWAY, "the key of the primary changes all the time")


def _epoch(value: bytes) -> int:
    """The epoch in the key of the primary; -1 if it has no valid one."""
    try:
        epoch = json.loads(value)["epoch"]
    except (ValueError, TypeError, KeyError):
        return -1
    return epoch if isinstance(epoch, int) else -1
