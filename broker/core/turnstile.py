"""A limit for logins from hosts with failed logins: it limits the failing ones, and does not slow down the successful ones.

Life of a try: a delayed login takes one of its host's tries (`enter`), if there is one. If the login succeeds, the try is given
back; if not, the host gets it back with time. So if one of ten thousand clients behind a host has a wrong password, the host is
not slowed down. But a host that guesses passwords has at most LOGIN_TRIES_A_S tries a second, however many connections it has.

Invariants: a host has at most LOGIN_TRIES_AT_ONCE tries, and an unknown host has all of them; at most LOGIN_ENTRIES hosts with
fewer tries are remembered, and those whose last try is the oldest are forgotten first.
"""

from __future__ import annotations

from broker.core import limits

_SHORTEST_S = 0.001
"""A shorter time may be zero for a clock."""


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
        """Host -> the tries that it had left, and the time of this figure. The hosts with the latest tries are last."""

    def __len__(self) -> int:
        return len(self._hosts)

    def enter(self, host: str, now_s: float) -> float:
        """Take a try and return 0; if there is none, return the time in seconds until there is one."""
        left = self._left(host, now_s)
        if left < 1:
            return max((1 - left) / self._per_s, _SHORTEST_S)
        self._has(host, left - 1, now_s)
        return 0.0

    def give_back(self, host: str, now_s: float) -> None:
        """Give back the try of a login that has succeeded."""
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
