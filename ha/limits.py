"""The bounds of the messages between members, in the same units as `broker.core.limits`."""

from __future__ import annotations

from broker.core.limits import KIB, MIB, PIECE_BYTES

PEER_CREDIT = 10_000
"""Messages that a member may send before this broker has processed them."""

PEER_CREDIT_LOT = 64
"""After so many messages a member gets their credit back."""

PEER_FRAME_BYTES = PIECE_BYTES + KIB
"""Largest AMQP frame between members: each frame costs the same, whatever its size. A piece of a message and the head of a frame
fit into it; otherwise each piece would take a second frame, and a write, for its last bytes."""

PEER_MESSAGE_BYTES = 256 * MIB
"""The largest message between members, for example with one batch that is larger than usual."""

PEER_BUFFER_BYTES = PEER_MESSAGE_BYTES + 32 * MIB
"""Bytes buffered for a member that does not read. Above this its link is restarted. So the largest message fits behind the
batches that may be on their way to it: a link that is restarted for a message would be restarted for it again and again."""
