"""How many logins from one host are looked at, where some from there have failed: as many as succeed, and few that do not.

Life of a try: a login that was put off `enter`s, if its host has a try left; if it comes to something, the try is given back, and
if not, it comes back with time. So a host behind which one of ten thousand clients has a wrong password keeps its pace, and one
that guesses passwords has LOGIN_TRIES_A_S of them however many connections it has.

Invariants: a host has never more than LOGIN_TRIES_AT_ONCE tries; one of which nothing is known has all of them; there are never
more than LOGIN_ENTRIES hosts with fewer, and those that have not tried for the longest are forgotten first.
"""

from __future__ import annotations

from broker.core import limits

_SHORTEST_S = 0.001
"""What is shorter may be no time at all to a clock."""


class Turnstile:
    """See the module. Times are seconds of one monotonic clock."""

    def __init__(
        self,
        at_once: int = limits.LOGIN_TRIES_AT_ONCE,
        per_s: float = limits.LOGIN_TRIES_A_S,
        max_hosts: int = limits.LOGIN_ENTRIES,
    ) -> None:
        self._at_once = at_once
        self._per_s = per_s
        self._max_hosts = max_hosts
        self._hosts: dict[str, tuple[float, float]] = {}
        """Host -> the tries that it had left, and when that was. Those that have tried last stand last."""

    def __len__(self) -> int:
        return len(self._hosts)

    def enter(self, host: str, now_s: float) -> float:
        """Take a try, and return 0; or, when there is none, how long it takes until there is one."""
        left = self._left(host, now_s)
        if left < 1:
            return max((1 - left) / self._per_s, _SHORTEST_S)
        self._has(host, left - 1, now_s)
        return 0.0

    def give_back(self, host: str, now_s: float) -> None:
        """A try has come to something."""
        self._has(host, self._left(host, now_s) + 1, now_s)

    def _left(self, host: str, now_s: float) -> float:
        left, then_s = self._hosts.get(host, (float(self._at_once), now_s))
        return min(float(self._at_once), left + (now_s - then_s) * self._per_s)

    def _has(self, host: str, left: float, now_s: float) -> None:
        self._hosts.pop(host, None)
        if left < self._at_once:
            self._hosts[host] = (left, now_s)
            if len(self._hosts) > self._max_hosts:
                del self._hosts[next(iter(self._hosts))]
