"""Requests of operators while things go wrong: right ones, wrong ones, two at once, and to the wrong broker.

Every request is a management request from its own machine, over its own connection, with the production client. The
trace shows its result; no check uses it. A request that creates a needed queue is repeated until the queue exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import ensureDeferred

from broker.client import ClientError, ManagementClient
from broker.core import urls
from tests.simulation.layouts import ALL_BROKERS, BIND_AGAIN, Step
from tests.simulation.reactor import HostReactor

if TYPE_CHECKING:
    from tests.simulation.hosts import BrokerHost
    from tests.simulation.world import World

_CONNECT_S = 0.5
_ANSWER_S = 3.0
_PAUSE_S = 0.2
_MOVE_PAUSE_S = 0.05
_BOUND_S = 0.15


class Operators:
    """All who operate this cluster."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.reactor = HostReactor(world.events, world.network, "10.0.3.1")
        self._asked = 0
        self.done: dict[str, int] = {}
        """How often each request was answered with success."""

    def ask(self, host: BrokerHost, operation: str, kind: str, name: str = "", body: Mapping[str, Any] | None = None) -> None:
        """Ask this broker once."""
        self._begin(self._ask(host, operation, kind, name, body))

    def until_done(self, operation: str, kind: str, name: str, body: Mapping[str, Any] | None = None) -> None:
        """Ask whoever is the primary until it is done, or was done before (409, 404)."""
        self._begin(self._until_done(operation, kind, name, body))

    def set_up(self, steps: Sequence[Step], then: Callable[[], None]) -> None:
        """Make all of these, one after the other, then say so."""
        self._begin(self._set_up(steps, then))

    def recreate(self, name: str) -> None:
        """Delete a queue, then create it again."""
        self._begin(self._recreate(name))

    def exchange(self, name: str, level: str, queue: str) -> None:
        """Make an exchange, and let this queue, if it is there, have what comes to it."""
        self._begin(self._exchange(name, level, queue))

    def keep_moving(self, source: str, to: str) -> None:
        """Move all messages of a queue to another, again and again."""
        self._begin(self._keep_moving(source, to))

    def keep_deleting(self, step: Step) -> None:
        """Delete the queue that this step makes, and make it anew, again and again."""
        self._begin(self._keep_deleting(step))

    def _begin(self, work: Any) -> None:
        self._world.events.at(self._world.events.now, self.reactor, lambda: ensureDeferred(work).addErrback(self._world.broke))

    async def _set_up(self, steps: Sequence[Step], then: Callable[[], None]) -> None:
        for step in steps:
            if step.operation == BIND_AGAIN:
                self._begin(self._keep_binding(step.name))
                continue
            body = {field: self._world.url if value == ALL_BROKERS else value for field, value in step.body.items()}
            await self._until_done(step.operation, step.kind, step.name, body)
        if not self._world.ended:
            then()

    async def _recreate(self, name: str) -> None:
        await self._until_done("DELETE", "queue", name, None)
        await self._until_done("CREATE", "queue", name, {"replicate": "all"})

    async def _exchange(self, name: str, level: str, queue: str) -> None:
        await self._until_done("CREATE", "exchange", name, {"exchangeType": "fanout", "replicate": level})
        primary = self._world.primary()
        if primary is not None:
            await self._ask(primary, "CREATE", "binding", "", {"exchange": name, "queue": queue, "key": ""})

    async def _keep_moving(self, source: str, to: str) -> None:
        while not self._world.ended:
            primary = self._world.primary()
            if primary is not None:
                await self._ask(primary, "MOVE", "queue", source, {"to": to})
            await self._world.pause(self.reactor, _MOVE_PAUSE_S)

    async def _keep_deleting(self, step: Step) -> None:
        while not self._world.ended:
            for operation, body in (("DELETE", {}), ("CREATE", step.body)):
                primary = self._world.primary()
                if primary is not None:
                    await self._ask(primary, operation, "queue", step.name, body)
            await self._world.pause(self.reactor, _MOVE_PAUSE_S)

    async def _keep_binding(self, exchange: str) -> None:
        """A new queue again and again, bound to this exchange and deleted after a while."""
        number = 0
        while not self._world.ended:
            number += 1
            queue = f"late{number}"
            for operation, kind, name, body in (
                ("CREATE", "queue", queue, {"replicate": "all"}),
                ("CREATE", "binding", "", {"exchange": exchange, "queue": queue, "key": ""}),
                ("DELETE", "queue", f"late{number - 1}", None),
            ):
                primary = self._world.primary()
                if primary is not None:
                    await self._ask(primary, operation, kind, name, body)
            await self._world.pause(self.reactor, _BOUND_S)

    async def _until_done(self, operation: str, kind: str, name: str, body: Mapping[str, Any] | None) -> None:
        world = self._world
        while not world.ended:
            host = world.primary()
            if host is not None:
                status = await self._ask(host, operation, kind, name, body)
                if 200 <= status < 300 or (status == 409 and operation == "CREATE" and self._exists(name, body or {})):
                    return
                if status == 404 and operation == "DELETE":
                    return
            await world.pause(self.reactor, _PAUSE_S)

    def _exists(self, name: str, body: Mapping[str, Any]) -> bool:
        primary = self._world.primary()
        if primary is None:
            return False
        nodes = primary.process.broker.nodes
        if "source" in body:
            return bool(primary.process.broker.lead.state.definitions.routes)
        if name:
            return name in nodes.queues or name in nodes.exchanges
        wanted = body["exchange"], body["queue"], body["key"]
        return any((exchange.name, queue.name, change.key) == wanted for exchange, queue, change, _ in nodes.bindings())

    async def _ask(self, host: BrokerHost, operation: str, kind: str, name: str, body: Mapping[str, Any] | None) -> int:
        """The status of the answer, 0 when there was none."""
        world = self._world
        self._asked += 1
        what = " ".join(filter(None, (operation, kind, name, str(dict(body or {}).get("address", "")))))
        client = None
        try:
            client = await ManagementClient.connect(
                self.reactor,
                urls.parse(host.address).addresses[0],
                timeout_s=_CONNECT_S,
                heartbeat_s=1.0,
                container=f"operator-{self._asked}",
                seconds=self.reactor.seconds,
            )
            await client.request(operation, kind, name or None, body, timeout_s=_ANSWER_S)
        except ClientError as error:
            world.say(f"operator: {what} at {host.name}: {error}")
            return int(getattr(error, "status", 0))
        else:
            world.say(f"operator: {what} at {host.name}: done")
            self.done[operation] = self.done.get(operation, 0) + 1
            return 200
        finally:
            if client is not None:
                client.abort()
