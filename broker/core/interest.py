"""Which messages of an exchange are wanted, as the sources of its dynamic routes are told.

Life of an interest: it begins with the first dynamic route of an exchange that runs, and follows the bindings of the exchange
here, each change by itself (`put`). When the exchange is another one, another interest is filled, and takes its place when it is
complete (`become`). For each source, `wanted` gives the arguments of a binding that the source must have, or None. Bindings that
match the same messages are one binding there, identified by its key. On a headers exchange only the arguments decide, and the key
is a digest of them; on a fanout exchange nothing decides, and there is one binding.

A binding of an ordinary queue is a wish of this cluster. A binding of the queue of another cluster's dynamic route passes on the
wishes of other clusters. It says for each of these clusters, in the argument PATHS, which clusters the wish has passed: a path,
from the cluster that has the wish to the one whose route has made the binding. So wishes are propagated as routes are in BGP, by
path vectors: for each origin, the shortest path is passed on, with this cluster at its end, to each source that is not on it.

Invariants: a path names each cluster once, so no wish keeps itself alive in a circle of routes; the wish of each cluster is known
to every cluster that it can reach; equal bindings give equal arguments, whatever the order of changes; a change costs as much as
the bindings that match the same messages, not as all bindings. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.core import limits
from broker.core.exchange import FANOUT, HEADERS, PATHS

OWN_QUEUES = "qpid-route."
"""How the names of the queues begin that routes of exchanges have at their sources."""

Path = tuple[str, ...]
"""The identities of clusters, from the one that has a wish to the last one that has passed it on."""
_to_json = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def text_of(arguments: Mapping[str, Any]) -> str:
    """Arguments as a text that is equal for equal ones only: true is not 1."""
    return _to_json(arguments)


def fault_of_paths(queue: str, value: Any) -> str:
    """The fault of a requested argument PATHS of a binding of this queue, as a text for the user; "" if it has none."""
    if not queue.startswith(OWN_QUEUES):
        return f"the argument {PATHS} is for the queues of dynamic routes"
    if not isinstance(value, list) or not 0 < len(value) <= limits.MAX_BINDING_ORIGINS or not all(map(_is_path, value)):
        return f"{PATHS} must be a list of up to {limits.MAX_BINDING_ORIGINS} lists of identities of clusters"
    return ""


def _is_path(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= limits.MAX_ROUTE_HOPS
        and all(isinstance(each, str) and 0 < len(each) <= limits.MAX_NAME_BYTES for each in value)
    )


def _fault_of(arguments: dict[str, Any]) -> str:
    """Why a source cannot be asked for a binding with these arguments, or could not say that it has it; "" if it can."""
    if not arguments:
        return ""
    if len(text_of(arguments)) > limits.MAX_ROUTE_ARGUMENTS_BYTES:
        return f"its arguments have more than {limits.MAX_ROUTE_ARGUMENTS_BYTES} bytes, and it is not propagated"
    if _depth(arguments) > limits.MAX_ROUTE_ARGUMENTS_DEPTH:
        return f"its arguments are nested more than {limits.MAX_ROUTE_ARGUMENTS_DEPTH} deep, and it is not propagated"
    return ""


def _depth(value: Any) -> int:
    """How deep lists and maps are nested."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


@dataclass(slots=True)
class _Wanted:
    """Bindings here that match the same messages: how many ordinary ones there are, and the paths of each of a route. `fault`:
    why they cannot be propagated."""

    arguments: dict[str, Any]
    fault: str
    own: int = 0
    passed: dict[tuple[str, str], tuple[Path, ...]] = field(default_factory=dict)


