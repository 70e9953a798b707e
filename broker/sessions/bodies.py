"""Reading bodies back from disk, for all queues of a broker.

Life of a request: a queue requests bodies. When few enough other requests are being read, the log reads them in another thread.
The queue gets the bodies and delivers what it can. Only then the limit of bodies in memory is enforced again. So consumers with
credit get messages even if this limit is too small for a single body.

Invariant: at most `limits.READS_AT_ONCE` requests are being read at a time, at most one for each queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core import limits
from broker.core.queues.reading import Body
from broker.core.queues.residency import Residency
from broker.sessions.ledger import Ledger
from broker.sessions.turn import Turn

_log = Logger()
_WINDOWS_IN_BOUND = 4
"""All windows together may take this part of the bound on bodies in memory."""

Found = list[bytes | str]


class BodyReader:
    """See the module."""

    def __init__(self, residency: Residency, turn: Turn) -> None:
        self._residency = residency
        self._turn = turn
        self._under_way = 0
        self._waiting: deque[tuple[Ledger, list[Body], Callable[[Found], None]]] = deque()

    @property
    def window_bytes(self) -> int:
        """How much a queue may have read at once: less, the more queues read."""
        share = self._residency.limit_bytes // _WINDOWS_IN_BOUND // (1 + self._under_way + len(self._waiting))
        return max(min(share, limits.READ_AHEAD_BYTES), limits.MIN_READ_AHEAD_BYTES)

    def read(self, ledger: Ledger, bodies: list[Body], came: Callable[[Found], None]) -> None:
        """Read these; `came` gets the bytes of each, or the text why they cannot be read. Never at once."""
        self._waiting.append((ledger, bodies, came))
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._under_way < limits.READS_AT_ONCE:
            ledger, bodies, came = self._waiting.popleft()
            if ledger.log is not None:  # without a log the broker is stopping
                self._under_way += 1
                ledger.log.read_bodies(bodies).addBoth(self._came, came).addErrback(partial(self._broken, ledger))

    def _came(self, found: Found | Failure, came: Callable[[Found], None]) -> None:
        self._under_way -= 1
        if isinstance(found, Failure):
            found.raiseException()
        else:
            came(found)
        self._turn.flush()
        self._residency.enforce()
        self._go_on()

    @staticmethod
    def _broken(ledger: Ledger, failure: Failure) -> None:
        """Our own bug: a queue that waits for bodies for ever would be a silent one."""
        _log.failure("bodies of the {name} log cannot be read", failure=failure, name=ledger.name)
        ledger.on_storage_error(f"bodies of the {ledger.name} log cannot be read: {failure.getErrorMessage()}", fatal=True)
