"""A whole cluster in one process, on one queue of events: brokers, resource managers, clients and operators, and all
faults.

Life of a run: everything is made from the seed's plan. The brokers start, a resource manager has one promoted, queues
are created, clients send and consume, and the plan's actions happen. At the plan's end everything is healed, producers
stop, and the cluster must recover within `Plan.recovers_s`: one active primary, every member with the same log, every queue
empty, every producer with its outcomes. Then the final checks run.

Production code runs unchanged, with simulated sockets, disks, threads and clocks. It must not see anything else of this
process: process id, command line and log are the world's while a run lasts.

Invariant: the same seed and the same kept items give the same run, byte for byte; `Outcome.digest` shows it.
"""

from __future__ import annotations

import gc
import os
import sys
import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, eventAsText, globalLogPublisher
from twisted.python.failure import Failure

import broker.core.routes
import ha.snapshots
from broker.core.nodes import AUTO_DELETE_TIMEOUT
from tests.simulation import plan as plans
from tests.simulation.checks import Checks
from tests.simulation.checks.room import overfull
from tests.simulation.clients import Browser, Client, ClientPlan, Consumer, Fetched, Mover, Numbered, Producer, Repeater, Stranger
from tests.simulation.events import Events
from tests.simulation.faults import Faults
from tests.simulation.history import History, Violation, kept_at
from tests.simulation.hosts import PORT, BrokerHost, ManagerHost
from tests.simulation.layouts import ASIDE, BRIEF, BRIEF_S, FROM, GROUPS, LETTERS, UNDRAINED, arguments, levels_of, ring_of
from tests.simulation.messenger import Mail, Weather
from tests.simulation.network import Network
from tests.simulation.operators import Operators
from tests.simulation.plan import Plan
from tests.simulation.promises import Promises
from tests.simulation.reactor import HostReactor
from tests.simulation.stretches import repeated
from tests.simulation.subscribers import Leaver, Publisher, Subscriber
from tests.simulation.transactor import Transactor

_ROUTE_LOOKS_S = 0.07
_CLIENTS: dict[str, type[Client]] = {
    "producer": Producer,
    "consumer": Consumer,
    "stranger": Stranger,
    "browser": Browser,
    "mover": Mover,
    "numbered": Numbered,
    "fetched": Fetched,
    "repeater": Repeater,
    "subscriber": Subscriber,
    "publisher": Publisher,
    "leaver": Leaver,
    "transactor": Transactor,
}
_LOOK_S = 0.1
_LAST_EVENTS = 400
_LIMITS_EVERY = 256
_RESTART_S = 0.2
_LAST_WORDS_S = 0.3


