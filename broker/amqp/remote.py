"""What the peer's Open says of the peer.

Proton has it, and is asked each time, so this holds nothing. Before the Open has arrived, everything is empty or 0.
"""

from __future__ import annotations

from typing import Any

from cproton_ffi import lib

from broker.amqp.data import Condition, map_of, names_of, text_of


class Remote:
    """The Open of the peer of one engine, whose `connection` and `transport` of proton these are."""

    __slots__ = ("_connection", "_transport")

    def __init__(self, connection: Any, transport: Any) -> None:
        self._connection = connection
        self._transport = transport

    @property
    def properties(self) -> dict[str, Any]:
        """Its properties, keys as plain strings; none when they cannot be read."""
        try:
            return {str(key): value for key, value in map_of(lib.pn_connection_remote_properties(self._connection)).items()}
        except Condition:
            return {}

    @property
    def desired(self) -> tuple[str, ...]:
        """The capabilities that it wishes for; none when they cannot be read."""
        try:
            return names_of(lib.pn_connection_remote_desired_capabilities(self._connection))
        except Condition:
            return ()

    @property
    def max_frame(self) -> int:
        """The largest frame that the peer takes, in bytes; 0 for any size."""
        return int(lib.pn_transport_get_remote_max_frame(self._transport))

    @property
    def idle_timeout_s(self) -> float:
        """The silence after which the peer gives this side up; 0 for never."""
        return float(lib.pn_transport_get_remote_idle_timeout(self._transport)) / 1000

    @property
    def container(self) -> str:
        """The peer's container id."""
        return text_of(lib.pn_connection_remote_container(self._connection))

    @property
    def hostname(self) -> str:
        """The host name that the peer has asked for."""
        return text_of(lib.pn_connection_remote_hostname(self._connection))
