"""Damaged data and forged messages between brokers: a cluster loses nothing, and reports what it found.

Each message of a test is known. After the damage the damaged broker is made the primary, and must have every message: so it
has the lost ones from the other brokers, and has nothing from a forger.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from proton import Message
from proton.utils import BlockingConnection

from broker.core.commands import MACHINE_VERSION
from broker.core.records import HEADER_BYTES, MAGIC, BatchBuilder
from broker.disk.segments import FIRST_BATCH
from ha.amqp.replication_link import encode
from ha.core.messages import Append
from ha.core.versions import Versions
from tests.system.harness import BrokerProcess, Cluster, Refused, ask, cluster, eventually, standalone
from tests.system.wire import Peer

COUNT = 50
_INCOMING_LOST = re.compile(r"connection from \S+ ended: amqp:resource-limit-exceeded: local-idle-timeout expired")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("bad_stores"), 3, "--ha-replicate", "all") as brokers:
        yield brokers


def send(broker: BrokerProcess, queue: str, first: int, count: int = COUNT) -> None:
    """Send numbered messages; all are accepted when this returns."""
    connection = BlockingConnection(broker.address, timeout=30)
    sender = connection.create_sender(queue)
    for number in range(first, first + count):
        sender.send(Message(id=number, body=b"%d" % number * 50, durable=True))
    connection.close()


def received(broker: BrokerProcess, queue: str, count: int) -> list[int]:
    """The numbers of so many messages, taken off the queue."""
    connection = BlockingConnection(broker.address, timeout=30)
    receiver = connection.create_receiver(queue, credit=count)
    numbers = []
    for _ in range(count):
        numbers.append(int(str(receiver.receive(30).id)))
        receiver.accept()
    connection.close()
    return numbers


def backup_of(brokers: Cluster) -> BrokerProcess:
    """A backup that is ready."""
    primary = brokers.primary()
    broker = next(each for each in brokers.brokers if each is not primary)
    broker.wait_for("ready")
    return broker


def segment_of(broker: BrokerProcess) -> Path:
    """The newest segment of the cluster's log."""
    return max((broker.store / "cluster").glob("*.seg*"), key=lambda path: path.name)


def batches_in(data: bytes) -> list[int]:
    """Where batches begin in a segment."""
    return [found.start() for found in re.finditer(re.escape(MAGIC), data)]


