"""A cluster of whole Replicas on a simulated network, disk and clock, with Raft's promises checked as it goes.

Each `Node` is an edge as simple as one can be: it carries out effects in order, on a `Disk` that forgets at a crash what was not
synced, and over a network that delivers what it is told to. A batch is known by its `n_records`, which no two proposals share, so
that two entries are equal only if they are the same batch.

What is checked (§5, Figure 3): one primary an epoch (election safety); a new primary holds all that was committed (leader
completeness); the logs of two members are the same up to the last entry that they share (log matching); what one member has
applied at an index, no member ever applies otherwise (state machine safety).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from ha.core.effects import (
    Commit,
    Effect,
    InstallSnapshot,
    MembersCommitted,
    MembershipChanged,
    ProposeMembers,
    Quiesce,
    SaveHardState,
    Send,
    SendEntries,
    SendSnapshot,
    State,
    StateChanged,
    StoreChunk,
    StoreEntries,
    StoreWhole,
    TruncateLog,
)
from ha.core.log import Log
from ha.core.membership import Membership
from ha.core.messages import Append, AppendReply, Attested, Entry, Message, Position, SnapshotChunk, fault_of
from ha.core.replica import Replica
from ha.core.settings import ReplicaSettings

SMALL = ReplicaSettings(max_append_bytes=300, max_inflight_bytes=1000, max_inflight_batches=8, ready_lag_batches=5)
BATCH_BYTES = 100
SNAPSHOT_BYTES = 3
E = TypeVar("E")


@dataclass
class Disk:
    """What survives a crash. `base` is what the checkpoint at the front of `log` stands for."""

    base: tuple[int, int, Membership]
    checkpoint: tuple[int, int, Membership]
    log: list[Entry] = field(default_factory=list)
    epoch: int = 0
    voted_for: str | None = None
    blank: bool = True
    cluster_id: str = ""
    floor: Position | None = None
    attested: Attested | None = None
    clusters_left: tuple[str, ...] = ()
    """Those that it belonged to before an operator had it begin another one."""

    def change_cluster(self, cluster_id: str) -> None:
        self.clusters_left = (*self.clusters_left, self.cluster_id)
        self.cluster_id = cluster_id

    def adopt(self, members: Membership | None) -> None:
        """A membership is committed: the store belongs to its cluster, and never to another."""
        if members is not None and members.cluster_id not in self.clusters_left:
            assert self.cluster_id in ("", members.cluster_id), f"a store of {self.cluster_id} applies {members}"
            self.cluster_id = members.cluster_id

    def write(self, operation: Entry | int) -> None:
        """An entry is appended; a number is where the log is truncated."""
        if isinstance(operation, int):
            del self.log[operation - self.base[0] - 1 :]
        else:
            self.log.append(operation)

    @property
    def end(self) -> Position:
        if self.attested is not None:
            return Position(self.attested.epoch, self.attested.index)
        return Position(self.log[-1].epoch, self.log[-1].index) if self.log else Position(self.base[1], self.base[0])


class Node:
    """One broker: a Replica while it lives, and a disk."""

    def __init__(self, cluster: Cluster, address: str, members: Membership, settings: ReplicaSettings) -> None:
        self.cluster = cluster
        self.address = address
        self.settings = settings
        self.disk = Disk((0, 0, members), (0, 0, members))
        self.replica: Replica | None = None
        self.ended: list[Effect] = []
        self.has_clients = False
        """Whether there are clients who take their time to become quiet: the test says when they are."""
        self.start()

    # Life

    def start(self) -> None:
        disk = self.disk
        index, epoch, members = disk.base
        log = Log(members, index, epoch)
        if disk.attested is not None:
            log = Log(disk.attested.members, disk.attested.index, disk.attested.epoch, disk.attested.members_index)
        for entry in disk.log:
            log.append(entry)
        self.writing: list[Entry | int] = []
        self.chunk: SnapshotChunk | None = None
        self.entries = {entry.index: entry for entry in disk.log}
        self.has_more = True
        """Whether it has entries that were not compared with the others' yet (`Cluster.check`)."""
        self.applied = disk.checkpoint[0]
        self.message: Append | None = None
        self.replica = Replica(
            self.address,
            self.settings,
            epoch=disk.epoch,
            voted_for=disk.voted_for,
            log=log,
            commit_index=disk.checkpoint[0],
            blank=disk.blank,
            vote_floor=disk.floor,
            cluster_id=disk.cluster_id,
            attested=disk.attested,
        )
        self.run(self.replica.start(self.cluster.now))

    def crash(self) -> None:
        """Power off: what was not synced is gone."""
        self.replica = None

    @property
    def live(self) -> Replica:
        assert self.replica is not None, f"{self.address} is down"
        return self.replica

    def ends(self, kind: type[E]) -> list[E]:
        """The effects of this kind, oldest first, that ended a request or told the edge something."""
        return [effect for effect in self.ended if isinstance(effect, kind)]

    # Effects

    def run(self, effects: list[Effect]) -> None:
        asked = None
        for effect in effects:
            self.judge_witness(effect)
            match effect:
                case SaveHardState(epoch, voted_for, attested):
                    self.disk.epoch, self.disk.voted_for = epoch, voted_for
                    self.attest(attested)
                case StoreWhole():
                    self.disk.blank, self.disk.floor = False, None
                case StoreEntries(first, last):
                    self.store(first, last)
                case TruncateLog(from_index):
                    self.writing.append(from_index)
                    self.entries = {index: entry for index, entry in self.entries.items() if index < from_index}
                case Commit(index):
                    self.apply(index)
                case Send(peer, message):
                    self.cluster.post(self.address, peer, message)
                case SendEntries(peer, append):
                    entries = tuple(self.entries[index] for index in range(append.first, append.last + 1))
                    self.cluster.post(self.address, peer, msgspec.structs.replace(append, entries=entries))
                case SendSnapshot(peer, epoch, index, offset):
                    self.send_snapshot(peer, epoch, index, offset)
                case StoreChunk(chunk):
                    self.chunk = chunk
                case InstallSnapshot(index, epoch, members):
                    self.disk.base = self.disk.checkpoint = (index, epoch, members)
                    self.disk.adopt(members)
                    self.disk.log, self.writing, self.entries = [], [], {}
                    self.applied = index
                case ProposeMembers(members):
                    asked = members
                case StateChanged(state, epoch, _) if state in (State.RECOVERING, State.ACTIVE, State.STANDALONE):
                    self.cluster.leads(self, epoch)
                    self.ended.append(effect)
                case _:
                    self.ended.append(effect)
        if asked is not None:
            self.propose(asked if asked.cluster_id else asked.named(self.cluster.new_id()))
        if not self.has_clients and any(isinstance(effect, Quiesce) for effect in effects):
            self.run(self.live.quiesced(self.cluster.now))

    def judge_witness(self, effect: Effect) -> None:
        """A witness says nothing that it has not saved, and learns its cluster's id without a log."""
        match effect:
            case Send(_, AppendReply(accepted=True, match_index=index, epoch=epoch)) if index and self.settings.witness:
                saved = self.disk.attested
                assert saved is not None
                assert (saved.epoch, saved.index) == (epoch, index), f"it says {index}, and has saved {saved}"
            case MembersCommitted(members):
                self.disk.adopt(members)

    def attest(self, attested: Attested | None) -> None:
        """What a witness attests only grows, and was on its primary's disk then."""
        before, self.disk.attested = self.disk.attested, attested
        if attested is not None and attested != before:
            assert self.settings.witness, f"{self.address} attests a log, and is not a witness"
            assert before is None or (before.epoch, before.index) < (attested.epoch, attested.index)
            holder = self.cluster[attested.primary].disk
            assert holder.end >= Position(attested.epoch, attested.index), f"{attested} is not on that broker's disk"

    def store(self, first: int, last: int) -> None:
        assert not self.settings.witness, f"{self.address} is a witness, and stores a batch"
        for index in range(first, last + 1):
            entry = (
                next((e for e in (self.message.entries if self.message else ()) if e.index == index), None)
                or self.cluster.proposed
            )
            assert entry is not None
            assert entry.index == index
            self.entries[index] = entry
            self.has_more = True
            self.writing.append(entry)

    def apply(self, through: int) -> None:
        for index in range(self.applied + 1, through + 1):
            self.cluster.committed_here(self, self.entries[index])
            self.disk.adopt(self.entries[index].members)
        self.applied = through

    def send_snapshot(self, peer: str, epoch: int, index: int, offset: int) -> None:
        at, at_epoch, members = self.disk.checkpoint
        if index != at or offset >= SNAPSHOT_BYTES:
            offset = 0
        self.cluster.post(self.address, peer, SnapshotChunk(epoch, at, at_epoch, members, offset, 1, SNAPSHOT_BYTES))

    # Inputs

    def propose(self, members: Membership | None = None) -> None:
        replica = self.live
        self.cluster.serial += 1
        proposed = Entry(replica.next_index, replica.epoch, BATCH_BYTES, members, self.cluster.serial)
        before, self.cluster.proposed, self.message = self.cluster.proposed, proposed, None
        self.run(replica.propose(self.cluster.now, BATCH_BYTES, self.cluster.serial, members))
        self.cluster.proposed = before

    def receive(self, sender: str, message: Message) -> None:
        if isinstance(message, Append | SnapshotChunk):
            assert not fault_of(message)
        self.message = message if isinstance(message, Append) else None
        self.run(self.live.step(self.cluster.now, sender, message))

    def sync(self, operations: int | None = None) -> None:
        """The disk gets on with its work: that many writes, or all."""
        done, self.writing = self.writing[:operations], self.writing[len(self.writing[:operations]) :]
        for operation in done:
            self.disk.write(operation)
        appended = [operation for operation in done if isinstance(operation, Entry)]
        if appended:
            self.run(self.live.stored(self.cluster.now, appended[-1].index, appended[-1].epoch))
        if self.chunk is not None and not self.writing:
            chunk, self.chunk = self.chunk, None
            if chunk.offset + chunk.nbytes < chunk.total_bytes:
                self.run(self.live.chunk_stored(self.cluster.now, chunk.index))
            else:
                self.run(self.live.snapshot_stored(self.cluster.now, chunk.index, chunk.index_epoch, chunk.members))

    def compact(self, keep: int = 0) -> None:
        """Take a checkpoint of what is applied and on disk, and drop the log before it but for `keep` entries."""
        replica = self.live
        at = min(self.applied, self.disk.end.index)
        epoch = replica.log.epoch_at(at)
        if epoch is None or at <= self.disk.checkpoint[0] or self.writing:
            return
        self.disk.checkpoint = (at, epoch, replica.log.members_at(at))
        base = max(at - keep, self.disk.base[0])
        base_epoch = replica.log.epoch_at(base)
        assert base_epoch is not None
        self.disk.base = (base, base_epoch, replica.log.members_at(base))
        self.disk.log = [entry for entry in self.disk.log if entry.index > base]
        self.entries = {index: entry for index, entry in self.entries.items() if index > base}
        self.run(replica.compacted(base + 1))


