"""Exchanges: which queues a message goes to, by its subject and its application properties.

The kinds are those of AMQP 0-10, as Apache Qpid offers them. *direct* sends a message to the queues that are bound with a key
equal to its subject; *topic* to those whose pattern matches it, word by word between dots, where "*" matches one word and "#" any
number of words, also none; *fanout* to every bound queue; *headers* to those whose arguments match its application properties.
The default exchange is a direct one with the name "", to which every queue is bound by its own name.

Life of a binding: a committed definition creates it (`bind`), messages find it (`route`), a committed definition or the end of
its queue removes it (`unbind`, `unbind_queue`). Its queue and its key identify it; binding again changes only its arguments.

Invariants: a message goes to each queue once, however many bindings match; queues are in the order of their bindings; cached
routes of subjects are dropped when a binding changes, and their number is limited. The topic patterns form one tree of words,
which is walked with a set of places at the same time, so a message costs at most (words of its subject) x (places in the tree),
whatever the patterns are; a subject that is longer than limits.MAX_SUBJECT_CHARS matches only the pattern "#".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from broker.core import limits

DIRECT, TOPIC, FANOUT, HEADERS = "direct", "topic", "fanout", "headers"
KINDS = (DIRECT, TOPIC, FANOUT, HEADERS)
DEFAULT_EXCHANGE = ""
"""The name of the default exchange."""
X_MATCH = "x-match"
PATHS = "x-qpid-route-paths"
"""An argument of the bindings that dynamic routes make: which clusters the wish for the messages has passed
(broker.core.interest). Clients cannot use it."""
_ANY, _ALL = "any", "all"

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Binding(Generic[K]):
    """A queue bound to an exchange: `key` is a subject or a pattern; `arguments` are what a headers exchange compares."""

    queue: K
    key: str
    arguments: Mapping[str, Any]
    number: int
    """Ascends in the order of binding."""


class _Word(Generic[K]):
    """A place in the tree of topic patterns: the bindings whose pattern ends here, and the words that may follow."""

    __slots__ = ("bindings", "children", "is_hash")

    def __init__(self, is_hash: bool) -> None:
        self.is_hash = is_hash
        self.bindings: dict[tuple[K, str], Binding[K]] = {}
        self.children: dict[str, _Word[K]] = {}


class Exchange(Generic[K]):
    """One exchange. `kind` is one of KINDS; queues are named by any hashable key."""

    __slots__ = ("_bindings", "_by_key", "_by_queue", "_n_bound", "_root", "_routes", "kind", "name")

    def __init__(self, name: str, kind: str) -> None:
        if kind not in KINDS:
            raise ValueError(f'"{kind}" is not a kind of exchange: there are {", ".join(KINDS)}')
        self.name = name
        self.kind = kind
        self._bindings: dict[tuple[K, str], Binding[K]] = {}
        self._by_queue: dict[K, dict[str, None]] = {}
        self._by_key: dict[str, dict[K, Binding[K]]] = {}
        self._root: _Word[K] = _Word(is_hash=False)
        self._routes: dict[str, tuple[K, ...]] = {}
        self._n_bound = 0

    def __len__(self) -> int:
        """How many bindings it has."""
        return len(self._bindings)

    def bind(self, queue: K, key: str, arguments: Mapping[str, Any]) -> bool:
        """Bind a queue. Whether anything changed: False when it is bound just so already."""
        identity = (queue, key)
        was = self._bindings.get(identity)
        if was is not None and _is_exactly(dict(was.arguments), dict(arguments)):
            return False
        self._n_bound += 1
        binding = Binding(queue, key, dict(arguments), was.number if was else self._n_bound)
        self._bindings[identity] = binding
        self._by_queue.setdefault(queue, {})[key] = None
        self._by_key.setdefault(key, {})[queue] = binding
        if self.kind == TOPIC:
            self._path(key)[-1].bindings[identity] = binding
        self._routes.clear()
        return True

    def unbind(self, queue: K, key: str) -> bool:
        """Take a binding away. False when there is none."""
        if self._bindings.pop((queue, key), None) is None:
            return False
        _discard(self._by_queue, queue, key)
        _discard(self._by_key, key, queue)
        if self.kind == TOPIC:
            self._prune(queue, key)
        self._routes.clear()
        return True

    def unbind_queue(self, queue: K) -> int:
        """Take away all bindings of a queue. Returns how many there were."""
        keys = list(self._by_queue.get(queue, ()))
        for key in keys:
            self.unbind(queue, key)
        return len(keys)

    def binding(self, queue: K, key: str) -> Binding[K] | None:
        """The binding of this queue with this key."""
        return self._bindings.get((queue, key))

    def bindings_of(self, queue: K) -> int:
        """How many bindings a queue has."""
        return len(self._by_queue.get(queue, ()))

    def bindings(self) -> list[Binding[K]]:
        """All bindings, in the order in which they were made."""
        return list(self._bindings.values())

    def route(self, subject: str | None, application_properties: Callable[[], Mapping[str, Any]]) -> tuple[K, ...]:
        """The queues for a message: each once, in the order of their bindings; () if no binding matches. A missing subject counts
        as an empty one. `application_properties` is called only by a headers exchange.
        """
        if self.kind == HEADERS:
            if not self._bindings:
                return ()
            properties = application_properties()
            return _queues(b for b in self._bindings.values() if matches(b.arguments, properties))
        key = "" if self.kind == FANOUT else subject or ""
        found = self._routes.get(key)
        if found is None:
            found = _queues(self._matching(key))
            if len(key) > limits.MAX_SUBJECT_CHARS:
                return found
            if len(self._routes) >= limits.MAX_ROUTES_CACHED:
                del self._routes[next(iter(self._routes))]
            self._routes[key] = found
        return found

    def _matching(self, subject: str) -> Iterable[Binding[K]]:
        if self.kind == FANOUT:
            return self._bindings.values()
        if self.kind == DIRECT:
            return self._by_key.get(subject, {}).values()
        places = self._places(subject.split(".")) if len(subject) <= limits.MAX_SUBJECT_CHARS else self._everything()
        found = [b for place in places for b in place.bindings.values()]
        return sorted(found, key=lambda binding: binding.number)

    def _places(self, words: list[str]) -> Iterable[_Word[K]]:
        """Where in the tree the patterns that match these words end."""
        places: dict[_Word[K], None] = {}
        _enter(places, self._root)
        for word in words:
            following: dict[_Word[K], None] = {}
            for place in places:
                if place.is_hash:
                    following[place] = None
                for step in (word, "*"):
                    child = place.children.get(step)
                    if child is not None:
                        _enter(following, child)
            places = following
        return places

    def _everything(self) -> Iterable[_Word[K]]:
        """The place of the pattern "#", if there is one."""
        place = self._root.children.get("#")
        return () if place is None else (place,)

    def _path(self, pattern: str) -> list[_Word[K]]:
        """The places from the root along a pattern, made where they are missing."""
        path = [self._root]
        for word in _words(pattern):
            children = path[-1].children
            child = children.get(word)
            if child is None:
                child = children[word] = _Word(is_hash=word == "#")
            path.append(child)
        return path

    def _prune(self, queue: K, pattern: str) -> None:
        path = self._path(pattern)
        del path[-1].bindings[queue, pattern]
        for word in reversed(_words(pattern)):
            if path[-1].bindings or path[-1].children:
                return
            path.pop()
            del path[-1].children[word]


def fault_of(kind: str, key: str, arguments: Mapping[str, Any]) -> str:
    """The fault of a requested binding, as a text for the user; "" if it has none."""
    if len(key.encode(errors="replace")) > limits.MAX_NAME_BYTES:
        return f'the binding key "{key[:40]}..." has more than {limits.MAX_NAME_BYTES} bytes'
    if len(arguments) > limits.MAX_BINDING_ARGUMENTS:
        return f"the binding has {len(arguments)} arguments; at most {limits.MAX_BINDING_ARGUMENTS} are allowed"
    if kind == HEADERS and arguments.get(X_MATCH, _ALL) not in (_ALL, _ANY):
        return f'x-match is "{arguments[X_MATCH]}", but it must be "all" or "any"'
    if PATHS in arguments:
        return f"the argument {PATHS} is for the queues of dynamic routes"
    return ""


def matches(arguments: Mapping[str, Any], properties: Mapping[str, Any]) -> bool:
    """Whether properties match the arguments of a headers binding. `x-match` is "all" (the default) or "any". An argument without
    a value (None) only requires that the property exists. Names that begin with "x-" are ignored.
    """
    asked = [(name, value) for name, value in arguments.items() if not name.startswith("x-")]
    fulfilled = (name in properties and (value is None or _same(value, properties[name])) for name, value in asked)
    return any(fulfilled) if arguments.get(X_MATCH) == _ANY else all(fulfilled)


def _same(one: Any, other: Any) -> bool:
    """Equal as AMQP sees it: true is not 1, but 1.0 is. Properties of messages have no values in values."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _is_exactly(one: Any, other: Any) -> bool:
    """Equal, and of the same types: also what is in lists and maps."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        return all(_is_exactly(value, other[name]) for name, value in one.items())
    return not isinstance(one, list) or all(map(_is_exactly, one, other))


def _queues(bindings: Iterable[Binding[K]]) -> tuple[K, ...]:
    return tuple(dict.fromkeys(binding.queue for binding in bindings))


def _words(pattern: str) -> list[str]:
    """The words of a topic pattern, "#.#" taken as "#", which matches the same."""
    words = pattern.split(".")
    return [word for i, word in enumerate(words) if word != "#" or i == 0 or words[i - 1] != "#"]


def _enter(places: dict[_Word[K], None], place: _Word[K]) -> None:
    """Add a place, and the one behind its "#", which needs no word."""
    places[place] = None
    after = place.children.get("#")
    if after is not None:
        places[after] = None


A = TypeVar("A")
B = TypeVar("B")
V = TypeVar("V")


def _discard(index: dict[A, dict[B, V]], key: A, entry: B) -> None:
    entries = index[key]
    del entries[entry]
    if not entries:
        del index[key]
