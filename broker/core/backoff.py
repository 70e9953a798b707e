"""The delay of a login, by the number of earlier failures from the same host or of the same user.

Life of an entry: a failed login is counted (`failed`) for its host and for the user that it named. After the first few failures,
each further one doubles the delay of the next login (`delay_s`), up to `limits.LOGIN_DELAY_S`. After `limits.LOGIN_FORGET_S`
without a failure, the entry no longer counts. Failures of others only delay a login and never cause a refusal. So somebody who
guesses a user's password, or a client with a wrong password on the same host, makes the user wait for a moment, but cannot lock
it out.

Invariants: a success does not reduce the count, so somebody who guesses gains nothing from a valid login of their own; there are
never more than `limits.LOGIN_ENTRIES` entries, and the oldest are removed first.
"""

from __future__ import annotations

from broker.core import limits

_FREE = 3
"""Failures without a delay."""
_FIRST_S = 0.1


class Backoff:
    """See the module. Times are seconds of one monotonic clock."""

    def __init__(self, max_entries: int = limits.LOGIN_ENTRIES) -> None:
        self._max_entries = max_entries
        self._entries: dict[tuple[str, str], tuple[int, float]] = {}
        """("host" or "user", its name) -> number of failures, and the time of the last one. The oldest are first."""

    def __len__(self) -> int:
        return len(self._entries)

    def delay_s(self, host: str, user: str, now_s: float) -> float:
        """The delay of a login from `host` as `user`."""
        return max(self._delay_s(("host", host), now_s), self._delay_s(("user", user), now_s))

    def failed(self, host: str, user: str, now_s: float) -> None:
        """Count a failed login from `host` as `user` ("" if it named no user)."""
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
