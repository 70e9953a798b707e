"""The bounds of the messages between members, in the same units as `broker.core.limits`."""

from __future__ import annotations

from broker.core.limits import KIB, MIB

PEER_CREDIT = 10_000
"""Messages that a member may send before this broker has processed them."""

PEER_CREDIT_LOT = 64
"""After so many messages a member gets their credit back."""

PEER_FRAME_BYTES = 256 * KIB
"""Largest AMQP frame between members: each frame costs the same, whatever its size."""

PEER_MESSAGE_BYTES = 256 * MIB
"""The largest message between members, for example with one batch that is larger than usual."""

PEER_BUFFER_BYTES = 64 * MIB
"""Bytes buffered for a member that does not read. Above this its link is restarted."""
