"""How long a login waits, by how many have failed before it: from the same host, or as the same user.

Life of an entry: a failed login is `failed`, for its host and for the user that it named; after the first few each further one
doubles what the next login waits (`delay_s`), up to `limits.LOGIN_DELAY_S`; when none has failed for `limits.LOGIN_FORGET_S`, the
entry counts no more. A login is put off and never refused for the sake of others: who guesses a user's password, or shares a host
with a client that has a wrong one, makes the user wait for a moment and does not lock it out.

Invariants: a success takes nothing back, so that a guesser with a login of its own gains nothing by it; there are never more than
`limits.LOGIN_ENTRIES` entries, and the oldest go first.
"""

from __future__ import annotations

from broker.core import limits

_FREE = 3
"""Failures that cost nothing."""
_FIRST_S = 0.1


class Backoff:
    """See the module. Times are seconds of one monotonic clock."""

    def __init__(self, max_entries: int = limits.LOGIN_ENTRIES) -> None:
        self._max_entries = max_entries
        self._entries: dict[tuple[str, str], tuple[int, float]] = {}
        """What ("host" or "user"), which -> failures, and when the last one was. The oldest stand first."""

    def __len__(self) -> int:
        return len(self._entries)

    def delay_s(self, host: str, user: str, now_s: float) -> float:
        """How long a login from `host` as `user` is put off."""
        return max(self._delay_s(("host", host), now_s), self._delay_s(("user", user), now_s))

    def failed(self, host: str, user: str, now_s: float) -> None:
        """A login from `host` as `user` ("": it named nobody) has failed."""
        for key in (("host", host), ("user", user)):
            if key[1]:
                count = self._count(key, now_s)
                self._entries.pop(key, None)
                self._entries[key] = (count + 1, now_s)
        while len(self._entries) > self._max_entries:
            del self._entries[next(iter(self._entries))]

    def _count(self, key: tuple[str, str], now_s: float) -> int:
        count, last_s = self._entries.get(key, (0, now_s))
        return count if now_s - last_s < limits.LOGIN_FORGET_S else 0

    def _delay_s(self, key: tuple[str, str], now_s: float) -> float:
        count = self._count(key, now_s) - _FREE
        return 0.0 if count < 0 else min(limits.LOGIN_DELAY_S, _FIRST_S * 2.0 ** min(count, 16))
