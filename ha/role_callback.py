"""A program that is started when this broker's role changes: to move an address, to notify a load balancer, to page a person.

Life of a call: the role changes (`primary`, `backup`, or `joining` while no primary is known). The program is started with
its own arguments and then the role, the epoch, the primary's address ("-" for none) and this broker's own address. After
`timeout_s` it is killed. A line in the log reports each call that fails or is killed. One program runs at a time: when it has
ended, the program is started again only for the newest role.

Invariants: the broker waits for no program; its output and its result change nothing here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

_log = Logger(namespace="ha")
_MAX_OUTPUT = 4096
_OUTPUT_S = 1.0
"""For so long, output may come after the end of the program."""
ROLES = {"active": "primary", "recovering": "backup", "catchup": "backup", "ready": "backup", "joining": "joining"}


class RoleCallback:
    """See the module. `words` is the program with its own arguments; if it is empty, nothing is called."""

    def __init__(self, reactor: Any, words: Sequence[str], timeout_s: float, me: str) -> None:
        self._reactor = reactor
        self._words = tuple(words)
        self._timeout_s = timeout_s
        self._me = me
        self._role = ""
        self._waiting: tuple[str, ...] | None = None
        self._running: _Call | None = None

    def changed(self, state: str, epoch: int, primary: str) -> None:
        """The state of this broker has changed; the program is called only if the role is another one than before."""
        role = ROLES.get(state, "joining")
        if not self._words or role == self._role:
            return
        self._role = role
        self._waiting = (*self._words, role, str(epoch), primary or "-", self._me)
        self._next()

    def _next(self) -> None:
        if self._running is not None or self._waiting is None:
            return
        words, self._waiting = self._waiting, None
        call = self._running = _Call(self, words)
        try:
            call.process = self._reactor.spawnProcess(
                call, words[0], words, env=None, childFDs={0: "w", 1: "r", 2: "r"}, usePTY=False
            )
        except OSError as error:
            self._running = None
            _log.error("{program} could not be told of the role: {why}", program=words[0], why=str(error))
            return
        call.timer = self._reactor.callLater(self._timeout_s, call.too_late, self._timeout_s)

    def ended(self) -> None:
        """A call is over."""
        self._running = None
        self._next()


class _Call(ProcessProtocol):
    """One run of the program."""

    def __init__(self, owner: RoleCallback, words: tuple[str, ...]) -> None:
        self._owner = owner
        self._words = words
        self._said = b""
        self._late = self._has_exited = False
        self.process: Any = None
        self.timer: Any = None

    def connectionMade(self) -> None:
        """The program runs: close its standard input."""
        assert self.transport is not None
        self.transport.closeStdin()

    def outReceived(self, data: bytes) -> None:
        """The program has written output: the end of it may go to the log."""
        self._said = (self._said + data)[-_MAX_OUTPUT:]

    errReceived = outReceived

    def too_late(self, timeout_s: float) -> None:
        """The program has used up its time: kill it. If it has ended, its output stays open for too long: close that."""
        if not self._has_exited:
            self._late = True
            _log.error("{program} has not ended within {s:g} s, and is killed", program=self._words[0], s=timeout_s)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.process.pid, signal.SIGKILL)
        for fd in (1, 2):  # its child processes may keep these open
            self.process.closeChildFD(fd)

    def processExited(self, reason: Failure) -> None:
        """It has ended. What it has started may keep its output open; nobody waits for that."""
        self._has_exited = True
        if self.timer is not None and self.timer.active():
            self.timer.reset(_OUTPUT_S)

    def processEnded(self, reason: Failure) -> None:
        """It has ended, well or not."""
        if self.timer is not None and self.timer.active():
            self.timer.cancel()
        status = getattr(reason.value, "exitCode", None)
        if status != 0 and not self._late:
            lines = self._said.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            _log.error(
                "{program} {role} ended with {status}: {said}",
                program=self._words[0],
                role=self._words[-4],
                status="a signal" if status is None else status,
                said=lines[-1],
            )
        self._owner.ended()
