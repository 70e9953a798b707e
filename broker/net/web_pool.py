"""Connections to web servers for treq and Twisted's agent, without lines in the log about each of them.

Twisted logs that the factory of a connection starts and stops. A client that tries again and again while its server is away would
fill the log with such lines.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.web.client import HTTPConnectionPool
from zope.interface import implementer


class QuietPool(HTTPConnectionPool):
    """See the module."""

    def getConnection(self, key: Hashable, endpoint: Any) -> Deferred[Any]:
        """A connection to that endpoint: one that waits in the pool, or a new one."""
        found: Deferred[Any] = super().getConnection(key, _Quiet(endpoint))
        return found


@implementer(IStreamClientEndpoint)
@dataclass(frozen=True, slots=True)
class _Quiet:
    """An endpoint whose connections are made in silence."""

    endpoint: Any

    def connect(self, factory: Any) -> Any:
        """Connect."""
        factory.noisy = False
        return self.endpoint.connect(factory)
