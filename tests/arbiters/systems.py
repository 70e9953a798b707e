"""The systems that arbiters stand on, as the fault table needs them: real ones, which can be spoilt.

Life of a `System`: it is made within the client's host; `options` are a daemon's on one host of the network; `spoil` puts a fault
between all daemons and the system, and `mend` takes it away. A daemon reaches its system by the loopback of its own host, as if
each host had a control network besides the one that is cut: what listens there answers from the client's host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.resource_manager.etcd import running_etcd
from tests.resource_manager.fault_proxy import FaultProxy
from tests.system.means import program
from tests.system.namespaces import Lan

AWAY = "away"
"""The fault in which the system is dead, and not only out of reach."""


class System:
    """No system: the daemons have one another alone."""

    name = "builtin"
    faults: Sequence[str] = ()
    """What can be put between the daemons and the system, besides AWAY."""

    def __init__(self, folder: Path, lan: Lan, hosts: Sequence[int], stack: ExitStack) -> None:
        """Begin it; the stack ends it."""

    def options(self, host: int) -> list[str]:
        """Options of the daemon on that host."""
        return []

    def spoil(self, fault: str) -> None:
        """From now on that is what daemons meet."""

    def mend(self) -> None:
        """Nothing is between them and the system."""


class EtcdSystem(System):
    """One etcd, and a proxy in front of it on each daemon's host."""

    name = "etcd"
    faults = (
        "hang after accept",
        "hang",
        "hang in half a body",
        "reset",
        "500",
        "503",
        "429",
        "401",
        "no leader",
        "stale read",
        "compacted",
        "nonsense",
        "delay",
    )

    def __init__(self, folder: Path, lan: Lan, hosts: Sequence[int], stack: ExitStack) -> None:
        program("etcd", "etcd-server")
        self._etcd = stack.enter_context(running_etcd(folder / "etcd"))
        self._proxies: dict[int, FaultProxy] = {}
        for host in hosts:
            self._proxies[host] = FaultProxy(self._etcd.port, lambda host=host: lan.inside(host))  # type: ignore[misc]
            stack.callback(self._proxies[host].close)

    def options(self, host: int) -> list[str]:
        return ["--arbiter", "etcd", "--arbiter-option", f"endpoints={self._proxies[host].url}"]

    def spoil(self, fault: str) -> None:
        if fault == AWAY:
            self._etcd.kill()
        for proxy in self._proxies.values():
            proxy.becomes("" if fault == AWAY else fault)

    def mend(self) -> None:
        for proxy in self._proxies.values():
            proxy.becomes("")
        if not self._etcd.running:
            self._etcd.start()


SYSTEMS: Mapping[str, type[System]] = {kind.name: kind for kind in (System, EtcdSystem)}
"""By the arbiters' names."""


@contextmanager
def system(name: str, folder: Path, lan: Lan, hosts: Sequence[int]) -> Iterator[System]:
    """The system of the arbiter of that name, for daemons on these hosts. NotHere where it is not installed."""
    with ExitStack() as stack:
        yield SYSTEMS[name](folder, lan, hosts, stack)
