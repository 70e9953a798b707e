"""A stand-in for the API server of Kubernetes, as strict as the real one about all that a mistake of ours would break.

Life: it listens on loopback, in a thread for each connection, and keeps objects of a few kinds in memory, with one counter of
resource versions and a history of changes. Strict: a write by another version than the object's is a conflict, and a Lease is
never written without one; what a schema of Kubernetes does not know, or has as another type, is refused (unknown fields too,
which the real one only drops); times of a Lease have six digits of a fraction; who has no token that is known is nobody, and
who is not an administrator may do what Roles and RoleBindings say that are in it, by namespace, verb, resource and name. Watches
begin with what there is, or after a version; they have bookmarks, and end with 410 when their version is older than what
`compact` left, and so do pages of a list. What has a finalizer is deleted when that is taken away, a claim only when no pod
uses it, a pod that has a node when its kubelet says so, and what an owner is gone of, with it. The spec of a pod and of a claim
stays as it is.

`tests/resource_manager/arbiters/test_kubernetes.py` holds it against a real server, by `make test-kubernetes`.
"""

from __future__ import annotations

import functools
import json
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from http.client import HTTPConnection, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from jsonschema.validators import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy/kubernetes"
ADMIN, DAEMON, CONTROLLER = "admin-token", "daemon-token", "controller-token"
"""Tokens: of an administrator, and of the accounts that the manifests make for the daemons and for qpid-scaledown."""
USERS = {
    ADMIN: "admin",
    DAEMON: "system:serviceaccount:default:understudy-resource-manager",
    CONTROLLER: "system:serviceaccount:default:qpid-scaledown",
}
KINDS = {
    "leases": ("coordination.k8s.io", "Lease"),
    "pods": ("", "Pod"),
    "persistentvolumeclaims": ("", "PersistentVolumeClaim"),
    "statefulsets": ("apps", "StatefulSet"),
    "roles": ("rbac.authorization.k8s.io", "Role"),
    "rolebindings": ("rbac.authorization.k8s.io", "RoleBinding"),
}
_WITH_STATUS = ("pods", "statefulsets", "persistentvolumeclaims")
SCHEMAS = "1.36.0"
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
}
Thing = dict[str, Any]
Key = tuple[str, str, str]
"""Resource, namespace and name."""


class Refusal(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def status(self) -> Thing:
        """As a body says it."""
        said = {"status": "Failure", "message": str(self), "reason": _REASONS.get(self.code, "Unknown"), "code": self.code}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, **said}


class Client:
    """An administrator of a server, the stand-in or a real one. `context` is what its connections over TLS are made of."""

    def __init__(self, port: int, context: SSLContext | None = None) -> None:
        self.port = port
        self.context = context

    def request(
        self, method: str, path: str, body: Any = None, token: str = ADMIN, content: str = "application/json"
    ) -> tuple[int, Thing]:
        """Status and body of the answer."""
        there = "127.0.0.1", self.port
        connection = (
            HTTPSConnection(*there, timeout=20, context=self.context) if self.context else HTTPConnection(*there, timeout=20)
        )
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": content}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def make(self, thing: Thing) -> None:
        """Create it, in the namespace `default` if it names no other."""
        [resource] = [resource for resource, (_, kind) in KINDS.items() if kind == thing["kind"]]
        namespace = thing["metadata"].get("namespace", "default")
        status, answer = self.request("POST", path_of(resource, namespace=namespace), thing)
        assert status == 201, answer

    def get(self, resource: str, name: str, namespace: str = "default") -> Thing:
        """It, as it is now; {} when it is not there."""
        status, answer = self.request("GET", path_of(resource, name, namespace=namespace))
        return answer if status == 200 else {}

    def change(self, resource: str, name: str, patch: Thing, namespace: str = "default") -> Thing:
        """By a merge patch. NAME/status changes the status."""
        path = path_of(resource, name, namespace=namespace)
        status, answer = self.request("PATCH", path, patch, content="application/merge-patch+json")
        assert status == 200, answer
        return answer

    def delete(self, resource: str, name: str, namespace: str = "default") -> None:
        """At once."""
        status, answer = self.request("DELETE", path_of(resource, name, "gracePeriodSeconds=0", namespace))
        assert status == 200, answer


