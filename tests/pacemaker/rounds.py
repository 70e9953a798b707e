"""What happens to a real Pacemaker cluster, one kind of trouble a round, and what must hold after each.

Life of a round: the cluster is well and has a primary; messages are sent; the trouble happens; the cluster is well again within
`nodes.STABLE_S`, as Pacemaker and as the brokers see it; every message that was accepted is there. Failed actions are forgotten
before the next round. A round that Pacemaker should do without a failed action says so.

Meanwhile clients that know all three brokers send and receive, and every message of theirs is accounted for, too. What they see
is told in the form of `make arbiters`: how long they waited, and when Pacemaker had noticed.

Invariant: a round leaves three nodes that run, one primary, and no constraint of its own.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proton import Message, ProtonException
from proton.utils import BlockingConnection

from cli.verify.run import Run, Workload
from tests.arbiters.outcome import Outcome, longest_s
from tests.pacemaker.nodes import Node, Nodes, freeze
from tests.system.harness import NoPrimary, Refused, ask
from tests.system.namespaces import CLIENT
from tests.system.terms import go_on
from tests.system.traffic import accounted

QUEUE = "orders"
_EACH = 200
_RATE = 300.0
_HEARTBEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """Of a round: since when another primary could serve (monotonic), None where the primary was only moved; and how long it took
    until Pacemaker had noticed, None where that is not known."""

    since_s: float | None = None
    detection_s: float | None = None


class Account:
    """What was accepted, on a queue that nobody empties."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.accepted = 0
        with nodes.lan.inside(CLIENT):
            ask(nodes[nodes.promoted()].address, "CREATE", "queue", QUEUE, {"replicate": "all"})

    def send(self, node: Node, count: int = _EACH) -> None:
        """Send so many to the primary on this node."""
        with self._nodes.lan.inside(CLIENT):
            connection = BlockingConnection(node.address, timeout=20)
            try:
                sender = connection.create_sender(QUEUE)
                for _ in range(count):
                    sender.send(Message(body="x" * 1000, durable=True))
                    self.accepted += 1
            finally:
                connection.close()

    def check(self, node: Node) -> None:
        """All is there. One whose outcome was never heard may be there too."""
        with self._nodes.lan.inside(CLIENT):
            (queue,) = [item for item in ask(node.address, "QUERY", "queue", QUEUE)["items"] if item["name"] == QUEUE]
        assert queue["messages"] == self.accepted, f"{queue['messages']} messages where {self.accepted} were accepted"


def laggiest(nodes: Nodes, primary: str) -> str:
    """The backup whose log ends first."""

    def end(node: Node) -> tuple[int, int]:
        try:
            (view,) = ask(node.address, "QUERY", "ha")["items"]
        except (ProtonException, Refused, OSError):
            return 0, 0
        return int(view["lastEpoch"]), int(view["lastIndex"])

    with nodes.lan.inside(CLIENT):
        return min((node for node in nodes.all if node.name != primary), key=end).name


def moves(nodes: Nodes, account: Account, times: int = 20) -> Seen:
    """`crm_resource --move` to the laggiest backup, again and again: no failed action."""
    for number in range(times):
        primary = nodes.promoted()
        behind = (
            nodes[next(node.name for node in nodes.all if node.name != primary)]
            if number % 2
            else nodes[laggiest(nodes, primary)]
        )
        pid = behind.broker()
        freeze(pid, on=True)
        try:
            account.send(nodes[primary])
        finally:
            freeze(pid, on=False)
        target = laggiest(nodes, primary)
        nodes.on_some("crm_resource", "--move", "--promoted", "--resource", "brokers", "--node", target)
        took_s = nodes.wait(
            lambda target=target: nodes.promoted() == target and nodes.status(nodes[target]) == "active",  # type: ignore[misc]
            f"{target} promoted",
        )
        nodes.on_some("crm_resource", "--clear", "--resource", "brokers")
        print(f"  move {number + 1}: from {primary} to the laggiest, {target}, in {took_s:.1f} s", flush=True)
        assert nodes.failures() == [], "a move has a failed action"
    return Seen()


def kill(nodes: Nodes, account: Account) -> Seen:
    """kill -9 of the primary's process: its node's monitor notices, and a broker is promoted."""
    primary = nodes[nodes.promoted()]
    pid, since_s = primary.broker(), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return Seen(since_s, nodes.wait(lambda: bool(nodes.failures()), "the failure on record"))


def power(nodes: Nodes, account: Account) -> Seen:
    """The primary's node loses its power: it is fenced, another broker is promoted, and the node comes back."""
    primary, since_s, fenced = nodes[nodes.promoted()], time.monotonic(), len(nodes.fenced)
    primary.kill()
    noticed_s = nodes.wait(lambda: primary.name in nodes.fenced[fenced:], "the fencing")
    nodes.wait(lambda: nodes.promoted() not in ("", primary.name), "another one promoted")
    primary.start()
    return Seen(since_s, noticed_s)


def frozen(nodes: Nodes, account: Account) -> Seen:
    """The primary's process stands still: the monitor's time passes, and the process is ended and started again."""
    primary = nodes[nodes.promoted()]
    pid, since_s = primary.broker(), time.monotonic()
    freeze(pid, on=True)
    return Seen(since_s, nodes.wait(lambda: bool(nodes.failures()), "the failure on record"))


