"""Messages of 100 MiB through a cluster of processes: they arrive complete, also through a failover, and their memory is
measured."""

from __future__ import annotations

import hashlib
import random
import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from proton import Message
from proton.utils import BlockingConnection

from broker.amqp.engine import Engine
from broker.amqp.sender import Sender
from broker.core.links import ACCEPTED
from tests.system.harness import BrokerProcess, cluster, eventually
from tests.system.wire import Peer

MIB = 1 << 20
LARGE_BYTES = 100 * MIB
"""The body of the largest message."""
SENDERS = 20
EACH_BYTES = 8 * MIB
"""So much each of many senders has sent of its message when all of them have been measured."""
MOST_ABOVE_IDLE = 64 * MIB
LEFT_BYTES = 64 * MIB
"""A log in which nothing is alive takes no more of the disk: four files of 16 MiB."""
_PIECE = random.Random(1).randbytes(256 * 1024)


def piece(at: int) -> bytes:
    """The piece of every test's body that begins at this place: no two are alike."""
    return at.to_bytes(8, "big") + _PIECE[8:]


def digest(nbytes: int) -> str:
    """The digest of a body of this size."""
    found = hashlib.sha256()
    for at in range(0, nbytes, len(_PIECE)):
        found.update(piece(at)[: nbytes - at])
    return found.hexdigest()


class Upload(Peer):
    """A connection that sends one large message, made piece by piece, to queue "q". Fulfils PieceSource.

    `sent_bytes` of its body are with the engine, and no more than `until` of them go out.
    """

    def __init__(self, port: int, nbytes: int = LARGE_BYTES, until: int = LARGE_BYTES) -> None:
        super().__init__(port, container=f"sender-{id(self)}")
        self.nbytes, self.until = nbytes, until
        self.sent_bytes = 0
        self.outcomes: list[int] = []
        self._begun = False
        self.engine.attach_sender(self.session, "large", "q", presettled=False)

    def on_outcomes(self, engine: Engine, link: Sender) -> None:
        self.outcomes += [outcome for _, count, outcome, _ in link.take_outcomes() for _ in range(count)]

    def on_credit(self, engine: Engine, link: Sender) -> None:
        if not self._begun:
            self._begun = True
            link.send_pieces(self, 0, False)

    # ---- PieceSource

    @property
    def has_more(self) -> bool:
        return self.sent_bytes < self.nbytes

    def next_piece(self) -> bytes | None:
        if self.sent_bytes >= self.until:
            return None
        data = piece(self.sent_bytes)[: self.nbytes - self.sent_bytes]
        head = b"\x00\x53\x75\xb0" + self.nbytes.to_bytes(4, "big") if not self.sent_bytes else b""
        self.sent_bytes += len(data)
        return head + data

    def sent(self) -> None:
        """All of it is with the engine."""

    def dropped(self) -> None:
        self.reason = "the broker has settled the message before it had all of it"


def carry(uploads: Sequence[Upload], done: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Carry the bytes of all of them until it is done. AssertionError when that takes too long, or the broker ends one."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, f"not done in {timeout_s} s: {[upload.sent_bytes for upload in uploads]}"
        select.select([upload.socket for upload in uploads], [], [], 0.002)
        for upload in uploads:
            upload.move()
        assert [(upload.reason, upload.ended) for upload in uploads] == [("", False)] * len(uploads)


def resident_bytes(broker: BrokerProcess, what: str = "VmRSS") -> int:
    """The memory of a broker's process, now or (`VmHWM`) at the most so far."""
    assert broker.process is not None
    lines = Path(f"/proc/{broker.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) * 1024


def stored_bytes(broker: BrokerProcess) -> int:
    """What the cluster's log takes of this broker's disk."""
    return int(broker.status()["store"]["bytes"])


def take_large(address: str) -> tuple[int, str]:
    """Take one message from queue "q" with a client of proton's: the size and the digest of its body."""
    connection = BlockingConnection(address, timeout=60)
    try:
        receiver: Any = connection.create_receiver("q", credit=1)
        message: Message = receiver.receive(timeout=60)
        receiver.accept()
        body = bytes(message.body)  # type: ignore[arg-type]
        return len(body), hashlib.sha256(body).hexdigest()
    finally:
        connection.close()


def test_a_message_of_100_mib_survives_the_primary_that_took_it_and_one_that_was_cut_short_leaves_nothing(tmp_path: Path) -> None:
    """The whole one is accepted, so it is on a majority. The other one never becomes whole: the new primary removes its parts."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        first = brokers.primary()
        first.create("queue", "q")
        idle = {broker.port: resident_bytes(broker) for broker in brokers.brokers}
        whole = Upload(first.port)
        carry([whole], lambda: bool(whole.outcomes))
        assert whole.outcomes == [ACCEPTED]
        assert 101 * MIB > first.queue("q")["bytes"] > LARGE_BYTES
        for broker in brokers.brokers:
            assert resident_bytes(broker, "VmHWM") - idle[broker.port] < MOST_ABOVE_IDLE
        cut = Upload(first.port, until=60 * MIB)
        carry([cut], lambda: cut.sent_bytes >= 50 * MIB)
        before = min(stored_bytes(broker) for broker in brokers.brokers)
        first.kill()
        cut.close()
        whole.close()
        second = brokers.succeed()
        assert second.queue("q")["messages"] == 1
        assert take_large(second.address) == (LARGE_BYTES, digest(LARGE_BYTES))
        eventually(lambda: second.queue("q")["messages"], lambda found: found == 0, "the end of the message")
        assert before > 100 * MIB
        eventually(lambda: stored_bytes(second), lambda found: found <= LEFT_BYTES, "the end of the parts on the disk")


def test_twenty_large_messages_at_once_cost_little_memory_on_any_broker(tmp_path: Path) -> None:
    """Breaks when parts wait in memory for their message to be whole, or for a slow disk."""
    with cluster(tmp_path, 3, "--ha-replicate", "all") as brokers:
        primary = brokers.primary()
        primary.create("queue", "q")
        idle = {broker.port: resident_bytes(broker) for broker in brokers.brokers}
        uploads = [Upload(primary.port, until=EACH_BYTES) for _ in range(SENDERS)]
        carry(uploads, lambda: all(upload.sent_bytes >= EACH_BYTES for upload in uploads))
        above = {broker.port: resident_bytes(broker, "VmHWM") - idle[broker.port] for broker in brokers.brokers}
        print(f"\nabove idle, in MiB: {[round(each / MIB) for each in above.values()]}")
        assert max(above.values()) < MOST_ABOVE_IDLE
        for upload in uploads:
            upload.close()
        assert primary.queue("q")["messages"] == 0
        eventually(lambda: stored_bytes(primary), lambda found: found <= LEFT_BYTES, "the end of the parts on the disk")
