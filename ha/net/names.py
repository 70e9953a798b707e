"""The IP addresses of the members' host names.

Life of a lookup: the first link that asks for a name begins it, in a thread of its own. Links that ask for the same name
meanwhile get the same answer. Nothing is kept after the answer, because a name may get another address at any time.

Invariants: at most one lookup for each name is in progress. A lookup uses none of the reactor's threads, which logins and
reads from disk need, and does not keep the process alive: a name server that does not answer can hold it up for a minute.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred, succeed

from broker.disk.threads import REAL_THREADS, Threads


class NoAddress(Exception):
    """No address of a name was found."""


class Names:
    """See the module. `reactor` is asked for `callFromThread` only, and only for names."""

    def __init__(
        self, reactor: Any, *, threads: Threads = REAL_THREADS, getaddrinfo: Callable[..., Any] = socket.getaddrinfo
    ) -> None:
        self._reactor = reactor
        self._threads = threads
        self._getaddrinfo = getaddrinfo
        self._waiting: dict[str, list[Deferred[list[str]]]] = {}

    def addresses(self, host: str) -> Deferred[list[str]]:
        """All addresses of this name, IPv4 first, each time in the same order; at once for an IP address. Else NoAddress."""
        if isIPAddress(host) or isIPv6Address(host):
            return succeed([host])
        answer: Deferred[list[str]] = Deferred()
        waiting = self._waiting.setdefault(host, [])
        waiting.append(answer)
        if len(waiting) == 1:
            try:
                self._threads.start(f"name {host}", lambda: self._look_up(host))
            except RuntimeError as error:  # the process has too many threads
                self._end(host, [], str(error))
        return answer

    def _look_up(self, host: str) -> None:
        found, why = set[str](), ""
        try:
            found = {address[0] for *_, address in self._getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
        hosts = sorted(found, key=lambda number: (":" in number, number))
        self._reactor.callFromThread(self._end, host, hosts, why)

    def _end(self, host: str, hosts: list[str], why: str) -> None:
        for answer in self._waiting.pop(host):
            if hosts:
                answer.callback(hosts)
            else:
                answer.errback(NoAddress(f"no address of {host} was found: {why}"))
