"""What the dynamic routes of this broker follow: the interest in each of their exchanges, kept equal to its bindings.

Life of an interest: `join` begins it for the first route of an exchange that runs here. The bindings that there are already are
read from the registry, a piece in each turn, into an interest aside. When all are read, this takes its place, and `begin` is
called: until then its routes must wait. `follow` looks up each binding that a change of a log may have changed, in the registry,
and changes the interest, or the one that is being filled. What has changed is told to the routes once, in the next turn. When
another exchange has the name, its bindings are read in the same way, and then the routes are told of all keys, a piece in each
turn. When the last route leaves (`leave`), the interest is forgotten.

Invariants: without a dynamic route, nothing is done; a change costs as much as itself, except that of the exchange; a turn reads
at most `limits.BINDINGS_READ` bindings, and tells of as many keys; the interest is that in the bindings which route messages now,
whichever log has them, or, while those of another exchange are read, that of before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from twisted.internet.interfaces import IReactorTime

from broker.core import limits
from broker.core.commands import Key
from broker.core.definitions import Bound, Change, ExchangeGone, ExchangeMade, QueueGone, Unbound
from broker.core.exchange import Binding
from broker.core.interest import Interest
from broker.core.nodes import ExchangeNode
from broker.sessions.logs import Logs


@dataclass(slots=True)
class _Reading:
    """The bindings of an exchange that are still to be read, and the interest that is filled with them."""

    into: Interest
    exchange: ExchangeNode | None
    left: deque[Binding[str]]


class Following:
    """See the module. `tell` is called with the name of an exchange, and the keys at a source that may have changed; `begin` with
    the name of an exchange whose bindings are read for the first time."""

    def __init__(
        self,
        clock: IReactorTime,
        logs: Logs,
        tell: Callable[[str, Collection[str]], None],
        begin: Callable[[str], None],
    ) -> None:
        self.interests: dict[str, Interest] = {}
        """Name of an exchange -> the interest in it."""
        self._clock = clock
        self._logs = logs
        self._tell = tell
        self._begin = begin
        self._unread: set[str] = set()
        """Names of exchanges whose interest was never complete."""
        self._reading: dict[str, _Reading] = {}
        self._touched: deque[tuple[str, Iterator[str]]] = deque()
        """Names of exchanges, and the keys of which their routes are still to be told."""
        self._routes: Counter[str] = Counter()
        """Name of an exchange -> how many routes follow it."""

    def join(self, name: str) -> Interest:
        """A route follows the exchange of this name."""
        self._routes[name] += 1
        found = self.interests.get(name)
        if found is None:
            found = self.interests[name] = Interest(self._logs.identify())
            self._unread.add(name)
            self._read(name)
        return found

    def is_complete(self, name: str) -> bool:
        """Whether all bindings of the exchange of this name were read, so that a route may begin."""
        return name not in self._unread

    def leave(self, name: str) -> None:
        """A route does not follow it any more."""
        self._routes[name] -= 1
        if not self._routes[name]:
            del self._routes[name], self.interests[name]
            self._unread.discard(name)
            self._reading.pop(name, None)

    def follow(self, changes: Iterable[tuple[Change, str]]) -> None:
        """A log has changed, and the registry has followed."""
        for change, _ in changes:
            match change:
                case Bound(binding) | Unbound(binding):
                    self._look(binding.identity)
                case QueueGone(_, bindings):
                    for each in bindings:
                        self._look(each.identity)
                case ExchangeMade(exchange) | ExchangeGone(exchange, _) if exchange.name in self.interests:
                    self._read(exchange.name)
                case _:
                    pass

    def _look(self, identity: Key) -> None:
        """This binding may have changed."""
        nodes, (uuid, queue, key) = self._logs.nodes, identity
        exchange = nodes.find_exchange(uuid)
        interest = None if exchange is None else self.interests.get(exchange.name)
        if exchange is None or interest is None or nodes.exchanges.get(exchange.name) is not exchange:
            return
        found, reading = exchange.routing.binding(queue, key), self._reading.get(exchange.name)
        to = interest if reading is None else reading.into
        keys = to.put(queue, self._name_of(queue), key, None if found is None else found.arguments)
        if keys and reading is None:
            self._note(exchange.name, keys)

    def _read(self, name: str) -> None:
        """Read all bindings of the exchange that has this name now, from the next turn on."""
        exchange = self._logs.nodes.exchanges.get(name)
        kind, bindings = ("", []) if exchange is None else (exchange.definition.kind, exchange.routing.bindings())
        reading = self._reading[name] = _Reading(Interest(self._logs.identify(), kind), exchange, deque(bindings))
        self._clock.callLater(0, self._read_some, name, reading)

    def _read_some(self, name: str, reading: _Reading) -> None:
        """Read a piece. What was bound or unbound since the beginning is in the interest already, or is not there any more."""
        if self._reading.get(name) is not reading:
            return  # another exchange has the name, or no route follows it any more
        until_s = self._clock.seconds() + limits.SHARE_TURN_S
        for _ in range(min(len(reading.left), limits.BINDINGS_READ)):
            binding = reading.left.popleft()
            if reading.exchange is not None:
                now = reading.exchange.routing.binding(binding.queue, binding.key)
                if now is not None:
                    reading.into.put(now.queue, self._name_of(now.queue), now.key, now.arguments)
            if self._clock.seconds() >= until_s:
                break
        if reading.left:
            self._clock.callLater(0, self._read_some, name, reading)
            return
        del self._reading[name]
        keys = self.interests[name].become(reading.into)
        if name in self._unread:
            self._unread.discard(name)
            self._begin(name)
        else:
            self._note(name, keys)

    def _name_of(self, queue: str) -> str:
        node = self._logs.nodes.queue_by_uuid(queue)
        return "" if node is None else node.name

    def _note(self, name: str, keys: Collection[str]) -> None:
        """Tell the routes in the next turn."""
        if not self._touched:
            self._clock.callLater(0, self._tell_some)
        self._touched.append((name, iter(keys)))

    def _tell_some(self) -> None:
        """Tell a piece: a key once, and an exchange's keys together."""
        told: dict[str, dict[str, None]] = {}
        room = limits.BINDINGS_READ
        while room and self._touched:
            name, keys = self._touched[0]
            some = list(islice(keys, room))
            told.setdefault(name, {}).update(dict.fromkeys(some))
            room -= len(some)
            if room:
                self._touched.popleft()
        if self._touched:
            self._clock.callLater(0, self._tell_some)
        for name, some_keys in told.items():
            self._tell(name, some_keys)