def path_of(resource: str, name: str = "", query: str = "", namespace: str = "default") -> str:
    """Where it is."""
    group = KINDS[resource][0]
    path = f"{f'/apis/{group}' if group else '/api'}/v1/namespaces/{namespace}/{resource}"
    return path + (f"/{name}" if name else "") + (f"?{query}" if query else "")


def manifests(file: str) -> list[Thing]:
    """What a file of deploy/kubernetes describes; each caller may change what it gets."""
    return deepcopy(_read(file))


@functools.cache
def _read(file: str) -> list[Thing]:
    """The same for all: to read YAML takes a hundred times as long as to copy what was read."""
    return [thing for thing in yaml.safe_load_all((MANIFESTS / file).read_text()) if thing]


def rights(file: str = "resource-manager.yaml") -> list[Thing]:
    """What a file of the manifests lets somebody do; else what they let the daemons do."""
    return [thing for thing in manifests(file) if thing["kind"] in ("Role", "RoleBinding")]


def all_leases() -> list[Thing]:
    """And for tests that have other Leases than the one that the Role names."""
    metadata = {"name": "all-leases"}
    rules = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update", "watch", "create"]}]
    [binding] = [deepcopy(thing) for thing in rights() if thing["kind"] == "RoleBinding"]
    binding["roleRef"]["name"] = binding["metadata"]["name"] = "all-leases"
    return [{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules}, binding]


