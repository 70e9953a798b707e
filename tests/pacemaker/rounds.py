"""What happens to a real Pacemaker cluster, one kind of trouble a round, and what must hold after each.

Life of a round: the cluster is well and has a primary; messages are sent; the trouble happens; the cluster is well again within
`nodes.STABLE_S`, as Pacemaker and as the brokers see it; every message that was accepted is there. Failed actions are forgotten
before the next round. A round that Pacemaker should do without a failed action says so.

Invariant: a round leaves three nodes that run, one primary, and no constraint of its own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from proton import Message, ProtonException
from proton.utils import BlockingConnection

from tests.pacemaker.nodes import Node, Nodes, freeze
from tests.system.harness import Refused, ask
from tests.system.namespaces import CLIENT

QUEUE = "orders"
_EACH = 200


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


def moves(nodes: Nodes, account: Account, times: int = 20) -> None:
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


def kill(nodes: Nodes, account: Account) -> None:
    """kill -9 of the primary's process: its node's monitor notices, and a broker is promoted."""
    primary = nodes[nodes.promoted()]
    os.kill(primary.broker(), signal.SIGKILL)
    nodes.wait(lambda: bool(nodes.failures()), "the failure on record")


def power(nodes: Nodes, account: Account) -> None:
    """The primary's node loses its power: it is fenced, another broker is promoted, and the node comes back."""
    primary = nodes[nodes.promoted()]
    primary.kill()
    nodes.wait(lambda: nodes.promoted() not in ("", primary.name), "another one promoted")
    primary.start()


def frozen(nodes: Nodes, account: Account) -> None:
    """The primary's process stands still: the monitor's time passes, and the process is ended and started again."""
    primary = nodes[nodes.promoted()]
    freeze(primary.broker(), on=True)
    nodes.wait(lambda: bool(nodes.failures()), "the failure on record")


def cut(nodes: Nodes, account: Account) -> None:
    """The primary's node is cut off: the majority fences it and promotes another broker."""
    primary = nodes[nodes.promoted()]
    others = [node.name for node in nodes.all if node is not primary]
    fenced = len(nodes.fenced)
    nodes.lan.unplug(primary.number)
    nodes.wait(lambda: primary.name in nodes.fenced[fenced:], "the fencing")
    nodes.wait(lambda: nodes.promoted() in others, "another one promoted")
    nodes.lan.plug(primary.number)
    primary.start()


def standby(nodes: Nodes, account: Account) -> None:
    """The primary's node is put on standby and taken back: a planned switchover, without a failed action."""
    primary = nodes.promoted()
    nodes.on_some("crm_attribute", "--node", primary, "--name", "standby", "--update", "on")
    others = [node.name for node in nodes.all if node.name != primary]
    nodes.stable(*others)
    nodes.on_some("crm_attribute", "--node", primary, "--name", "standby", "--delete")
    nodes.stable()
    assert nodes.failures() == [], "a switchover by standby has a failed action"


def maintenance(nodes: Nodes, account: Account) -> None:
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


def by_hand(nodes: Nodes, account: Account) -> None:
    """Somebody promotes another broker behind Pacemaker's back: the monitors see it, and Pacemaker puts it in order."""
    primary = nodes.promoted()
    target = nodes[laggiest(nodes, primary)]
    target.run("qpid-ha", "promote", "-b", "localhost:5672")
    nodes.wait(lambda: bool(nodes.failures()), "the failure on record")


def two_dead(nodes: Nodes, account: Account) -> None:
    """Two of three nodes lose their power: nobody serves, and when they are back nothing is lost."""
    primary = nodes.promoted()
    dead = [node for node in nodes.all if node.name != laggiest(nodes, primary)]
    (left,) = [node for node in nodes.all if node not in dead]
    for node in dead:
        node.kill()
    nodes.wait(lambda: nodes.status(left) == "" and nodes.roles(left.name) == {}, "nobody serving")
    for node in dead:
        node.start()


ROUNDS: dict[str, Callable[[Nodes, Account], None]] = {
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


def run(nodes: Nodes, account: Account, name: str, trouble: Callable[[Nodes, Account], None]) -> float:
    """One round; how long it took until the cluster was well again, in seconds."""
    account.send(nodes[nodes.stable()])
    began = time.monotonic()
    trouble(nodes, account)
    nodes.stable()
    nodes.on_some("crm_resource", "--wait", "--timeout", "80", timeout_s=90)
    primary = nodes.stable()
    took_s = time.monotonic() - began
    account.check(nodes[primary])
    account.send(nodes[primary], 10)
    nodes.on_some("crm_resource", "--cleanup", timeout_s=60)
    return took_s
