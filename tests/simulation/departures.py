"""Brokers that leave, in simulated worlds of their own: their messages are drained to other brokers, drains are
cancelled and started again, while processes of both sides and drainers fail.

Life of such a world: the seed selects the source (a single broker or a cluster), the target (likewise), and the task: a
drain; a drain that is cancelled in the middle; or that, and then a complete drain. Messages arrive at the source
whenever it serves, and are consumed at the target now and then. Brokers are killed, lose their power and come back.
Drainers are killed, or frozen and woken after another one has continued. Then everything is healed, and the task must
end.

The check compares what both logs have committed: each message that the source had accepted is at the target once, or
still on the source, but not both. The messages of a queue arrived in order. Production code is the whole process of the
brokers, and all of `qpid-drain` except for its command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import proton
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure

from broker.client import ClientError
from broker.core import urls
from broker.core.records import Batch, Kind
from broker.sessions.ledger import Ledger
from cli import endings
from cli.drain.call_off import Back, CallOff
from cli.drain.drain import Drain, Result
from cli.drain.sides import Clock, Side
from cli.options import Target
from ha.settings import HaSettings
from tests.simulation.history import Violation
from tests.simulation.hosts import PORT, BrokerHost, ManagerHost
from tests.simulation.reactor import HostReactor
from tests.simulation.regressions import quiet
from tests.simulation.small import Machine, SmallWorld
from tests.simulation.world import swept

QUEUES = {"q0": {}, "q1": {"qpid.priorities": 3}}
_ENDS_S = 90.0
"""So long after all is healed, at the latest, what was asked for is done."""
_FIRST = 250
"""So many messages are on each queue before the first drain."""
_SCRIPTS = (("drain",), ("drain", "call off"), ("drain", "call off", "drain"))


class LoneHost(BrokerHost):
    """The machine of a broker by itself."""

    def _ha_settings(self, url: str) -> HaSettings:
        return HaSettings.from_values({})


class Group:
    """One side: the machines of a broker by itself, or of a cluster, and what their logs have committed."""

    def __init__(self, world: Departures, first: int, size: int) -> None:
        self._world = world
        addresses = [f"10.0.0.{number + 1}:{PORT}" for number in range(first, first + size)]
        self.url = "amqp:" + ",".join(addresses)
        kind = BrokerHost if size > 1 else LoneHost
        self.hosts = [kind(world, first + number, self.url, self.url) for number in range(size)]  # type: ignore[arg-type]
        self.bodies: dict[tuple[str, int], bytes] = {}
        """Queue and sequence -> what has come there."""
        self.came: dict[str, list[bytes]] = {queue: [] for queue in QUEUES}
        """In the order of the log."""
        self._seen: dict[str, int] = {}

    @property
    def serving(self) -> BrokerHost | None:
        """The broker that serves."""
        found = [host for host in self.hosts if host.state in ("active", "standalone") and host.process.broker.logs.serving]
        return max(found, key=lambda host: host.process.broker.lead.state.index, default=None)

    def committed(self, host: BrokerHost, ledger: Ledger, batches: list[Batch]) -> None:
        """One of its logs has committed this."""
        name = ledger.name if ledger.name == "cluster" else f"{ledger.name} {host.name}"
        names = {number: each.uuid for number, each in ledger.state.messages.items()}
        for batch in batches:
            if batch.header.index <= self._seen.get(name, 0):
                continue
            self._seen[name] = batch.header.index
            for run in batch.runs:
                if run.kind is Kind.DEFINE and b"origin-release" in batch.payload(run) and self is self._world.target:
                    self._world.released()
                node = host.process.broker.nodes.queue_by_uuid(names.get(run.queue, "")) if run.kind is Kind.ENQUEUE else None
                if node is not None:
                    for at, body in enumerate(batch.messages(run)):
                        self.bodies[node.name, run.first_seq + at] = body
                        self.came[node.name].append(body)
        if self is self._world.target:
            self._world.moved(sum(map(len, self.came.values())))

    def left(self, queue: str) -> list[bytes]:
        """What is on its queue now, lowest level first."""
        assert self.serving is not None
        node = self.serving.process.broker.nodes.queues.get(queue)
        lanes = [] if node is None or node.messages is None else node.messages.order.lanes
        return [self.bodies[queue, sequence] for lane in lanes for sequence, _ in lane.alive_from(0)]


class Drainer:
    """A machine on which `qpid-drain` runs once. `done` gets its result, or the error with which it ended."""

    def __init__(self, world: Departures, number: int, what: str, done: Callable[[Drainer, Any], None]) -> None:
        self.name = f"drainer {number}"
        self.what = what
        self.reactor = HostReactor(world.events, world.network, f"10.0.4.{number}")
        self._world = world
        self._done: Callable[[Drainer, Any], None] | None = done
        self._sides: list[Side] = []
        self._running: Deferred[Any] | None = None
        world.events.at(world.events.now, self.reactor, self._begin)

    def _begin(self) -> None:
        clock, world = Clock(self.reactor, None), self._world
        sides = [world.source.url, world.target.url]
        self._sides = [Side(clock, Target(urls.parse(url), 2.0, "", True), url) for url in sides]
        work = (
            CallOff(clock, self._sides[0], self._sides[1:], self._tell).run() if self.what == "call off" else self._drain(clock)
        )
        self._running = ensureDeferred(work)
        self._running.addBoth(self._ended)

    async def _drain(self, clock: Clock) -> Result:
        source, *targets = self._sides
        return await Drain(clock, source, targets, self._tell, spread_s=0.0, now="now", patience_s=5.0).run()

    def _tell(self, event: str, facts: dict[str, Any]) -> None:
        self._world.say(f"{self.name}: {event} {facts}")
        if event == "leaving":
            self._world.leaves()

    def _ended(self, result: Any) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self, result)
            for side in self._sides:
                side.abort()

    def kill(self) -> None:
        """SIGKILL."""
        self._done = None
        self.reactor.vanish()
        for side in self._sides:
            if side._client is not None:
                side._client._closed = True  # nobody hears of it: that end is gone
        if self._running is not None:
            self._running.addErrback(lambda failure: None)
            self._running.cancel()  # so that Python ends what stands still here, and not at any later time


class Departures(SmallWorld):
    """One world."""

    def __init__(self, seed: int, say: Callable[[str], None] | None = None, *, races: bool = False) -> None:
        """`races`: little happens but that a drain is called off which goes on meanwhile, and disks are slow."""
        self._races = races
        self.rng = rng = Random(f"departures {seed}")
        fields: dict[str, Any] = {
            "seed": seed,
            "checkpoint_bytes": rng.choice((2048, 16384, 65536)),
            "message_memory": rng.choice((0, 2000, 1 << 30)),
            "disk_s": rng.choice((0.0, 0.0005, 0.004)),
            "rates": (1.0,) * 8,
        }
        super().__init__(replace(quiet(), **fields), rng, say)
        self.healed = False
        sizes = rng.choice(((1, 1), (1, 3), (3, 3)))
        self.source, self.target = Group(self, 0, sizes[0]), Group(self, sizes[0], sizes[1])
        self.groups = [self.source, self.target]
        self.managers = [
            ManagerHost(self, number, group.url)  # type: ignore[arg-type]
            for number, group in enumerate(self.groups)
            if len(group.hosts) > 1
        ]
        self.script: list[str] = list(_SCRIPTS[2] if races else rng.choice(_SCRIPTS))
        self.accepted: dict[str, list[bytes]] = {queue: [] for queue in QUEUES}
        self.drainer: Drainer | None = None
        self._strays: list[Drainer] = []
        """Drainers that do what nobody asks for any more."""
        self._drainers = self._sent = 0
        self._points: dict[int, Callable[[], None]] = {}
        """What goes wrong when so many messages have come to the target."""

    def primary(self) -> BrokerHost | None:
        """The one whom operators ask."""
        return self.source.serving

    # ---- the run

    def _live(self) -> None:
        """Run it. Violation when the account is wrong, or what was asked for does not come to its end."""
        with self._observed():
            self._begin()
            self._until(self.events.now + 1.5 + 3.0 * self.rng.random())
            self.healed = True
            self.say(f"-- all is healed; left of the script: {self.script}")
            self._come_to_an_end()
            for stray in self._strays:
                stray.kill()
            leave = self.source.serving.process.broker.logs.leave  # type: ignore[union-attr]
            if leave is not None and not leave.released:  # one that was woken late has begun another drain
                self.script = ["call off"]
                self._again()
                self._come_to_an_end()
            self._check()

    def _machines(self) -> list[Machine]:
        drainers = [*self._strays, *filter(None, [self.drainer])]
        return [*drainers, *self.source.hosts, *self.target.hosts, *self.managers]

    def _begin(self) -> None:
        for group in self.groups:
            sync_s = 0.02 if self._races else self.rng.choice((0.0005, 0.004, 0.02))
            for host in group.hosts:
                host.disk.sync_s = sync_s
        for host in [*self.source.hosts, *self.target.hosts]:
            self.events.at(self.rng.random() * 0.05, None, host.start)
        for manager in self.managers:
            self.events.at(self.rng.random() * 0.2, None, manager.start)
        for queue, arguments in QUEUES.items():
            self.operators.until_done("CREATE", "queue", queue, {"replicate": "all", "arguments": arguments})

        def ready() -> bool:
            return all(group.serving for group in self.groups) and min(map(len, self.accepted.values())) >= _FIRST

        self.events.after(0.1, None, self._feed)
        if not self._until(30.0, ready):
            raise Violation("liveness: the brokers do not serve")
        self._begin_drainer()

    def leaves(self) -> None:
        """The source leaves for the first time: things go wrong from now on, at points of the move and at any time."""
        if self._points:
            return
        rng, expected = self.rng, sum(map(len, self.accepted.values()))
        faults = [self._kill, self._cut_power, self._kill_drainer, self._freeze_drainer, self._consume, self._consume]
        self._points = {rng.randrange(1, expected): rng.choice(faults) for _ in range(0 if self._races else rng.randrange(1, 6))}
        for _ in range(0 if self._races else rng.randrange(3)):
            self.events.after(3.0 * rng.random(), None, rng.choice(faults))
        if "call off" in self.script:
            self._points[rng.randrange(1, expected)] = self._change_mind

    def moved(self, count: int) -> None:
        """So many messages have come to the target by now."""
        for point in [each for each in self._points if each <= count]:
            self.events.after(0.005 * self.rng.random(), None, self._points.pop(point))
            self._points[1 << 60] = self._consume

    def _come_to_an_end(self) -> None:
        end = self.events.now + _ENDS_S
        if not self._until(end, lambda: not self.script and all(group.serving for group in self.groups)):
            raise Violation(f"liveness: {self.script} does not come to an end")

    # ---- what clients do

    def _feed(self) -> None:
        """Messages come at the source, if it serves clients."""
        host = self.source.serving
        if host is not None and not host.process.broker.logs.closed:
            for queue in QUEUES:
                self.events.at(self.events.now, host.reactor, self._put, host.process.broker, queue)
        if not self.healed:
            self.events.after(0.05, None, self._feed)

    def _put(self, broker: Any, queue: str) -> None:
        node = broker.nodes.queues.get(queue)
        ledger = None if node is None or node.messages is None else broker.logs.ledger_of(node)
        if ledger is None or not ledger.serving or broker.logs.closed:
            return
        bodies = []
        for _ in range(self.rng.randrange(1, 16 if self.drainer else 60)):
            self._sent += 1
            made: Any = proton.Message(body=f"{queue}/{self._sent}", priority=4)
            bodies.append(bytes(made.encode()))
        ledger.enqueue(node, bodies, sum(map(len, bodies)))
        ledger.pending.when_committed(lambda: self.accepted[queue].extend(bodies))

    def _consume(self) -> None:
        """What is at the target leaves."""
        host = self.target.serving
        if host is not None:
            self.events.at(self.events.now, host.reactor, self._take_all, host.process.broker)

    @staticmethod
    def _take_all(broker: Any) -> None:
        for node in broker.nodes.queues.values():
            if node.messages is not None and broker.logs.ledger_of(node).serving:
                alive = [sequence for lane in node.messages.order.lanes for sequence, _ in lane.alive_from(0)]
                broker.logs.ledger_of(node).dequeue(node.messages.number, alive)

    # ---- what goes wrong

    def _any_host(self) -> BrokerHost:
        return self.rng.choice(self.rng.choice(self.groups).hosts)

    def _kill(self) -> None:
        host = self._any_host()
        self.say(f"{host.name} is killed")
        host.kill()
        self.events.after(0.3 * self.rng.random(), None, host.start)

    def _cut_power(self, host: BrokerHost | None = None) -> None:
        host = host or self._any_host()
        self.say(f"{host.name} loses its power")
        host.cut_power()
        self.events.after(0.3 * self.rng.random(), None, host.start)

    def _kill_drainer(self) -> None:
        if self.drainer is not None:
            self.say(f"{self.drainer.name} is killed")
            self.drainer.kill()
            self._begin_drainer()

    def _freeze_drainer(self) -> None:
        """It wakes when others have gone on."""
        if self.drainer is not None:
            frozen = self.drainer
            self.say(f"{frozen.name} is frozen")
            frozen._done = lambda drainer, result: None
            frozen.reactor.frozen = True
            self.events.after(0.1 + 2.0 * self.rng.random(), None, self.events.thaw, frozen.reactor)
            self._strays.append(frozen)
            self._begin_drainer()

    def _leave_drainer(self) -> None:
        """It goes on, though others do something else; what it sends to the target is late."""
        if self.drainer is not None:
            left = self.drainer
            late_s = 0.06 * self.rng.random()
            for host in self.target.hosts:
                self.network.slow[left.reactor.ip, host.ip] = late_s
            left._done = lambda drainer, result: None
            self._strays.append(left)
            self._begin_drainer()

    def released(self) -> None:
        """The target has released a drain: the source may fail just now."""
        if self.rng.random() < 0.5 and not self.healed:
            self.events.after(0.0, None, self._cut_power, self.source.serving)

    def _change_mind(self) -> None:
        """The drain is called off, wherever it stands; and that may be disturbed, too."""
        if not self._races and self.rng.random() < 0.5:
            self.events.after(0.1 * self.rng.random(), None, self.rng.choice([self._kill, self._cut_power, self._kill_drainer]))
        if self.script[0] == "drain" and "call off" in self.script:
            del self.script[: self.script.index("call off")]
            others = [] if self._races else [self._kill_drainer, self._freeze_drainer]
            how = self.rng.choice([*others, self._leave_drainer])
            if self.drainer is not None:
                how()

    # ---- what is asked for

    def _begin_drainer(self) -> None:
        self._drainers += 1
        self.say(f"drainer {self._drainers}: {self.script[0]}")
        self.drainer = Drainer(self, self._drainers, self.script[0], self._drainer_ended)

    def _drainer_ended(self, drainer: Drainer, result: Any) -> None:
        self.say(f"{drainer.name}: {result}")
        if isinstance(result, Failure) and not result.check(ClientError, endings.Refused, endings.Unreachable):
            self.broke(result)
        self.drainer = None
        done = (isinstance(result, Result) and result.empty) or isinstance(result, Back)
        if done:
            del self.script[0]
        self.events.after(0.5 if done else 0.2, None, self._again)

    def _again(self) -> None:
        if self.drainer is None and self.script:
            self._begin_drainer()

    # ---- the account

    def _check(self) -> None:
        source = self.source.serving
        assert source is not None
        for queue, accepted in self.accepted.items():
            came, left = self.target.came[queue], self.source.left(queue)
            twice = [body for body in set(came) if came.count(body) > 1]
            both = set(came) & set(left)
            lost = set(accepted) - set(came) - set(left)
            for what, found in (("came twice", twice), ("are on both", both), ("are on neither", lost)):
                if found:
                    raise Violation(f"account: of {queue} {len(found)} {what}: {min(found)!r}")
            if not source.process.broker.logs.closed and came and left and not set(left) <= set(self.source.bodies.values()):
                raise Violation(f"account: of {queue} something is on the source that never came there")
            numbers = [self._number(body) for body in came]
            if numbers != sorted(numbers):
                raise Violation(f"order: {queue} came in another order: {numbers}")
        leave = source.process.broker.logs.leave
        if leave is not None and (not leave.released or any(map(self.source.left, QUEUES))):
            raise Violation("released: the drain has ended, and the source is not empty, or does not know")

    @staticmethod
    def _number(body: bytes) -> int:
        message: Any = proton.Message()
        message.decode(body)
        return int(message.body.partition("/")[2])

    # ---- what is observed

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """What every log commits is entered, when it is applied."""
        right = Ledger.on_committed

        def on_committed(ledger: Ledger, batches: list[Batch]) -> None:
            right(ledger, batches)
            for group in self.groups:
                for host in group.hosts:
                    broker = getattr(host.process, "broker", None)  # a process that starts has none yet
                    if broker is not None and ledger in broker.ledgers.values():
                        group.committed(host, ledger, batches)

        observed: Any = on_committed
        Ledger.on_committed = observed  # type: ignore[method-assign]
        try:
            yield
        finally:
            Ledger.on_committed = right  # type: ignore[method-assign]


def run(seed: int, say: Callable[[str], None] | None = None) -> int:
    """Run the world of this seed. Returns how many messages its source has accepted. Violation when a promise is broken."""
    return swept(lambda: _accepted(Departures(seed, say)))


def race(seed: int) -> int:
    """The same, where a drain goes on while it is called off."""
    return swept(lambda: _accepted(Departures(seed, races=True)))


def _accepted(world: Departures) -> int:
    world.run()
    return sum(map(len, world.accepted.values()))
