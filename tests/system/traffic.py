"""Messages for clusters under test: the workload of `cli/verify` with its accounts, and encoded messages that are moved
unchanged.

`accounted` ends a run of the workload and requires that all its messages are accounted for. `send` and `take` move encoded
messages, bit by bit, in the process of the test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from proton import Delivery, Handler, ProtonException
from proton.reactor import Container

from cli.verify.core.checker import Report
from cli.verify.run import Run
from tests.system.harness import BrokerProcess, NoPrimary, Refused


def accounted(run: Run, serving: Callable[[], BrokerProcess]) -> Report:
    """Let the clients settle and drain the queues, until they are empty on the broker that serves them. The report: all messages
    have their outcome, none of them is lost, altered, or came behind a later one, and each that came again had its reason."""

    def empty() -> bool:
        try:
            return all(serving().queue(queue)["messages"] == 0 for queue in run.workload.queues)
        except (ProtonException, OSError, Refused, NoPrimary):
            return False

    report = run.finish(empty=empty)
    print(f"\n{report}")
    assert report.faults() == []
    assert report.measures.drained, f"the queues were not drained: {report}; {run.plight()}"
    assert (report.refused, report.unknown, report.recovered) == (0, 0, 0)
    assert run.trouble() == []
    return report


class _Mover(Handler, ABC):
    """Moves encoded messages over one connection, and ends when all have moved, a link is closed, or none has for a while."""

    def __init__(self, address: str, node: str, quiet_s: float) -> None:
        super().__init__()
        self.address, self.node, self.quiet_s = address, node, quiet_s
        self.connection: Any = None
        self.moved = self.moved_before = 0

    def on_reactor_init(self, event: Any) -> None:
        self.connection = event.container.connect(url=self.address, reconnect=False)
        self.attach(event.container)
        event.container.schedule(self.quiet_s, self)

    @abstractmethod
    def attach(self, container: Any) -> None:
        """Open the links."""

    def on_link_remote_close(self, event: Any) -> None:
        self.end(event)

    def on_timer_task(self, event: Any) -> None:
        if self.moved == self.moved_before:
            self.end(event)
        else:
            self.moved_before = self.moved
            event.container.schedule(self.quiet_s, self)

    def end(self, event: Any) -> None:
        self.connection.close()
        event.container.stop()


class _Sender(_Mover):
    """Sends encoded messages, as they are, and waits until each has its outcome."""

    def __init__(self, address: str, node: str, messages: Sequence[bytes], quiet_s: float) -> None:
        super().__init__(address, node, quiet_s)
        self.left = deque(messages)
        self.outcomes: Counter[Any] = Counter()
        self.wanted = len(messages)
        self.link: Any = None

    def attach(self, container: Any) -> None:
        self.link = container.create_sender(self.connection, self.node)

    def on_link_flow(self, event: Any) -> None:
        while self.left and self.link.credit > 0:
            self.link.delivery(self.link.delivery_tag())
            self.link.stream(self.left.popleft())
            self.link.advance()

    def on_delivery(self, event: Any) -> None:
        if event.delivery.updated and event.delivery.remote_state:
            self.outcomes[event.delivery.remote_state] += 1
            self.moved += 1
            event.delivery.settle()
        if self.moved == self.wanted:
            self.end(event)


class _Taker(_Mover):
    """Takes encoded messages, as they come, over one link after the other in turn."""

    def __init__(self, address: str, node: str, count: int, links: int, options: Any, quiet_s: float) -> None:
        super().__init__(address, node, quiet_s)
        self.wanted, self.options = count, options
        self.taken: list[list[bytes]] = [[] for _ in range(links)]
        self.links: dict[str, int] = {}

    def attach(self, container: Any) -> None:
        for position in range(len(self.taken)):
            link = container.create_receiver(self.connection, self.node, name=f"taker-{position}", options=self.options)
            self.links[link.name] = position
            link.flow(-(-self.wanted // len(self.taken)))

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        if delivery.readable and not delivery.partial:
            self.taken[self.links[event.link.name]].append(bytes(event.link.recv(delivery.pending)))
            event.link.advance()
            delivery.update(Delivery.ACCEPTED)
        if delivery.settled:
            delivery.settle()
            self.moved += 1
            if self.moved == self.wanted:
                self.end(event)


def send(address: str, node: str, messages: Sequence[bytes], quiet_s: float = 60.0) -> int:
    """Send encoded messages to a node of the broker at `address`, until none has an outcome for `quiet_s`; how many were
    accepted."""
    sender = _Sender(address, node, messages, quiet_s)
    Container(sender).run()
    return int(sender.outcomes[Delivery.ACCEPTED])


def take_by(links: int, address: str, node: str, count: int, options: Any = None, quiet_s: float = 60.0) -> list[list[bytes]]:
    """Take `count` encoded messages from a node over that many links of one connection; what came on each. Acceptances
    are confirmed."""
    taker = _Taker(address, node, count, links, options, quiet_s)
    Container(taker).run()
    return taker.taken


def take(address: str, node: str, count: int, options: Any = None, quiet_s: float = 60.0) -> list[bytes]:
    """Take `count` encoded messages from a node; those that came before it fell silent."""
    return take_by(1, address, node, count, options, quiet_s)[0]
