"""What one log defines: queues, places for messages, exchanges, bindings, and the history of primaries.

Life of the definitions: they start empty; `apply` interprets one command after the other and returns the result as a `Change`;
`commands` lists the commands that rebuild them. No other code interprets commands. Modules that keep data equal to a log (the
messages in broker.core.state, the registry in broker.core.nodes) follow the changes.

A command that cannot be applied (the name exists, the queue does not exist) changes nothing and returns the reason, in the same
way on every broker.

Invariants: the cost of a change depends on the size of the change, not on the number of definitions (except the release of a
drain, which reads all origins); numbers are given in the order of definition and never used twice; a name belongs to at most one
queue and one exchange; a binding may name a queue or exchange that another log defines; bindings are removed with their queue or
exchange; a binding that is made again by a command of version 10 owes what it owed; the version only rises."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from broker.core import limits
from broker.core.commands import (
    EXACT_SINCE,
    Alter,
    Bind,
    Command,
    ExchangeAdd,
    ExchangeDel,
    ExchangePassed,
    Key,
    LinkAdd,
    LinkForget,
    LinkKey,
    MachineVersion,
    Numbers,
    OriginAdd,
    OriginForget,
    OriginRelease,
    PolicyAdd,
    PolicyDel,
    QueueAdd,
    QueueDel,
    QueueDelIfEmpty,
    RecentIds,
    RouteAdd,
    RouteDel,
    Setting,
    StoreAdd,
    StoreDel,
    Term,
    Unbind,
    ValueGiven,
    altered,
    numbered,
    paid,
    same_arguments,
    still_owing,
)
from broker.core.origins import MOVING


@dataclass(frozen=True, slots=True)
class QueueMade:
    """A queue was defined. If it has a number, its messages are in this log."""

    queue: QueueAdd


@dataclass(frozen=True, slots=True)
class QueueGone:
    """A queue was removed, with these bindings, and these numbered links to it."""

    queue: QueueAdd
    bindings: tuple[Bind, ...]
    links: tuple[LinkAdd, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueAltered:
    """A queue has new arguments, or a new alternate exchange."""

    queue: QueueAdd


@dataclass(frozen=True, slots=True)
class ExchangeAltered:
    """An exchange has a new alternate exchange."""

    exchange: ExchangeAdd


@dataclass(frozen=True, slots=True)
class PlaceMade:
    """This log got a place for the messages of a queue that another log defines."""

    place: StoreAdd


@dataclass(frozen=True, slots=True)
class PlaceGone:
    """The place was removed, with these numbered links to the queue."""

    place: StoreAdd
    links: tuple[LinkAdd, ...] = ()


@dataclass(frozen=True, slots=True)
class ExchangeMade:
    """An exchange was defined."""

    exchange: ExchangeAdd


@dataclass(frozen=True, slots=True)
class ExchangeGone:
    """An exchange was removed, with these bindings."""

    exchange: ExchangeAdd
    bindings: tuple[Bind, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """A binding was added, or got new arguments."""

    binding: Bind


@dataclass(frozen=True, slots=True)
class Unbound:
    """A binding was removed."""

    binding: Bind


@dataclass(frozen=True, slots=True)
class Passed:
    """Messages have passed through an exchange that numbers them or keeps the last one."""

    passed: ExchangePassed


@dataclass(frozen=True, slots=True)
class Paid:
    """A queue got the last message that its new binding owed it."""

    binding: Bind


@dataclass(frozen=True, slots=True)
class TermBegan:
    """A broker has become primary."""

    term: Term


@dataclass(frozen=True, slots=True)
class VersionRose:
    """The cluster's version rose."""

    version: MachineVersion


@dataclass(frozen=True, slots=True)
class SettingMade:
    """A setting of the cluster was changed, or removed."""

    setting: Setting


@dataclass(frozen=True, slots=True)
class OriginMade:
    """An origin was added, or its messages now go to another queue. `gone` are the removed origins of a former queue of the same
    name."""

    origin: OriginAdd
    gone: tuple[OriginAdd, ...] = ()


@dataclass(frozen=True, slots=True)
class OriginsReleased:
    """A drain has ended: no more messages of these origins are accepted."""

    drain: OriginRelease
    origins: tuple[OriginAdd, ...]


@dataclass(frozen=True, slots=True)
class DrainForgotten:
    """A released drain was forgotten."""

    drain: str


@dataclass(frozen=True, slots=True)
class RouteMade:
    """A route was defined, or marked to end."""

    route: RouteAdd


