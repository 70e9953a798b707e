"""A client for etcd's JSON gateway (etcd v3, POST /v3/...), in Twisted's reactor, by treq.

Life of an `EtcdClient`: it has a list of endpoints, and uses one while that answers. `call` makes one attempt with one
timeout, and moves on to the next endpoint if it fails. The caller tries again after its own pause. With a user, the
client first gets a token, and another one when etcd no longer accepts the token. `watch` streams the changes of a key.
`close` ends everything in progress.

Invariants: an answer has at most MAX_ANSWER_BYTES. An answer of another etcd cluster than the first is refused. An
answer to a reading or a transaction that is older than an earlier answer is stale and refused. No text contains
passwords or tokens.

Gateway: false, zero and empty fields are left out of answers. Numbers of 64 bits are strings. Keys and values are
Base64. Errors are in `message` (and in etcd 3.4 in `error` too). Source:
https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/ and rpc.proto of etcd 3.4.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from resource_manager.core.candidate import NO_LEASE, Holder, Trouble
from resource_manager.net.web import LONGEST_WAIT_S, Refused, StoreError, Web, parsed, said

T = TypeVar("T")
_UNAUTHENTICATED = 16
_NO_SPACE = "database space exceeded"
_NO_LEASE = "requested lease not found"
_OLD_TOKEN = "revision of auth store is old"
"""A token that signs itself (JWT) is of before the last change of users or roles."""


@dataclass(frozen=True, slots=True)
class Access:
    """The login: `password` is read again for each login. Both are empty for an etcd without users."""

    user: str = ""
    password: Callable[[], str] = str


class EtcdClient:
    """See the module. `endpoints` are URLs without a path; `tls` makes the https connections."""

    def __init__(
        self,
        reactor: Any,
        endpoints: tuple[str, ...],
        access: Access,
        timeout_s: float,
        tls: Callable[[str], Any] | None = None,
    ) -> None:
        self._reactor = reactor
        self._endpoints = endpoints
        self._access = access
        self._web = Web(reactor, timeout_s, tls)
        self._at = 0
        self._not_before_s = [0.0] * len(endpoints)
        self._token = ""
        self._cluster = ""
        self._revision = 0

    # ---- calls

    def call(self, path: str, body: dict[str, Any], *, linearizable: bool = True) -> Deferred[dict[str, Any]]:
        """Make one attempt. StoreError. `linearizable`: the answer must not be older than earlier ones."""

        at = self._at

        async def attempt() -> dict[str, Any]:
            try:
                answer = await self._post(at, path, body)
            except Refused as refused:
                if not self._access.user or not _wants_login(refused):
                    raise
                self._token = ""
                answer = await self._post(at, path, body)
            self._check(at, answer, linearizable)
            return answer

        return self._in_time(at, attempt())

    async def _post(self, at: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self._access.user and not self._token:
            login = {"name": self._access.user, "password": self._access.password()}
            self._token = str(parsed(await self._exchange(at, "/v3/auth/authenticate", login)).get("token", ""))
        return parsed(await self._exchange(at, path, body))

    async def _exchange(self, at: int, path: str, body: dict[str, Any]) -> bytes:
        return await self._web.whole(await self._send(at, path, body))

    def _send(self, at: int, path: str, body: dict[str, Any]) -> Deferred[Any]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        return self._web.send("POST", self._endpoints[at] + path, headers, json.dumps(body).encode())

    def _in_time(self, at: int, work: Coroutine[Any, Any, T]) -> Deferred[T]:
        """Do the work within the timeout, or raise StoreError; use the next endpoint after an error."""

        def explained(error: BaseException, timed_out: bool) -> StoreError:
            found = self._error(self._endpoints[at], error, timed_out)
            if found.trouble is Trouble.AWAY:
                found.wait_s = self._turn_from(at, found.wait_s)
            return found

        return self._web.in_time(work, explained)

    def _error(self, endpoint: str, error: BaseException, timed_out: bool) -> StoreError:
        match error:
            case StoreError():
                return error
            case Refused(status, text, _, retry_after_s):
                if _NO_LEASE in text:
                    return StoreError(Trouble.LEASE_GONE, f"{endpoint}: {text}")
                trouble = Trouble.READ_ONLY if _NO_SPACE in text else Trouble.AWAY
                return StoreError(trouble, f"{endpoint}: {status} {text}", retry_after_s)
            case _ if timed_out:
                return StoreError(Trouble.AWAY, f"{endpoint}: no answer for {self._web.timeout_s:g} s")
            case _:
                return StoreError(Trouble.AWAY, f"{endpoint}: {said(error)}")

    def _turn_from(self, at: int, wait_s: float) -> float:
        """Select the endpoint that may be asked first. Returns for how long it must not be asked yet."""
        now_s, count = float(self._reactor.seconds()), len(self._endpoints)
        self._not_before_s[at] = now_s + min(wait_s, LONGEST_WAIT_S)
        if self._at == at:
            following = [(at + step) % count for step in range(1, count + 1)]
            self._at = min(following, key=lambda number: max(self._not_before_s[number], now_s))
        return max(self._not_before_s[self._at] - now_s, 0.0)

    def _check(self, at: int, answer: dict[str, Any], linearizable: bool) -> None:
        header = answer.get("header") or (answer.get("result") or {}).get("header") or {}
        endpoint, cluster, revision = self._endpoints[at], str(header.get("cluster_id", "")), _number(header, "revision")
        if not cluster:
            raise StoreError(Trouble.AWAY, f"{endpoint}: the answer is not one of etcd's")
        if self._cluster not in ("", cluster):
            raise StoreError(Trouble.AWAY, f"{endpoint}: it is of another etcd cluster: {cluster} instead of {self._cluster}")
        if linearizable and revision < self._revision:
            raise StoreError(
                Trouble.AWAY,
                f"{endpoint}: a stale answer, of revision {revision} after {self._revision}; if etcd was restored from a backup, "
                "restart this daemon",
            )
        self._cluster, self._revision = cluster, max(self._revision, revision if linearizable else 0)

    # ---- a watch

    def watch(self, key: bytes, revision: int, on_change: Callable[[Holder], None]) -> Deferred[str]:
        """Call `on_change` for each change of the key after that revision. Fires with the reason when the watch ends."""
        body = {"create_request": {"key": encoded(key), "start_revision": str(revision + 1)}}
        at = self._at

        async def begin() -> Any:
            if self._access.user and not self._token:
                raise StoreError(Trouble.AWAY, "not logged in")
            response = await self._send(at, "/v3/watch", body)
            if response.code != 200:
                await self._web.whole(response)
            return response

        return self._web.stream(lambda: self._in_time(at, begin()), lambda line: _watched(line, on_change))

    def close(self) -> Deferred[None]:
        """End everything in progress, and the connections."""
        return self._web.close()


def encoded(value: bytes) -> str:
    """Encode for the gateway."""
    return b64encode(value).decode()


def holder_of(kv: dict[str, Any], revision: int) -> Holder:
    """The daemon with the turn by this key, at this revision; none if the key is {}."""
    name = b64decode(kv.get("value", "")).decode(errors="replace")
    return Holder(_number(kv, "lease"), name, revision) if kv else Holder(NO_LEASE, "", revision)


def revision_of(answer: dict[str, Any]) -> int:
    """The revision at which etcd answered."""
    return _number(answer.get("header") or {}, "revision")


# ---- answers


def _wants_login(refused: Refused) -> bool:
    """Whether etcd does not accept the token any more."""
    return refused.status == 401 or refused.code == _UNAUTHENTICATED or _OLD_TOKEN in refused.text


def _number(fields: dict[str, Any], name: str) -> int:
    return int(fields.get(name) or 0)


def _watched(line: bytes, on_change: Callable[[Holder], None]) -> str:
    """Report the changes in a line of a watch. Returns why the watch has ended, "" if it has not."""
    told = parsed(line)
    result = told.get("result")
    if not isinstance(result, dict):
        refused = told.get("error")
        return f"the watch failed: {refused.get('message') if isinstance(refused, dict) else refused or 'it tells nothing'}"
    for event in result.get("events") or ():
        kv = event.get("kv") or {}
        on_change(holder_of({} if event.get("type") == "DELETE" else kv, _number(kv, "mod_revision")))
    compacted = _number(result, "compact_revision")
    if result.get("canceled"):
        return f"etcd was compacted up to revision {compacted}" if compacted else "etcd has ended the watch"
    return ""
