"""The systems that arbiters stand on, as the fault table needs them: real ones, which can be spoilt.

Life of a `System`: it is made within the client's host; `options` are a daemon's on one host of the network; `spoil` puts a fault
between all daemons and the system, and `mend` takes it away. A daemon reaches its system by the loopback of its own host, as if
each host had a control network besides the one that is cut: what listens there answers from the client's host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from ssl import SSLContext

from tests.resource_manager.api_server import DAEMON, all_leases
from tests.resource_manager.etcd import running_etcd
from tests.resource_manager.fault_proxy import ETCD, KUBERNETES, Dialect, FaultProxy
from tests.resource_manager.kube_apiserver import a_server
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


class ProxiedSystem(System, ABC):
    """One store, and a proxy in front of it on each daemon's host."""

    def __init__(
        self, lan: Lan, hosts: Sequence[int], port: int, dialect: Dialect, stack: ExitStack, tls: SSLContext | None = None
    ) -> None:
        """`tls` is what the store itself is connected to with; None in the clear."""
        self._proxies: dict[int, FaultProxy] = {}
        for host in hosts:
            self._proxies[host] = FaultProxy(port, partial(lan.inside, host), dialect, tls)
            stack.callback(self._proxies[host].close)

    def options(self, host: int) -> list[str]:
        """Options of the daemon on that host."""
        own = self.own_options(self._proxies[host].url)
        return ["--arbiter", self.name, *(word for option in own for word in ("--arbiter-option", option))]

    @abstractmethod
    def own_options(self, url: str) -> list[str]:
        """The arbiter's own, with the store at that URL."""

    def spoil(self, fault: str) -> None:
        for proxy in self._proxies.values():
            proxy.becomes("reset" if fault == AWAY else fault)

    def mend(self) -> None:
        for proxy in self._proxies.values():
            proxy.becomes("")


_OF_ANY = ("hang after accept", "hang", "hang in half a body", "reset", "delay", "stale read", "nonsense")


class EtcdSystem(ProxiedSystem):
    """A real etcd of one member."""

    name = "etcd"
    faults = (*_OF_ANY, "500", "503", "429", "401", "no leader", "compacted")

    def __init__(self, folder: Path, lan: Lan, hosts: Sequence[int], stack: ExitStack) -> None:
        program("etcd", "etcd-server")
        self._etcd = stack.enter_context(running_etcd(folder / "etcd"))
        super().__init__(lan, hosts, self._etcd.port, ETCD, stack)

    def own_options(self, url: str) -> list[str]:
        return [f"endpoints={url}"]

    def spoil(self, fault: str) -> None:
        if fault == AWAY:
            self._etcd.kill()
        super().spoil(fault)

    def mend(self) -> None:
        super().mend()
        if not self._etcd.running:
            self._etcd.start()


class KubernetesSystem(ProxiedSystem):
    """A stand-in of the API server, as strict as that one with versions, schemas and rights; or a real one, where
    KUBE_APISERVER names it."""

    name = "kubernetes"
    faults = (
        *_OF_ANY,
        "500",
        "503",
        "429",
        "401",
        "no leader",
        "409 for ever",
        "403 on writes",
        "500 on writes",
        "hang in writes",
        "410",
    )

    def __init__(self, folder: Path, lan: Lan, hosts: Sequence[int], stack: ExitStack) -> None:
        self._token = folder / "token"
        folder.mkdir(parents=True, exist_ok=True)
        self._token.write_text(f"{DAEMON}\n")
        self._server = stack.enter_context(a_server(folder / "kubernetes"))
        for thing in all_leases():
            self._server.make(thing)
        super().__init__(lan, hosts, self._server.port, KUBERNETES, stack, self._server.context)

    def own_options(self, url: str) -> list[str]:
        return [f"server={url}", "namespace=default", f"token-file={self._token}"]

    def spoil(self, fault: str) -> None:
        if fault == AWAY:
            self._server.kill()
        super().spoil(fault)

    def mend(self) -> None:
        super().mend()
        if not self._server.running:
            self._server.start()


SYSTEMS: Mapping[str, type[System]] = {kind.name: kind for kind in (System, EtcdSystem, KubernetesSystem)}
"""By the arbiters' names."""


@contextmanager
def system(name: str, folder: Path, lan: Lan, hosts: Sequence[int]) -> Iterator[System]:
    """The system of the arbiter of that name, for daemons on these hosts. NotHere where it is not installed."""
    with ExitStack() as stack:
        yield SYSTEMS[name](folder, lan, hosts, stack)
