"""The child process that makes reports with Spark, and the board that shows them.

Life of a `Supervisor`: it starts the child, requests a report, and puts the result on the board. It requests the next one
`refresh_s` after the answer, not after the request, so that requests never pile up. The board shows a refusal, and the
request is repeated. If a child ends or sends an invalid answer, the board shows it, and a new child is started: at first
after RESTART_S, then after longer and longer times. A child that says `outgrown` ends as planned: a new one is started at once.
`stop` ends the child and waits for its end.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from cli.lag.web import Board

RESTART_S: Final = 2.0
RESTART_AT_MOST_S: Final = 60.0
END_S: Final = 5.0
MAX_ANSWER: Final = 64 << 20
COMMAND: Final = (sys.executable, "-m", "spark_analytics.worker")


class Supervisor:
    """See the module. `command` is the child's command; the tests use other ones."""

    def __init__(
        self, reactor: Any, board: Board, asked: dict[str, Any], *, refresh_s: float, command: tuple[str, ...] = COMMAND
    ) -> None:
        self._reactor, self._board, self._command = reactor, board, command
        self._question = json.dumps(asked).encode() + b"\n"
        self._refresh_s = refresh_s
        self._restart_s = RESTART_S
        self._child: _Child | None = None
        self._outgrown = False
        self._timer: IDelayedCall | None = None
        self._stopping: Deferred[None] | None = None

    def start(self) -> None:
        """Start the child; it gets a request as soon as it runs."""
        self._child = _Child(self)
        self._reactor.spawnProcess(self._child, self._command[0], self._command, env=None, childFDs={0: "w", 1: "r", 2: 2})

    def stop(self) -> Deferred[None]:
        """End the child. Fires when it has ended."""
        self._stopping = Deferred()
        self._hold()
        if self._child is None:
            self._stopping.callback(None)
        else:
            self._child.end("TERM")
            self._timer = self._reactor.callLater(END_S, self._child.end, "KILL")
        return self._stopping

    # ---- events of the child

    def connected(self) -> None:
        """The child runs: send a request."""
        self._ask()

    def told(self, line: bytes) -> None:
        """The child has sent one line."""
        try:
            answer = json.loads(line)
            if "report" in answer:
                self._board.report(answer["report"])
                self._restart_s = RESTART_S
            elif "outgrown" in answer:
                self._outgrown = True
                self._hold()
                return
            elif "refused" in answer:
                self._board.trouble(str(answer["refused"]))
            elif "failed" in answer:
                self._board.trouble(f"{answer['failed']}. Spark is started again.")
                return
            else:
                self._board.doing(str(answer["progress"]))
                return
        except Exception as error:  # no answer of a child process may end the page
            self._board.trouble(f"The summary could not be shown: {type(error).__name__}. Spark is started again.")
            if self._child is not None:
                self._child.end("KILL")
            return
        self._timer = self._reactor.callLater(self._refresh_s, self._ask)

    def ended(self, how: str) -> None:
        """The child has ended."""
        self._child = None
        self._hold()
        if self._stopping is not None:
            self._stopping.callback(None)
            return
        if self._outgrown:
            self._outgrown = False
            self.start()
            return
        if not self._board.problem:
            self._board.trouble(f"The process that runs Spark {how}. It is started again.")
        self._timer = self._reactor.callLater(self._restart_s, self.start)
        self._restart_s = min(RESTART_AT_MOST_S, self._restart_s * 2)

    def _hold(self) -> None:
        """Do not do what the timer is set for."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _ask(self) -> None:
        if self._child is not None and self._child.transport is not None:
            self._child.transport.write(self._question)


class _Child(ProcessProtocol):
    """The lines of the child, and its end."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._pieces: list[bytes] = []
        self._size = 0

    def connectionMade(self) -> None:
        self._supervisor.connected()

    def outReceived(self, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        for piece in whole:
            line = b"".join([*self._pieces, piece])
            self._pieces, self._size = [], 0
            self._supervisor.told(line)
        self._pieces.append(rest)
        self._size += len(rest)
        if self._size > MAX_ANSWER:
            self._pieces, self._size = [], 0
            self.end("KILL")

    def end(self, signal: str) -> None:
        """Send the child a signal, if it runs."""
        if self.transport is not None:
            with suppress(ProcessExitedAlready):
                self.transport.signalProcess(signal)

    def processEnded(self, reason: Failure) -> None:
        value: Any = reason.value
        how = f"was ended by signal {value.signal}" if value.signal else f"ended with status {value.exitCode}"
        self._supervisor.ended(how)