@dataclass(frozen=True, slots=True)
class RouteGone:
    """A route was removed, with its origins."""

    route: RouteAdd
    origins: tuple[OriginAdd, ...]


@dataclass(frozen=True, slots=True)
class LinkMade:
    """A numbered link was added, or its time was changed."""

    link: LinkAdd


@dataclass(frozen=True, slots=True)
class LinkForgotten:
    """A numbered link was forgotten."""

    link: LinkAdd


@dataclass(frozen=True, slots=True)
class PolicyMade:
    """A policy was added or changed. It applies to queues or topics that are created later."""

    policy: PolicyAdd


@dataclass(frozen=True, slots=True)
class PolicyGone:
    """A policy was removed."""

    policy: PolicyAdd


@dataclass(frozen=True, slots=True)
class CountersSet:
    """The snapshot is complete: queues continue from these sequences."""

    numbers: Numbers


@dataclass(frozen=True, slots=True)
class IdsSet:
    """A snapshot contains a part of a queue's duplicate window."""

    recent: RecentIds


@dataclass(frozen=True, slots=True)
class Nothing:
    """The command could not be applied, and changed nothing."""

    command: Command


Change: TypeAlias = (
    QueueMade
    | QueueGone
    | QueueAltered
    | ExchangeAltered
    | PlaceMade
    | PlaceGone
    | ExchangeMade
    | ExchangeGone
    | Bound
    | Unbound
    | Passed
    | Paid
    | TermBegan
    | CountersSet
    | VersionRose
    | SettingMade
    | IdsSet
    | OriginMade
    | OriginsReleased
    | DrainForgotten
    | RouteMade
    | RouteGone
    | LinkMade
    | LinkForgotten
    | PolicyMade
    | PolicyGone
    | Nothing
)


