"""The arbiter that uses etcd: one daemon at a time has its turn, by a key that hangs on a lease.

Life: `watch` begins: the daemon is granted a lease and renews it (`core.candidate` decides what is asked when, and this module
asks it of `net.etcd`). In a need it makes the key PREFIX/CLUSTER/turn, with a transaction and its lease, if there is none. Who is
the primary is written to PREFIX/CLUSTER/primary, as JSON with `primary` and `epoch`, and stays there.

Invariants: every answer that decides is linearizable (readings are no serializable ones, and none that is older than one before
counts); no call waits; nothing but `make` raises. `close` revokes the lease, as well as it can in the time of one call.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Collection
from ipaddress import ip_address
from pathlib import Path
from typing import Any, assert_never
from urllib.parse import urlsplit

from twisted.internet import ssl
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.options import Option, file, number, password_file, seconds, text
from resource_manager.arbiters.options import read
from resource_manager.core import arbiter
from resource_manager.core.arbiter import NEVER, ArbiterSettings, Guarantee, Health, Published
from resource_manager.core.candidate import (
    Answer,
    Campaign,
    Campaigned,
    Candidate,
    CandidateSettings,
    Changed,
    Effect,
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
    WakeAt,
    Watch,
)
from resource_manager.net.etcd import Access, EtcdClient, EtcdError, encoded, holder_of, revision_of

INTERFACE = arbiter.INTERFACE
_WATCH_S = 60.0
"""Each watch ends after this time, so that one whose connection is dead without a notice is replaced."""
_PUBLISH_ATTEMPTS = 3
_END = b"-----END CERTIFICATE-----"


def _endpoints(value: str) -> tuple[str, ...]:
    """`https://host:port,...`; http is for loopback alone."""
    return tuple(_endpoint(part.strip()) for part in value.split(","))


def _endpoint(value: str) -> str:
    try:
        url = urlsplit(value)
        host, port = url.hostname or "", 2379 if url.port is None else url.port
    except ValueError:
        host, port = "", 0
    plain = f"{url.scheme}://{url.netloc}" if host else ""
    if not host or url.scheme not in ("http", "https") or value.rstrip("/") != plain or url.username or not 0 < port < 65536:
        raise ValueError(f"{value!r} is not an endpoint as https://host:2379")
    if url.scheme == "http" and not _is_loopback(host):
        raise ValueError(f"{value}: over http a stranger could answer for {host}: use https, or an etcd on this host")
    return f"{url.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _prefix(value: str) -> str:
    if not value.startswith("/") or not value.isprintable():
        raise ValueError(f"{value!r} does not begin with /")
    return value.rstrip("/")


OPTIONS = (
    Option("endpoints", _endpoints, None, "URL,...", "etcd's members, as https://host1:2379,https://host2:2379. Needed."),
    Option("prefix", _prefix, "/understudy", "PATH", "What the keys begin with; the cluster's name follows."),
    Option("ttl", number(2, 600), 5, "SECONDS", "How long a daemon's lease runs: a dead daemon's turn ends after this time."),
    Option(
        "timeout",
        seconds(0.1, 60),
        None,
        "SECONDS",
        "Time for one call; then the next endpoint is tried. Default: 1, or ttl / 5 if less.",
    ),
    Option("user", text, "", "NAME", "etcd user, with password-file."),
    Option("password-file", file, None, "FILE", "File whose first line is the user's password; read at each login."),
    Option(
        "ca-file", file, None, "FILE", "Certificates of the authorities that signed etcd's, in PEM form. Default: the system's."
    ),
    Option(
        "certificate",
        file,
        None,
        "FILE",
        "Certificate to show to etcd, in PEM form, and below it those of the authorities between.",
    ),
    Option("key", file, None, "FILE", "Its private key. Default: it is in the same file."),
)
"""What `--arbiter-option` takes with `--arbiter etcd`."""


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
    timeout_s = min(1.0, values["ttl"] / 5) if values["timeout"] is None else values["timeout"]
    if timeout_s > values["ttl"] / 4:
        raise ValueError(f"timeout: {timeout_s:g} is too long for a ttl of {values['ttl']}: a fourth of it at most")
    tls = _Tls(values["ca_file"], values["certificate"], values["key"])
    if all(endpoint.startswith("http:") for endpoint in endpoints):
        if tls.files:
            raise ValueError(f"{tls.files[0]} is of no use: no endpoint is https")
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
    password_file(str(password))  # that it can be read now is said at the start
    return Access(user, lambda: password_file(str(password)))


class _Tls:
    """What connections over TLS are made of. Files are read for each connection: they may have been replaced."""

    def __init__(self, authorities: Path | None, certificate: Path | None, key: Path | None) -> None:
        if key is not None and certificate is None:
            raise ValueError("key is of no use without certificate")
        self._authorities, self._certificate, self._key = authorities, certificate, key

    @property
    def files(self) -> list[Path]:
        """Those that there are."""
        return [path for path in (self._authorities, self._certificate, self._key) if path is not None]

    def read(self) -> dict[str, Any]:
        """The authorities to trust and the certificate to show. ValueError says which file cannot be read."""
        found: dict[str, Any] = {}
        if self._authorities is not None:
            trusted = self._certificates(self._authorities)
            if not trusted:
                raise ValueError(f"{self._authorities}: there is no certificate in PEM form")
            found["trustRoot"] = ssl.trustRootFromCertificates(trusted)
        if self._certificate is not None:
            content = self._content(self._certificate) + (b"\n" + self._content(self._key) if self._key is not None else b"")
            found["clientCertificate"] = self._load(self._certificate, ssl.PrivateCertificate.loadPEM, content)
            between = [one.original for one in self._certificates(self._certificate)[1:]]
            found["extraCertificateOptions"] = {"extraCertChain": between}
        return found

    def _certificates(self, path: Path) -> list[Any]:
        """All that are in the file."""
        blocks = self._content(path).split(_END)[:-1]
        return [self._load(path, ssl.Certificate.loadPEM, block + _END + b"\n") for block in blocks]

    def __call__(self, host: str) -> Any:
        """A maker of connections to that host, whose certificate must name it."""
        return ssl.optionsForClientTLS(host, **self.read())

    @staticmethod
    def _content(path: Path) -> bytes:
        try:
            return path.expanduser().read_bytes()
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from None

    @staticmethod
    def _load(path: Path, load: Callable[[bytes], Any], content: bytes) -> Any:
        try:
            return load(content)
        except Exception:  # OpenSSL has an error of its own for each of its parts
            raise ValueError(f"{path}: there is no certificate (and key) in PEM form that can be read") from None


class EtcdArbiter:
    """Fulfils `resource_manager.core.arbiter.Arbiter` for the daemon of this name."""

    guarantee = Guarantee.LEASED
    log = Logger()

    def __init__(self, reactor: Any, client: EtcdClient, candidate: Candidate, keys: str, daemon: str) -> None:
        self._reactor = reactor
        self._client = client
        self._candidate = candidate
        self._turn_key = f"{keys}/turn".encode()
        self._primary_key = f"{keys}/primary".encode()
        self._daemon = daemon
        self._on_change: Callable[[], None] = lambda: None
        self._timer: Any = None
        self._news: Any = None
        self._watching: Deferred[str] | None = None
        self._watch_timer: Any = None
        self._closed = False

    # ---- see Arbiter

    def watch(self, on_change: Callable[[], None]) -> None:
        """Begin."""
        self._on_change = on_change
        self._do(self._candidate.start(self._now_s()))

    def health(self) -> Health:
        """By the renewals of the lease."""
        return self._candidate.health

    def acts_at(self, needed_since_s: float, now_s: float) -> float:
        """Campaigns, and says since when the turn was won."""
        self._do(self._candidate.wants(now_s))
        return NEVER if self._closed else self._candidate.acts_at(now_s)

    def rest(self) -> None:
        """Give up the turn."""
        self._do(self._candidate.rest(self._now_s()))

    def hears_of(self, daemons: Collection[str]) -> None:
        """etcd knows better."""

    def publish(self, view: Published) -> None:
        """Into the key of the primary."""
        self._do(self._candidate.publish(view, self._now_s()))

    def close(self) -> Deferred[None]:
        """Revoke the lease, and with it the turn."""
        self._closed = True
        for timer in (self._timer, self._news, self._watch_timer):
            if timer is not None and timer.active():
                timer.cancel()
        revoked: Deferred[Any] = Deferred()
        lease, self._on_change = self._candidate.lease, lambda: None
        if lease:
            revoked = self._client.call("/v3/lease/revoke", {"ID": str(lease)}, linearizable=False)
        else:
            revoked.callback(None)
        closed: Deferred[None] = revoked.addErrback(lambda _: None).addCallback(lambda _: self._client.close())
        return closed

    # ---- what is done

    def _now_s(self) -> float:
        return float(self._reactor.seconds())

    def _do(self, effects: list[Effect]) -> None:
        """Do these, in their order. Answers come in turns of the reactor's own."""
        if self._closed:
            return
        for effect in effects:
            match effect:
                case WakeAt(at_s):
                    self._wake_at(at_s)
                case Changed():
                    if self._news is None or not self._news.active():
                        self._news = self._reactor.callLater(0, self._on_change)
                case Watch(revision):
                    self._begin_watch(revision)
                case Grant() | Renew() | Campaign() | Resign() | Publish():
                    self._ask(effect)
                case _:
                    assert_never(effect)

    def _wake_at(self, at_s: float) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = self._reactor.callLater(
            max(at_s - self._now_s(), 0.001), lambda: self._do(self._candidate.wake(self._now_s()))
        )

    def _ask(self, request: Request) -> None:
        sent_s = self._now_s()

        def answered(answer: Answer) -> None:
            self._do(self._candidate.succeeded(answer, sent_s, self._now_s()))

        def failed(failure: Failure) -> None:
            error = failure.value
            if isinstance(error, KeyError | IndexError | TypeError | AttributeError | ValueError):
                error = EtcdError(Trouble.AWAY, f"an answer to {type(request).__name__.lower()} that is not one of etcd's")
            if not isinstance(error, EtcdError):
                failure.raiseException()
            self._do(self._candidate.failed(error.trouble, str(error), self._now_s(), error.wait_s))

        ensureDeferred(self._carry_out(request)).addCallbacks(answered, failed).addErrback(
            lambda failure: self.log.failure("etcd: a mistake in this daemon", failure=failure)
        )

    async def _carry_out(self, request: Request) -> Answer:
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
        """Unless a higher epoch is known; whoever writes at the same time is looked at again."""
        key = encoded(self._primary_key)
        value = json.dumps({"primary": view.primary, "epoch": view.epoch}).encode()
        for _ in range(_PUBLISH_ATTEMPTS):
            answer = await self._client.call("/v3/kv/range", {"key": key})
            kv = (answer.get("kvs") or [{}])[0]
            there = b64decode(kv.get("value", ""))
            if there == value or _epoch(there) > view.epoch:
                return
            compare = {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(kv.get("mod_revision", 0))}
            put = {"request_put": {"key": key, "value": encoded(value)}}
            answer = await self._client.call("/v3/kv/txn", {"compare": [compare], "success": [put]})
            if answer.get("succeeded"):
                return
        raise EtcdError(Trouble.AWAY, "the key of the primary changes all the time")

    # ---- the watch

    def _begin_watch(self, revision: int) -> None:
        def changed(holder: Holder) -> None:
            self._do(self._candidate.watched(holder, self._now_s()))

        def ended(_: object) -> None:
            if self._watch_timer.active():
                self._watch_timer.cancel()
            self._do(self._candidate.watch_ended(self._now_s()))

        watching = self._client.watch(self._turn_key, revision, changed)
        self._watch_timer = self._reactor.callLater(_WATCH_S, watching.cancel)
        watching.addBoth(ended)


def _epoch(value: bytes) -> int:
    """The epoch in the key of the primary; -1 when it has none that can be read."""
    try:
        epoch = json.loads(value)["epoch"]
    except (ValueError, TypeError, KeyError):
        return -1
    return epoch if isinstance(epoch, int) else -1