@dataclass
class Outcome:
    """What a run did, and what came of it. `violation` is "" when every promise was kept."""

    seed: int
    digest: str
    simulated_s: float
    events: int
    brokers: int
    kinds: tuple[str, ...]
    done: dict[str, int]
    counts: dict[str, int]
    recovered_s: float = 0.0
    violation: str = ""
    trace: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people."""
        counts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        done = ", ".join(f"{kind} {count}" for kind, count in sorted(self.done.items())) or "none"
        return [
            f"seed {self.seed}: {self.brokers} brokers, {self.simulated_s:.1f} s simulated, {self.events} events, "
            f"recovered in {self.recovered_s:.2f} s, digest {self.digest}",
            f"  faults and operations: {done}",
            f"  messages: {counts}",
        ]


class World:
    """One run. See the module."""

    def __init__(self, plan: Plan, say: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.ended = self.healed = False
        self._say = say
        self._trace: deque[tuple[float, str, Any]] = deque(maxlen=_LAST_EVENTS)
        self._broken: list[str] = []
        self.events = Events()
        rng = Random(f"{plan.seed}/network")
        self.network = Network(self.events, rng, latency_s=plan.latency_s, chunking=plan.chunking)
        self.mail = Mail(self.network, rng, Weather(plan.drop, plan.double, plan.reorder_s, plan.stray))
        self.history = History()
        self.checks = Checks(self.history)
        self.levels = {step.name: step.body["replicate"] for step in plan.steps if step.kind == "queue"}
        """Of queues that are not of level `all`, and of others."""
        if plan.brief:
            self.levels[BRIEF] = plan.brief
        urls = [f"10.0.0.{number + 1}:{PORT}" for number in range(plan.brokers + plan.spares)]
        first, every = "amqp:" + ",".join(urls[: plan.brokers]), "amqp:" + ",".join(urls)
        self.url = every
        """Of all brokers."""
        self.hosts = [BrokerHost(self, number, first if number < plan.brokers else every, every) for number in range(len(urls))]
        self.managers = [ManagerHost(self, number, every) for number in range(plan.managers)]
        self.promises = Promises(self.hosts)
        self.operators = Operators(self)
        self.clients = [self._client(number, client) for number, client in enumerate(plan.clients)]
        self.client_ips = tuple(client.reactor.ip for client in self.clients)
        self.faults = Faults(self)

    def _client(self, number: int, plan: ClientPlan) -> Client:
        rng = Random(f"{self.plan.seed}/client {plan.name}")
        addresses = [host.address for host in self.hosts]
        rng.shuffle(addresses)
        reactor = HostReactor(self.events, self.network, f"10.0.1.{number + 1}")
        return _CLIENTS[plan.kind](reactor, plan, addresses, self.history, self._place, str(self.plan.seed), self.say)

    def _place(self, queue: str, broker_id: str) -> str:
        """What the history calls a queue at this broker."""
        return queue if self.levels.get(queue, "all") == "all" else kept_at(queue, broker_id)

    # ---- what the others tell

    def say(self, text: str) -> None:
        """A line of the trace."""
        self._trace.append((self.events.now, text, None))
        if self._say is not None:
            self._say(f"{self.events.now:9.4f} {text}")

    def broke(self, failure: Failure) -> None:
        """Something raised where nothing may."""
        self._broken.append(f"crash: {failure.getErrorMessage()}\n{failure.getTraceback()}")

    def cannot_start(self, host: BrokerHost, why: str) -> None:
        """A broker refuses to start: for a reason, or it is our fault."""
        self.say(f"{host.name} cannot start: {why}")
        if self.promises.is_damaged(host) and "starts as a new one" in why:
            host.cut_power()
            host.replace_disk()
            self.wiped(host)
            self.events.after(_RESTART_S, None, host.start)
        elif host.excused or host.disk.capacity is not None:
            self._restart_after(host)
        else:
            self._broken.append(f"crash: {host.name} cannot start: {why}")

    def process_ended(self, host: BrokerHost, status: int) -> None:
        """A broker has ended by itself."""
        self.say(f"{host.name} ended with status {status}")
        if not status:
            self.events.after(host.rest_s, None, host.start)
            return
        if self.checks.has_decayed(host.address) and host.has_noted_damage:
            self.hurt(host)
            self.decayed(host, "it has read bytes that went bad, perhaps long ago, and fetches all from another one now")
        elif not host.excused and not host.is_put_back:
            self._broken.append(f"crash: the process of {host.name} ended with status {status}, and nothing was wrong there")
        self._restart_after(host)

    def _restart_after(self, host: BrokerHost) -> None:
        """What a supervisor does."""
        host.disk.bad_syncs = 0
        self.events.after(_RESTART_S, None, host.start)

    def hurt(self, host: BrokerHost) -> None:
        """This host's store is damaged now."""
        self.promises.hurt(host)

    def wiped(self, host: BrokerHost) -> None:
        """This host has a new disk."""
        self.say(f"{host.name} has a new disk")
        self.checks.wiped(host.address)

    def decayed(self, host: BrokerHost, how: str) -> None:
        """This host's disk has lost something at rest."""
        self.say(f"{host.name}: {how}")
        self.checks.decayed(host.address)

    # ---- views

    def primary(self) -> BrokerHost | None:
        """The active broker of the highest epoch."""
        active = [host for host in self.hosts if host.state == "active"]
        return max(active, key=lambda host: int(host.log.epoch)) if active else None

    @staticmethod
    def pause(reactor: HostReactor, seconds: float) -> Deferred[None]:
        """Fires after this time."""
        paused: Deferred[None] = Deferred()
        reactor.callLater(seconds, paused.callback, None)
        return paused

    # ---- the run

    def run(self) -> Outcome:
        """Run it; a Violation is in the outcome."""
        violation = ""
        recovered_s = 0.0
        try:
            with (
                surroundings(self.plan.chunk_bytes, self._logged),
                self.checks,
                repeated(self.checks.is_gone) if self.plan.repeats else nullcontext(),
            ):
                self._begin()
                self._until(self.plan.duration_s)
                recovered_s = self._recover()
                self._finish()
        except Violation as error:
            violation = str(error)
        finally:
            self.ended = True
            self._release()
        return self._outcome(violation, recovered_s)

    def _begin(self) -> None:
        rng = Random(f"{self.plan.seed}/start")
        for host in self.hosts:
            self.events.at(rng.random() * 0.05, None, host.start)
        for manager in self.managers:
            self.events.at(rng.random() * 0.2, None, manager.start)
        steps = self.plan.steps
        made = {step.name for step in steps}
        risky = {client.queue for client in self.plan.clients if client.kind == "consumer" and client.settled}
        for step in steps:
            if step.kind == "queue" and step.name not in (FROM, ASIDE):
                drained, lossy = step.body["replicate"] == "all" and step.name not in UNDRAINED, step.name in risky
                levels, ring = levels_of(step.body), ring_of(step.body)
                keys = max([client.keys for client in self.plan.clients if client.queue == step.name], default=0)
                kind = "groups" if step.name == GROUPS else "values"
                self.history.queue_created(step.name, drained=drained, lossy=lossy, levels=levels, ring=ring, **{kind: keys})
                if "qpid.fairshare" in step.body.get("arguments", {}):
                    self.history.shares[step.name] = step.body["arguments"]["qpid.fairshare"]
                if "alternateExchange" in step.body:
                    self.history.letters[step.name] = LETTERS
        for queue in self._subscriptions("subscriber"):
            self.history.queue_created(queue)
        self.history.volatile.update(plans.EXCHANGES)
        for queue, most, levels in zip(self.plan.queues, self.plan.max_counts, self.plan.levels, strict=True):
            if queue not in made:
                self.history.queue_created(queue, lossy=queue in risky, levels=levels)
                self.operators.until_done("CREATE", "queue", queue, {"replicate": "all", **arguments(most, levels)})
        if self.plan.brief:
            self.history.queue_created(BRIEF, drained=False)
            body = {"replicate": self.plan.brief, "arguments": {AUTO_DELETE_TIMEOUT: BRIEF_S}}
            for at_s in self.plan.brief_at_s:
                self.events.at(at_s, None, self.operators.until_done, "CREATE", "queue", BRIEF, body)
        if steps:
            self.operators.set_up(steps, self._is_set_up)

    def _subscriptions(self, kind: str) -> list[str]:
        """The queues of the subscriptions that clients of this kind have."""
        return [queue for client in self.plan.clients if client.kind == kind for queue in client.arrives or ()]

    def _is_set_up(self) -> None:
        """All is there that clients need which come late; they stay away when producers are to stop anyway."""
        for client in self.clients:
            if client.plan.late and not self.healed:
                client.begin()

    def _until(self, end: float, done: Callable[[], bool] | None = None) -> bool:
        """Let things happen until then, or until it is done, which is looked at now and then."""
        events, step, queue, faults, broken = self.events, self.events.step, self.events.queue, self.checks.faults, self._broken
        look_at = events.now + _LOOK_S
        while queue and queue[0][0] <= end:
            try:
                step()
            except Violation:
                raise
            except Exception as error:
                self._crashed(error)
            if broken:
                raise Violation(broken[0])
            if faults:
                self.checks.step(events.now)
            if events.happened % _LIMITS_EVERY == 0:
                self.checks.limits(host.process for host in self.hosts if host.running)
            if done is not None and events.now >= look_at:
                look_at = events.now + _LOOK_S
                if done():
                    return True
        events.now = max(events.now, end)
        return False

    def _crashed(self, error: Exception) -> None:
        why = Failure(error)
        raise Violation(f"crash: {type(error).__name__}: {error}\n{why.getTraceback()}") from error

    def _recover(self) -> float:
        """Heal, and wait for the cluster to be well. Returns how long that took."""
        self.healed = True
        self.say("-- all is healed; the cluster must recover")
        self.faults.heal()
        for client in self.clients:
            client.enough()
        for queue in self.plan.queues:
            if not any(isinstance(client, Consumer) and client.queue == queue for client in self.clients):
                plan = ClientPlan("consumer", f"last-{queue}", queue, start_s=self.events.now)
                self.clients.append(self._client(len(self.clients), plan))
        began, within_s = self.events.now, self.plan.recovers_s
        if not self._until(began + within_s, lambda: not self._ails()):
            raise Violation(f"liveness: after {within_s:g} s: {'; '.join(self._ails())}")
        took = self.events.now - began
        self._until(self.events.now + _LAST_WORDS_S)
        # An operator may go on all the while: what is committed last is applied elsewhere with the next heartbeat.
        if not self._until(self.events.now + within_s, lambda: not self._ails()):
            raise Violation(f"liveness: it was well, and is not any more: {'; '.join(self._ails())}")
        # Compaction is not in a hurry, and meanwhile a client may come back with what it has to send; the checks say what fails.
        self._until(self.events.now + within_s, lambda: self._has_room() and not self._ails())
        return took

    def _members(self, primary: BrokerHost) -> list[Any]:
        """The processes of the cluster's members."""
        members = primary.log.replica.members.addresses
        return [host.process for host in self.hosts if host.address in members]

    def _has_room(self) -> bool:
        """Whether each member's logs keep their bound on its disk."""
        primary = self.primary()
        return primary is not None and not any(overfull(self._members(primary)))

    def _ails(self) -> list[str]:
        """What is not well yet."""
        primary = self.primary()
        if primary is None:
            states = ", ".join(f"{host.name} {host.state or 'down'}" for host in self.hosts)
            return [f"no broker is active ({states})"]
        found = []
        members = primary.log.replica.members
        at = primary.process.broker.lead.state.index
        for host in self.hosts:
            if not host.running:
                found.append(f"{host.name} does not run")
            elif host.address in members.addresses and host is not primary:
                if host.state != "ready":
                    found.append(f"{host.name} is {host.state}")
                elif host.process.broker.lead.state.index < at and not host.is_witness:
                    found.append(f"{host.name} has applied {host.process.broker.lead.state.index} of {at}")
        if primary.address not in members.voters:
            found.append(f"{primary.name} is about to leave, and is the primary still")
        learning = [address for address in members.learners if address not in members.standby]
        if learning:
            found.append(f"{', '.join(learning)} still learn")
        others = [step.name for step in self.plan.steps if step.kind == "queue" and step.body["replicate"] == "all"]
        others += self._subscriptions("subscriber")
        for queue in dict.fromkeys([*self.plan.queues, *(name for name in others if name not in UNDRAINED)]):
            node = primary.process.broker.nodes.queues.get(queue)
            if node is None or node.messages is None:
                if queue in self.plan.queues:  # others may need a machine version to which the cluster does not come
                    found.append(f"queue {queue} is not there")
            elif node.messages.depth:
                found.append(f"queue {queue} holds {node.messages.depth} messages")
        passing = {BRIEF: "nobody uses it"} | dict.fromkeys(self._subscriptions("leaver"), "its client has unsubscribed")
        found += [
            f"queue {queue} is there still, and {why}"
            for queue, why in passing.items()
            if queue in primary.process.broker.nodes.queues
        ]
        for host in self.hosts:
            for ledger in host.process.broker.ledgers.values() if host.running and host.address in members.addresses else ():
                orphans = sum(count for _, count in ledger.state.parts.orphans())
                if orphans:
                    found.append(f"{orphans} parts in the {ledger.name} log of {host.name} belong to no message")
        found += [
            f"producer {client.name} waits"
            for client in self.clients
            if isinstance(client, Producer) and client.plan.needed and not client.done
        ]
        return found

    def _finish(self) -> None:
        """The last word is the checks'."""
        primary = self.primary()
        assert primary is not None
        self.checks.finish(self._members(primary), self.events.now)
        if self.plan.once and self.history.repeated:
            raise Violation(f"repeated: {self.history.repeated[0]}, though nothing failed")

    # ---- the outcome

    def _outcome(self, violation: str, recovered_s: float) -> Outcome:
        notes = self.history.notes.values()
        outcomes = Counter(str(note.outcome) for note in notes)
        counts = {
            "sent": len(notes),
            "accepted": outcomes["accepted"],
            "refused": outcomes["refused"],
            "unknown": outcomes["unknown"],
            "received": sum(note.received for note in notes),
            "lost": len(self.checks.totals().lost),
            "duplicated": sum(max(0, note.received - 1) for note in notes),
            "recovered": sum(note.outcome == "unknown" and note.received > 0 for note in notes),
        }
        summary = f"{self.network.digest} {self.events.happened} {self.events.now:.9f} {counts} {self.faults.done} {violation}"
        trace = [f"{when:9.4f} {_text(text, event)}" for when, text, event in self._trace] if violation else []
        return Outcome(
            seed=self.plan.seed,
            digest=f"{zlib.crc32(summary.encode()):08x}",
            simulated_s=self.events.now,
            events=self.events.happened,
            brokers=self.plan.brokers,
            kinds=self.plan.kinds,
            done=self.faults.done,
            counts=counts,
            recovered_s=recovered_s,
            violation=violation,
            trace=trace,
        )

    # ---- what is the process's and not the world's

    def _logged(self, event: dict[str, Any]) -> None:
        """A line of production's log."""
        who = self._whose()
        if "log_failure" in event:
            failure = event["log_failure"]
            self._broken.append(f"crash: {who}: {eventAsText(event)}\n{failure.getTraceback()}")
        elif event.get("log_level") is LogLevel.critical:
            self._trace.append((self.events.now, who, dict(event)))
        else:
            self._trace.append((self.events.now, who, event))
        if self._say is not None:
            self._say(f"{self.events.now:9.4f} {_text(who, event)}")

    def _whose(self) -> str:
        owner = self.events.current
        machines: list[Any] = [*self.hosts, *self.managers]
        return next((str(each.name) for each in machines if each.reactor is owner and owner is not None), "world")

    def _release(self) -> None:
        """Give back what is not Python's memory."""
        for host in self.hosts:
            host.kill()
        for manager in self.managers:
            manager.kill()
        self.network.release()


