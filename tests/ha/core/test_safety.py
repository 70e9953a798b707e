"""Whole clusters under every kind of trouble: what Raft promises (Figure 3) holds after each step, and once the trouble is over
the cluster serves again.

A schedule is a list of steps: deliver, lose, repeat or reorder a message, sync a part of a disk, let time pass, propose, promote
anybody, hand over, add and remove members, compact, cut and mend links, kill and restart brokers, and let a store lose its tail.
`Cluster` checks the promises while the schedule runs. Then everything is mended, and somebody is promoted.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ha.core.effects import PromotionEnded, State
from ha.core.membership import Change
from ha.core.messages import Position
from tests.ha.core.cluster import Cluster, Node

NAMES = "abcde"
STEPS = (
    *["deliver"] * 24,
    *["deliver any"] * 10,
    *["work"] * 4,
    *["repeat"] * 3,
    *["lose"] * 2,
    *["sync"] * 16,
    *["sync all"] * 4,
    *["tick"] * 8,
    *["propose"] * 12,
    *["promote"] * 3,
    *["promote two"] * 3,
    *["silence"] * 4,
    "transfer",
    "stay",
    "let vote",
    "lower",
    "add",
    "remove",
    "compact",
    "cut",
    *["mend"] * 4,
    *["isolate a primary"] * 2,
    *["rejoin"] * 3,
    "crash",
    "crash a primary",
    *["restart"] * 5,
    "power cut",
    "rot",
)
Step = tuple[str, int, int]


class Schedule:
    """Carries steps out on a cluster of three, to which a fourth and a fifth broker may be added. `witness`: the last of
    the first ones is one."""

    def __init__(self, size: int, *, witness: bool = False) -> None:
        self.cluster = Cluster(*NAMES[:size], witness=NAMES[size - 1] if witness else "")
        self.requests = 0

    def run(self, step: Step) -> None:
        name, number, other = step
        cluster = self.cluster
        nodes = list(cluster.nodes.values())
        node, peer = nodes[number % len(nodes)], nodes[other % len(nodes)]
        match name:
            case "deliver" | "deliver any" | "repeat" | "lose":
                for turn in range(1 + other % 8 if name.startswith("deliver") else 1):
                    self.on_wire(name, number * (turn + 1))
            case "crash":
                cluster.crash(node.address)
            case "restart" if node.replica is None:
                cluster.restart(node.address)
            case "cut":
                cluster.disconnect(node.address, peer.address)
            case "mend" if node is not peer:
                cluster.connect(node.address, peer.address)
            case "rot":
                self.rot(node, other)
            case "work" | "propose" | "crash a primary" | "isolate a primary" | "rejoin" | "power cut" | "silence":
                self.on_all(name, other)
            case _ if node.replica is not None:
                self.on_node(name, node, peer, other)
        cluster.check()

    def on_wire(self, name: str, number: int) -> None:
        cluster = self.cluster
        if not cluster.wires:
            return
        position = 0 if name == "deliver" else number % len(cluster.wires)
        if name == "lose":
            cluster.wires.pop(position)
        else:
            cluster.deliver(position, keep=name == "repeat")

    def on_all(self, name: str, number: int) -> None:
        cluster = self.cluster
        match name:
            case "work":
                self.work(number)
            case "propose":
                for each in cluster.alive:
                    if each.live.writable:
                        each.propose()
            case "crash a primary" | "isolate a primary":
                for each in self.primaries():
                    (cluster.crash if name == "crash a primary" else cluster.isolate)(each.address)
            case "rejoin":
                cluster.connect_all()
            case "silence":
                cluster.tick(0.5)
                cluster.tick(0.6)
            case "power cut":
                for address in cluster.nodes:
                    cluster.crash(address)
                for address in cluster.nodes:
                    cluster.restart(address)

    def work(self, rounds: int) -> None:
        """For a while everything works: messages arrive in order and disks keep up."""
        for _ in range(1 + rounds % 5):
            for _ in range(len(self.cluster.wires)):
                if self.cluster.wires:
                    self.cluster.deliver()
            for node in self.cluster.alive:
                node.sync()

    def on_node(self, name: str, node: Node, peer: Node, number: int) -> None:
        cluster, replica = self.cluster, node.live
        self.requests += 1
        request_id = f"request {self.requests}"
        match name:
            case "sync":
                node.sync(1 + number % 4)
            case "sync all":
                node.sync()
            case "tick":
                cluster.now += 0.03 * (number % 4)
                node.run(replica.tick(cluster.now))
            case "promote two":
                for each, serial in ((node, "a"), (peer, "b")):
                    if each.replica is not None:
                        each.run(each.replica.promote(cluster.now, f"{request_id}{serial}"))
            case "promote":
                node.run(replica.promote(cluster.now, request_id))
            case "transfer":
                node.run(replica.transfer(cluster.now, peer.address))
            case "remove":
                node.run(replica.remove_member(cluster.now, peer.address, request_id))
            case "add" | "stay":
                address = NAMES[number % len(NAMES)]
                if address not in cluster.nodes:
                    cluster.add(address, replica.members)
                change = Change.ADD_STANDBY if name == "stay" else Change.ADD
                change = Change.ADD_WITNESS if address == cluster.witness else change
                node.run(replica.change_member(cluster.now, address, request_id, change=change))
            case "let vote" | "lower":
                change = Change.LOWER if name == "lower" else Change.LET_VOTE
                node.run(replica.change_member(cluster.now, peer.address, request_id, change=change))
            case "compact":
                node.compact(number % 4)

    def rot(self, node: Node, number: int) -> None:
        """A store comes back without its tail, and knows it. One of three at a time, and of stores that had caught up before:
        what several have lost may be lost for good, and then nobody is to be elected.
        """
        disk = node.disk
        voters = node.live.members.voters if node.replica else ()
        if self.cluster.witness and not self.is_held_twice(node):
            return
        if disk.log and len(voters) > 2 and not any(each.disk.floor or each.disk.blank for each in self.cluster.nodes.values()):
            self.cluster.crash(node.address)
            disk.floor = disk.end
            kept = disk.end.index - 1 - number % 3
            disk.log = [entry for entry in disk.log if entry.index <= max(kept, disk.checkpoint[0])]
            self.cluster.restart(node.address)

    def is_held_twice(self, node: Node) -> bool:
        """Whether another store has on disk all that this one has: what a witness helped to commit may be on one disk alone."""
        others = [each.disk for each in self.cluster.nodes.values() if each is not node and not each.settings.witness]
        return any(each.end >= node.disk.end and not each.blank for each in others)

    def heal(self) -> None:
        """Everything works again: some broker can be promoted, and all members come to hold the same."""
        cluster = self.cluster
        for node in cluster.nodes.values():
            if node.replica is None:
                cluster.restart(node.address)
        cluster.connect_all()
        cluster.settle()
        cluster.pass_time(3.0)
        for _ in range(3):
            if self.leading():
                break
            for node in sorted(cluster.alive, key=lambda node: node.disk.end, reverse=True):
                cluster.promote(node.address)
                cluster.pass_time(3.0)
                if self.leading():
                    break
        else:
            raise AssertionError(f"nobody can be promoted: {[each.ends(PromotionEnded)[-1] for each in cluster.alive]}")
        (primary,) = self.leading()
        cluster.propose(primary.address, 3)
        cluster.pass_time(2.0)
        self.converged(primary)

    def primaries(self) -> list[Node]:
        """Whoever believes to be one."""
        return [node for node in self.cluster.alive if node.live.primary == node.address]

    def leading(self) -> list[Node]:
        return [node for node in self.cluster.alive if node.live.state is State.ACTIVE]

    def converged(self, primary: Node) -> None:
        members = primary.live.members
        assert max(self.cluster.committed) == primary.live.log.last_index == primary.applied
        for address in members.addresses:
            node = self.cluster[address]
            if not node.settings.witness:
                assert node.applied == primary.applied, f"{address} has applied {node.applied}, the primary {primary.applied}"
            assert node.live.members == members
            assert (node.disk.blank, node.disk.floor) == (False, None)
            assert node is primary or node.live.state is State.READY


def run(size: int, steps: list[Step], *, witness: bool = False) -> Schedule:
    schedule = Schedule(size, witness=witness)
    for step in steps:
        schedule.run(step)
    schedule.heal()
    return schedule


@settings(max_examples=60)
@given(
    st.integers(2, 4),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 40), st.integers(0, 40)), max_size=150),
)
def test_no_schedule_breaks_a_promise(size: int, steps: list[Step]) -> None:
    """Any break of safety, and any state without a way back, shows here and shrinks to a short schedule."""
    assert run(size, steps).leading()


@settings(max_examples=60)
@given(
    st.sampled_from((3, 3, 5)),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 40), st.integers(0, 40)), max_size=150),
)
def test_no_schedule_breaks_a_promise_of_a_cluster_with_a_witness(size: int, steps: list[Step]) -> None:
    """What the witness attests counts for commits, and so has to count in votes, for as long as it could be needed."""
    assert run(size, steps, witness=True).leading()


@pytest.mark.parametrize("seed", range(30))
def test_long_troubles_with_a_witness_end_well(seed: int) -> None:
    generator = random.Random(f"witness {seed}")
    steps = [(generator.choice(STEPS), generator.randrange(40), generator.randrange(40)) for _ in range(1500)]
    steps.insert(0, ("promote", generator.randrange(2), 0))
    schedule = run(3 + 2 * (seed % 2), steps, witness=True)
    assert len(schedule.cluster.committed) > 5


@pytest.mark.parametrize("seed", range(30))
def test_long_troubles_end_well(seed: int) -> None:
    """Long runs reach what short schedules do not: snapshots, several terms, grown and shrunk memberships."""
    generator = random.Random(seed)
    steps = [(generator.choice(STEPS), generator.randrange(40), generator.randrange(40)) for _ in range(1500)]
    steps.insert(0, ("promote", generator.randrange(3), 0))
    schedule = run(3 + seed % 3, steps)
    assert len(schedule.cluster.committed) > 5


def test_the_checks_can_fail() -> None:
    """The promises are checked for real: a store that forgot what it acknowledged loses a commit visibly."""
    cluster = Cluster("a", "b", "c")
    cluster.promote("a")
    cluster.pass_time(0.2)
    cluster.crash("c")
    cluster.propose("a", 3)
    for address in "ab":
        cluster.crash(address)
    cluster["b"].disk.log.clear()
    cluster.restart("b")
    cluster.restart("c")
    with pytest.raises(AssertionError, match="without committed"):
        cluster.promote("c")
    assert cluster["b"].disk.end == Position(0, 0)
