"""What the dynamic routes of this broker follow: the interest in each of their exchanges, kept equal to its bindings.

Life of an interest: `join` reads it from the registry for the first route of an exchange that runs here. `follow` looks up each
binding that a change of a log may have changed, in the registry, and changes the interest. What has changed is told to the routes
once, in the next turn. When the last route leaves (`leave`), the interest is forgotten.

Invariants: without a dynamic route, nothing is done; a change costs as much as itself, except that of the exchange; the interest
is that in the bindings which route messages now, whichever log has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from twisted.internet.interfaces import IReactorTime

from broker.core.commands import Key
from broker.core.definitions import Bound, Change, ExchangeGone, ExchangeMade, QueueGone, Unbound
from broker.core.exchange import Binding
from broker.core.interest import Bound as BoundHere
from broker.core.interest import Interest
from broker.sessions.logs import Logs


class Following:
    """See the module. `tell` is called with the name of an exchange, and the keys at a source that may have changed."""

    def __init__(self, clock: IReactorTime, logs: Logs, tell: Callable[[str, Collection[str]], None]) -> None:
        self.interests: dict[str, Interest] = {}
        """Name of an exchange -> the interest in it."""
        self._clock = clock
        self._logs = logs
        self._tell = tell
        self._touched: dict[str, dict[str, None]] = {}
        self._routes: Counter[str] = Counter()
        """Name of an exchange -> how many routes follow it."""

    def join(self, name: str) -> Interest:
        """A route follows the exchange of this name."""
        self._routes[name] += 1
        found = self.interests.get(name)
        if found is None:
            found = self.interests[name] = Interest(self._logs.identify())
            self._reset(name)
        return found

    def leave(self, name: str) -> None:
        """A route does not follow it any more."""
        self._routes[name] -= 1
        if not self._routes[name]:
            del self._routes[name], self.interests[name]

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
                    self._note(exchange.name, self._reset(exchange.name))
                case _:
                    pass

    def _look(self, identity: Key) -> None:
        """This binding may have changed."""
        nodes, (uuid, queue, key) = self._logs.nodes, identity
        exchange = nodes.find_exchange(uuid)
        interest = None if exchange is None else self.interests.get(exchange.name)
        if exchange is None or interest is None or nodes.exchanges.get(exchange.name) is not exchange:
            return
        found = exchange.routing.binding(queue, key)
        keys = interest.put(queue, self._name_of(queue), key, None if found is None else found.arguments)
        if keys:
            self._note(exchange.name, keys)

    def _reset(self, name: str) -> list[str]:
        """Read all bindings of the exchange that has this name now."""
        exchange, interest = self._logs.nodes.exchanges.get(name), self.interests[name]
        if exchange is None:
            return interest.reset("", ())
        return interest.reset(exchange.definition.kind, map(self._here, exchange.routing.bindings()))

    def _here(self, binding: Binding[str]) -> BoundHere:
        return binding.queue, self._name_of(binding.queue), binding.key, binding.arguments

    def _name_of(self, queue: str) -> str:
        node = self._logs.nodes.queue_by_uuid(queue)
        return "" if node is None else node.name

    def _note(self, name: str, keys: Collection[str]) -> None:
        """Tell the routes in the next turn."""
        if not self._touched:
            self._clock.callLater(0, self._tell_all)
        self._touched.setdefault(name, {}).update(dict.fromkeys(keys))

    def _tell_all(self) -> None:
        touched, self._touched = self._touched, {}
        for name, keys in touched.items():
            self._tell(name, keys)
