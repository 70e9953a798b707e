"""A second site that takes over by force (docs/adr/0041), in simulated worlds of their own.

Life of such a world: one broker or three brokers vote, and two of another site follow. Messages go to whichever broker
serves. The first site is lost: its brokers fail one after the other, or the two sites are disconnected, and then each
may serve by itself. An operator asks a broker of the second site to take over: too early, while a voter is still
connected, and then until it succeeds. Meanwhile this broker may lose its power, also between the new id and the first
batch. The other broker of its site may get an empty disk and be added to the new cluster. At last the first site comes
back, and both clusters continue independently.

The check works by lineage: the cluster's id in the store of the broker that commits. In one lineage, each index has one
batch. If both lineages have a batch with the same epoch and index, it is the same batch, from before the beginning of
the new lineage; no new batch has an earlier epoch. The answer to the operator is true: the new cluster has everything
that the old one had committed up to the reported batch, and nothing after it; and every commit that it reports as known
was a commit of the old cluster. No broker takes over before the first site is lost, or while a voter is connected.
Messages that either cluster accepted exist at the end, and each cluster has a primary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import proton
from twisted.internet.defer import ensureDeferred

from broker.client import ClientError, ManagementClient
from broker.core import urls
from broker.core.records import Batch, Kind
from broker.disk.store import Store
from broker.sessions.ledger import Ledger
from ha.core.membership import Membership
from ha.core.messages import Position
from tests.simulation.history import Violation
from tests.simulation.hosts import PORT, BrokerHost, ManagerHost
from tests.simulation.reactor import HostReactor
from tests.simulation.regressions import quiet
from tests.simulation.small import Machine, SmallWorld
from tests.simulation.world import swept

QUEUE = "q0"
_ENDS_S = 60.0
"""So long after the first site is back, at the latest, all is well."""
_LINKED_S = 3.0
"""Whoever runs for so long, and can be reached, is connected."""
_BEGUN = re.compile(
    r"after batch (\d+) of epoch (\d+); (?:no batch was known to be committed|batches up to (\d+) were known to be committed"
    r"(?: \(so at least the last (\d+) of these are lost\))?),"
)
_OF_PARTS = 0xFFFFFFFF


@dataclass
class Lineage:
    """What the brokers of one cluster have committed, by index."""

    batches: dict[int, Batch] = field(default_factory=dict)

    def sequences(self, up_to: Position | None = None) -> set[int]:
        """The messages that were put on the queue, by batches that do not lie beyond this."""
        return {
            run.first_seq + at
            for batch in self.batches.values()
            if up_to is None or position_of(batch) <= up_to
            for run in batch.runs
            if run.kind is Kind.ENQUEUE and run.queue != _OF_PARTS
            for at in range(len(run.lengths))
        }


@dataclass(frozen=True)
class Begun:
    """A new lineage: its first broker, and where its log ended."""

    host: BrokerHost
    end: Position


class Takeovers(SmallWorld):
    """One world."""

    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        rng = Random(f"takeovers {seed}")
        voters = rng.choice((1, 3))
        fields: dict[str, Any] = {
            "seed": seed,
            "brokers": voters,
            "spares": 2,
            "checkpoint_bytes": rng.choice((2048, 16384, 65536)),
            "disk_s": rng.choice((0.0, 0.0005, 0.004)),
            "rates": (1.0,) * 8,
        }
        super().__init__(replace(quiet(), **fields), rng, say)
        addresses = [f"10.0.0.{number + 1}:{PORT}" for number in range(voters + 2)]
        first, every = "amqp:" + ",".join(addresses[:voters]), "amqp:" + ",".join(addresses)
        self.hosts = [
            BrokerHost(self, number, first if number < voters else every, every)  # type: ignore[arg-type]
            for number in range(voters + 2)
        ]
        self.first, self.second = self.hosts[:voters], self.hosts[voters:]
        self.managers = [ManagerHost(self, 0, first)]  # type: ignore[arg-type]
        self.taker, self.other = rng.sample(self.second, 2)
        self.lineages: dict[str, Lineage] = {}
        self.begun: dict[str, Begun] = {}
        """By the new cluster's id."""
        self.accepted: dict[str, set[bytes]] = {}
        """By the id of the cluster that accepted it."""
        self.lost_at_s: float | None = None
        """Since when the first site is lost, all of it or a part."""
        self._told = ""
        self._operator = HostReactor(self.events, self.network, "10.0.3.9")
        self._sent = self._asked = 0
        self._cuts = 0
        """So often its power is cut while it takes over."""
        self._back = self._added = self._enough = False

    # ---- what is seen

    def active(self, hosts: list[BrokerHost]) -> BrokerHost | None:
        """Which of these serves."""
        return next((host for host in hosts if host.state == "active" and host.process.broker.logs.serving), None)

    def primary(self) -> BrokerHost | None:
        """The one whom operators ask: of the new cluster once the first site is lost, and before of the old one."""
        return self.active(self.first if self.lost_at_s is None else [self.taker])

    @staticmethod
    def id_of(host: BrokerHost) -> str:
        """The cluster that a broker's store belongs to."""
        return str(host.process.store.cluster_id)

    def committed(self, host: BrokerHost, batches: list[Batch]) -> None:
        """A broker has committed this."""
        cluster = self.id_of(host)
        lineage = self.lineages.setdefault(cluster, Lineage())
        begun = self.begun.get(cluster)
        for batch in batches:
            before = lineage.batches.setdefault(batch.header.index, batch)
            if before.data != batch.data:
                self._fault(f"lineage: {host.name} commits as batch {batch.header.index} of {cluster} another than was committed")
            if begun is not None and batch.header.index > begun.end.index:
                self._first_of_its_own(host, begun, cluster, batch)

    def _first_of_its_own(self, host: BrokerHost, begun: Begun, cluster: str, batch: Batch) -> None:
        """What a new lineage adds is of a later epoch, and its first batch makes one broker the whole cluster."""
        if batch.header.epoch <= begun.end.epoch:
            self._fault(f"lineage: {host.name} commits batch {batch.header.index} in the epoch in which the old cluster stood")
        if batch.header.index == begun.end.index + 1:
            self._perhaps_cut_short(host, within_s=0.0005)
            made = [Membership.from_dict(batch.json(run)) for run in batch.runs if run.kind is Kind.MEMBERS]
            if made != [Membership.of([begun.host.address], cluster_id=cluster)]:
                self._fault(f"lineage: {host.name} begins {cluster} with the members {made}")

    def left(self, store: Store, cluster: str) -> BrokerHost:
        """A broker's store is about to belong to a new cluster. Returns which."""
        (host,) = [each for each in self.hosts if each.running and each.process.store is store]
        log = host.log.replica.log
        self.begun[cluster] = Begun(host, Position(log.last_epoch, log.last_index))
        if self.lost_at_s is None:
            self._fault(f"given up: {host.name} takes over while the first site serves")
        elif not self._back and self.events.now - self.lost_at_s > _LINKED_S:
            there = [each.name for each in self.first if each.running and not self.network.is_blocked(each.ip, host.ip)]
            if there:
                self._fault(f"given up: {host.name} takes over while {', '.join(there)} votes and is connected")
        return host

    def _fault(self, text: str) -> None:
        self._broken.append(text)

    # ---- the run

    def _live(self) -> None:
        with self._observed():
            self._begin()
            self._lose_the_first_site()
            self._take_over()
            if not any(host.running for host in self.first) and self.rng.random() < 0.5:
                self._add_the_other_one()
            self._come_back()
            self._check()

    def _machines(self) -> list[Machine]:
        return [*self.hosts, *self.managers]

    def _begin(self) -> None:
        for host in self.hosts:
            host.disk.sync_s = self.rng.choice((0.0005, 0.004))
            self.events.at(self.rng.random() * 0.05, None, host.start)
        self.events.at(self.rng.random() * 0.2, None, self.managers[0].start)
        self.operators.until_done("CREATE", "queue", QUEUE, {"replicate": "all"})
        self.events.after(0.1, None, self._feed)
        for host in self.second:
            done, body = partial(self._follows, host), {"address": host.address, "standby": True}
            self._ask_until(done, lambda: self.active(self.first), "ADD-BROKER", body)
            self._wait(done, f"{host.name} follows")
        self._wait(lambda: self._sent > 100, "messages come")
        if self.rng.random() < 0.5:
            self._ask(self.taker, "TAKEOVER", {"force": True})  # refused, as all is well
            self._until(self.events.now + 0.3)

    def _follows(self, host: BrokerHost) -> bool:
        primary = self.active(self.first)
        return primary is not None and host.state == "ready" and host.address in primary.log.replica.members.standby

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        if not self._until(self.events.now + _ENDS_S, done):
            states = ", ".join(f"{host.name} {host.state or 'down'}" for host in self.hosts)
            raise Violation(f"liveness: it does not come to this: {what} ({states})")

    # ---- what clients do

    def _feed(self) -> None:
        """Messages come at whoever serves, of either cluster."""
        for host in self.hosts:
            if host.state == "active":
                self.events.at(self.events.now, host.reactor, self._put, host.process.broker, self.id_of(host))
        if not self._enough:
            self.events.after(0.03, None, self._feed)

    def _put(self, broker: Any, cluster: str) -> None:
        node = broker.nodes.queues.get(QUEUE)
        ledger = None if node is None or node.messages is None else broker.logs.ledger_of(node)
        if ledger is None or not ledger.serving:
            return
        bodies = []
        for _ in range(self.rng.randrange(1, 8)):
            self._sent += 1
            made: Any = proton.Message(body=f"{self._sent}")
            bodies.append(bytes(made.encode()))
        ledger.enqueue(node, bodies, sum(map(len, bodies)))
        ledger.pending.when_committed(lambda: self.accepted.setdefault(cluster, set()).update(bodies))

    # ---- what goes wrong, and what is asked for

    def _lose_the_first_site(self) -> None:
        """All die, or all but one for a while; or the two sites are cut off from each other."""
        rng = self.rng
        for host in self.second:  # what is on its way then was committed by the others, and is not here yet
            for voter in self.first:
                self.network.slow[voter.ip, host.ip] = rng.choice((0.0, 0.02, 0.1))
        self._until(self.events.now + 0.5 * rng.random())
        self.lost_at_s = self.events.now
        how = rng.choice(("dies", "dies but one", "is cut off"))
        self.say(f"-- the first site {how}")
        if how == "is cut off":
            for voter in self.first:
                for host in self.second:
                    self.network.block(voter.ip, host.ip)
                    self.network.block(host.ip, voter.ip)
            return
        dead = self.first if how == "dies" or len(self.first) == 1 else rng.sample(self.first, 2)
        for host in dead:
            self.events.after(0.3 * rng.random(), None, rng.choice((host.kill, host.cut_power)))
        if len(dead) < len(self.first):
            self._until(self.events.now + _LINKED_S + 1.0)
            self._ask(self.taker, "TAKEOVER", {"force": True})  # refused, as a voter is there
            self._until(self.events.now + 0.5)
            self.lost_at_s = self.events.now
            for host in self.first:
                host.kill()

    def _take_over(self) -> None:
        """Ask until it is done, and perhaps cut its power meanwhile."""
        rng, taker = self.rng, self.taker
        self._cuts = rng.choice((0, 1, 1, 2))
        self._ask_until(self._taken_over, lambda: taker, "TAKEOVER", {"force": True})
        self._wait(lambda: taker.running and self.id_of(taker) in self.begun, f"{taker.name} begins to take over")
        if rng.random() < 0.5:
            self._begin_managing()
        if self._cuts and rng.random() < 0.5:  # it is cut short, and the first site is back before it is asked again
            return
        self._wait(self._taken_over, f"{taker.name} takes over")

    def _begin_managing(self) -> None:
        """A resource manager is pointed at the new cluster, perhaps before that serves."""
        if len(self.managers) == 1:
            self.managers.append(ManagerHost(self, 1, f"amqp:{self.taker.address}"))  # type: ignore[arg-type]
            self.events.at(self.events.now, None, self.managers[1].start)

    def _taken_over(self) -> bool:
        """Whether it has said so, or serves by itself, where the answer was lost."""
        return bool(self._told) or (self.active([self.taker]) is not None and self.id_of(self.taker) in self.begun)

    def _perhaps_cut_short(self, host: BrokerHost, *, within_s: float) -> None:
        """The power may go just now, while it takes over."""
        if self._cuts and self.rng.random() < 0.4:
            self._cuts -= 1
            self.events.after(within_s * self.rng.random(), None, self._cut_short, host)

    def _cut_short(self, host: BrokerHost) -> None:
        self.say(f"{host.name} loses its power")
        host.cut_power()
        self.events.after(0.2 * self.rng.random(), None, host.start)

    def _add_the_other_one(self) -> None:
        """It gets an empty disk, and becomes a voter of the new cluster."""
        self._wait(lambda: self.active([self.taker]) is not None, "the new cluster serves")
        self.other.cut_power()
        self.other.replace_disk()
        self.other.start()
        self._added = True
        done, body = partial(self._is_member, self.other), {"address": self.other.address}
        self._ask_until(done, lambda: self.active([self.taker]), "ADD-BROKER", body)
        self._wait(lambda: self._is_member(self.other), f"{self.other.name} is a member of the new cluster")

    def _is_member(self, host: BrokerHost) -> bool:
        primary = self.active([self.taker])
        return primary is not None and host.state == "ready" and host.address in primary.log.replica.members.voters

    def _come_back(self) -> None:
        """The first site is there again, and both clusters go on."""
        self._back = True
        self.say("-- the first site comes back")
        self.network.heal()
        for host in self.first:
            self.events.after(0.3 * self.rng.random(), None, host.start)
        self._wait(self._taken_over, f"{self.taker.name} takes over")
        self._begin_managing()
        self._wait(lambda: self.active([self.taker]) is not None, "the new cluster serves")
        if not self._added:
            self._cut_short(self.taker)  # it is the primary again without anybody else
        old = partial(self.active, self.first)
        self._ask_until(lambda: old() is not None, lambda: self.rng.choice(self.first), "PROMOTE", {})
        self._wait(self._well, "both clusters are well")
        self._enough = True
        self._until(self.events.now + 1.0)
        self._wait(self._well, "both clusters are well still")

    def _well(self) -> bool:
        """Each cluster has a primary, and everybody else follows that of his own."""
        old, new = self.active(self.first), self.active([self.taker])
        if old is None or new is None or self.id_of(old) == self.id_of(new):
            return False
        others = {host: old for host in self.first if host is not old} | {self.other: new if self._added else old}
        return all(host.state == "ready" and self.id_of(host) == self.id_of(leads) for host, leads in others.items())

    # ---- the account

    def _check(self) -> None:
        """Both clusters are well."""
        new, old = self.active([self.taker]), self.active(self.first)
        assert new is not None
        assert old is not None
        cluster, was = self.id_of(new), self.id_of(old)
        begun = self.begun[cluster]
        theirs, ours = self.lineages[was], self.lineages[cluster]
        for index, batch in ours.batches.items():
            before = theirs.batches.get(index)
            if before is None or index > begun.end.index or before.header.epoch != batch.header.epoch:
                continue
            if before.data != batch.data:
                raise Violation(f"lineage: both clusters have a batch {index} of epoch {batch.header.epoch}, and they differ")
        self._check_words(theirs, begun)
        there = self._on_queue(new)
        for what, found in (
            ("lost", (theirs.sequences(begun.end) | ours.sequences()) - there),
            ("there, and never came", there - theirs.sequences(begun.end) - ours.sequences()),
        ):
            if found:
                raise Violation(f"account: {len(found)} messages of the new cluster are {what}: {min(found)}")
        if theirs.sequences() != self._on_queue(old):
            raise Violation("account: the old cluster does not have what it has accepted")

    def _check_words(self, theirs: Lineage, begun: Begun) -> None:
        """What the operator was told, and what the history keeps, is so."""
        terms = begun.host.process.broker.lead.state.definitions.terms
        kept = list({term.reason: None for term in terms if "takeover --force" in term.reason})
        if len(kept) != 1 or self._told not in kept[0]:
            raise Violation(f"told: the operator was told {self._told!r}, and the history has {kept}")
        found = _BEGUN.search(kept[0])
        if found is None:
            raise Violation(f"told: this does not say where the new cluster begins: {kept[0]!r}")
        last, epoch, told, lacks = (int(each or 0) for each in found.groups())
        if Position(epoch, last) != begun.end:
            raise Violation(f"told: it begins after ({begun.end}), and the history has: {kept[0]}")
        if theirs.batches and told > max(theirs.batches):
            raise Violation(f"told: commits up to {told} where the old cluster has committed {max(theirs.batches)}")
        if lacks != max(0, told - last):
            raise Violation(f"told: {lacks} batches are known to be lost, of {told} and after {last}")

    @staticmethod
    def _on_queue(host: BrokerHost) -> set[int]:
        messages = host.process.broker.nodes.queues[QUEUE].messages
        return {sequence for lane in messages.order.lanes for sequence, _ in lane.alive_from(0)}

    # ---- requests

    def _ask(self, host: BrokerHost, operation: str, body: dict[str, Any]) -> None:
        """Ask this broker once; what it says of a takeover that is done stays."""
        self._asked += 1
        work = self._request(host, operation, body, f"asker-{self._asked}")
        self.events.at(self.events.now, self._operator, lambda: ensureDeferred(work).addErrback(self.broke))

    async def _request(self, host: BrokerHost, operation: str, body: dict[str, Any], name: str) -> None:
        client, address = None, urls.parse(host.address).addresses[0]
        try:
            client = await ManagementClient.connect(
                self._operator, address, timeout_s=0.5, heartbeat_s=1.0, container=name, seconds=self._operator.seconds
            )
            answer = await client.request(operation, "ha", None, body, timeout_s=3.0)
        except ClientError as error:
            self.say(f"operator: {operation} at {host.name}: {error}")
        else:
            self.say(f"operator: {operation} at {host.name}: {answer}")
            self._told = self._told or str(dict(answer.get("lineage") or {}).get("begun", ""))
        finally:
            if client is not None:
                client.abort()

    def _ask_until(
        self, done: Callable[[], bool], host: Callable[[], BrokerHost | None], operation: str, body: dict[str, Any]
    ) -> None:
        """Ask now, and again until it is done."""
        if not done() and not self.ended:
            asked = host()
            if asked is not None and asked.running:
                self._ask(asked, operation, body)
            self.events.after(0.1 + 0.9 * self.rng.random(), None, self._ask_until, done, host, operation, body)

    # ---- what is observed

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """What every log commits is entered when it is applied, and every change of a store's cluster before it is made."""
        commit, change = Ledger.on_committed, Store.change_cluster

        def on_committed(ledger: Ledger, batches: list[Batch]) -> None:
            commit(ledger, batches)
            for host in self.hosts:
                broker = getattr(host.process, "broker", None)  # a process that starts has none yet
                if broker is not None and broker.ledgers.get("cluster") is ledger:
                    self.committed(host, batches)

        def change_cluster(store: Store, cluster_id: str, begun: str) -> None:
            host = self.left(store, cluster_id)
            self._perhaps_cut_short(host, within_s=0.002)
            change(store, cluster_id, begun)
            self._perhaps_cut_short(host, within_s=0.002)

        observed: tuple[Any, Any] = on_committed, change_cluster
        Ledger.on_committed, Store.change_cluster = observed  # type: ignore[method-assign]
        try:
            yield
        finally:
            Ledger.on_committed, Store.change_cluster = commit, change  # type: ignore[method-assign]


def position_of(batch: Batch) -> Position:
    """Where a batch stands."""
    return Position(batch.header.epoch, batch.header.index)


def run(seed: int, say: Callable[[str], None] | None = None) -> int:
    """Run the world of this seed. Returns how many messages both clusters have accepted. Violation when a promise is broken."""
    return swept(lambda: _accepted(Takeovers(seed, say)))


def _accepted(world: Takeovers) -> int:
    world.run()
    return sum(map(len, world.accepted.values()))