def cut(nodes: Nodes, account: Account) -> Seen:
    """The primary's node is cut off: the majority fences it and promotes another broker."""
    primary = nodes[nodes.promoted()]
    others = [node.name for node in nodes.all if node is not primary]
    fenced, since_s = len(nodes.fenced), time.monotonic()
    nodes.lan.unplug(primary.number)
    noticed_s = nodes.wait(lambda: primary.name in nodes.fenced[fenced:], "the fencing")
    nodes.wait(lambda: nodes.promoted() in others, "another one promoted")
    nodes.lan.plug(primary.number)
    primary.start()
    return Seen(since_s, noticed_s)


def standby(nodes: Nodes, account: Account) -> Seen:
    """The primary's node is put on standby and taken back: a planned switchover, without a failed action."""
    primary = nodes.promoted()
    nodes.on_some("crm_attribute", "--node", primary, "--name", "standby", "--update", "on")
    others = [node.name for node in nodes.all if node.name != primary]
    nodes.stable(*others)
    nodes.on_some("crm_attribute", "--node", primary, "--name", "standby", "--delete")
    nodes.stable()
    assert nodes.failures() == [], "a switchover by standby has a failed action"
    return Seen()


def maintenance(nodes: Nodes, account: Account) -> Seen:
    """Somebody switches over by hand meanwhile; when Pacemaker is told to look, it takes what it finds, and moves nothing."""
    primary = nodes.promoted()
    nodes.on_some("crm_attribute", "--name", "maintenance-mode", "--update", "true")
    target = laggiest(nodes, primary)
    nodes[target].run("qpid-ha", "promote", "-b", "localhost:5672")
    time.sleep(2)
    nodes.on_some("crm_resource", "--refresh", "--resource", "brokers", timeout_s=60)
    nodes.wait(lambda: nodes.promoted() == target, "the new primary in Pacemaker's eyes")
    nodes.on_some("crm_attribute", "--name", "maintenance-mode", "--delete")
    assert nodes.stable() == target, "the primary moves when maintenance ends"
    assert nodes.failures() == [], "what was done by hand meanwhile counts as a failure"
    return Seen()


def by_hand(nodes: Nodes, account: Account) -> Seen:
    """Somebody promotes another broker behind Pacemaker's back: the monitors see it, and Pacemaker puts it in order."""
    primary = nodes.promoted()
    target = nodes[laggiest(nodes, primary)]
    target.run("qpid-ha", "promote", "-b", "localhost:5672")
    nodes.wait(lambda: bool(nodes.failures()), "the failure on record")
    return Seen()


def two_dead(nodes: Nodes, account: Account) -> Seen:
    """Two of three nodes lose their power: nobody serves, and when they are back nothing is lost."""
    primary = nodes.promoted()
    dead = [node for node in nodes.all if node.name != laggiest(nodes, primary)]
    (left,) = [node for node in nodes.all if node not in dead]
    for node in dead:
        node.kill()
    nodes.wait(lambda: nodes.status(left) == "" and nodes.roles(left.name) == {}, "nobody serving")
    since_s = time.monotonic()
    for node in dead:
        node.start()
    return Seen(since_s)


ROUNDS: dict[str, Callable[[Nodes, Account], Seen]] = {
    "moves": moves,
    "kill": kill,
    "power": power,
    "freeze": frozen,
    "cut": cut,
    "standby": standby,
    "maintenance": maintenance,
    "by-hand": by_hand,
    "two-dead": two_dead,
}
FAULTS = {
    "moves": "the primary is moved",
    "kill": "the primary is killed",
    "power": "the primary's host loses its power",
    "freeze": "the primary is frozen, until it is ended",
    "cut": "the primary is cut off",
    "standby": "the primary's node goes to standby, and comes back",
    "maintenance": "a switchover by hand in maintenance",
    "by-hand": "a switchover by hand behind Pacemaker's back",
    "two-dead": "two of three hosts lose their power, and come back",
}
"""What the rows of the table call the rounds."""


class _Serving:
    """The broker of the primary's node, as `accounted` asks it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def queue(self, name: str) -> dict[str, Any]:
        """The attributes of a queue."""
        return dict(ask(self._node.address, "QUERY", "queue", name)["items"][0])


def run(nodes: Nodes, account: Account, name: str, trouble: Callable[[Nodes, Account], Seen]) -> tuple[float, Outcome]:
    """One round, the calling thread on the client's host: how long it took until the cluster was well again, in seconds, and what
    clients saw."""
    primary = nodes[nodes.stable()]
    account.send(primary)
    queue = f"flow-{name}-{account.accepted}"
    ask(primary.address, "CREATE", "queue", queue, {"replicate": "all"})
    outcome = Outcome()

    def serving() -> Any:
        promoted = nodes.promoted()
        if not promoted:
            raise NoPrimary("Pacemaker has promoted none")
        return _Serving(nodes[promoted])

    with Run(Workload([node.address for node in nodes.all], [queue], rate=_RATE, heartbeat_s=_HEARTBEAT_S)) as traffic:
        traffic.wait_for(accepted=200)
        began_s = time.monotonic()
        seen = trouble(nodes, account)
        nodes.stable()
        nodes.on_some("crm_resource", "--wait", "--timeout", "80", timeout_s=90)
        primary = nodes[nodes.stable()]
        took_s = time.monotonic() - began_s
        go_on(traffic)
        outcome.duplicated = accounted(traffic, serving).duplicated
    waited_s = longest_s(traffic.gaps("producer"), began_s if seen.since_s is None else seen.since_s, math.inf)
    outcome.detection_s = seen.detection_s
    if seen.since_s is None:
        outcome.wait_s = waited_s
    else:
        outcome.failover_s = waited_s
    account.check(primary)
    account.send(primary, 10)
    nodes.on_some("crm_resource", "--cleanup", timeout_s=60)
    return took_s, outcome