class Cluster:
    """Nodes, the network between them, and what has been promised so far."""

    def __init__(self, *addresses: str, settings: ReplicaSettings = SMALL, connect: bool = True, witness: str = "") -> None:
        self.now = 100.0
        self.serial = 0
        self.ids = 0
        self.settings = settings
        self.proposed: Entry | None = None
        self.wires: list[tuple[str, str, Message]] = []
        self.links: set[frozenset[str]] = set()
        self.committed: dict[int, Entry] = {}
        self.primaries: dict[int, str] = {}
        self.nodes: dict[str, Node] = {}
        self.witness = witness
        members = Membership.of(addresses, witness=witness)
        for address in addresses:
            self.nodes[address] = self._node(address, members)
        if connect:
            self.connect_all()

    def __getitem__(self, address: str) -> Node:
        return self.nodes[address]

    def _node(self, address: str, members: Membership) -> Node:
        return Node(self, address, members, replace(self.settings, witness=address == self.witness))

    def parts(self) -> None:
        """From here on there are two clusters, each with a history of its own."""
        self.committed.clear()
        self.primaries.clear()

    def new_id(self) -> str:
        """An id that nothing else has."""
        self.ids += 1
        return "an-id" if self.ids == 1 else f"id-{self.ids}"

    def wipe(self, address: str, *voters: str) -> None:
        """The broker comes back with an empty disk; its URL names these members, or all."""
        self.crash(address)
        members = Membership.of(voters or self.nodes, witness=self.witness if self.witness in (voters or self.nodes) else "")
        self.nodes[address] = self._node(address, members)
        self.connect_all()

    def add(self, address: str, members: Membership) -> Node:
        """A new broker, whose brokers URL names these members."""
        self.nodes[address] = self._node(address, members)
        self.connect_all()
        return self.nodes[address]

    # Network

    def post(self, sender: str, receiver: str, message: Message) -> None:
        if frozenset((sender, receiver)) in self.links:
            self.wires.append((sender, receiver, message))

    def deliver(self, position: int = 0, *, keep: bool = False) -> None:
        """One message of those under way arrives; `keep` leaves a copy of it under way."""
        sender, receiver, message = self.wires[position] if keep else self.wires.pop(position)
        if self.nodes[receiver].replica is not None and frozenset((sender, receiver)) in self.links:
            self.nodes[receiver].receive(sender, message)

    def connect(self, one: str, other: str) -> None:
        link = frozenset((one, other))
        if link not in self.links and self.nodes[one].replica and self.nodes[other].replica:
            self.links.add(link)
            self.nodes[one].run(self.nodes[one].live.connected(self.now, other))
            self.nodes[other].run(self.nodes[other].live.connected(self.now, one))

    def disconnect(self, one: str, other: str) -> None:
        link = frozenset((one, other))
        if link in self.links:
            self.links.discard(link)
            self.wires = [wire for wire in self.wires if frozenset(wire[:2]) != link]
            for here, there in ((one, other), (other, one)):
                node = self.nodes[here]
                if node.replica is not None:
                    node.run(node.replica.disconnected(self.now, there))

    def connect_all(self) -> None:
        for one in self.nodes:
            for other in self.nodes:
                if one < other:
                    self.connect(one, other)

    def isolate(self, address: str) -> None:
        for other in self.nodes:
            self.disconnect(address, other)

    def crash(self, address: str) -> None:
        """kill -9: its links break, and the others notice."""
        self.nodes[address].crash()
        self.isolate(address)

    def restart(self, address: str) -> None:
        self.nodes[address].start()
        self.connect_all()

    # Time

    def settle(self) -> None:
        """Deliver everything and sync everything until nothing is left to do; then check what was promised."""
        self.settle_unchecked()
        self.check()

    def settle_unchecked(self) -> None:
        """The same, also between two clusters whose logs have nothing to do with each other."""
        for _ in range(2000):
            if self.wires:
                self.deliver()
            elif writing := [node for node in self.alive if node.writing or node.chunk]:
                for node in writing:
                    node.sync()
            else:
                return
        raise AssertionError(f"there is no end to it: {self.wires[:5]}")

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for node in self.alive:
            node.run(node.live.tick(self.now))

    def pass_time(self, seconds: float) -> None:
        """Time passes in small steps while everything works."""
        until = self.now + seconds
        while self.now < until:
            self.tick(self.settings.heartbeat_s / 2)
            self.settle()

    @property
    def alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.replica is not None]

    # Requests

    def promote(self, address: str, *, settle: bool = True) -> None:
        self.nodes[address].run(self.nodes[address].live.promote(self.now, f"promote {address}"))
        if settle:
            self.settle()

    def propose(self, address: str, count: int = 1, *, settle: bool = True) -> None:
        for _ in range(count):
            self.nodes[address].propose()
        if settle:
            self.settle()

    def call(self, address: str, method: Callable[[Replica], list[Effect]], *, settle: bool = True) -> None:
        """Give a node's replica some other input."""
        node = self.nodes[address]
        node.run(method(node.live))
        if settle:
            self.settle()

    def states(self) -> dict[str, str]:
        return {node.address: str(node.live.state) for node in self.alive}

    # Promises

    def leads(self, node: Node, epoch: int) -> None:
        """Election safety and leader completeness."""
        assert self.primaries.setdefault(epoch, node.address) == node.address, f"epoch {epoch} has two primaries"
        for index, entry in self.committed.items():
            if index > node.disk.base[0]:
                assert node.entries.get(index) == entry, f"{node.address} leads in epoch {epoch} without committed {entry}"

    def committed_here(self, node: Node, entry: Entry) -> None:
        """State machine safety."""
        known = self.committed.setdefault(entry.index, entry)
        assert known == entry, f"{node.address} applies {entry}, where {known} was committed"

    def check(self) -> None:
        """Log matching, between every two members that live, unless neither has got an entry since they were compared."""
        alive = self.alive
        for position, one in enumerate(alive):
            for other in alive[position + 1 :]:
                if not (one.has_more or other.has_more):
                    continue
                shared = one.entries.keys() & other.entries.keys()
                if [*map(one.entries.get, shared)] == [*map(other.entries.get, shared)]:
                    continue  # as nearly always, and quickly seen: most are the same objects
                same = max((index for index in shared if one.entries[index].epoch == other.entries[index].epoch), default=0)
                for index in shared:
                    if index <= same:
                        assert one.entries[index] == other.entries[index], f"{one.address} and {other.address} differ at {index}"
        for node in alive:
            node.has_more = False


def active_before_anybody_hears_of_it() -> Cluster:
    """Three new members: a has just committed its first batch with b, and neither b nor c knows that; c is cut off from a."""
    cluster = Cluster("a", "b", "c")
    cluster.promote("a", settle=False)
    while cluster.states()["a"] != "recovering":
        cluster.deliver()
    cluster.disconnect("a", "c")
    while cluster.states()["a"] != "active":
        if cluster.wires:
            cluster.deliver()
        else:
            cluster["a"].sync()
            cluster["b"].sync()
    return cluster


def led(*addresses: str, witness: str = "") -> Cluster:
    """A cluster whose first broker is its primary, and all stores have caught up."""
    cluster = Cluster(*addresses, witness=witness)
    cluster.promote(addresses[0])
    cluster.pass_time(0.3)
    return cluster


def members_changes(node: Node) -> Sequence[Membership]:
    """The memberships that a node was told of, oldest first."""
    return [effect.members for effect in node.ends(MembershipChanged)]
