"""qpid-verify with real brokers: it finds no fault in a healthy run, whichever broker is killed, and finds every real fault."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from proton import Message

from cli.programs import MODULES
from cli.verify.run import Run, Workload
from tests.cli.running import Forked
from tests.system.harness import START_S, BrokerProcess, Refused, ask, cluster, eventually, standalone
from tests.system.traffic import accounted, send, take

QUEUE = "qpid-verify-1"
RATE = 1000
"""Messages a second: as many as it takes, and not all that two processors can move."""


INTERRUPTED = "qpid-verify: interrupted: draining the queues; Ctrl-C again to stop at once"
LONG = ("--seconds", "1000")


@dataclass(frozen=True)
class Ran:
    """How a run has ended, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """The account."""
        return dict(json.loads(self.out))


def text_of(file: int) -> str:
    """What has been written to a file that is still written to: its place stays where it is."""
    return os.pread(file, os.fstat(file).st_size, 0).decode()


class Verify:
    """A run of the command in a process of its own, of a second unless told otherwise; without a `rate` as fast as it goes."""

    def __init__(self, url: str, *words: str, rate: int | None = RATE) -> None:
        asked = ["--seconds", "1", *([] if rate is None else ["--rate", str(rate)]), *words]
        self._out, self._err = os.memfd_create("out"), os.memfd_create("err")
        own = ["--brokers", url, "--json", *asked]
        self.process = Forked(MODULES["qpid-verify"], "qpid-verify", own, self._out, self._err)

    def said(self) -> str:
        """Its errors until now."""
        return text_of(self._err)

    def end(self, timeout_s: float = 120.0) -> Ran:
        """Wait for its end. No traceback may ever show, and an error is one line."""
        status = self.process.wait(timeout_s)
        out, err = text_of(self._out), self.said()
        print(err, out)
        assert "Traceback" not in err, err
        assert len([line for line in err.splitlines() if not line.startswith(("warning:", INTERRUPTED))]) <= 1, err
        return Ran(status, out, err)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> Ran:
        """It has run for long enough: have it send no more, and wait for its end."""
        self.process.send_signal(number)
        return self.end()

    def __enter__(self) -> Verify:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        os.close(self._out)
        os.close(self._err)


def verify(url: str, *words: str) -> Ran:
    """A whole run."""
    with Verify(url, *words) as running:
        return running.end()


def has_come(broker: BrokerProcess, count: int) -> None:
    """Wait until so many messages have gone through the queue."""
    eventually(lambda: int(broker.queue(QUEUE)["messagesOut"]), lambda found: found >= count, f"{count} messages through {QUEUE}")


def busy_clients(broker: BrokerProcess) -> int:
    """How many clients have sent or got messages on connections of theirs to this broker."""
    items = ask(broker.address, "QUERY", "connection")["items"]
    return sum(each["processName"] != "understudy" and each["messagesIn"] + each["messagesOut"] >= 50 for each in items)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with standalone(tmp_path_factory.mktemp("verify")) as started:
        yield started


def test_a_killed_primary_costs_a_gap_and_no_message_and_what_is_sent_again_by_number_is_there_once(tmp_path: Path) -> None:
    words = ["--producers", "2", "--consumers", "2", "--queues", "2", "--once", "yes"]
    with cluster(tmp_path, 3) as brokers:
        first = brokers.brokers[0]
        with Verify(brokers.url, *LONG, *words) as running:
            has_come(first, 500)
            first.kill()
            brokers.succeed()
            second = brokers.primary()
            eventually(lambda: busy_clients(second), lambda n: n == 4, "each of four clients working again")
            first.start()
            ran = running.interrupt()
        report = ran.report
        assert (ran.status, ran.err) == (0, f"{INTERRUPTED}\n")
        assert (report["lost"], report["unexplained"], report["altered"], report["reordered"], report["unexpected"]) == (0,) * 5
        assert report["received"] == report["accepted"] == report["sent"] > 1000
        assert report["measures"]["connections"] >= 8, "each of four clients has connected again"
        assert 0 < report["measures"]["accept_gap_s"] < START_S
        assert report["measures"]["accept_latency"]["p99_s"] >= report["measures"]["accept_latency"]["p50_s"] > 0
        with pytest.raises(Refused, match="no queue named"):
            brokers.primary().queue(QUEUE)


