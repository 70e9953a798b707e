"""A broker is drained into another one, with real processes; some of them are killed during the drain."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import proton
import pytest

from broker.core import users
from cli.drain.drain import PATIENCE_S
from cli.verify.core.checker import Checker
from cli.verify.core.measures import Measures
from tests.certificates import authority
from tests.cli.running import Forked, Ran, run
from tests.system.filesystems import MIB, memory
from tests.system.harness import BrokerProcess, Cluster, ask, cluster, eventually, free_ports, spawn, standalone
from tests.system.means import where_possible
from tests.system.takers import Taker
from tests.system.tcp_proxy import TcpProxy, tcp_proxy
from tests.system.test_faults_disk import FULL, LOW
from tests.system.traffic import send, take

pytestmark = pytest.mark.system
QUEUES = {"orders": {}, "ranked": {"qpid.priorities": 3}}
MESSAGES = 800


def message(queue: str, number: int) -> bytes:
    """With all that a message may have: it has to come bit for bit."""
    made: Any = proton.Message(body=f"{queue}/{number}/" + "x" * 4000, id=number, subject="s", correlation_id=f"c{number}")
    made.annotations = {proton.symbol("x-opt-seen"): number}
    made.properties = {"number": number}
    made.durable, made.priority, made.group_id, made.creation_time = True, 4, f"g{number % 7}", 1.5
    return bytes(made.encode())


@contextmanager
def source(folder: Path) -> Iterator[BrokerProcess]:
    """A broker by itself with messages on its queues."""
    with standalone(folder) as broker:
        for queue, arguments in QUEUES.items():
            broker.create("queue", queue, arguments=arguments)
            sent = [message(queue, number) for number in range(MESSAGES)]
            assert send(broker.address, queue, sent) == MESSAGES
        yield broker


@functools.cache
def large() -> bytes:
    """A message that takes longer than `PATIENCE_S` where 2 MiB go through in a second."""
    return bytes(proton.Message(body="x" * (26 * MIB), durable=True).encode())


def drain(leaving: str, target: str, *words: str) -> Ran:
    return run("qpid-drain", "--from", leaving, "--to", target, "--spread", "0", *words)


def came(address: str, queue: str) -> int:
    return int(ask(address, "QUERY", "queue", queue)["items"][0]["messagesIn"])


def unsettled(address: str) -> int:
    return int(ask(address, "QUERY", "drain")["items"][0]["unsettled"])


def stalled_midway(between: TcpProxy, source: BrokerProcess) -> bool:
    """Stop the network while messages are on their way. After a full disk the drain may still wait for the target's credit, which
    a stop keeps from it: then nothing is on its way, and the network goes on."""
    between.stall()
    with contextlib.suppress(AssertionError):
        eventually(lambda: unsettled(source.address), lambda count: count >= 20, "messages on their way", 5)
        return True
    between.mend()
    return False


def check_account(address: str) -> None:
    """Each message has come once, bit for bit and in order, as the checker of qpid-verify sees it."""
    checker = Checker(list(QUEUES), producers=1, consumers=1)
    checker.attached(0, 0.0)
    for at, queue in enumerate(QUEUES):
        checker.sent((0, at), 0, MESSAGES)
        checker.accepted((0, at), 0, MESSAGES)
        assert ask(address, "QUERY", "queue", queue)["items"][0]["messages"] == MESSAGES
        for data in take(address, queue, MESSAGES):
            found: Any = proton.Message()
            found.decode(data)
            number = int(found.id)
            checker.received(0, (0, at), number, 1, 1.0)
            if data != message(queue, number):
                checker.altered((0, at), number)
        assert ask(address, "QUERY", "queue", queue)["items"][0]["messages"] == 0
    report = checker.report(Measures())
    assert report.faults() == [], str(report)
    assert report.duplicated == 0, str(report)


def begun(folder: Path, leaving: str, target: Cluster) -> Forked:
    """A drain that has moved something, or has ended already."""
    process = spawn(folder / "drain.log", "qpid-drain", "--from", leaving, "--to", target.url, "--spread", "0")
    primary = target.primary().address

    def moved() -> bool:
        items = ask(primary, "QUERY", "queue")["items"]
        return process.poll() is not None or sum(item["messagesIn"] for item in items) > 0

    eventually(moved, bool, "a message having been moved")
    return process


def test_a_drain_whose_drainer_target_and_source_are_killed_loses_repeats_and_reorders_nothing(tmp_path: Path) -> None:
    told = ("--telemetry-dir", str(tmp_path / "told"))
    with source(tmp_path / "old") as old, cluster(tmp_path / "new", 3, "--ha-replicate", "all", *told) as new:
        first = begun(tmp_path, old.address, new)
        for backup in new.brokers[1:]:
            backup.freeze()  # what is under way now is not committed
        first.send_signal(9)
        new.brokers[0].kill()
        for backup in new.brokers[1:]:
            backup.signal(18)
        new.succeed()
        second = begun(tmp_path, old.address, new)
        old.kill()
        old.start()
        old.wait_for("standalone")
        second.send_signal(9)
        now = new.primary().address
        unfinished = [queue for queue in QUEUES if ask(now, "QUERY", "queue", queue)["items"][0]["messages"] < MESSAGES]
        third = begun(tmp_path, old.address, new)
        new.promote(next(backup for backup in new.brokers[1:] if backup is not new.primary()))
        assert third.wait() == 0
        found = drain(old.address, new.url, "--format", "json")
        assert found.status == 0, str(found)
        end = json.loads(found.out.splitlines()[-1])
        assert (end["event"], end["left"], end["empty"]) == ("end", 0, True)
        check_account(new.primary().address)
        assert run("qpid-drain", "status", "--from", old.address).out.startswith("released since")
        assert drain(old.address, new.url).status == 0, "again, it is as it was"
        for broker in new.brokers:
            broker.stop()
    lines = [json.loads(line) for path in (tmp_path / "told").glob("*.jsonl") for line in path.read_text().splitlines()]
    details = [line["detail"] for line in sorted(lines, key=lambda line: str(line["ts"])) if line.get("type") == "drain"]
    done = {queue for queue in QUEUES if any(f"queue '{queue}' is done" in each for each in details)}
    assert done >= {*unfinished}, details  # of a queue that was done before, the primary that was killed may not have written it
    assert done, details
    assert details[-1].endswith("is released"), details


@where_possible
def test_a_full_disk_at_the_target_and_a_partition_hold_a_drain_up_while_its_consumer_gets_each_message_once(
    tmp_path: Path,
) -> None:
    """Breaks when what a full disk has refused counts as moved, or what was under way at the cut is sent again and put again."""
    checker = Checker(list(QUEUES), producers=1, consumers=1)
    with (
        memory(tmp_path / "new" / "store", 64 * MIB) as disk,
        standalone(tmp_path / "new") as new,
        source(tmp_path / "old") as old,
        tcp_proxy(new.address) as between,
    ):
        for queue, arguments in QUEUES.items():
            new.create("queue", queue, arguments=arguments)
        taker = Taker([new.address], list(QUEUES), checker, message)
        words = ("--from", old.address, "--to", between.address, "--spread", "0", "--rate", "200")
        try:
            process = spawn(tmp_path / "drain.log", "qpid-drain", *words)
            eventually(lambda: taker.taken, lambda taken: taken > 0, "a message being taken")
            disk.shrink()
            eventually(new.log, lambda log: bool(FULL.search(log) or LOW.search(log)), "the target saying that its disk is full")
            between.stall()
            disk.grow(64 * MIB)
            between.mend()
            before = taker.taken
            eventually(lambda: taker.taken, lambda taken: taken > before, "the drain going on")
            eventually(lambda: stalled_midway(between, old), bool, "the network standing still while messages are on their way")
            between.cut()
            assert process.poll() is None, "the network is cut in the middle of it"
            between.mend()
            assert process.wait() == 0
            eventually(lambda: taker.taken, lambda taken: taken >= 2 * MESSAGES, "all being taken", 20)
        finally:
            taker.close()
    for at in range(len(QUEUES)):
        checker.sent((0, at), 0, MESSAGES)
        checker.accepted((0, at), 0, MESSAGES)
    report = checker.report(Measures())
    assert (report.faults(), report.duplicated) == ([], 0), str(report)


def test_a_deadline_ends_a_drain_what_will_not_fit_is_told_before_and_what_is_refused_stays(tmp_path: Path) -> None:
    with source(tmp_path / "old") as old, standalone(tmp_path / "new") as new:
        assert drain(old.address, f"127.0.0.1:{free_ports(1)[0]}").status == 3
        new.create("queue", "orders", arguments={"qpid.max_count": 5})
        for words in (("--check",), ()):
            found = drain(old.address, new.address, *words)
            assert found.status == 1, str(found)
            assert "its argument qpid.max_count is missing, and the target's 5" in found.out + found.err
        assert came(old.address, "orders") == MESSAGES
        assert not ask(old.address, "QUERY", "drain")["items"][0]["leaving"]
        ask(new.address, "DELETE", "queue", "orders")
        assert "to be made: queue orders" in drain(old.address, new.address, "--check").out
        new.create("queue", "orders")
        large = bytes(proton.Message(body="x" * 40_000, id=9999).encode())
        assert send(old.address, "orders", [large]) == 1
        new.stop()
        new.options += ["--max-message-size", "30000"]
        new.start()
        new.wait_for("standalone")
        found = drain(old.address, new.address, "--check")
        assert (found.status, "will stay: queue 'orders': 1 messages, the first with sequence 801" in found.out) == (1, True), (
            found
        )
        new.freeze()
        found = drain(old.address, new.address, "--deadline", "0.5")
        new.signal(18)
        assert found.status == 75, str(found)
        found = drain(old.address, new.address)
        assert (found.status, "message 801" in found.out) == (1, True), str(found)
        assert "the target takes 30000" in found.out
        found = run("qpid-drain", "--from", old.address, "--cancel")
        assert found.out.splitlines()[-1:] == [f"the broker serves again, with 1 messages; {2 * MESSAGES} stay at the target"], (
            found
        )
        assert not ask(old.address, "QUERY", "drain")["items"][0]["leaving"]
        new.stop()
        new.options[-1] = "50000"
        new.start()
        new.wait_for("standalone")
        assert drain(old.address, new.address).status == 0
        assert take(new.address, "orders", MESSAGES + 1)[MESSAGES] == large
        refused = drain(new.address, old.address)
        assert refused.status == 1
        assert "is being drained itself" in refused.err


@dataclass(frozen=True, slots=True)
class Slow:
    """A drain that takes longer than `PATIENCE_S`: its brokers, and what it said at its end, with the seconds that it took."""

    old: BrokerProcess
    new: BrokerProcess
    end: Future[tuple[Ran, float]]


@pytest.fixture(scope="module")
def slow_drains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Slow]]:
    """Drains that wait for something for long, which they do at the same time. Two have one large message, and come to their
    source or their target through a slow network; the target of `full` has no room in a queue."""
    folder, begun = tmp_path_factory.mktemp("slow"), dict[str, Slow]()
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())

        def brokers(name: str) -> tuple[BrokerProcess, BrokerProcess]:
            old, new = (stack.enter_context(standalone(folder / f"{name}-{side}")) for side in ("old", "new"))
            return old, new

        def timed(*words: str) -> tuple[Ran, float]:
            began_s = time.monotonic()
            return drain(*words), time.monotonic() - began_s

        for name in ("source", "target"):
            old, new = brokers(name)
            old.create("queue", "q")
            assert send(old.address, "q", [large()]) == 1
            between = stack.enter_context(tcp_proxy((old if name == "source" else new).address, rate=2 * MIB))
            addresses = (between.address, new.address) if name == "source" else (old.address, between.address)
            begun[name] = Slow(old, new, pool.submit(timed, *addresses))
        old, new = brokers("full")
        for broker in (old, new):
            broker.create("queue", "aa", arguments={"qpid.max_count": 5})
            broker.create("queue", "bb")
        small = bytes(proton.Message(body="x").encode())
        send(old.address, "aa", [small] * 3)
        send(old.address, "bb", [small] * 20)
        send(new.address, "aa", [small] * 5)
        begun["full"] = Slow(old, new, pool.submit(timed, old.address, new.address, "--deadline", "100"))
        yield begun


def test_a_queue_that_is_full_at_the_target_stays_and_the_others_move_with_a_deadline_too(slow_drains: dict[str, Slow]) -> None:
    """Breaks when a drain with a deadline waits for room in the first queue until its time is over."""
    full = slow_drains["full"]
    found, _ = full.end.result()
    assert found.status == 1, str(found)
    assert (came(full.new.address, "bb"), came(full.old.address, "aa")) == (20, 3)
    assert "stays: queue aa, the rest of it: the target gives no credit" in found.out


def test_a_store_whose_broker_does_not_run_is_drained_marked_and_deleted_when_that_is_asked_for(tmp_path: Path) -> None:
    with source(tmp_path / "old") as old, standalone(tmp_path / "new") as new:
        words = ("qpid-drain", "--store", old.store, "--to", new.address)
        new.create("QueuePolicy", "*", arguments={"qpid.max_count": 1, "qpid.policy_type": "ring"})  # not for what is moved
        in_use = run(*words)
        assert (in_use.status, "is in use by process" in in_use.err) == (1, True)
        old.kill()
        assert run("qpid-drain", "--store", tmp_path / "none", "--to", new.address).status == 1
        assert "to be made: queue ranked" in run(*words, "--check").out
        began_s, rate = time.monotonic(), 4000
        found = run(*words, "--rate", str(rate))
        assert found.status == 0, str(found)
        assert time.monotonic() - began_s > MESSAGES * len(QUEUES) / rate, "it is held back"
        mark = json.loads((old.store / "released.json").read_text().splitlines()[0])
        assert {each["name"]: each["moved"] for each in mark["queues"]} == dict.fromkeys(QUEUES, MESSAGES)
        sums = {queue: sum(google_crc32c.value(message(queue, number)) for number in range(MESSAGES)) for queue in QUEUES}
        assert {each["name"]: each["checksum"] for each in mark["queues"]} == sums
        check_account(new.address)
        found = run("qpid-drain", "--store", old.store, "--cancel")
        told = "the broker serves again, with 0 messages; those that have moved stay at the target"
        assert found.out.splitlines()[-1:] == [told], "the target has forgotten how many they are"
        old.start()
        old.wait_for("standalone")
        assert send(old.address, "orders", [message("orders", 0)]) == 1, "the mark is stale, and counts no more"
        old.stop()
        assert run(*words, "--delete-released").status == 0
        assert came(new.address, "orders") == MESSAGES + 1
        assert not old.store.exists()


def test_a_drain_by_login_and_over_tls_is_cancelled_without_naming_its_target(tmp_path: Path) -> None:
    """And a store that no broker has is drained by login. Breaks when a source that serves nobody waits for the right --to."""
    ports, password = free_ports(4), tmp_path / "password"
    password.write_text("pencil\n")
    password.chmod(0o600)
    keys = {mechanism: users.derive(mechanism, "pencil", b"salt" * 4) for mechanism in users.HASHES}
    (tmp_path / "users").write_text(f"{users.line_of('ann', keys)}\n")
    (tmp_path / "rules").write_text("acl allow ann@QPID all\nacl deny all access method schemaclass=drain\nacl allow all all\n")
    certificate, key = authority().issue("broker", "127.0.0.1").write(tmp_path, "broker")
    options = ["--users", tmp_path / "users", "--sasl-mechanisms", "SCRAM-SHA-512,SCRAM-SHA-256,ANONYMOUS"]
    options += ["--acl-file", tmp_path / "rules", "--ssl-certificate", certificate, "--ssl-key", key]
    old, new = (
        BrokerProcess(tmp_path / name, ports[at], [*map(str, options), "--ssl-port", str(ports[at + 2])])
        for at, name in enumerate(("old", "new"))
    )
    login = ("--password-file", password, "--ssl-ca-file", authority().write(tmp_path))

    def drained(old_port: int, new_port: int, before: str) -> None:
        """Drain it, and cancel that with the address of the source only."""
        leaving, target = (f"{before}ann@127.0.0.1:{port}" for port in (old_port, new_port))
        assert drain(leaving, target, *map(str, login)).status == 0
        assert ask(old.address, "QUERY", "drain")["items"][0]["leaving"]
        assert "a broker that is being drained, does this to clients" in run("qpid-stat", "-g", "-b", old.address).err
        found = run("qpid-drain", "--from", leaving, "--cancel", *login)
        assert found.status == 0, found
        assert not ask(old.address, "QUERY", "drain")["items"][0]["leaving"]

    try:
        for broker in (old, new):
            broker.start()
            broker.wait_for("standalone")
        drained(ports[0], ports[1], "")
        drained(ports[2], ports[3], "amqps:")
        old.stop()
        words = ("qpid-drain", "--store", old.store)
        to = ("--to", f"amqps:ann@127.0.0.1:{ports[3]}", *login)
        assert (found := run(*words, *to)).status == 0, found
        assert (found := run(*words, "--cancel")).status == 3, found
        assert "if its addresses have changed, or it needs another login or encryption, name it with --to" in found.err
        assert (found := run(*words, "--cancel", *to)).status == 0, found
    finally:
        for broker in (old, new):
            broker.kill()


def test_a_broker_without_logins_is_drained_into_one_with_logins_and_back(tmp_path: Path) -> None:
    """Breaks when the login of one broker is asked of the other one, which does not know it."""
    password = tmp_path / "password"
    password.write_text("pencil\n")
    password.chmod(0o600)
    keys = {mechanism: users.derive(mechanism, "pencil", b"salt" * 4) for mechanism in users.HASHES}
    (tmp_path / "users").write_text(f"{users.line_of('ann', keys)}\n")
    login = ("--password-file", str(password), "--sasl-mechanism", "SCRAM-SHA-256")
    (port,) = free_ports(1)
    secured = BrokerProcess(tmp_path / "new", port, ["--users", str(tmp_path / "users")])
    with source(tmp_path / "old") as old:
        try:
            secured.start()
            with_login = f"ann@{secured.address}"
            eventually(lambda: run("qpid-stat", "-g", "-b", with_login, *login).status, lambda status: status == 0, "a login")
            assert (found := drain(old.address, with_login, "--check", *login)).status == 0, found
            assert (found := drain(old.address, with_login, *login)).status == 0, found
            words = ("qpid-drain", "--from", old.address, "--to", with_login, "--cancel", *login)
            assert (found := run(*words)).status == 0, found
            assert (found := drain(with_login, old.address, *login)).status == 0, found
            assert ask(old.address, "QUERY", "queue", "orders")["items"][0]["messages"] == MESSAGES
        finally:
            secured.kill()


def test_the_mark_of_a_store_counts_what_earlier_runs_have_moved(tmp_path: Path) -> None:
    with source(tmp_path / "old") as old, standalone(tmp_path / "new") as new:
        words = ("qpid-drain", "--store", old.store, "--to", new.address)
        old.stop()
        drainer = spawn(tmp_path / "drain.log", *map(str, words), "--rate", "400")
        eventually(lambda: ask(new.address, "QUERY", "queue")["items"], lambda queues: len(queues) == 2, "the queues being made")
        eventually(lambda: new.queue("ranked")["messages"], bool, "the second queue being moved", 30)
        drainer.send_signal(9)
        drainer.wait()
        assert run(*words, "--end-file", tmp_path / "end").status == 0
        mark = json.loads((old.store / "released.json").read_text().splitlines()[0])
        assert {each["name"]: each["moved"] + each["known"] for each in mark["queues"]} == dict.fromkeys(QUEUES, MESSAGES)
        assert next(each["moved"] for each in mark["queues"] if each["name"] == "orders") == 0
        assert json.loads((tmp_path / "end").read_text())["messages"] == 2 * MESSAGES


def test_of_several_targets_each_queue_goes_to_one_and_a_drain_that_goes_on_finds_it_there(tmp_path: Path) -> None:
    with source(tmp_path / "old") as old, standalone(tmp_path / "a") as a, standalone(tmp_path / "b") as b:
        b.create("queue", "orders")
        a.create("queue", "ranked", arguments=QUEUES["ranked"])
        late = proton.Message(body="late", id=9999, annotations={proton.symbol("x-opt-delivery-delay"): 3_600_000})
        assert send(old.address, "orders", [bytes(late.encode())]) == 1
        terms = {"container": "c", "name": "n", "address": "amq.topic", "shared": False, "lasting": True, "filters": ""}
        old.create("queue", "c.n", durable=True, exclusive=True, subscription=terms)
        old.create("binding", "", exchange="amq.topic", queue="c.n", key="#")
        assert send(old.address, "amq.topic", [message("topic", 0)]) == 1
        b.create("queue", "c.n", durable=True, exclusive=True, subscription=terms)
        words = ("--from", old.address, "--to", a.address, "--to", b.address, "--spread", "0")
        check = run("qpid-drain", *words, "--check").out
        assert f"goes to {b.address}: queue orders" in check
        b.freeze()
        assert run("qpid-drain", *words, "--deadline", "0.5", "--timeout", "5").status == 75
        b.signal(18)
        assert run("qpid-drain", *words, "--deadline", "0.3", "--rate", "500").status == 75
        assert run("qpid-drain", *words[:4]).status == 1, "the record names both"
        assert run("qpid-drain", *words).status == 0
        for target, counts in ((b, {"orders": MESSAGES + 1, "c.n": 1}), (a, {"ranked": MESSAGES})):
            found = ask(target.address, "QUERY", "queue")["items"]
            assert {item["name"]: item["messages"] for item in found} == counts
        assert send(b.address, "amq.topic", [message("topic", 1)]) == 1
        assert b.queue("c.n")["messages"] == 2, "topic subscriptions move too"
        assert take(b.address, "c.n", 2) == [message("topic", 0), message("topic", 1)], "it was resumed"
        assert [int(proton_id(data)) for data in take(b.address, "orders", MESSAGES)] == list(range(MESSAGES))
        assert b.queue("orders")["messages"] == 1, "its delay goes on"


def test_a_queue_whose_target_is_full_before_anything_of_it_has_moved_goes_to_another(tmp_path: Path) -> None:
    """Breaks when what was announced to the full one is taken there after all, or what has begun to move changes its target."""
    bound = {"qpid.max_count": 20}
    with standalone(tmp_path / "old") as old, standalone(tmp_path / "a") as a, standalone(tmp_path / "b") as b:
        for queue, there in (("orders", 20), ("bills", 15)):
            sent = [message(queue, number) for number in range(10)]
            old.create("queue", queue, arguments=bound)
            assert send(old.address, queue, sent) == 10
            a.create("queue", queue, arguments=bound)
            assert send(a.address, queue, [message("before", 0)] * there) == there
        words = ("--from", old.address, "--to", a.address, "--to", b.address, "--spread", "0", "--format", "json")
        drainer = spawn(tmp_path / "drain.log", "qpid-drain", *words)
        eventually(lambda: a.queue("bills")["messages"], lambda count: count == 20, "half of one queue at the full one")
        assert len(take(a.address, "bills", 15)) == 15, "room is made"
        assert drainer.wait() == 0
        assert take(b.address, "orders", 10) == [message("orders", number) for number in range(10)]
        assert a.queue("orders")["messages"] == 20
        told = [json.loads(line) for line in (tmp_path / "drain.log").read_text().splitlines() if line.startswith("{")]
        assert [each["queue"] for each in told if each["event"] == "elsewhere"] == ["orders"]
        assert take(a.address, "bills", 10) == [message("bills", number) for number in range(10)]


def test_a_queue_that_is_deleted_at_the_target_is_made_again_for_the_rest(tmp_path: Path) -> None:
    """Breaks when the drain takes it for a sign of another drain, and ends."""
    with source(tmp_path / "old") as old, standalone(tmp_path / "new") as new:
        words = ("--from", old.address, "--to", new.address, "--spread", "0", "--rate", "400")
        process = spawn(tmp_path / "drain.log", "qpid-drain", *words)
        eventually(lambda: ask(new.address, "QUERY", "queue")["items"], lambda queues: len(queues) == 2, "the queues being made")
        eventually(lambda: new.queue("orders")["messages"], lambda count: count > 50, "messages being moved")
        ask(new.address, "DELETE", "queue", "orders", {"ifUnused": False, "ifEmpty": False})
        assert process.wait() == 0
        numbers = [int(proton_id(data)) for data in take(new.address, "orders", new.queue("orders")["messages"])]
        assert numbers == list(range(numbers[0], MESSAGES)), "what was on the deleted queue is deleted"
        assert new.queue("ranked")["messages"] == MESSAGES


def test_a_queue_that_is_deleted_at_the_target_before_its_turn_is_made_again(tmp_path: Path) -> None:
    """As when nobody has used it there for its `qpid.auto_delete_timeout`. Breaks when the drain ends because it is missing."""
    with source(tmp_path / "old") as old, standalone(tmp_path / "new") as new:
        words = ("--from", old.address, "--to", new.address, "--spread", "0", "--rate", "400")
        process = spawn(tmp_path / "drain.log", "qpid-drain", *words)
        eventually(lambda: came(new.address, "orders"), lambda count: count > 50, "messages being moved")
        ask(new.address, "DELETE", "queue", "ranked", {"ifUnused": False, "ifEmpty": False})
        assert process.wait() == 0
        assert [new.queue(queue)["messages"] for queue in QUEUES] == [MESSAGES, MESSAGES]


@pytest.mark.parametrize("name", ["source", "target"])
def test_a_message_that_takes_long_on_the_wire_moves(slow_drains: dict[str, Slow], name: str) -> None:
    """Breaks when a drain counts whole messages only, and gives a queue up although bytes arrive or leave."""
    slow = slow_drains[name]
    found, took_s = slow.end.result()
    assert took_s > PATIENCE_S
    assert (found.status, "1 messages moved; the broker is empty" in found.out) == (0, True), str(found)
    assert take(slow.new.address, "q", 1) == [large()]


def test_a_drain_with_a_subscription_that_was_stopped_behind_its_release_is_completed(tmp_path: Path) -> None:
    """The target has released the drain, and the source does not know. Breaks when the subscription is announced again."""
    with standalone(tmp_path / "old") as old, standalone(tmp_path / "new") as new:
        terms = {"container": "c", "name": "n", "address": "amq.topic", "shared": False, "lasting": True, "filters": ""}
        old.create("queue", "c.n", durable=True, exclusive=True, subscription=terms)
        there = ask(new.address, "QUERY", "ha")["items"][0]["brokerId"]
        leaving = ask(old.address, "LEAVE", "drain", "", {"to": [new.address], "target": there, "spread": 0})
        ask(new.address, "RELEASE", "drain", "", {"drain": leaving["drain"]})
        for _ in range(2):
            found = drain(old.address, new.address)
            assert (found.status, "the broker is empty, and was released" in found.out) == (0, True), str(found)
        assert run("qpid-drain", "status", "--from", old.address).out.startswith("released since")


def test_the_routes_of_a_store_do_not_run_while_it_is_looked_at_or_drained(tmp_path: Path) -> None:
    """Breaks when a dead store takes messages from live brokers."""
    with standalone(tmp_path / "a") as a, standalone(tmp_path / "b") as b, standalone(tmp_path / "c") as c:
        a.create("queue", "out")
        b.create("queue", "in")
        ask(b.address, "CREATE", "route", "", {"kind": "queue", "source": a.address, "exchange": "in", "key": "out"})
        eventually(lambda: ask(b.address, "QUERY", "route")["items"][0]["state"], lambda state: state == "Operational", "a route")
        b.stop()
        assert send(a.address, "out", [message("out", number) for number in range(50)]) == 50
        words = ("qpid-drain", "--store", b.store, "--to", c.address)
        for more, told in (("--check",), "all of it will fit"), ((), "0 messages moved"), (("--cancel",), "with 0 messages"):
            found = run(*words, *more)
            assert (found.status, told in found.out) == (0, True), str(found)
            assert a.queue("out")["messages"] == 50
        b.start()
        b.wait_for("standalone")
        eventually(lambda: b.queue("in")["messages"], lambda count: count == 50, "the route of the broker running again")


def test_after_a_switchover_the_messages_that_only_the_next_primary_has_move_too(tmp_path: Path) -> None:
    """Each broker numbers the messages of a queue of level `configuration` by itself. Breaks when the target's account of one
    broker's messages counts for those of another."""
    level = ("--ha-replicate", "configuration")
    with cluster(tmp_path / "new", 1, *level) as target, cluster(tmp_path / "old", 3, *level) as old:
        new = target.primary()
        new.create("queue", "orders")
        first = old.primary()
        second = next(broker for broker in old.brokers if broker is not first)
        first.create("queue", "orders")
        for broker, numbers in ((second, range(1000, 1030)), (first, range(400))):
            old.promote(broker)
            broker.wait_for("active")
            assert send(broker.address, "orders", [message("orders", number) for number in numbers]) == len(numbers)
        words = ("--from", old.url, "--to", new.address, "--spread", "0", "--rate", "60")
        process = spawn(tmp_path / "drain.log", "qpid-drain", *words)
        eventually(lambda: new.queue("orders")["messages"], lambda count: count > 60, "messages being moved")
        old.promote(second)
        assert process.wait() == 0
        found = [int(proton_id(data)) for data in take(new.address, "orders", new.queue("orders")["messages"])]
        assert sorted(number for number in found if number >= 1000) == list(range(1000, 1030))
        moved = [number for number in found if number < 1000]
        assert moved == list(range(len(moved)))
        assert second.queue("orders")["messages"] == 0
        assert 400 - len(moved) <= first.queue("orders")["messages"] < 400 - 60


