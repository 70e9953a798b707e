"""The bounds of what passes between members, beside those of `broker.core.limits`, in the same terms."""

from __future__ import annotations

from broker.core.limits import KIB, MIB

PEER_CREDIT = 10_000
"""Messages that a member may send before this broker has looked at them."""

PEER_CREDIT_LOT = 64
"""Messages after which a member gets their credit back."""

PEER_FRAME_BYTES = 256 * KIB
"""Largest AMQP frame between members: each frame costs the same, whatever its size."""

PEER_MESSAGE_BYTES = 256 * MIB
"""The largest message between members: one batch that is larger than usual."""

PEER_BUFFER_BYTES = 64 * MIB
"""Bytes kept for a member that does not read, before its link is started anew."""