def test_messages_that_a_killed_broker_kept_to_itself_are_lost_and_said_to_be(tmp_path: Path) -> None:
    """Breaks when the checker believes in messages that it has not seen: with `configuration` they are on one broker alone."""
    with cluster(tmp_path, 3) as brokers:
        first = brokers.brokers[0]
        words = ["--replicate", "configuration", "--producers", "3", "--drain-timeout", "1", "--size", "5k"]
        with Verify(brokers.url, *LONG, *words, rate=None) as running:
            has_come(first, 100)
            behind = 1000  # more than the consumer's credit: so many that it cannot have all of them when the broker dies
            eventually(lambda: int(first.queue(QUEUE)["messages"]), lambda depth: depth > behind, "the consumer being behind")
            first.kill()
            brokers.succeed()
            ran = running.interrupt()
        assert ran.status == 1
        assert ran.report["lost"] > 0
        assert "accepted and never received, such as number" in ran.err


def test_when_all_brokers_have_gone_it_says_that_what_is_missing_may_still_be_there(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as brokers:
        first = brokers.brokers[0]
        with Verify(brokers.url, *LONG, "--drain-timeout", "1", "--timeout", "1") as running:
            has_come(first, 100)
            first.kill()
            ran = running.interrupt()
    assert ran.status == 3
    assert "not every client has a broker" in ran.err
    assert "they may still be there" in ran.err
    assert not ran.report["measures"]["drained"]


def test_a_broker_by_itself_will_do(broker: BrokerProcess) -> None:
    ran = verify(broker.address, "--replicate", "none", "--keep-queues", "yes", "--queue-prefix", "alone")
    assert (ran.status, ran.err) == (0, "")
    assert ran.report["received"] == ran.report["accepted"] > 0
    assert broker.queue("alone-1")["messages"] == 0, "it was kept"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: str(number.name))
def test_an_interrupted_run_still_drains_and_accounts(broker: BrokerProcess, number: signal.Signals) -> None:
    with Verify(broker.address, *LONG) as running:
        has_come(broker, 100)
        ran = running.interrupt(number)
    assert (ran.status, ran.err) == (0, f"{INTERRUPTED}\n")
    assert ran.report["received"] == ran.report["accepted"] > 0
    assert ran.report["measures"]["drained"]


def test_a_killed_run_leaves_no_client_behind(broker: BrokerProcess) -> None:
    def clients() -> list[int]:
        return [
            int(item["processId"]) for item in ask(broker.address, "QUERY", "subscription")["items"] if item["queue"] == QUEUE
        ]

    with Verify(broker.address, *LONG) as running:
        has_come(broker, 100)
        assert clients()
        running.process.kill()
        eventually(clients, lambda found: not found, "the end of every consumer")
    ask(broker.address, "DELETE", "queue", QUEUE)


def test_an_address_that_cannot_be_looked_up_does_not_keep_clients_from_the_others(broker: BrokerProcess) -> None:
    ran = verify(f"no-such-host.invalid,{broker.address},127.0.0.1:1")
    assert (ran.status, ran.err) == (0, "")
    assert ran.report["received"] == ran.report["accepted"] > 0


def test_a_broker_that_falls_silent_is_given_up_and_taken_back(broker: BrokerProcess) -> None:
    """Breaks when a client waits for a frozen broker without end, or when what came late by that counts as reordered."""
    broker.create("queue", "silence")
    with Run(Workload([broker.address], ["silence"], consumers=2, rate=2 * RATE, heartbeat_s=2.0)) as run:
        run.wait_for(accepted=1000)
        broker.signal(signal.SIGSTOP)
        eventually(lambda: [client.connected for client in run.clients], lambda found: not any(found), "every client giving up")
        broker.signal(signal.SIGCONT)
        run.wait_for(accepted=run.accepted + 1000)
        report = accounted(run, lambda: broker)
    assert [end.silent for end in run.checker._ends] == [True, True, False, False], "given up, and then ended in order"
    assert report.measures.connections == 6
    assert report.measures.accept_gap_s > 1.5


