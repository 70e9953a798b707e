"""A broker that drains itself at SIGTERM (`qpidd --drain-to`), and ends when it is empty.

Life: the broker serves until SIGTERM. Then the drain begins (`cli.drain.drain`) in this process: the source is this broker, over
a pair of sockets, and the target is another one. While the target cannot be reached, the broker continues to serve, and tries
again until the deadline, if there is one. When the drain has ended, in any way, the broker shuts down: with exit code 0 if it is
empty and released, else with `endings.UNFINISHED`. In the latter case its store is kept: start the broker on it again, or
continue with a later drain. Another SIGTERM ends the drain at once, and the broker soon after. SIGINT stops the broker without a
drain.

A member of a cluster of several brokers is not drained, because the other members have its messages. It hands over, as without
`--drain-to`.

Invariant: the exit code is 0 only if the broker has reported that it is empty for good, and the target knows it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import Logger

from broker.client import ClientError
from broker.core.urls import Url
from cli import endings
from cli.drain.drain import Drain, Result
from cli.drain.inside import Inside
from cli.drain.sides import Clock, OutOfTime, Side
from cli.options import Target
from ha.service import Process

SPREAD_S = 10.0
"""The clients' connections end over this time, or over a tenth of the deadline if that is shorter."""
_AGAIN_S = 1.0
_TELL_S = 5.0
_SOON_S = 0.2
_TIMEOUT_S = 10.0
_log = Logger(namespace="qpidd")


class DrainOnSigterm:
    """See the module. It waits for the signal as soon as it is made. `process`: a broker with `--drain-to`."""

    def __init__(self, process: Process) -> None:
        settings = process.settings
        assert settings.drain_to is not None, "it was told where to"
        self._process = process
        self._reactor = process.reactor
        self._to: Url = settings.drain_to
        self._deadline_s = settings.drain_deadline
        self._running: Deferred[Any] | None = None
        self._over = False
        """Whether the drain is cancelled: a connection that is being made reports that as any other failure."""
        self._told_s = 0.0
        self._reactor.on_term = self.terminated
        self._reactor.addSystemEventTrigger("before", "shutdown", self._cancel)

    def terminated(self) -> None:
        """SIGTERM has arrived, for the first time or again."""
        if self._running is None and not self._alone:
            self._process.end()
        elif self._running is None:
            _log.info("SIGTERM: draining to {to}", to=str(self._to))
            self._process.ends_with = endings.UNFINISHED  # until the drain reports that the broker is empty
            self._running = ensureDeferred(self._drain())
            self._running.addCallbacks(self._ended, self._failed)
        else:
            _log.warn("SIGTERM again: ending at once")
            self._process.patience_s = _SOON_S
            self._cancel()
            self._process.end()

    @property
    def _alone(self) -> bool:
        """Whether no other broker has this broker's messages."""
        member = self._process.member
        return member is None or len(member.log.replica.members.addresses) == 1

    def _cancel(self) -> None:
        self._over = True
        if self._running is not None:
            self._running.cancel()

    async def _drain(self) -> Result:
        clock = Clock(self._reactor, self._deadline_s)
        if self._deadline_s is not None:
            self._reactor.callLater(self._deadline_s, self._cancel)
        source = Inside(clock, self._target(), "broker that leaves", self._process)
        target = Side(clock, self._target(), "target")
        spread_s = SPREAD_S if self._deadline_s is None else min(SPREAD_S, self._deadline_s / 10)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        drain = Drain(clock, source, [target], self._tell, spread_s=spread_s, now=now)
        try:
            while True:
                try:
                    return await drain.run()
                except endings.Unreachable as error:
                    if self._over:
                        raise CancelledError from None
                    _log.warn("{error}; trying again", error=str(error))
                await clock.pause(_AGAIN_S)
        finally:
            source.abort()
            target.abort()

    def _target(self) -> Target:
        return Target(self._to, _TIMEOUT_S, "", admin=True, tls=self._process.settings.tls)

    def _tell(self, event: str, facts: dict[str, Any]) -> None:
        if event in ("moving", "waiting"):
            now_s = self._reactor.seconds()
            if now_s - self._told_s < _TELL_S:
                return
            self._told_s = now_s
        _log.info("drain: {event}: {facts}", event=event, facts=", ".join(f"{name} {fact}" for name, fact in facts.items()))

    def _ended(self, result: Result) -> None:
        for queue, sequence, why in result.refused:
            _log.warn(
                "stays: queue {queue}, {which}: {why}",
                queue=queue,
                which=f"message {sequence}" if sequence else "the rest of it",
                why=why,
            )
        if result.empty:
            self._process.ends_with = 0
            _log.info("{moved} messages moved; this broker is empty, and was released", moved=result.moved)
            self._process.end()
        else:
            self._unfinished(f"{result.moved} messages moved")

    def _failed(self, failure: Any) -> None:
        if failure.check(CancelledError, OutOfTime):
            self._unfinished("the time is over, or another signal came")
        elif failure.check(endings.Refused, endings.Unreachable, ClientError):
            self._unfinished(failure.getErrorMessage())
        else:
            _log.failure("the drain has failed", failure=failure)
            self._unfinished("it has failed")

    def _unfinished(self, text: str) -> None:
        status = self._process.broker.departure.status()
        _log.warn(
            "not drained: {text}; {messages} messages ({bytes} bytes) are left in {folder}, which is kept",
            text=text,
            messages=status["messages"],
            bytes=status["bytes"],
            folder=self._process.settings.data_dir,
        )
        self._process.end()
