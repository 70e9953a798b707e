"""A reactor like Twisted's for each process on a simulated host.

Life: a process that starts gets its own reactor, on the world's one queue of events. When the process is killed, its
reactor no longer exists, and its scheduled calls never run. `stop` ends it in order, as SIGTERM would: the triggers
"before shutdown" are called and waited for, then all its connections are closed.

Its clock is monotonic, and may be faster or slower than the world's. A frozen reactor (SIGSTOP) handles nothing, while
its clock continues and its peers' bytes accumulate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred

from tests.simulation.events import Event, Events, Owner
from tests.simulation.network import Connector, ListeningPort, Network


class HostReactor(Owner):
    """See the module. `rate`: seconds of this host's clock in a second of the world's; `pool`: its threads."""

    def __init__(self, events: Events, network: Network, ip: str, *, rate: float = 1.0) -> None:
        super().__init__()
        self.events = events
        self.network = network
        self.ip = ip
        self.running = False
        self._stopped = False
        self._when_running: list[Callable[[], object]] = []
        self._rate = rate
        self._began = events.now
        self._triggers: list[Callable[[], Any]] = []
        self.on_stopped: Callable[[], None] = lambda: None
        self.pool: Any = None
        network.reactors[ip] = self

    # ---- time

    def seconds(self) -> float:
        """The host's monotonic clock."""
        return 1000.0 + (self.events.now - self._began) * self._rate

    def callLater(self, delay: float, call: Callable[..., object], *arguments: Any, **named: Any) -> Event:  # noqa: N802
        """See IReactorTime."""
        assert delay >= 0, f"a timer {delay} s from now"
        events = self.events
        return events.at(events.now + delay / self._rate, self, call, *arguments, **named)

    def thread_later(self, delay: float, call: Callable[..., object], *arguments: Any) -> Event:
        """Let one of the process's threads go on, so long from now."""
        event = self.events.after(delay, self, call, *arguments)
        event.bare = True
        return event

    def callFromThread(self, call: Callable[..., object], *arguments: Any, **named: Any) -> None:  # noqa: N802
        """See IReactorFromThreads."""
        self.events.at(self.events.now, self, call, *arguments, **named)

    def callWhenRunning(self, call: Callable[..., object], *arguments: Any, **named: Any) -> None:  # noqa: N802
        """At once, or when it runs."""
        if self.running:
            call(*arguments, **named)
        else:
            self._when_running.append(lambda: call(*arguments, **named))

    def run(self) -> None:
        """The process has started, and is its events' from here on."""
        self.running = True
        for call in self._when_running:
            self.callLater(0, call)

    def getThreadPool(self) -> Any:  # noqa: N802
        """See IReactorThreads."""
        return self.pool

    # ---- sockets

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> ListeningPort:  # noqa: N802
        """See IReactorTCP."""
        del backlog, interface
        return self.network.listen(self, self.ip, port, factory)

    def connectTCP(  # noqa: N802
        self,
        host: str,
        port: int,
        factory: Any,
        timeout: float = 30,
        bindAddress: Any = None,  # noqa: N803
    ) -> Connector:
        """See IReactorTCP."""
        del bindAddress
        return self.network.connect(self, host, port, factory, timeout)

    # ---- the end

    def addSystemEventTrigger(  # noqa: N802
        self, phase: str, event: str, call: Callable[..., Any], *arguments: Any, **named: Any
    ) -> None:
        """Call this before the reactor stops."""
        assert (phase, event) == ("before", "shutdown"), "the only trigger there is"
        self._triggers.append(lambda: call(*arguments, **named))

    def stop(self) -> None:
        """End in order, as soon as what happens now has happened."""
        if not self._stopped:
            self._stopped = True
            self.callLater(0, self._shut_down)

    def _shut_down(self) -> None:
        waiting: list[Deferred[Any]] = [maybeDeferred(trigger) for trigger in self._triggers]
        DeferredList(waiting).addCallback(lambda _: self.callLater(0, self._end))

    def _end(self) -> None:
        self.running = False
        self.vanish()
        self.on_stopped()

    def vanish(self, *, power: bool = False) -> None:
        """Be gone, now: the kernel closes the process's sockets, unless the power went, and then nobody says anything."""
        self.gone = True
        self.running = False
        self.backlog.clear()
        if self.network.reactors.get(self.ip) is self:
            del self.network.reactors[self.ip]
        self.network.process_gone(self, power=power)
