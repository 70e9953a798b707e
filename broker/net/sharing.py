"""What costs much and brings no message waits for its part of a reactor's turn: what ports and TLS know of that.

`broker.sessions.share` divides the turns.
"""

from __future__ import annotations

from typing import Protocol


class Work(Protocol):
    """What has work to be done: a port with sockets to accept, or a TLS handshake."""

    def go_on(self) -> bool:
        """Do a piece of it. Returns whether there is more."""


class Share(Protocol):
    """Where work waits for its turn (`broker.sessions.share`)."""

    @property
    def is_left(self) -> bool:
        """Whether this turn has time for it."""

    def spent(self, seconds: float) -> None:
        """So much was taken."""

    def later(self, work: Work) -> None:
        """Have it go on in a later turn."""

    def forget(self, work: Work) -> None:
        """It waits no more."""