@contextmanager
def surroundings(chunk_bytes: int, logged: Any) -> Iterator[None]:
    """Process id, command line, log, the size of snapshot chunks and how often a route looks are the world's. `logged` observes
    the log."""
    before = os.getpid, sys.argv, ha.snapshots.CHUNK_BYTES, broker.core.routes.LOOK_S
    os.getpid = lambda: 4711
    sys.argv = ["simulation"]
    ha.snapshots.CHUNK_BYTES, broker.core.routes.LOOK_S = chunk_bytes, _ROUTE_LOOKS_S
    globalLogPublisher.addObserver(logged)
    gc_was_on = gc.isenabled()
    gc.disable()
    _freeze()
    try:
        yield
    finally:
        if gc_was_on:
            gc.enable()
        globalLogPublisher.removeObserver(logged)
        os.getpid, sys.argv, ha.snapshots.CHUNK_BYTES, broker.core.routes.LOOK_S = before


@cache
def _freeze() -> None:
    """What there is before the first world stays, so that what is collected after each is what came with it."""
    gc.freeze()


def _text(who: str, event: dict[str, Any] | None) -> str:
    return who if event is None else f"{who}: {eventAsText(event, includeTimestamp=False, includeSystem=False)}"


def run(seed: int, keep: Collection[int] | None = None, say: Callable[[str], None] | None = None) -> Outcome:
    """Run a seed's plan, or the kept items of it. Violation when a promise was broken."""
    outcome = attempt(seed, keep, say)
    if outcome.violation:
        raise Violation(outcome.violation)
    return outcome


def attempt(seed: int, keep: Collection[int] | None = None, say: Callable[[str], None] | None = None) -> Outcome:
    """The same, with a Violation in the outcome."""
    plan = plans.make(seed)
    return outcome_of(plan if keep is None else plan.keeping(keep), say)


def outcome_of(plan: Plan, say: Callable[[str], None] | None = None) -> Outcome:
    """Run a plan."""
    return swept(lambda: World(plan, say).run())


T = TypeVar("T")


def swept(work: Callable[[], T]) -> T:
    """Do this. What its world was made of is collected when that has gone, and not before; after an exception, which holds the
    world, it is left to whoever catches that."""
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        found = work()
        gc.collect(1)
        return found
    finally:
        if gc_was_on:
            gc.enable()