def test_a_drain_ends_when_another_broker_becomes_the_target_s_primary_and_goes_on_with_the_first_one(tmp_path: Path) -> None:
    """Only the broker that has the messages of a queue of level `configuration` knows which have arrived. Breaks when the others
    move to the next primary unasked, or a later drain repeats messages."""
    level = ("--ha-replicate", "configuration")
    with standalone(tmp_path / "old") as old, cluster(tmp_path / "new", 3, *level) as new:
        old.create("queue", "orders")
        assert send(old.address, "orders", [message("orders", number) for number in range(400)]) == 400
        first = new.primary()
        second = next(broker for broker in new.brokers if broker is not first)
        words = ("--from", old.address, "--to", new.url, "--spread", "0")
        process = spawn(tmp_path / "drain.log", "qpid-drain", *words, "--rate", "60")
        eventually(lambda: came(first.address, "orders"), lambda count: count > 60, "messages being moved")
        new.promote(second)
        assert process.wait() == 1
        *_, told = (tmp_path / "drain.log").read_text().splitlines()
        assert f"queue 'orders': its messages have gone to {first.address}" in told
        assert f"make {first.address} the primary" in told
        assert came(second.address, "orders") == 0
        new.promote(first)
        first.wait_for("active")
        assert 60 < first.queue("orders")["messages"] < 400
        assert run("qpid-drain", *words).status == 0
        found = [int(proton_id(data)) for data in take(first.address, "orders", first.queue("orders")["messages"])]
        assert found == list(range(400))


def proton_id(data: bytes) -> Any:
    found: Any = proton.Message()
    found.decode(data)
    return found.id
