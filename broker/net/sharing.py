"""Expensive work that brings no message (accepting sockets, TLS handshakes) waits for its share of a reactor's turn. This
module has the interfaces that ports and TLS use for it.

`broker.sessions.share` divides the turns.
"""

from __future__ import annotations

from typing import Protocol


class Work(Protocol):
    """A user of a share, with work to do: a port with sockets to accept, or a TLS handshake."""

    def go_on(self) -> bool:
        """Do a piece of the work. Returns whether there is more."""


class Share(Protocol):
    """The share of a turn for such work, and the queue of work that waits (`broker.sessions.share`)."""

    @property
    def is_left(self) -> bool:
        """Whether this turn has time for it."""

    def spent(self, seconds: float) -> None:
        """The work has used this time."""

    def later(self, work: Work) -> None:
        """Let the work continue in a later turn."""

    def forget(self, work: Work) -> None:
        """The work no longer waits."""
