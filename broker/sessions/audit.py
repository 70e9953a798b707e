"""The audit log: who did what to this broker, and how the rules decided.

It has a line for each change by a management request, with its result: carried out, refused, or not answered. It also has a line
for each decision of a rule that is written `allow-log` or `deny-log`. A line names the user, the address, the action and the
result, and nothing else from the request: no arguments and no messages.

Invariants: the number of lines about refusals is limited, and so is the number about `allow-log` rules; lines about actual
changes are never left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twisted.logger import Logger

from broker.core.acl.questions import Lookup, shown
from broker.core.acl.rules import Decision
from broker.core.sasl import NOBODY
from broker.sessions.principal import Principal
from broker.sessions.refusals import Bounded

_log = Logger(namespace="audit")


class Who(Protocol):
    """A connection, as the source of requests."""

    @property
    def principal(self) -> Principal:
        """The principal that it acts for."""

    @property
    def address(self) -> str:
        """Where it comes from, `host:port`."""


class Audit:
    """See the module. `seconds` is the reactor's time."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._refused = Bounded(seconds, _write, "refusals")
        self._decided = Bounded(seconds, _write, "decisions of rules that log")

    def decided(self, who: Who, lookup: Lookup, decision: Decision) -> None:
        """A rule that logs has decided this."""
        word = "allowed" if decision.allowed else "denied"
        rule = f"line {decision.line}" if decision.line else "the mode"
        self._decided.line(f"{_who(who)}: {word} by {rule} of the ACL: {lookup}")

    def managed(self, who: Who, what: str, status: int, text: str) -> None:
        """Log the answer to a request for a change. Status 0: there was no answer, and the result is unknown."""
        line = f"{_who(who)}: {what}: {status or 'unknown'} {text if text.isprintable() else ascii(text)}"
        if status < 300:
            _write(line)
        else:
            self._refused.line(line)


def _who(who: Who) -> str:
    principal = who.principal
    unproven = "" if principal.authenticated or principal.user == NOBODY else " (so it says)"
    return f"audit: {shown(principal.user)}{unproven} from {who.address}"


def _write(line: str) -> None:
    _log.info("{line}", line=line)
