"""The user of a connection. Every decision about what a client may do gets this principal: each attach and each management
request. It is set once for a connection, from the result of its login, before its Open is read. The exception is a client that
sends a token after its Open: then it is set from this token (`broker.sessions.claims`)."""

from __future__ import annotations

from dataclasses import dataclass

from broker.core import sasl
from broker.core.bearer import CBS


@dataclass(frozen=True, slots=True)
class Principal:
    """`user` in qpidd's form, with the realm behind it where there is one (`ann@QPID`), or `anonymous`; the SASL `mechanism`;
    whether anything has shown that it is that user; and, where that was a token, until when it counts, in seconds since 1970."""

    user: str
    mechanism: str
    authenticated: bool
    until_s: float | None = None

    @property
    def owes_token(self) -> bool:
        """Whether it has been let in to show a token, and has not."""
        return self.mechanism == CBS and not self.authenticated


ANONYMOUS = Principal(sasl.NOBODY, sasl.ANONYMOUS, authenticated=False)


def principal_of(granted: sasl.Grant | None) -> Principal:
    """The principal of a connection after its login; None: it has not logged in."""
    if granted is None:
        return ANONYMOUS
    return Principal(granted.user, granted.mechanism, granted.authenticated, granted.until_s)
