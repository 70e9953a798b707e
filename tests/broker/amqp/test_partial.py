"""Messages that arrive in several frames: what is left of them in proton, and what is taken out of it."""

from __future__ import annotations

import random

import pytest
from cproton_ffi import lib

from broker.amqp.links import Receiver
from broker.core import limits
from tests.broker.amqp.pairs import Pair

LARGE = random.Random(1).randbytes(5 * limits.PART_BYTES - 1000)


class Reads:
    """A client that has sent a message to a server, which gets it in reads."""

    def __init__(self, message: bytes) -> None:
        self.pair = Pair()
        self.pair.sender().send_one(message, 0, True)
        (link,) = self.pair.server.links
        assert isinstance(link, Receiver)
        self.link = link
        self.output = b"".join(self.pair.client.engine.take_output())

    def read(self, nbytes: int) -> int:
        """One read. Returns how much of the message is in proton after it."""
        data, self.output = self.output[:nbytes], self.output[nbytes:]
        self.pair.server.engine.push(data)
        self.pair.server.engine.drain()
        current = lib.pn_link_current(self.link.handle)
        return int(lib.pn_delivery_pending(current)) if current else 0


@pytest.mark.parametrize("nbytes", [999, 65_536, 100_000, 1 << 20])
def test_a_message_comes_whole_in_reads_of_any_size_and_little_of_it_stays_in_proton(nbytes: int) -> None:
    """Breaks when proton gathers it: it keeps the memory of the largest message for each delivery that it has ever had."""
    reads = Reads(LARGE)
    while reads.output:
        assert reads.read(nbytes) <= limits.GATHER_BYTES
    assert reads.pair.server.messages == [LARGE]
    assert reads.link.partial is None
    assert reads.pair.server.engine.gathering.nbytes == 0


def test_what_comes_byte_by_byte_is_not_taken_out_of_proton_byte_by_byte() -> None:
    """Each piece that is taken out has memory of its own, which is far more than a byte."""
    reads = Reads(LARGE)
    reads.read(300_000)
    assert reads.link.partial is not None
    taken = len(reads.link.partial)
    in_proton = reads.read(limits.MAX_FRAME_BYTES // 2) or reads.read(limits.MAX_FRAME_BYTES // 2)
    for _ in range(100):
        reads.read(1)
    assert len(reads.link.partial) == taken
    assert 0 < in_proton <= limits.GATHER_BYTES
    assert reads.pair.server.engine.gathering.nbytes == taken + reads.read(1)
    reads.read(len(reads.output))
    assert reads.pair.server.messages == [LARGE]
