"""A name server for the links of a broker, and the threads that ask it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from broker.disk.threads import RealThreads
from ha.net.names import Names


class _Ended:
    def join(self) -> None:
        """It has ended."""


class NameServer(RealThreads):
    """Knows the addresses in `known`. While it is `silent`, each lookup begins and is kept in `held`, as if it hung."""

    def __init__(self, known: dict[str, list[str]], *, silent: bool = False) -> None:
        self.known = known
        self.silent = silent
        self.held: list[tuple[str, Callable[[], None]]] = []
        self.room = True
        """Whether the process may have another thread."""

    def start(self, name: str, run: Callable[[], None]) -> Any:
        """A thread, which runs now or, while the server is silent, in `answer`."""
        if not self.room:
            raise RuntimeError("can't start new thread")
        if self.silent:
            self.held.append((name, run))
        else:
            run()
        return _Ended()

    def answer(self) -> None:
        """Be silent no more: the lookups that have begun end."""
        self.silent = False
        held, self.held = self.held, []
        for _, run in held:
            run()

    def getaddrinfo(self, host: str, port: None, **how: Any) -> list[Any]:
        """See `socket.getaddrinfo`: the part that is used of each answer is the address."""
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_UNSPEC, how["type"], 6, "", (address, 0)) for address in self.known[host]]

    def callFromThread(self, call: Callable[..., object], *arguments: Any) -> None:  # noqa: N802
        """See IReactorFromThreads: the tests have one thread."""
        call(*arguments)

    @property
    def names(self) -> Names:
        """What asks it."""
        return Names(self, threads=self, getaddrinfo=self.getaddrinfo)