def truncate(path: Path) -> None:
    """Cut the file off in the middle of what it holds."""
    data = path.read_bytes()
    begin = batches_in(data)
    path.write_bytes(data[: begin[len(begin) // 2] + HEADER_BYTES // 2])


def rot(path: Path) -> None:
    """Flip a bit in the payload of a batch in the middle."""
    data = bytearray(path.read_bytes())
    begin = batches_in(bytes(data))
    data[begin[len(begin) // 2] + HEADER_BYTES + 40] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, rot])
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_broker_with_a_damaged_segment_gets_from_the_others_what_it_lost(
    three: Cluster, damage: Callable[[Path], None], end: str
) -> None:
    """Breaks when the log is believed to end where the damage is, and the broker promises what it does not have."""
    queue = f"{damage.__name__}-{end}"
    primary = three.primary()
    primary.create("queue", queue)
    send(primary, queue, 0)
    broker = backup_of(three)
    three.level(broker)
    if end == "stopped":
        broker.stop()
    else:
        broker.kill()
    damage(segment_of(broker))
    send(primary, queue, COUNT)
    before = len(broker.log())
    broker.start()
    broker.wait_for("ready")
    three.level(broker)
    said = broker.log()[before:]
    assert re.search(r" warn cluster log: .*(damaged|segment)", said), said
    three.promote(broker)
    assert received(broker, queue, 2 * COUNT) == list(range(2 * COUNT))
    eventually(lambda: broker.queue(queue)["messages"], lambda depth: depth == 0, "the last dequeue being committed")


def test_damage_on_a_majority_is_not_forgotten_by_a_vote(three: Cluster) -> None:
    """Two of three have lost the end of their logs: neither may be made primary over the one that still has it.

    Breaks when a damaged log votes as if it had never held more.
    """
    primary = three.primary()
    primary.create("queue", "majority")
    send(primary, "majority", 0)
    others = [broker for broker in three.brokers if broker is not primary]
    for broker in others:
        broker.wait_for("ready")
        three.level(broker)
    for broker in three.brokers:
        broker.kill()
    for broker in others:
        truncate(segment_of(broker))
        broker.start()
    for broker in others:
        broker.wait_for("joining")
        with pytest.raises(Refused):
            ask(broker.address, "PROMOTE", "ha", body={"reason": "it has lost what the third still has"})
    primary.start()
    three.promote(primary)
    for broker in others:
        broker.wait_for("ready")
    assert received(primary, "majority", COUNT) == list(range(COUNT))


def test_a_standalone_broker_with_a_damaged_checkpoint_does_not_start_and_deletes_nothing(tmp_path: Path) -> None:
    """Breaks when it takes a store that it cannot read for an empty one: no other broker has its messages."""
    with standalone(tmp_path) as broker:
        broker.create("queue", "q")
        connection = BlockingConnection(broker.address, timeout=30)
        sender, receiver = connection.create_sender("q"), connection.create_receiver("q", credit=1)
        for number in range(70):
            sender.send(Message(id=number, body=bytes(1_000_000), durable=True))
            if number % 3 == 0:
                assert receiver.receive(30).id == number // 3
                receiver.accept()
        connection.close()
        (damaged,) = eventually(lambda: list((broker.store / "local").glob("*.checkpoint")), bool, "a checkpoint")
        eventually(lambda: broker.queue("q")["messages"], lambda depth: depth == 46, "the last dequeue being committed")
        broker.stop()
        (damaged,) = (broker.store / "local").glob("*.checkpoint")
        _flip(damaged)
        kept = _files(broker)
        broker.start()
        assert broker.process is not None
        assert broker.process.wait(30) == 1
        said = re.search(r"^qpidd: (.*)$", broker.log(), re.MULTILINE)
        assert said is not None, broker.log()
        assert re.fullmatch(
            rf"checkpoint {damaged} is damaged: .*; the log's batches 1 to \d+ are missing; no other broker has this log, so "
            rf"nothing of it was changed: bring back the file from a copy, or move {damaged.parent} away: the broker then starts "
            "without its content",
            said[1],
        )
        assert _files(broker) == kept
        _flip(damaged)
        broker.start()
        broker.wait_for("standalone")
        assert received(broker, "q", 46) == list(range(24, 70))


def test_the_only_store_of_a_cluster_that_lost_its_end_goes_on_when_an_operator_has_it(tmp_path: Path) -> None:
    """As a file system check may leave it. Breaks when nobody says how to use what is left: 409 for ever."""
    with cluster(tmp_path, 1, "--ha-replicate", "all") as brokers:
        (broker,) = brokers.brokers
        broker.create("queue", "q")
        send(broker, "q", 0)
        depth = broker.queue("q")["messages"]
        broker.stop()
        newest = sorted((broker.store / "cluster").glob("*.seg"))[-1]
        os.truncate(newest, FIRST_BATCH + 3000)
        broker.start()
        broker.wait_for("joining")
        assert "and no other broker has it" in broker.log()
        with pytest.raises(Refused, match="delete the file floor in the folder cluster of its --data-dir"):
            ask(broker.address, "PROMOTE", "ha", body={"reason": "test"})
        assert broker.status()["reason"].endswith("and start it again")
        broker.stop()
        (broker.store / "cluster" / "floor").unlink()
        broker.start()
        broker.wait_for("joining")
        brokers.promote(broker)
        left = broker.queue("q")["messages"]
        assert 0 < left < depth
        send(broker, "q", COUNT)
        assert received(broker, "q", left + COUNT) == [*range(left), *range(COUNT, 2 * COUNT)]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _files(broker: BrokerProcess) -> list[tuple[str, int]]:
    return sorted((path.name, path.stat().st_size) for path in (broker.store / "local").iterdir())


# ---- forged replication


def forged(three: Cluster, victim: BrokerProcess, **altered: str) -> Peer:
    """A connection to the victim that says it comes from the primary."""
    primary = three.primary()
    properties = {"qpid.ha-peer": primary.address, "qpid.ha-cluster": primary.status()["clusterId"]}
    return Peer(victim.port, properties | Versions(MACHINE_VERSION).properties() | altered)


def tell(peer: Peer, data: bytes) -> None:
    """Send one replication message, and wait until the broker has ended the connection over it."""
    link = peer.sender("$ha")
    link.send_one(data, 0, True)
    peer.run(lambda: peer.ended, "the end of the forged link")


def append(three: Cluster, *, spoil: bool) -> bytes:
    """The next batch of the log, in the primary's name, with a message in it; perhaps spoilt by a bit."""
    status = three.primary().status()
    epoch, last = status["epoch"], status["lastIndex"]
    builder = BatchBuilder()
    builder.messages_for(1, 1).append(b"forged" * 10)
    builder.add_bytes(60)
    batch = bytearray(builder.seal(epoch, last + 1, 0))
    if spoil:
        batch[-1] ^= 1
    return encode(Append(epoch, 0, last, status["lastEpoch"], last + 1, last + 1, last), [bytes(batch)])


def test_a_batch_with_a_bad_checksum_is_not_stored_and_its_link_ends(three: Cluster) -> None:
    victim = backup_of(three)
    three.level(victim)
    before, last = len(victim.log()), victim.status()["lastIndex"]
    with forged(three, victim) as peer:
        tell(peer, append(three, spoil=True))
    assert victim.status()["lastIndex"] == last
    said = victim.log()[before:]
    assert re.search(r" error nothing of a message from \S+ was stored: .*checksum", said), said
    _still_replicates(three, victim, "after-bad-checksum")


@pytest.mark.parametrize(
    "data, why",
    [
        (b"\x00\x53\x75\xb0\x00\x00\x00\x04\xff\xff\xff\xff", "states lengths of"),
        (b"hello", "5 bytes that are not a replication message"),
        (
            b"\x00\x53\x75\xb0\x00\x00\x00\x12\x00\x00\x00\x0e" + b'{"kind":"Nil"}',
            r"Invalid value 'Nil' - at `\$\.kind`",
        ),
        (b"\x00\x53\x75\xb0\x00\x00\x00\x12\x00\x00\x00\x0e" + b'{"kind": "Vote', "makes no sense"),
    ],
    ids=["lengths", "text", "unknown", "half"],
)
def test_what_is_no_replication_message_ends_its_link(
    three: Cluster, data: bytes, why: str, request: pytest.FixtureRequest
) -> None:
    victim = backup_of(three)
    before = len(victim.log())
    with forged(three, victim) as peer:
        tell(peer, data)
    said = victim.log()[before:]
    assert re.search(rf" error link from \S+ dropped: .*{why}", said), said
    _still_replicates(three, victim, str(request.node.name))


def _still_replicates(three: Cluster, victim: BrokerProcess, queue: str) -> None:
    primary = three.primary()
    primary.create("queue", queue)
    send(primary, queue, 0, 10)
    three.level(victim)
    eventually(lambda: victim.queue(queue)["messages"], lambda count: count == 10, f"{victim.address} applying what came after")
    assert victim.state() == "ready"


@pytest.mark.parametrize(
    "altered, why",
    [
        (
            {"qpid.ha-cluster": "another"},
            r"amqp:not-allowed: \S+ belongs to cluster another, this broker to cluster \S+; check --ha-brokers-url and the data",
        ),
        (
            {"qpid.ha-peer": "127.0.0.1:1", "qpid.ha-cluster": ""},
            r"amqp:not-allowed: 127\.0\.0\.1:1 is not among the members .*; add it with qpid-ha add-broker",
        ),
    ],
    ids=["cluster", "stranger"],
)
def test_a_link_from_elsewhere_is_refused_with_the_reason(three: Cluster, altered: dict[str, str], why: str) -> None:
    victim = backup_of(three)
    with forged(three, victim, **altered) as peer, pytest.raises(AssertionError, match=why):
        peer.sender("$ha")


# ---- stores and clusters mixed up


def test_the_store_of_another_cluster_is_refused_and_left_alone(three: Cluster, tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as other:
        theirs = other.brokers[0]
        theirs.create("queue", "theirs", replicate="all")
        send(theirs, "theirs", 0, 10)
        theirs.stop()
        ours = backup_of(three)
        ours.stop()
        confused = BrokerProcess(tmp_path / "confused", ours.port, ours.options)
        confused.store = theirs.store
        confused.start()
        assert confused.process is not None
        assert confused.process.wait(30) == 1
        found = re.search(r"^qpidd: (.*)$", confused.log(), re.MULTILINE)
        assert found is not None, confused.log()
        assert re.fullmatch(
            rf"the store in {theirs.store} belongs to cluster \S+ of {theirs.address}, and --ha-brokers-url names none of them: "
            "give another --data-dir, or the right URL",
            found[1],
        )
        ours.start()
        ours.wait_for("ready")
        theirs.start()
        other.promote(theirs)
        assert received(theirs, "theirs", 10) == list(range(10))


def test_two_clusters_that_claim_one_broker_refuse_each_other_and_keep_what_they_have(tmp_path: Path) -> None:
    """Somebody has given a broker of one cluster an empty folder and made it found a second one, whose URL names it too."""
    with cluster(tmp_path / "one", 3, "--ha-replicate", "all") as one:
        primary, taken = one.brokers[0], one.brokers[2]
        primary.create("queue", "q")
        send(primary, "q", 0, 20)
        taken.kill()
        second = Cluster(tmp_path / "two", 1, ["--ha-replicate", "all"])
        founder = BrokerProcess(tmp_path / "two" / "founder", taken.port, [])
        url = f"amqp:{taken.address},{second.brokers[0].address}"
        try:
            for broker in (founder, second.brokers[0]):
                broker.options = ["--ha-cluster", "yes", "--ha-brokers-url", url]
                broker.start()
            founder.wait_for("joining")
            second.promote(founder)
            refusal = re.compile(
                rf'{taken.address} exchanges no messages with this broker: it answered "{primary.address} belongs to cluster '
                r'\S+, this broker to cluster \S+; check --ha-brokers-url and the data folder" \(amqp:not-allowed\)'
            )
            eventually(lambda: refusal.search(primary.log()), bool, "the refusal in the log")
            assert founder.status()["clusterId"] != primary.status()["clusterId"]
            assert founder.status()["lastIndex"] < primary.status()["lastIndex"]
            send(primary, "q", 20, 20)
            assert received(primary, "q", 40) == list(range(40))
            founder.check_log()
        finally:
            founder.kill()
            second.close()


# ---- links that fall silent


def oldest_link_s(broker: BrokerProcess) -> float:
    """For how long the oldest link of another member to this broker has been open."""
    links = [each for each in ask(broker.address, "QUERY", "connection")["items"] if each["processName"] == "understudy"]
    return float(max(each["connected_s"] for each in links))


def test_a_link_to_a_silent_broker_is_started_anew(tmp_path: Path) -> None:
    """Breaks when --link-heartbeat-interval has no effect: TCP alone would keep the link to a stopped process for ever."""
    with cluster(tmp_path, 3, "--link-heartbeat-interval", "1") as brokers:
        primary, silent = brokers.brokers[0], brokers.brokers[1]
        eventually(lambda: oldest_link_s(primary), lambda age_s: age_s > 2.5, "an idle link that answers being left alone")
        silent.signal(signal.SIGSTOP)
        lost = f"link to {silent.address} lost: amqp:resource-limit-exceeded: local-idle-timeout expired"
        eventually(primary.log, lambda log: lost in log, "the end of the link to the silent broker")
        eventually(primary.log, lambda log: _INCOMING_LOST.search(log) is not None, "the end of the link from it")
        silent.signal(signal.SIGCONT)
        silent.wait_for("ready")
        primary.create("queue", "q", replicate="all")
        brokers.level(silent)
        assert silent.queue("q")["replicate"] == "all"
