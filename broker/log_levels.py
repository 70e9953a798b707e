"""The lines of a log file, and the lowest level of those in a broker's log file, which an operator can change while it runs
(`qpid-config log`).

Life of a level: `--log-enable` sets it at the start; `SET` of the type `log` sets another one, until the process ends.

Invariant: nothing that a text repeats, such as the reason for which a client closes its connection, begins a line.
"""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.logger import LogEvent, LogLevel, LogLevelFilterPredicate, formatEvent

from broker.core.nodes import Refused
from broker.core.printable import printable
from broker.sessions.principal import Principal
from broker.settings import LOG_LEVELS

_TWISTED: Final = {"trace": "debug", "notice": "info", "warning": "warn"}


def text_of(event: LogEvent) -> str:
    """The text of an event, as one line. The traceback of a failure follows, in lines that begin with a tab."""
    failure = event["log_failure"].getTraceback() if "log_failure" in event else ""
    return "\n\t".join(map(printable, (formatEvent(event), *failure.splitlines())))


class LogLevels:
    """See the module. Fulfils `broker.administration.Extension`; `predicate` is the log's filter."""

    def __init__(self, level: str) -> None:
        self.predicate = LogLevelFilterPredicate()
        self._level = ""
        self._set(level)

    def _set(self, level: str) -> None:
        self._level = level
        self.predicate.defaultLogLevel = LogLevel.levelWithName(_TWISTED.get(level, level))
        self.predicate.clearLogLevels()

    def items(self) -> list[dict[str, Any]]:
        """The one item of `QUERY log`."""
        return [{"level": f"{self._level}+"}]

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[tuple[int, str, dict[str, Any]]]:
        """SET of a level, `notice` or `notice+`. Refused."""
        if operation != "SET":
            raise Refused(501, f"this broker does not have the operation {operation!r} on its log")
        level = str(body.get("level") or "").strip().lower().removesuffix("+")
        if level not in LOG_LEVELS:
            raise Refused(400, f"{body.get('level')!r} is not a log level: use one of {', '.join(LOG_LEVELS)}, as in notice+")
        self._set(level)
        return succeed((200, "OK", self.items()[0]))