def pod(name: str, **labels: str) -> Thing:
    """A broker's pod, as the StatefulSet's template makes it."""
    metadata = {"name": name, "labels": {"app": "understudy", **labels}}
    spec = {"containers": [{"name": "qpidd", "image": "registry.example/understudy:0.2.0"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class ApiServer(Client):
    """See the module."""

    def __init__(self, tls: SSLContext | None = None, context: SSLContext | None = None) -> None:
        self.answers: list[tuple[str, str, str, int]] = []
        """User, verb, resource and status of each answer, in order."""
        self.users = dict(USERS)
        self.namespaces = {"default"}
        self._changed = threading.Condition()
        self._things: dict[Key, Thing] = {}
        self._history: list[tuple[int, Key, str, Thing]] = []
        self._version = 100
        self._oldest = 0
        self._closed = False
        self._tls = tls
        self._sockets: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        super().__init__(0, context)
        self.start()

    def start(self) -> None:
        """Listen; where it did before, with all that it knew."""
        self._closed = False
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler_for(self))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether it listens."""
        return self._server is not None

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}"

    def compact(self) -> None:
        """Forget what was before the last change."""
        with self._changed:
            self._oldest = self._version

    def kill(self) -> None:
        """End, and with it all connections."""
        if self._server is None:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        for one in list(self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    # ---- who may

    def check(self, token: str, verb: str, key: Key) -> None:
        """Refusal when the owner of that token may not."""
        resource, namespace, name = key
        user = self.users.get(token)
        if user is None:
            raise Refusal(401, "Unauthorized")
        if user != "admin" and not any(self._allows(rule, verb, resource, name) for rule in self._rules(user, namespace)):
            which = f'"{name}" ' if name else ""
            raise Refusal(403, f'{resource} {which}is forbidden: User "{user}" cannot {verb} resource "{resource}"')

    def _rules(self, user: str, namespace: str) -> Iterator[Thing]:
        for (resource, where, _), binding in list(self._things.items()):
            if (resource, where) == ("rolebindings", namespace) and user in [
                f"system:serviceaccount:{subject.get('namespace', where)}:{subject['name']}" for subject in binding["subjects"]
            ]:
                yield from self._things.get(("roles", where, binding["roleRef"]["name"]), {}).get("rules", [])

    @staticmethod
    def _allows(rule: Thing, verb: str, resource: str, name: str) -> bool:
        names = rule.get("resourceNames")
        return (
            KINDS[resource.partition("/")[0]][0] in rule["apiGroups"]
            and resource in rule["resources"]
            and verb in rule["verbs"]
            and (not names or name in names)
        )

    # ---- what is asked

    def validate(self, resource: str, thing: Thing) -> None:
        """Refusal of what Kubernetes would not take."""
        _validate(resource, thing)

    def get_one(self, key: Key) -> Thing:
        with self._changed:
            return deepcopy(self._found(key))

    def _found(self, key: Key) -> Thing:
        if key not in self._things:
            raise Refusal(404, f'{key[0]} "{key[2]}" not found')
        return self._things[key]

    def get_all(self, resource: str, namespace: str, query: dict[str, str]) -> Thing:
        """A page of `limit` objects, by name; the version of each page is that of the first."""
        group, kind = KINDS[resource]
        field = query.get("fieldSelector", "").partition("=")[0]
        if field not in ("", "metadata.name"):
            raise Refusal(400, f"field label not supported: {field}")
        with self._changed:
            version, _, after = query.get("continue", f"{self._version} ").partition(" ")
            if "continue" in query and int(version) < self._oldest:
                raise Refusal(410, "The provided continue parameter is too old to display a consistent list result")
            there = sorted(key for key in self._things if key[:2] == (resource, namespace) and key[2] > after)
            items = [deepcopy(self._things[key]) for key in there if _selected(self._things[key], query)]
            limit = int(query.get("limit", 0)) or len(items)
            metadata: Thing = {"resourceVersion": str(version)}
            if len(items) > limit:
                metadata["continue"] = f"{version} {items[limit - 1]['metadata']['name']}"
            api = f"{group}/v1" if group else "v1"
            return {"kind": f"{kind}List", "apiVersion": api, "metadata": metadata, "items": items[:limit]}

    def create(self, resource: str, namespace: str, thing: Thing) -> Thing:
        self.validate(resource, thing)
        key = resource, namespace, thing["metadata"]["name"]
        with self._changed:
            if thing["metadata"].get("namespace", namespace) != namespace:
                raise Refusal(400, "the namespace of the provided object does not match the namespace sent on the request")
            if key in self._things:
                raise Refusal(409, f'{resource} "{key[2]}" already exists')
            if "resourceVersion" in thing["metadata"]:
                raise Refusal(400, "resourceVersion should not be set on objects to be created")
            given: Thing = {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-11-23T10:00:00Z", "namespace": namespace}
            given |= {"generation": 1} if resource == "statefulsets" else {}
            return self._write("ADDED", key, {**thing, "metadata": thing["metadata"] | given})

    def update(self, key: Key, thing: Thing) -> Thing:
        resource, namespace, name = key
        self.validate(resource, thing)
        if thing["metadata"].get("name") != name:
            raise Refusal(400, "the name of the object does not match the name on the URL")
        with self._changed:
            version = thing["metadata"].get("resourceVersion")
            if resource == "leases" and key not in self._things:
                if version:
                    raise Refusal(409, f'leases "{name}": the object has been modified')
                return self.create(resource, namespace, thing)
            there = self._found(key)
            if not version and resource == "leases":
                raise Refusal(422, "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update")
            return self._replace(key, there, thing, version)

    def patch(self, key: Key, patch: Thing, part: str = "") -> Thing:
        """`part`: the status alone; else all but that."""
        with self._changed:
            there = self._found(key)
            version = (patch.get("metadata") or {}).get("resourceVersion")
            merged = _merged(there, patch)
            self.validate(key[0], merged)
            fixed = [field for field in ("metadata", "spec") if part] or (["status"] if key[0] in _WITH_STATUS else [])
            wanted = {field: value for field, value in merged.items() if field not in fixed}
            return self._replace(key, there, wanted | {field: there[field] for field in fixed if field in there}, version)

    def _replace(self, key: Key, there: Thing, thing: Thing, version: str | None) -> Thing:
        resource, _, name = key
        metadata = there["metadata"]
        if (
            version not in (None, "", metadata["resourceVersion"])
            or thing["metadata"].get("uid", metadata["uid"]) != metadata["uid"]
        ):
            raise Refusal(409, f'Operation cannot be fulfilled on {resource} "{name}": the object has been modified')
        placed = {"nodeName": thing["spec"]["nodeName"]} if "nodeName" in (thing.get("spec") or {}) else {}
        if resource in ("pods", "persistentvolumeclaims") and thing.get("spec") != {**(there.get("spec") or {}), **placed}:
            raise Refusal(422, f'{resource} "{name}" is invalid: spec: Forbidden: it may not be changed')
        if "deletionTimestamp" in metadata and set(_finalizers(thing)) - set(_finalizers(there)):
            raise Refusal(422, "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted")
        fields = ("uid", "creationTimestamp", "namespace", "resourceVersion", "generation", "deletionTimestamp")
        kept = {field: metadata[field] for field in fields if field in metadata}
        wanted = {**thing, "metadata": thing["metadata"] | kept}
        if wanted == there:
            return deepcopy(there)
        if "generation" in metadata and wanted["spec"] != there["spec"]:
            wanted["metadata"]["generation"] = metadata["generation"] + 1
        written = self._write("MODIFIED", key, wanted)
        self._sweep()
        return written

    def remove(self, key: Key, options: Thing) -> Thing:
        """It, as it is being deleted, or that it is gone."""
        with self._changed:
            thing = self._found(key)
            metadata, wanted = thing["metadata"], options.get("preconditions") or {}
            for field in ("uid", "resourceVersion"):
                if wanted.get(field, metadata[field]) != metadata[field]:
                    there = f"the {field} in the precondition ({wanted[field]}) does not match that of the object"
                    raise Refusal(409, f'Operation cannot be fulfilled on {key[0]} "{key[2]}": {there} ({metadata[field]})')
            grace_s = options.get("gracePeriodSeconds", thing.get("spec", {}).get("terminationGracePeriodSeconds", 30))
            runs = key[0] == "pods" and "nodeName" in thing["spec"] and not _has_ended(thing) and grace_s > 0
            if runs or self._is_held(key, thing):
                if "deletionTimestamp" not in metadata:
                    self._write("MODIFIED", key, {**thing, "metadata": metadata | {"deletionTimestamp": "2026-11-23T10:00:00Z"}})
                return deepcopy(self._things[key])
            self._forget(key)
            self._sweep()
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _is_held(self, key: Key, thing: Thing) -> bool:
        """Whether it may not go yet: it has a finalizer, or is a claim that a pod uses (whose finalizer is not shown here)."""
        if key[0] != "persistentvolumeclaims" or _finalizers(thing):
            return bool(_finalizers(thing))
        pods = [pod for (resource, namespace, _), pod in self._things.items() if (resource, namespace) == ("pods", key[1])]
        return any(key[2] in _claims_of(pod) and not _has_ended(pod) for pod in pods)

    def _sweep(self) -> None:
        """What is being deleted goes when nothing holds it, and what belongs to something that is gone."""
        there = {thing["metadata"]["uid"] for thing in self._things.values()}
        for key, thing in list(self._things.items()):
            owners = {owner["uid"] for owner in thing["metadata"].get("ownerReferences") or ()}
            if owners and not owners & there:
                self.remove(key, {})
            elif key[0] != "pods" and "deletionTimestamp" in thing["metadata"] and not self._is_held(key, thing):
                self._forget(key)

    def _forget(self, key: Key) -> None:
        self._note("DELETED", key, self._things.pop(key))

    def _write(self, event: str, key: Key, thing: Thing) -> Thing:
        self._things[key] = thing
        self._note(event, key, thing)
        return deepcopy(thing)

    def _note(self, event: str, key: Key, thing: Thing) -> None:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, key, event, deepcopy(thing)))
        self._changed.notify_all()

    # ---- watches

    def watch(self, resource: str, namespace: str, query: dict[str, str]) -> Iterator[Thing | None]:
        """Its events as they come; None when there was none for a while."""
        seen = int(query.get("resourceVersion", 0))
        if not seen:  # what there is, and then what changes
            there = self.get_all(resource, namespace, query)
            yield from ({"type": "ADDED", "object": thing} for thing in there["items"])
            seen = int(there["metadata"]["resourceVersion"])
        until_s = time.monotonic() + float(query.get("timeoutSeconds", 1800))
        while not self._closed and time.monotonic() < until_s:
            with self._changed:
                gone, new = self._oldest if seen < self._oldest else 0, [entry for entry in self._history if entry[0] > seen]
                if not gone and not new:
                    self._changed.wait(0.2)
            if gone:
                yield {"type": "ERROR", "object": Refusal(410, f"too old resource version: {seen} ({gone})").status}
                return
            for version, key, event, thing in new:
                seen = version
                if key[:2] == (resource, namespace) and _selected(thing, query):
                    yield {"type": event, "object": thing}
            if not new:
                yield self._bookmark(resource, seen) if query.get("allowWatchBookmarks") == "true" else None

    @staticmethod
    def _bookmark(resource: str, version: int) -> Thing:
        group, kind = KINDS[resource]
        metadata = {"resourceVersion": str(version), "creationTimestamp": None}
        return {
            "type": "BOOKMARK",
            "object": {"kind": kind, "apiVersion": f"{group}/v1" if group else "v1", "metadata": metadata, "spec": {}},
        }


def _selected(thing: Thing, query: dict[str, str]) -> bool:
    wanted = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part)
    field, _, value = query.get("fieldSelector", "").partition("=")
    labels = thing["metadata"].get("labels") or {}
    return wanted.items() <= labels.items() and (not field or thing["metadata"]["name"] == value)


def _finalizers(thing: Thing) -> list[str]:
    return thing["metadata"].get("finalizers") or []


def _has_ended(pod: Thing) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _claims_of(pod: Thing) -> list[str]:
    volumes = pod["spec"].get("volumes") or []
    return [volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume]


def _merged(there: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(there) if isinstance(there, dict) else {}
    for field, value in patch.items():
        if value is None:
            merged.pop(field, None)
        else:
            merged[field] = _merged(merged.get(field), value)
    return merged


@functools.cache
def _schema(kind: str, version: str) -> Any:
    """As `kubernetes_validate.validate` with `strict` has it; that one reads megabytes anew for each object."""
    folder = f"kubernetes-json-schema/v{SCHEMAS}-local-strict"
    schema, definitions = (
        schema_contents(f"{folder}/{file}.json", SCHEMAS) for file in (f"{kind.lower()}-{version}", "_definitions")
    )
    registry: Any = Resource.from_contents(definitions) @ (Resource.from_contents(schema) @ Registry())
    return Draft202012Validator(schema, registry=registry)


def _validate(resource: str, thing: Thing) -> None:
    group, kind = KINDS[resource]
    if thing.get("kind") != kind or thing.get("apiVersion") != (f"{group}/v1" if group else "v1"):
        raise Refusal(400, f"the object provided is unrecognized (must be of type {kind})")
    spec = thing.get("spec") or {}
    for field in ("renewTime", "acquireTime"):
        if resource == "leases" and field in spec and not _MICRO_TIME.fullmatch(str(spec[field])):
            raise Refusal(400, f'parsing time "{spec[field]}" as "2006-01-02T15:04:05.000000Z07:00": cannot parse')
    wrong = next(_schema(kind, f"{group.partition('.')[0]}-v1" if group else "v1").iter_errors(thing), None)
    if wrong is not None:
        raise Refusal(400, f"{kind} in version v1 cannot be handled: {wrong.message}")
    if resource == "leases" and spec.get("leaseDurationSeconds", 1) <= 0:
        raise Refusal(422, "spec.leaseDurationSeconds: Invalid value: must be greater than 0")
    if resource == "leases" and spec.get("leaseTransitions", 0) < 0:
        raise Refusal(422, "spec.leaseTransitions: Invalid value: must be greater than or equal to 0")


def _handler_for(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        asked = "", "", ""

        def handle(self) -> None:
            server._sockets.add(self.connection)
            with suppress(OSError):
                super().handle()
            server._sockets.discard(self.connection)

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.asked = "", "", ""
            try:
                code, answer = self.answer(body)
            except Refusal as refusal:
                code, answer = refusal.code, refusal.status
            server.answers.append((*self.asked, code))
            if answer is not None:
                self.write(code, answer)

        def do_GET(self) -> None:
            self.respond()

        def do_POST(self) -> None:
            self.respond()

        def do_PUT(self) -> None:
            self.respond()

        def do_PATCH(self) -> None:
            self.respond()

        def do_DELETE(self) -> None:
            self.respond()

        def answer(self, body: bytes) -> tuple[int, Thing | None]:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            match = re.fullmatch(r"/(?:api|apis/([^/]+))/v1/namespaces/([^/]+)/(\w+)(?:/([^/]+)(/status)?)?", url.path)
            if match is None or match[3] not in KINDS or KINDS[match[3]][0] != (match[1] or ""):
                raise Refusal(404, "the server could not find the requested resource")
            resource, namespace, name, part = match[3], match[2], match[4] or "", match[5] or ""
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(
                self.command, "get" if name else "list"
            )
            self.asked = server.users.get(token, ""), verb, resource
            watches = verb == "list" and query.get("watch") == "true"
            named = name or query.get("fieldSelector", "").removeprefix("metadata.name=")
            server.check(token, "watch" if watches else verb, (resource + part, namespace, named))
            if namespace not in server.namespaces:
                raise Refusal(404, f'namespaces "{namespace}" not found')
            key = resource, namespace, name
            if watches:
                server.get_all(resource, namespace, query)  # which refuses what cannot be selected by
                self.stream(server.watch(resource, namespace, query))
                return 200, None
            if self.command in ("POST", "PUT") and self.headers.get("Content-Type") != "application/json":
                raise Refusal(415, "the body of the request was in an unknown format")
            if verb == "patch" and self.headers.get("Content-Type") != "application/merge-patch+json":
                raise Refusal(415, "the body of the request was in an unknown format")
            match verb:
                case "get":
                    return 200, server.get_one(key)
                case "list":
                    return 200, server.get_all(resource, namespace, query)
                case "create":
                    return 201, server.create(resource, namespace, _object(body))
                case "update":
                    made = resource == "leases" and key not in server._things
                    return 201 if made else 200, server.update(key, _object(body))
                case "patch":
                    return 200, server.patch(key, _object(body), part)
                case _:
                    options = _object(body) if body else {}
                    grace = {"gracePeriodSeconds": int(query["gracePeriodSeconds"])} if "gracePeriodSeconds" in query else {}
                    return 200, server.remove(key, options | grace)

        def write(self, code: int, answer: Thing) -> None:
            content = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def stream(self, events: Iterator[Thing | None]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            for event in events:
                if event is not None:
                    self.wfile.write(json.dumps(event).encode() + b"\n")

        def log_message(self, *arguments: Any) -> None:
            """Nobody reads it."""

    return Handler


def _object(body: bytes) -> Thing:
    try:
        thing = json.loads(body)
    except ValueError:
        raise Refusal(400, "the object provided is unrecognized: it is not JSON") from None
    if not isinstance(thing, dict):
        raise Refusal(400, "the object provided is unrecognized")
    return thing


@contextmanager
def running_api_server(tls: SSLContext | None = None, context: SSLContext | None = None) -> Iterator[ApiServer]:
    """One that knows what the manifests let the daemons do; over TLS with `tls`, of which `context` is the clients' side."""
    server = ApiServer(tls, context)
    try:
        for thing in rights():
            server.make(thing)
        yield server
    finally:
        server.kill()