class Interest:
    """See the module. `here` is the identity of this cluster; `kind` is the exchange's."""

    def __init__(self, here: str, kind: str = "") -> None:
        self.here = here
        self.kind = kind
        """The exchange's; "" when there is no such exchange."""
        self._bindings: dict[tuple[str, str], tuple[str, bool]] = {}
        """Queue and key here -> the key at the source, and whether the queue is an ordinary one."""
        self._wanted: dict[str, _Wanted] = {}

    def __iter__(self) -> Iterator[str]:
        """The keys at a source, in the order in which the first binding with each was made."""
        return iter(self._wanted)

    def become(self, other: Interest) -> list[str]:
        """From here on it is what the other one is. Returns the keys at a source that may have changed."""
        before = list(self._wanted)
        self.kind, self._bindings, self._wanted = other.kind, other._bindings, other._wanted
        return [*before, *self._wanted]

    def put(self, queue: str, name: str, key: str, arguments: Mapping[str, Any] | None) -> list[str]:
        """The queue of this identity and name is bound so with this key, or is not (None). Returns the keys at a source that may
        have changed."""
        changed = self._take_out((queue, key))
        if arguments is None:
            return changed
        there, plain = self._at_source(key, arguments)
        paths = arguments.get(PATHS)
        wanted = self._wanted.get(there)
        if wanted is None:
            wanted = self._wanted[there] = _Wanted(plain, _fault_of(plain))
        own = paths is None or bool(fault_of_paths(name, paths))
        if own:
            wanted.own += 1
        else:
            wanted.passed[queue, key] = tuple(map(tuple, paths or ()))
        self._bindings[queue, key] = there, own
        return [*changed, there]

    def _take_out(self, identity: tuple[str, str]) -> list[str]:
        known = self._bindings.pop(identity, None)
        if known is None:
            return []
        there, own = known
        wanted = self._wanted[there]
        if own:
            wanted.own -= 1
        else:
            del wanted.passed[identity]
        if not (wanted.own or wanted.passed):
            del self._wanted[there]
        return [there]

    def _at_source(self, key: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Key and arguments of the binding at a source that matches the same messages."""
        if self.kind == HEADERS:
            plain = {name: value for name, value in arguments.items() if name != PATHS}
            return hashlib.sha256(text_of(plain).encode()).hexdigest(), plain
        return "" if self.kind == FANOUT else key, {}

    def shown(self, key: str) -> str:
        """A key at a source, as it is shown to people: by a headers exchange's binding, its arguments."""
        wanted = self._wanted.get(key)
        return f"{key if wanted is None or not wanted.arguments else text_of(wanted.arguments):.200}"

    def wanted(self, key: str, source: str) -> tuple[dict[str, Any] | None, str]:
        """The arguments of the binding with this key that a source with this identity must have, or None. The text says what is
        left out of it; "" for nothing."""
        wanted = self._wanted.get(key)
        if wanted is None or wanted.fault:
            return None, "" if wanted is None else wanted.fault
        paths = [path for path in self._shortest(wanted) if source not in path]
        near = [path for path in paths if len(path) <= limits.MAX_ROUTE_HOPS]
        told = near[: limits.MAX_BINDING_ORIGINS]
        fault = ""
        if len(near) < len(paths):
            fault = f"it has passed {limits.MAX_ROUTE_HOPS} clusters, and is propagated no further"
        elif len(told) < len(near):
            fault = f"{len(near)} clusters want it, and the source is told of {limits.MAX_BINDING_ORIGINS}"
        return (wanted.arguments | {PATHS: [list(path) for path in told]} if told else None), fault

    def _shortest(self, wanted: _Wanted) -> list[Path]:
        """The shortest path of each origin, with this cluster at its end; the shortest ones first."""
        best: dict[str, Path] = {self.here: (self.here,)} if wanted.own else {}
        for passed in wanted.passed.values():
            for path in passed:
                if self.here not in path:
                    longer = (*path, self.here)
                    best[path[0]] = min(best.get(path[0], longer), longer, key=_rank)
        return sorted(best.values(), key=_rank)


def _rank(path: Path) -> tuple[int, Path]:
    return len(path), path
