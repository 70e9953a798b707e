"""The routes of the cluster log, run by the current primary; management requests of type `route`.

Life of a route: `CREATE` proposes it. When it is committed, and whenever a broker with the route in its log becomes the primary,
a runner starts (`broker.routes.runner`). `DELETE` ends the route: a route that has its own queue at the source stays in the log
as ending until the source has deleted this queue; with `force` it is deleted at once. A broker that is not the primary, is about
to hand over, or is being drained runs no routes. One that is not to run them (`runs`) only lists and changes them.

Invariants: a route has at most one runner, on the primary; a change is answered when it is committed.

Reference: docs/reference/management.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.core import limits, urls
from broker.core.commands import DYNAMIC_SINCE, ROUTES_SINCE, Command, OriginAdd, RouteAdd, RouteDel
from broker.core.definitions import Change, RouteGone, RouteMade, SettingMade
from broker.core.nodes import Refused
from broker.core.origins import LEAVING
from broker.core.routes import DYNAMIC, KINDS, QUEUE, Place, source_queue
from broker.core.sasl_client import MECHANISMS
from broker.routes.dialer import Dial
from broker.routes.following import Following
from broker.routes.runner import RouteRunner
from broker.sessions.guard import Guard
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.principal import Principal
from broker.sessions.queues import Queues
from broker.sessions.turn import Turn

_log = Logger()
Answer = tuple[int, str, dict[str, Any]]
MAX_EXCLUDED = 64


class Routes:
    """See the module. Fulfils `broker.administration.Extension` and `broker.routes.runner.Means`."""

    def __init__(
        self,
        clock: IReactorTime,
        logs: Logs,
        queues: Queues,
        turn: Turn,
        guard: Guard,
        new_id: Callable[[], str],
        dial: Dial,
        *,
        runs: bool = True,
    ) -> None:
        self.clock = clock
        self.logs = logs
        self.queues = queues
        self.turn = turn
        self.guard = guard
        self.dial = dial
        self._new_id = new_id
        self._runs = runs
        self._runners: dict[str, RouteRunner] = {}
        self._following = Following(clock, logs, self._touched, self._complete)
        self._waiting: dict[Deferred[Answer], None] = {}
        self._paused = False
        self._retiring: list[RouteRunner] = []
        """Runners that must still settle accepted messages at their sources."""

    # ---- when they run

    def begin(self) -> None:
        """This broker begins to serve, or continues."""
        self._paused = False
        if not self.logs.closed:
            for route in self.logs.lead.state.definitions.routes.values():
                self._run(route)

    def pause(self) -> None:
        """Another broker will take over, or this one leaves: stop fetching, and settle the accepted messages."""
        self._paused = True
        for uuid in list(self._runners):
            self._retire(uuid)

    def over(self) -> None:
        """This broker stops serving: proposals get no other answer."""
        self.pause()
        for runner in self._retiring:
            runner.stop()
        self._retiring.clear()
        waiting, self._waiting = self._waiting, {}
        for answered in waiting:
            answered.callback((503, "this broker is no longer the primary: ask the next primary for the result", {}))

    def follow(self, ledger: Ledger, changes: Collection[tuple[Change, str]]) -> None:
        """Follow the changes of a log."""
        if self._following.interests:
            self._following.follow(changes)
        if ledger is not self.logs.lead or not self.logs.serving:
            return
        for change, reason in changes:
            match change:
                case RouteMade(route):
                    self._run(route)
                case RouteGone(route, _):
                    self._end(route.uuid)
                case SettingMade(setting) if setting.key == LEAVING and not reason:
                    if setting.value:
                        self.pause()
                    else:
                        self.begin()
                case _:
                    pass

    def _run(self, route: RouteAdd) -> None:
        self._end(route.uuid)
        if self._runs and not self._paused and not self.logs.closed:
            follows = route.kind == DYNAMIC and not route.ending
            interest = self._following.join(route.exchange) if follows else None
            runner = self._runners[route.uuid] = RouteRunner(self, route, interest)
            if interest is None or self._following.is_complete(route.exchange):
                self.clock.callLater(0, self._start, runner)

    def _complete(self, exchange: str) -> None:
        """The dynamic routes of this exchange, which have waited for the interest in it, may begin."""
        for runner in list(self._runners.values()):
            if runner.route.exchange == exchange and runner.life.bindings is not None:
                runner.start()

    def _start(self, runner: RouteRunner) -> None:
        if self._runners.get(runner.route.uuid) is runner:
            runner.start()

    def _end(self, uuid: str) -> None:
        runner = self._out(uuid)
        if runner is not None:
            runner.stop()

    def _out(self, uuid: str) -> RouteRunner | None:
        """The runner of this route, which runs no longer."""
        runner = self._runners.pop(uuid, None)
        if runner is not None and runner.life.bindings is not None:
            self._following.leave(runner.route.exchange)
        return runner

    def _touched(self, exchange: str, keys: Collection[str]) -> None:
        """The interest in an exchange has changed."""
        for runner in list(self._runners.values()):
            if runner.route.exchange == exchange:
                runner.touched(keys)

    def _retire(self, uuid: str) -> None:
        """Fetch nothing more, and settle the accepted messages at the source, which would give them to others."""
        runner = self._out(uuid)
        if runner is not None:
            runner.retire()
            self._retiring = [each for each in (*self._retiring, runner) if each.is_connected]

    # ---- for the runners

    def note(self, route: RouteAdd, place: Place, answer: Callable[[str], None]) -> None:
        """Record an origin in the log; `answer` gets "" or the reason why this failed."""
        lead = self.logs.lead
        exchange, node = (nodes.get(route.exchange) for nodes in (self.logs.nodes.exchanges, self.logs.nodes.queues))
        if exchange is None and node is None:
            answer(f"there is no exchange and no queue named {route.exchange!r} any more")
            return
        if exchange is None and node is not None and node.uuid == place.queue and self.logs.identify() == place.cluster:
            answer(f"queue {route.exchange!r} is the source and the destination of this route: delete the route")
            return
        known = lead.state.definitions.origins.get((route.uuid, place.key))
        if known is not None and known.source_epoch >= place.epoch:
            answer("")
            return
        command = OriginAdd(
            drain=route.uuid, store=place.store, queue=place.key, into="", source_epoch=place.epoch, needs=ROUTES_SINCE
        )
        lead.change(command, answer)

    def finish(self, route: RouteAdd) -> None:
        """Its source knows that it ends: take it out of the log."""
        _log.info("route {source} {exchange} {key} has ended", source=route.source, exchange=route.exchange, key=route.key)
        self.logs.lead.change(RouteDel(uuid=route.uuid), lambda reason: None)

    # ---- management

    def items(self) -> list[dict[str, Any]]:
        """The items of `QUERY route`."""
        return [self._item(route) for route in self.logs.lead.state.definitions.routes.values()]

    def _item(self, route: RouteAdd) -> dict[str, Any]:
        first = urls.parse(route.source).addresses[0]
        runner = self._runners.get(route.uuid)
        doing = {"state": "Closed", "lastError": "", "peer": "", "taken": 0} if runner is None else runner.describe()
        state = self.logs.lead.state
        held = [state.held[each.number].count for each in self._origins_of(route) if each.number is not None]
        made = {name: value for name, value in route.to_dict().items() if name not in ("op", "needs")}
        where = {"host": first.host, "port": first.port, "transport": first.transport, "queue": source_queue(route)}
        return {"tag": "", "exclude": [], "mechanism": "", "ending": False} | made | where | doing | {"held": sum(held)}

    def _origins_of(self, route: RouteAdd) -> list[OriginAdd]:
        return [each for each in self.logs.lead.state.definitions.origins.values() if each.drain == route.uuid]

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[Answer]:
        """See the module. Refused, KeyError, TypeError, ValueError."""
        logs = self.logs
        if not logs.serving:
            raise Refused(409, f"this broker is {logs.state}: ask the primary, {logs.primary or 'unknown'}")
        if lacks := logs.nodes.lacks(logs.lead.name, ROUTES_SINCE):
            raise Refused(409, f"a route {lacks}")
        match operation:
            case "CREATE":
                return self._create(body)
            case "DELETE":
                return self._delete(body)
        raise Refused(501, f"this broker does not have the operation {operation!r} on a route")

    def _create(self, body: Mapping[str, Any]) -> Deferred[Answer]:
        if self.logs.closed:
            raise Refused(409, self.logs.redirect().text)
        route = self._asked(body)
        nodes = self.logs.nodes
        if lacks := nodes.lacks(self.logs.lead.name, route.needs):
            raise Refused(409, f"a dynamic route {lacks}")
        if route.exchange not in nodes.exchanges and (route.kind != QUEUE or route.exchange not in nodes.queues):
            what = "queue and no exchange" if route.kind == QUEUE else "exchange"
            raise Refused(404, f"there is no {what} named {route.exchange!r} for the messages of the route")
        known = self._known(route)
        if known is not None and known.ending:
            text = "this route is being deleted: make it again when its source has confirmed that, or delete it with force before"
            raise Refused(409, text)
        return self._answered(route, 201, "created", {"uuid": route.uuid})

    def _known(self, asked: RouteAdd) -> RouteAdd | None:
        """The route that is there with what identifies this one."""
        routes = self.logs.lead.state.definitions.routes.values()
        return next((each for each in routes if each.identity == asked.identity), None)

    def _asked(self, body: Mapping[str, Any]) -> RouteAdd:
        """The route that a request is about, with a new uuid."""
        kind, mechanism = _text(body, "kind"), _text(body, "mechanism", "")
        if kind not in KINDS:
            raise Refused(501, f"this broker does not have routes of the kind {kind!r}: it has {', '.join(KINDS)}")
        if kind == DYNAMIC and body.get("key"):
            raise Refused(400, "a dynamic route follows all bindings of its exchange: it has no `key`")
        if mechanism and mechanism not in MECHANISMS:
            raise Refused(400, f"{mechanism!r} is not a SASL mechanism: use one of {', '.join(MECHANISMS)}")
        url = urls.parse(_text(body, "source"))
        if url.password:
            text = "a route cannot have a password, because others can list it: write it into the file of --route-passwords"
            raise Refused(400, f"{text}, on each broker of the cluster")
        exclude = body.get("exclude") or []
        if not isinstance(exclude, list) or len(exclude) > MAX_EXCLUDED or not all(_is_name(each) for each in exclude):
            raise Refused(400, f"`exclude` must be a list of up to {MAX_EXCLUDED} names")
        return RouteAdd(
            uuid=self._new_id(),
            kind=kind,
            source=str(url),
            exchange=_text(body, "exchange"),
            key=_text(body, "key", None if kind == QUEUE else ""),
            tag=_text(body, "tag", ""),
            exclude=exclude,
            mechanism=mechanism,
            needs=DYNAMIC_SINCE if kind == DYNAMIC else ROUTES_SINCE,
        )

    def _delete(self, body: Mapping[str, Any]) -> Deferred[Answer]:
        known = self._known(self._asked(body))
        if known is None:
            raise Refused(404, "there is no such route")
        if known.kind == QUEUE or body.get("force"):
            self._retire(known.uuid)
            return self._answered(RouteDel(uuid=known.uuid), 204, "deleted", {"uuid": known.uuid})
        ending = msgspec.structs.replace(known, ending=True)
        if known.ending:
            runner = self._runners.get(known.uuid)
            raise Refused(
                409,
                f"the route is deleted as soon as its source has confirmed it: {runner.life.error if runner is not None else ''}",
            )
        text = "the route is deleted as soon as its source has confirmed it"
        return self._answered(ending, 202, text, {"uuid": known.uuid, "ending": True})

    def _answered(self, command: Command, status: int, text: str, body: dict[str, Any]) -> Deferred[Answer]:
        """This answer to a change, when that is committed."""
        answered: Deferred[Answer] = Deferred()

        def committed(reason: str) -> None:
            if self._waiting.pop(answered, answered) is None:
                answered.callback((409, reason, {}) if reason else (status, text, body))

        self._waiting[answered] = None
        self.logs.lead.change(command, committed)
        return answered


def _text(body: Mapping[str, Any], field: str, default: str | None = None) -> str:
    found = body[field] if default is None else body.get(field, default)
    most = limits.MAX_URL_BYTES if field == "source" else limits.MAX_NAME_BYTES
    if not isinstance(found, str) or not (found or default is not None) or len(found.encode(errors="replace")) > most:
        raise Refused(400, f"`{field}` must be a text of up to {most} bytes, not {found!r:.80}")
    return found


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value.encode(errors="replace")) <= limits.MAX_NAME_BYTES
