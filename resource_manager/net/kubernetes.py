"""A client for the API server of Kubernetes, in Twisted's reactor, by treq: objects of one namespace.

Life of a `KubernetesClient`: `call` makes one attempt within one timeout; the caller tries again after its own pause.
The token is read again for each attempt, because its file is replaced during use. `list_all` reads all objects of a
kind, page by page. `watch` streams their changes. `close` ends everything in progress.

Invariants: an answer must be of the requested kind. No text contains a token. Readings name no resource version, so
they are not served from a copy that may be stale. A failed write gives READ_ONLY: turns cannot be decided until a write
succeeds, even if readings do. If this account lacks a right, the error names the verb and the resource that its Role
lacks.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/ (resource versions, watches, pages, merge patches).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from twisted.internet.defer import Deferred

from resource_manager.core.candidate import Trouble
from resource_manager.net.web import LONGEST_WAIT_S, Refused, StoreError, Web, parsed, said

LEASE, POD, STATEFUL_SET, CLAIM = "Lease", "Pod", "StatefulSet", "PersistentVolumeClaim"
_PLACES = {
    LEASE: ("/apis/coordination.k8s.io/v1", "leases"),
    POD: ("/api/v1", "pods"),
    STATEFUL_SET: ("/apis/apps/v1", "statefulsets"),
    CLAIM: ("/api/v1", "persistentvolumeclaims"),
}
_METHODS = {"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
_WRITES = ("create", "update", "patch", "delete")
CONFLICT, NOT_FOUND, GONE = 409, 404, 410
ADDED, MODIFIED, DELETED, BOOKMARK = "ADDED", "MODIFIED", "DELETED", "BOOKMARK"
"""The types of events of a watch; only the resource version of a bookmark counts."""
PAGE, MOST = 25, 10_000
"""The number of objects of a page, which must fit into `web.MAX_ANSWER_BYTES`; and of all pages."""

Thing = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Server:
    """The URL of the API server, without a path; the namespace; `token` reads the token, "" for none. It raises
    ValueError if the token cannot be read.
    """

    url: str
    namespace: str
    token: Callable[[], str] = str


class KubernetesClient:
    """See the module. `tls` makes the connections if the server uses https."""

    def __init__(self, reactor: Any, server: Server, timeout_s: float, tls: Callable[[str], Any] | None = None) -> None:
        self._server = server
        self._web = Web(reactor, timeout_s, tls)

    def call(self, verb: str, kind: str, name: str = "", body: Any = None, **query: str) -> Deferred[Thing]:
        """Make one attempt. StoreError. `verb` is RBAC's; `body` is the object, for `patch` a JSON merge patch, for
        `delete` its options, whose answer may be a Status.
        """
        kinds = (f"{kind}List",) if verb == "list" else (kind, "Status") if verb == "delete" else (kind,)

        async def attempt() -> Thing:
            answer = parsed(await self._web.whole(await self._send(verb, kind, name, body, query)))
            if answer.get("kind") not in kinds:
                raise ValueError("the answer is not one of Kubernetes'")
            return answer

        return self._in_time(verb, kind, attempt)

    async def list_all(self, kind: str, **query: str) -> tuple[list[Thing], str]:
        """All objects of a kind, and the resource version of the list. StoreError; if a page came too late, its status
        is GONE.
        """
        found, after = list[Thing](), {"limit": str(PAGE)}
        while True:
            page = await self.call("list", kind, **query, **after)
            found += page.get("items") or []
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return found, str(metadata["resourceVersion"])
            if len(found) >= MOST:
                raise StoreError(Trouble.AWAY, f"the namespace {self._server.namespace} has more than {MOST} {_PLACES[kind][1]}")
            after = {"limit": str(PAGE), "continue": str(metadata["continue"])}

    def watch(self, kind: str, on_change: Callable[[Thing, str], None], **query: str) -> Deferred[str]:
        """Call `on_change` with an object and its event: from the present state on, or after the resource version in
        `query`. Fires with the reason when the watch ends.
        """
        asked = {"watch": "true", "allowWatchBookmarks": "true", **query}

        async def begin() -> Any:
            response = await self._send("watch", kind, "", None, asked)
            if response.code != 200:
                await self._web.whole(response)
            return response

        return self._web.stream(lambda: self._in_time("watch", kind, begin), lambda line: _watched(line, on_change))

    def close(self) -> Deferred[None]:
        """End everything in progress, and the connections."""
        return self._web.close()

    def _send(self, verb: str, kind: str, name: str, body: Any, query: dict[str, str]) -> Deferred[Any]:
        group, resource = _PLACES[kind]
        url = "/".join([f"{self._server.url}{group}/namespaces", self._server.namespace, resource, *([name] if name else [])])
        headers = {"Accept": "application/json", "User-Agent": "understudy"}
        if token := self._server.token():
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json" if verb == "patch" else "application/json"
        return self._web.send(
            _METHODS[verb],
            f"{url}?{urlencode(query)}" if query else url,
            headers,
            b"" if body is None else json.dumps(body).encode(),
        )

    def _in_time(self, verb: str, kind: str, work: Callable[[], Any]) -> Deferred[Any]:
        return self._web.in_time(work(), lambda error, timed_out: self._error(verb, kind, error, timed_out))

    def _error(self, verb: str, kind: str, error: BaseException, timed_out: bool) -> StoreError:
        server, trouble = self._server, Trouble.READ_ONLY if verb in _WRITES else Trouble.AWAY
        match error:
            case StoreError():
                return error
            case Refused(401, text):
                return StoreError(trouble, f"{server.url}: 401 {text}: its token is not taken", status=401)
            case Refused(403, text):
                lacks = f"this account may not {verb} {_PLACES[kind][1]} in the namespace {server.namespace}"
                return StoreError(trouble, f"{server.url}: 403 {lacks}: {text}", status=403)
            case Refused(status, text, _, retry_after_s):
                return StoreError(trouble, f"{server.url}: {status} {text}", min(retry_after_s, LONGEST_WAIT_S), status)
            case _ if timed_out:
                return StoreError(trouble, f"{server.url}: no answer for {self._web.timeout_s:g} s")
            case _:
                return StoreError(trouble, f"{server.url}: {said(error)}")


def version_of(thing: Thing) -> int:
    """The resource version of an object: a number that grows with each change of the object. ValueError, KeyError."""
    return int(thing["metadata"]["resourceVersion"])


def _watched(line: bytes, on_change: Callable[[Thing, str], None]) -> str:
    """Report the change in a line of a watch. Returns why the watch has ended, "" if it has not."""
    told = parsed(line)
    thing = told.get("object")
    if not isinstance(thing, dict):
        raise ValueError("an event without an object")
    match told.get("type"):
        case "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK" as what:
            on_change(thing, what)
        case "ERROR" if thing.get("code") == GONE:
            return f"the history that the watch needs is gone: {thing.get('message')}"
        case _:
            return f"the watch failed: {thing.get('message')}"
    return ""
