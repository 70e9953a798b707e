"""Messages that arrive in several frames: what is left of them in proton, and what is taken out of it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from cproton_ffi import lib

from broker.amqp.receiver import Receiver
from broker.core import limits
from tests.broker.amqp.pairs import Pair, Proton

LARGE = random.Random(1).randbytes(5 * limits.PART_BYTES - 1000)
BODY = b"\x00\x53\x75\xb0\x7f\xff\xff\xff"
PROPERTIES = b"\x00\x53\x74\xd1\x7f\xff\xff\xff\x00\x00\x00\x02"
"""The beginning of application properties that go on, so that no body begins."""


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


class Sink:
    """Takes the parts of a message, and keeps nothing of them. Fulfils `links.PartsTaker`."""

    kept_bytes = 0

    def part(self, data: bytes, whole: bool) -> None: ...
    def aborted(self) -> None: ...


def begun(peer: Proton, beginning: bytes, sizes: list[int]) -> list[Any]:
    """Links that take large messages by the part, each on a session of its own, with so many bytes of one that goes on."""
    links = []
    for number, nbytes in enumerate(sizes):
        session = peer.connection.session()
        session.open()
        link = peer.sender(f"u{number}", session=session)
        peer.into(link.name).take_parts(Sink(), 100_000_000)
        link.delivery("t")
        for start in range(0, nbytes, 60_000):
            link.stream(((beginning if not start else b"") + bytes(60_000))[: min(60_000, nbytes - start)])
            peer.settle()
        links.append(link)
    return links


def test_what_is_left_of_a_message_that_was_passed_on_keeps_no_more_memory_than_its_bytes() -> None:
    """Breaks when the last byte is a view of all that came with it: nobody counts that, and it may be 256 KiB for each link."""
    peer = Proton(credit=1).open()
    links = begun(peer, BODY, [240_000] * 18)
    assert peer.server.engine.gathering.nbytes < limits.UNFINISHED_BYTES
    left = [peer.into(link.name).partial for link in links]
    views = [partial.joined() for partial in left if partial is not None and len(partial) == 1]
    assert len(views) > 10, "most were passed on"
    assert {memoryview(view.obj).nbytes for view in views} == {1}


def test_a_message_whose_body_does_not_begin_is_not_searched_again_for_each_byte() -> None:
    """Breaks when a connection that has much of unfinished messages can stop the broker by frames of one byte."""
    peer = Proton(credit=1).open()
    links = begun(peer, PROPERTIES, [1_040_000] * 4 + [120_000])
    assert peer.server.engine.gathering.nbytes > limits.UNFINISHED_BYTES
    partial = peer.into(links[-1].name).partial
    assert partial is not None
    taken, searched, before = len(partial), partial.joined(), peer.server.engine.gathering.nbytes
    for _ in range(100):
        links[-1].stream(b"x")
        peer.settle()
    assert (len(partial), partial.joined() is searched) == (taken, True)
    assert peer.server.engine.gathering.nbytes == before + 100
    assert peer.server.closed == []