def test_a_second_interrupt_ends_the_draining_and_the_account_still_comes(broker: BrokerProcess) -> None:
    def producers() -> int:
        """Connections by which more has come than a request."""
        return sum(item["messagesIn"] > 10 for item in ask(broker.address, "QUERY", "connection")["items"])

    with Verify(broker.address, *LONG, "--keep-queues", "yes", "--queue-prefix", "twice") as running:
        eventually(lambda: int(broker.queue("twice-1")["messagesOut"]), lambda found: found >= 100, "messages through the queue")
        assert len(take(broker.address, "twice-1", 1)) == 1, "without it, there would be no end"
        assert producers() == 1
        running.process.send_signal(signal.SIGINT)
        eventually(running.said, lambda said: "interrupted" in said, "the first interrupt being heard")
        eventually(producers, lambda count: count == 0, "the end of the producer, which has every outcome")
        ran = running.interrupt()
    assert ran.status == 1
    assert ran.report["lost"] >= 1, "it, and what was on its way"
    assert ran.report["received"] >= 100


# ---- what somebody else does to the messages


def test_a_message_that_somebody_takes_away_is_lost(broker: BrokerProcess) -> None:
    with Verify(broker.address, *LONG, "--drain-timeout", "1") as running:
        has_come(broker, 100)
        taken = take(broker.address, QUEUE, 3)
        ran = running.interrupt()
    assert len(taken) == 3
    assert ran.status == 1
    assert ran.report["lost"] == 3
    assert "3 messages accepted and never received, such as number" in ran.err


def test_a_message_that_somebody_alters_or_holds_up_or_makes_up_or_repeats_is_found(broker: BrokerProcess) -> None:
    with Verify(broker.address, *LONG) as running:
        has_come(broker, 100)
        altered, late, repeated = (decoded(data) for data in take(broker.address, QUEUE, 3))
        has_come(broker, 300)
        altered.body = bytes(cast(bytes, altered.body))[:-1] + b"?"
        made_up = Message(id="hello", body=b"world", inferred=True)
        changed = [altered, late, repeated, repeated, made_up]
        assert send(broker.address, QUEUE, [bytes(message.encode()) for message in changed]) == 5
        ran = running.interrupt()
    report = ran.report
    assert ran.status == 1
    assert (report["lost"], report["altered"], report["reordered"], report["unexplained"], report["unexpected"]) == (
        0,
        1,
        3,
        1,
        1,
    )
    for said in ("1 message received with another body", "3 messages received behind", "a message 'hello' on qpid-verify-1"):
        assert said in ran.err


def decoded(data: bytes) -> Message:
    message = Message()
    message.decode(data)
    return message


# ---- queues that are there already


def test_a_queue_that_will_not_do_is_left_alone_and_named(broker: BrokerProcess) -> None:
    broker.create("queue", "other-1", replicate="none", arguments={"qpid.max_count": 7})
    broker.create("queue", "full-1", replicate="all", durable=True)
    assert send(broker.address, "full-1", [bytes(Message(body="mine").encode())]) == 1
    for prefix, said in (("other", "exists with other arguments (replicate=none, arguments="), ("full", "holds messages (1)")):
        ran = verify(broker.address, "--queue-prefix", prefix)
        assert ran.status == 1
        assert said in ran.err
        assert "choose another --queue-prefix" in ran.err
        assert broker.queue(f"{prefix}-1")["name"] == f"{prefix}-1"
    assert broker.queue("full-1")["messages"] == 1


def test_a_queue_that_is_empty_and_as_asked_for_is_used_and_left(broker: BrokerProcess) -> None:
    broker.create("queue", "mine-1", replicate="all")
    ran = verify(broker.address, "--queue-prefix", "mine")
    assert ran.status == 0
    assert broker.queue("mine-1")["messagesIn"] == ran.report["accepted"] > 0


def test_a_second_run_does_not_disturb_the_first(broker: BrokerProcess) -> None:
    with Verify(broker.address, *LONG) as running:
        has_come(broker, 100)
        second = verify(broker.address)
        assert second.status == 1
        assert "has consumers (1)" in second.err or "holds messages" in second.err
        assert running.interrupt().status == 0
