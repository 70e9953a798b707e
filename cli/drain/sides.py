"""The two sides of a drain. Each has a connection that is made again when it has ended.

Life of a side: at its first request it connects to the primary of its addresses. A request without an answer is
repeated over the next connection. This is safe, because every request of a drain may be repeated. A side that has never
been reached is given up at once, or after `FIRST_S` if it is a cluster, which may be electing its primary. A side that
has been reached before is given up after `GIVE_UP_S`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from broker.client import ClientError, ManagementClient, ManagementError, NoPrimary, find_primary
from cli import endings
from cli.options import Target

GIVE_UP_S = 60.0
FIRST_S = 10.0
HEARTBEAT_S = 5.0
_PAUSE_S = 0.2


class OutOfTime(Exception):
    """The deadline has passed."""


class Clock:
    """The reactor's time, and the deadline: this many seconds from now, or None for no deadline."""

    def __init__(self, reactor: Any, deadline_s: float | None) -> None:
        self.reactor = reactor
        self._until_s = None if deadline_s is None else reactor.seconds() + deadline_s

    @property
    def now_s(self) -> float:
        """Seconds since an arbitrary time."""
        return float(self.reactor.seconds())

    @property
    def limited(self) -> bool:
        """Whether there is a deadline."""
        return self._until_s is not None

    def check(self) -> None:
        """Raise OutOfTime if the deadline has passed."""
        if self._until_s is not None and self.now_s >= self._until_s:
            raise OutOfTime

    def pause(self, seconds: float) -> Deferred[None]:
        """Wait, but not longer than the deadline."""
        self.check()
        left_s = seconds if self._until_s is None else min(seconds, self._until_s - self.now_s)
        return deferLater(self.reactor, left_s, lambda: None)


class Side:
    """See the module. `what` names this side in texts."""

    def __init__(self, clock: Clock, target: Target, what: str) -> None:
        self._clock = clock
        self._target = target
        self.what = what
        self._client: ManagementClient | None = None
        self._reached = False

    @property
    def addresses(self) -> list[str]:
        """Its addresses, host:port each."""
        return list(self._target.url.names)

    async def client(self) -> ManagementClient:
        """A connection that is open, as far as is known. Unreachable, OutOfTime."""
        if self._client is not None and not self._client.is_lost:
            return self._client
        began_s = self._clock.now_s
        while True:
            self._clock.check()
            try:
                self._client = await self._connect()
                self._reached = True
                return self._client
            except ClientError as error:
                patience_s = GIVE_UP_S if self._reached else FIRST_S if isinstance(error, NoPrimary) else 0.0
                if self._clock.now_s - began_s >= patience_s or isinstance(error, ManagementError):
                    raise endings.Unreachable(f"the {self.what} cannot be reached: {error}") from None
            await self._clock.pause(_PAUSE_S)

    def _connect(self) -> Deferred[ManagementClient]:
        target, url = self._target, self._target.url
        options: dict[str, Any] = {
            "user": url.user or None,
            "password": url.password or None,
            "mechanism": target.mechanism or None,
            "timeout_s": target.timeout_s,
            "heartbeat_s": HEARTBEAT_S,
            "seconds": self._clock.reactor.seconds,
            "credentials": target.credentials(),
        }
        if len(url.addresses) == 1:
            return ManagementClient.connect(self._clock.reactor, url.addresses[0], **options)
        return find_primary(self._clock.reactor, url.addresses, **options)

    async def ask(self, operation: str, type: str, name: str = "", body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request until it is answered, and return the answer's body. ManagementError if the broker refuses."""
        while True:
            client = await self.client()
            try:
                return await client.request(operation, type, name or None, body, self._target.timeout_s)
            except ManagementError as error:
                backup = error.status == 409 and "ask the primary" in error.text and len(self.addresses) > 1
                if error.status != 503 and not backup:
                    raise
                client.abort()  # another broker has become the primary
            except ClientError:
                client.abort()
            await self._clock.pause(_PAUSE_S)

    async def items(self, type: str) -> list[dict[str, Any]]:
        """All items of a type; repeats the query until it is answered."""
        while True:
            client = await self.client()
            try:
                return await client.query(type, None, self._target.timeout_s)
            except ManagementError:
                raise
            except ClientError:
                client.abort()
            await self._clock.pause(_PAUSE_S)

    async def close(self) -> None:
        """End the connection in order."""
        if self._client is not None and not self._client.is_lost:
            await self._client.close()

    def abort(self) -> None:
        """Drop the connection."""
        if self._client is not None:
            self._client.abort()