class Definitions:
    """The definitions of one log up to one index. Any code may read them; only `apply` changes them."""

    __slots__ = (
        *("_at_exchange", "_at_queue", "_names", "_version", "bindings", "exchanges", "next_number", "origins", "queues"),
        *("_links_to", "_moving", "links", "passed", "policies", "released", "routes", "settings", "stores", "terms"),
    )

    def __init__(self) -> None:
        self._version: MachineVersion | None = None
        self.queues: dict[str, QueueAdd] = {}
        self.stores: dict[str, StoreAdd] = {}
        self.exchanges: dict[str, ExchangeAdd] = {}
        self.bindings: dict[Key, Bind] = {}
        self.settings: dict[str, Setting] = {}
        self.origins: dict[tuple[str, str], OriginAdd] = {}
        """Drain and queue -> the origin, with the queue that gets its messages."""
        self._moving: dict[str, set[tuple[str, str]]] = {}
        """Queue -> the origins whose messages are being moved to it."""
        self.released: dict[str, OriginRelease] = {}
        """The drains that have ended and are not forgotten yet."""
        self.routes: dict[str, RouteAdd] = {}
        self.links: dict[LinkKey, LinkAdd] = {}
        """The numbered links, by user, container, name and queue."""
        self._links_to: dict[str, dict[LinkKey, None]] = {}
        """Queue -> the keys of its numbered links."""
        self.policies: dict[tuple[str, str], PolicyAdd] = {}
        """The policies, by kind and pattern."""
        self.passed: dict[str, ExchangePassed] = {}
        """Exchange -> the last number or message, for exchanges that number messages or keep the last one."""
        self.terms: list[Term] = []
        self.next_number = 1
        self._names: set[tuple[str, str]] = set()
        self._at_queue: dict[str, dict[Key, None]] = {}
        self._at_exchange: dict[str, dict[Key, None]] = {}

    @property
    def machine_version(self) -> int:
        """The highest version that commands of this log may need, if it is the log of a cluster."""
        return 1 if self._version is None else self._version.needs

    def apply(self, command: Command, depth_of: Callable[[str], int] = lambda uuid: 0) -> tuple[Change, str]:
        """Apply one command. Returns the change, and "" or the reason why nothing changed.

        `depth_of` gives the number of messages of a queue at this place of the log (0 if another log has them).
        """
        match command:
            case QueueAdd():
                return self._add_queue(command)
            case QueueDel() | QueueDelIfEmpty():
                depth = depth_of(command.uuid) if isinstance(command, QueueDelIfEmpty) else 0
                return self._remove_queue(command, depth)
            case Alter():
                return self._alter(command)
            case StoreAdd() | StoreDel():
                return self._add_store(command) if isinstance(command, StoreAdd) else self._remove_store(command)
            case ExchangeAdd():
                return self._add_exchange(command)
            case ExchangeDel():
                return self._remove_exchange(command)
            case Bind() | Unbind():
                return self._bind(command) if isinstance(command, Bind) else self._unbind(command)
            case ExchangePassed() | ValueGiven():
                return self._pass(command) if isinstance(command, ExchangePassed) else self._pay(command)
            case Term():
                self.terms.append(command)
                del self.terms[: -limits.MAX_HISTORY]
                return TermBegan(command), ""
            case MachineVersion():
                return self._raise_version(command)
            case Setting():
                return self._set(command)
            case OriginAdd() | OriginRelease() | OriginForget():
                return self._change_origins(command)
            case RouteAdd() | RouteDel() | PolicyAdd() | PolicyDel():
                return self._change_by_operator(command)
            case LinkAdd() | LinkForget():
                return self._add_link(command) if isinstance(command, LinkAdd) else self._forget_link(command)
            case Numbers():
                self.next_number = command.next
                return CountersSet(command), ""
            case _:
                assert isinstance(command, RecentIds), f"{command!r} is not a command of a log"
                return IdsSet(command), ""

    def commands(self) -> list[Command]:
        """The commands that rebuild these definitions, except the counters and the duplicate windows."""
        version = () if self._version is None else (self._version,)
        defined = (*self.queues.values(), *self.stores.values(), *self.exchanges.values(), *self.bindings.values())
        others = (*self.routes.values(), *self.origins.values(), *self.released.values(), *self.links.values())
        return [*version, *self.settings.values(), *self.policies.values(), *defined, *self.passed.values(), *others, *self.terms]

    def bindings_of_queue(self, uuid: str) -> Iterator[Bind]:
        """The bindings that name this queue."""
        return (self.bindings[key] for key in self._at_queue.get(uuid, ()))

    def bindings_of_exchange(self, uuid: str) -> Iterator[Bind]:
        """The bindings that name this exchange."""
        return (self.bindings[key] for key in self._at_exchange.get(uuid, ()))

    def _add_queue(self, command: QueueAdd) -> tuple[Change, str]:
        if ("queue", command.name) in self._names:
            return Nothing(command), f"a queue named {command.name!r} exists already"
        self._names.add(("queue", command.name))
        queue = numbered(command, self._number(command.number)) if command.level != "configuration" else command
        self.queues[queue.uuid] = queue
        return QueueMade(queue), ""

    def _number(self, stated: int | None) -> int:
        number = self.next_number if stated is None else stated
        self.next_number = max(self.next_number, number + 1)
        return number

    def _remove_queue(self, command: QueueDel | QueueDelIfEmpty, depth: int) -> tuple[Change, str]:
        """`depth`: the number of messages, which must be 0."""
        if depth:
            return Nothing(command), f"the queue holds {depth} messages; empty it first, or use --force"
        queue = self.queues.pop(command.uuid, None)
        if queue is None:
            return Nothing(command), "there is no such queue"
        self._names.discard(("queue", queue.name))
        return QueueGone(queue, self._drop_bindings(self._at_queue.get(queue.uuid, ())), self._drop_links(queue.uuid)), ""

    def _alter(self, command: Alter) -> tuple[Change, str]:
        queue, exchange = self.queues.get(command.uuid), self.exchanges.get(command.uuid)
        if queue is not None:
            made = self.queues[command.uuid] = altered(queue, command)
            return QueueAltered(made), ""
        if exchange is not None:
            other = self.exchanges[command.uuid] = altered(exchange, command)
            return ExchangeAltered(other), ""
        return Nothing(command), "there is no such queue or exchange"

    def _add_store(self, command: StoreAdd) -> tuple[Change, str]:
        if command.uuid in self.stores:
            return Nothing(command), "this queue's messages have a place already"
        place = numbered(command, self._number(command.number))
        self.stores[place.uuid] = place
        return PlaceMade(place), ""

    def _remove_store(self, command: StoreDel) -> tuple[Change, str]:
        place = self.stores.pop(command.uuid, None)
        if place is None:
            return Nothing(command), "there is no place for this queue's messages"
        return PlaceGone(place, self._drop_links(place.uuid)), ""

    def _raise_version(self, command: MachineVersion) -> tuple[Change, str]:
        if command.needs <= self.machine_version:
            return Nothing(command), f"the cluster's version is {self.machine_version} already"
        self._version = command
        return VersionRose(command), ""

    def _set(self, command: Setting) -> tuple[Change, str]:
        if not command.value:
            if self.settings.pop(command.key, None) is None:
                return Nothing(command), "nothing is set there"
        elif command.key not in self.settings and len(self.settings) >= limits.MAX_SETTINGS:
            return Nothing(command), f"the cluster has {limits.MAX_SETTINGS} settings already"
        else:
            self.settings[command.key] = command
        return SettingMade(command), ""

    def _change_origins(self, command: OriginAdd | OriginRelease | OriginForget) -> tuple[Change, str]:
        match command:
            case OriginAdd():
                return self._add_origin(command)
            case OriginRelease():
                return self._release(command)
            case _:
                return self._forget(command)

    def _add_origin(self, command: OriginAdd) -> tuple[Change, str]:
        known = self.origins.get(command.identity)
        if command.drain in self.released:
            return Nothing(command), "this drain has ended: its store was released"
        if known is None and len(self.origins) >= limits.MAX_ORIGINS:
            return Nothing(command), f"messages of {limits.MAX_ORIGINS} origins come already"
        if known is not None and known.into == command.into and known.source_epoch >= command.source_epoch:
            return Nothing(command), "this origin is known already"
        assert known is None or known.number is not None
        number = self._number(command.number) if known is None else known.number
        gone = self._outlived_by(command)
        if known is not None:
            self._moves_no_more(known)
        origin = self.origins[command.identity] = numbered(command, number or 0)
        if origin.into and origin.source_epoch == MOVING:
            self._moving.setdefault(origin.into, set()).add(origin.identity)
        return OriginMade(origin, gone), ""

    def is_moving(self, queue: str) -> bool:
        """Whether a drain is moving messages to this queue, given by its uuid."""
        return queue in self._moving

    def _moves_no_more(self, origin: OriginAdd) -> None:
        moving = self._moving.get(origin.into, set())
        moving.discard(origin.identity)
        if not moving:
            self._moving.pop(origin.into, None)

    def _outlived_by(self, command: OriginAdd) -> tuple[OriginAdd, ...]:
        """Remove the origins of a route for other queues of the same store: they are former queues with the same name."""
        if command.drain not in self.routes:
            return ()
        theirs = [each for each in self.origins.values() if (each.drain, each.store) == (command.drain, command.store)]
        return self._drop_origins(each for each in theirs if each.queue != command.queue)

    def _drop_origins(self, origins: Iterable[OriginAdd]) -> tuple[OriginAdd, ...]:
        gone = tuple(origins)
        for origin in gone:
            del self.origins[origin.identity]
            self._moves_no_more(origin)
        return gone

    def _change_by_operator(self, command: RouteAdd | RouteDel | PolicyAdd | PolicyDel) -> tuple[Change, str]:
        match command:
            case RouteAdd():
                return self._add_route(command)
            case RouteDel():
                return self._remove_route(command)
            case PolicyAdd():
                return self._add_policy(command)
            case _:
                return self._remove_policy(command)

    def _add_route(self, command: RouteAdd) -> tuple[Change, str]:
        known = self.routes.get(command.uuid)
        if known == command:
            return Nothing(command), "this route is so already"
        if known is None and any(each.identity == command.identity for each in self.routes.values()):
            return Nothing(command), "this route exists already"
        if known is None and len(self.routes) >= limits.MAX_ROUTES:
            return Nothing(command), f"there are {limits.MAX_ROUTES} routes already"
        self.routes[command.uuid] = command
        return RouteMade(command), ""

    def _remove_route(self, command: RouteDel) -> tuple[Change, str]:
        route = self.routes.pop(command.uuid, None)
        if route is None:
            return Nothing(command), "there is no such route"
        gone = self._drop_origins([each for each in self.origins.values() if each.drain == command.uuid])
        return RouteGone(route, gone), ""

    def _release(self, command: OriginRelease) -> tuple[Change, str]:
        if command.drain in self.released:
            return Nothing(command), "this drain was released already"
        if command.drain in self.routes:
            return Nothing(command), "this is a route, and no drain: delete it"
        if len(self.released) >= limits.MAX_RELEASED:
            return Nothing(command), f"{limits.MAX_RELEASED} drains were released and not forgotten: end some of them first"
        gone = self._drop_origins([each for each in self.origins.values() if each.drain == command.drain])
        self.released[command.drain] = command
        return OriginsReleased(command, gone), ""

    def _forget(self, command: OriginForget) -> tuple[Change, str]:
        if self.released.pop(command.drain, None) is None:
            return Nothing(command), "this drain was not released"
        return DrainForgotten(command.drain), ""

    def _add_link(self, command: LinkAdd) -> tuple[Change, str]:
        known = self.links.get(command.identity)
        if command.into not in self.queues and command.into not in self.stores:
            return Nothing(command), "there is no such queue"
        if known is None and len(self.links) >= limits.MAX_NUMBERED_LINKS:
            return Nothing(command), f"{limits.MAX_NUMBERED_LINKS} links with numbered messages are remembered already"
        if known is not None and known.kept_s == command.kept_s:
            return Nothing(command), "this link is known already"
        number = self._number(command.number if known is None else known.number)
        link = self.links[command.identity] = numbered(command, number)
        self._links_to.setdefault(link.into, {})[link.identity] = None
        return LinkMade(link), ""

    def _forget_link(self, command: LinkForget) -> tuple[Change, str]:
        if command.identity not in self.links:
            return Nothing(command), "there is no such link"
        return LinkForgotten(self._drop_link(command.identity)), ""

    def _drop_links(self, queue: str) -> tuple[LinkAdd, ...]:
        return tuple([self._drop_link(key) for key in list(self._links_to.get(queue, ()))])

    def _drop_link(self, key: LinkKey) -> LinkAdd:
        link = self.links.pop(key)
        del self._links_to[link.into][key]
        if not self._links_to[link.into]:
            del self._links_to[link.into]
        return link

    def _add_policy(self, command: PolicyAdd) -> tuple[Change, str]:
        if command.identity not in self.policies and len(self.policies) >= limits.MAX_POLICIES:
            return Nothing(command), f"there are {limits.MAX_POLICIES} policies already"
        self.policies[command.identity] = command
        return PolicyMade(command), ""

    def _remove_policy(self, command: PolicyDel) -> tuple[Change, str]:
        policy = self.policies.pop((command.kind, command.pattern), None)
        if policy is None:
            return Nothing(command), "there is no such policy"
        return PolicyGone(policy), ""

    def _add_exchange(self, command: ExchangeAdd) -> tuple[Change, str]:
        if ("exchange", command.name) in self._names:
            return Nothing(command), f"an exchange named {command.name!r} exists already"
        self._names.add(("exchange", command.name))
        self.exchanges[command.uuid] = command
        return ExchangeMade(command), ""

    def _remove_exchange(self, command: ExchangeDel) -> tuple[Change, str]:
        exchange = self.exchanges.pop(command.uuid, None)
        if exchange is None:
            return Nothing(command), "there is no such exchange"
        self._names.discard(("exchange", exchange.name))
        self.passed.pop(exchange.uuid, None)
        return ExchangeGone(exchange, self._drop_bindings(self._at_exchange.get(exchange.uuid, ()))), ""

    def _bind(self, command: Bind) -> tuple[Change, str]:
        key = command.identity
        known = self.bindings.get(key)
        if known is not None and same_arguments(known.arguments, command):
            return Nothing(command), "this binding exists already"
        if known is not None and known.owes and command.needs >= EXACT_SINCE:
            command = still_owing(command)
        self.bindings[key] = command
        self._at_queue.setdefault(command.queue, {})[key] = None
        self._at_exchange.setdefault(command.exchange, {})[key] = None
        return Bound(command), ""

    def _unbind(self, command: Unbind) -> tuple[Change, str]:
        if command.identity not in self.bindings:
            return Nothing(command), "there is no such binding"
        return Unbound(self._drop_binding(command.identity)), ""

    def _pass(self, command: ExchangePassed) -> tuple[Change, str]:
        if command.exchange not in self.exchanges:
            return Nothing(command), "there is no such exchange"
        self.passed[command.exchange] = command
        return Passed(command), ""

    def _pay(self, command: ValueGiven) -> tuple[Change, str]:
        known = self.bindings.get(command.identity)
        if known is None or not known.owes:
            return Nothing(command), "this binding owes nothing"
        made = self.bindings[command.identity] = paid(known)
        return Paid(made), ""

    def _drop_bindings(self, keys: Collection[Key]) -> tuple[Bind, ...]:
        return tuple([self._drop_binding(key) for key in list(keys)])

    def _drop_binding(self, key: Key) -> Bind:
        exchange, queue, _ = key
        for index, end in ((self._at_queue, queue), (self._at_exchange, exchange)):
            del index[end][key]
            if not index[end]:
                del index[end]
        return self.bindings.pop(key)
