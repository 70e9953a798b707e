"""A ledger alone with a log in memory: turns, batches, waits, and terms that end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from twisted.internet.task import Clock

from broker.core import limits
from broker.core.commands import Command, Term, decode
from broker.core.definitions import Change
from broker.core.nodes import LOCAL, Nodes, QueueNode
from broker.core.pace import QUICK_S, SLOW_S
from broker.core.records import Batch, BatchBuilder, Kind
from broker.core.state import CannotApply
from broker.sessions.ledger import Ledger
from broker.sessions.pending import DEQUEUE_DELAY_S
from tests.broker.clients import MemoryLog, creating


class Owner:
    """Who serves a ledger's clients: keeps what it is told, and follows the definitions."""

    def __init__(self) -> None:
        self.nodes = Nodes(clustered=False)
        self.told: list[str] = []
        self.fed: list[set[int]] = []

    def ledger_applied(
        self,
        ledger: Ledger,
        fed: Iterable[int],
        drained: Iterable[int],
        emptied: Iterable[int],
        changes: Iterable[tuple[Change, str]],
    ) -> None:
        self.fed.append(set(fed))
        for change, reason in changes:
            if not reason:
                self.nodes.follow(LOCAL, change)

    def ledger_begins(self, ledger: Ledger) -> None:
        self.told.append("begins")

    def ledger_state(self, ledger: Ledger, state: str, epoch: int, primary: str) -> None:
        self.told.append(state)

    def ledger_reset(self, ledger: Ledger) -> None:
        self.told.append("reset")
        self.nodes.rebuild({LOCAL: ledger.state})

    def ledger_quiesces(self, ledger: Ledger, within_s: float, done: Callable[[], None]) -> None:
        self.told.append("quiesces")

    def ledger_resumes(self, ledger: Ledger) -> None:
        self.told.append("resumes")

    def ledger_storage_error(self, ledger: Ledger, text: str, fatal: bool) -> None:
        self.told.append(f"{text}, {'fatal' if fatal else 'full'}")

    def ledger_writable(self, ledger: Ledger) -> None:
        self.told.append("writable")

    def flush(self) -> None:
        self.told.append("flush")


class Rig:
    """A ledger with one queue, on a log that commits when it is told to."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.owner = Owner()
        self.ledger = Ledger(LOCAL, self.clock, self.owner)
        self.log = MemoryLog(self.clock, "standalone", automatic=False)
        self.log.ledger = self.ledger
        self.ledger.log = self.log
        self.owner.nodes.rebuild({LOCAL: self.ledger.state})
        self.log.become("standalone")
        self.log.take(creating("q", level="none"))
        self.owner.told.clear()
        self.answers: list[str] = []

    @property
    def queue(self) -> QueueNode:
        return self.owner.nodes.queues["q"]

    def put(self, *messages: bytes) -> None:
        self.ledger.enqueue(self.queue, list(messages), sum(map(len, messages)))

    @property
    def kinds(self) -> list[list[str]]:
        """What stands in each batch that waits."""
        return [[run.kind.name for run in Batch.parse(data).runs] for data in self.log.waiting]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_everything_of_one_turn_is_one_batch(rig: Rig) -> None:
    rig.put(b"one")
    rig.put(b"two", b"three")
    rig.ledger.dequeue(1, [9])
    rig.ledger.count(1, 1)
    rig.ledger.change(Term(), rig.answers.append)
    assert rig.log.waiting == []
    rig.clock.advance(0)
    assert rig.kinds == [[Kind.DEFINE.name, Kind.ENQUEUE.name, Kind.DEQUEUE.name, Kind.COUNT.name]]
    assert (rig.queue.proposed_seqs, rig.queue.proposed_bytes, rig.queue.depth) == ([4], 11, 0)
    rig.log.commit()
    assert rig.queue.depth == 3
    assert rig.owner.fed[-1] == {1}


def test_dequeues_alone_wait_a_little_for_company(rig: Rig) -> None:
    """A consumer's accepts would otherwise cost a batch and a sync of their own in each turn."""
    rig.ledger.dequeue(1, [1])
    rig.clock.advance(DEQUEUE_DELAY_S / 2)
    assert rig.log.waiting == []
    rig.clock.advance(DEQUEUE_DELAY_S)
    assert rig.kinds == [["DEQUEUE"]]


def test_dequeues_that_wait_go_with_the_next_message(rig: Rig) -> None:
    rig.ledger.dequeue(1, [1])
    rig.put(b"one")
    rig.clock.advance(0)
    assert rig.kinds == [["ENQUEUE", "DEQUEUE"]]
    rig.clock.advance(1)
    assert len(rig.log.waiting) == 1


def test_a_turn_with_much_becomes_several_batches_of_a_bounded_size(rig: Rig) -> None:
    message = b"x" * (limits.BATCH_TARGET_BYTES // 4)
    for _ in range(10):
        rig.put(message)
    rig.clock.advance(0)
    assert [Batch.parse(data).header.n_records for data in rig.log.waiting] == [4, 4, 2]
    rig.log.commit()
    assert rig.queue.depth == 10


def test_after_a_batch_that_took_long_the_next_ones_are_smaller(rig: Rig) -> None:
    """A batch is cut by time as well as by size: whoever comes behind a full one on a slow disk waits for all of it."""
    message = b"x" * (limits.BATCH_TARGET_BYTES // 4)
    for took_s, sizes in ((0.0, [4]), (2 * SLOW_S, [4]), (QUICK_S / 2, [2, 2]), (QUICK_S / 2, [4])):
        for _ in range(4):
            rig.put(message)
        rig.clock.advance(0)
        assert [Batch.parse(data).header.n_records for data in rig.log.waiting] == sizes
        rig.clock.advance(took_s)
        rig.log.commit()


def test_after_a_batch_that_a_busy_reactor_held_up_the_next_ones_are_as_large(rig: Rig) -> None:
    """Breaks when a broker with many producers makes small batches, because its turns are long."""
    message = b"x" * (limits.BATCH_TARGET_BYTES // 4)
    for _ in range(3):
        for _ in range(4):
            rig.put(message)
        rig.clock.advance(SLOW_S)  # the turn before was so long
        assert [Batch.parse(data).header.n_records for data in rig.log.waiting] == [4]
        rig.clock.advance(2 * SLOW_S)
        rig.log.commit()


def test_a_log_that_takes_no_more_gets_the_rest_when_it_does(rig: Rig) -> None:
    rig.log.window = 1
    for n in range(3):
        rig.put(b"%d" % n)
        rig.clock.advance(0)
    assert len(rig.log.waiting) == 1
    rig.log.commit()
    assert len(rig.log.waiting) == 1, "what gathered meanwhile is one batch"
    assert Batch.parse(rig.log.waiting[0]).header.n_records == 2


def test_an_answer_says_what_became_of_its_own_change(rig: Rig) -> None:
    """Batches that others proposed may be committed in the same go; their changes are not the asker's."""
    rig.ledger.change(creating_command("q"), rig.answers.append)
    rig.ledger.change(creating_command("new"), rig.answers.append)
    rig.clock.advance(0)
    rig.ledger.change(creating_command("new"), rig.answers.append)
    rig.clock.advance(0)
    rig.log.commit()
    assert rig.answers == [], "answers come behind the application, in a turn of their own"
    rig.clock.advance(0)
    assert [bool(answer) for answer in rig.answers] == [True, False, True]
    assert rig.owner.told[-1] == "flush"


def creating_command(name: str) -> Command:
    parsed = Batch.parse(creating(name, level="none").seal(1, 1, 0))
    command = decode(parsed.payload(parsed.runs[0]))
    assert isinstance(command, Command)
    return command


def test_a_call_waits_for_what_was_put_in_before_it(rig: Rig) -> None:
    rig.put(b"one")
    rig.ledger.pending.when_committed(lambda: rig.answers.append("called"))
    rig.clock.advance(1)
    assert rig.answers == []
    rig.ledger.pending.when_committed(lambda: rig.answers.append("called too"))
    rig.clock.advance(1)
    assert len(rig.log.waiting) == 1, "a call alone is not a batch"
    rig.log.commit()
    rig.clock.advance(0)
    assert rig.answers == ["called", "called too"]
    rig.ledger.pending.when_committed(lambda: rig.answers.append("at once"))
    rig.clock.advance(0)
    rig.clock.advance(0)
    assert rig.answers[-1] == "at once"


def test_a_term_that_ends_takes_every_wait_with_it_unanswered(rig: Rig) -> None:
    rig.log.window = 1
    for _ in range(2):
        rig.ledger.change(Term(), rig.answers.append)
        rig.ledger.pending.when_committed(lambda: rig.answers.append("called"))
        rig.clock.advance(0)
    rig.put(b"x" * limits.BATCH_TARGET_BYTES)
    rig.log.become("ready")
    assert not rig.ledger.serving
    rig.log.become("recovering")
    rig.log.become("active")
    rig.clock.advance(1)
    assert rig.log.waiting == []
    assert rig.answers == []
    assert rig.owner.told == ["ready", "recovering", "begins", "active"]
    rig.log.become("active")
    assert rig.owner.told[-2:] == ["active", "active"], "a term begins once, whatever else is told of it"


def test_nothing_is_proposed_before_the_log_has_said_that_it_serves() -> None:
    """A log knows that it will serve before everything in it has been applied: what is numbered then is numbered wrong."""
    rig = Rig()
    fresh = Ledger(LOCAL, rig.clock, rig.owner)
    fresh.log = rig.log
    assert rig.log.state == "standalone"
    assert not fresh.serving
    fresh.change(Term(), rig.answers.append)
    rig.clock.advance(1)
    assert rig.log.waiting == []
    fresh.on_state("standalone", 1, "")
    assert len(rig.log.waiting) == 1


def test_a_snapshot_replaces_everything(rig: Rig) -> None:
    rig.put(b"one", b"two")
    rig.clock.advance(0)
    rig.log.commit()
    snapshot = [Batch.parse(builder.seal(1, 50, 0)) for builder in rig.ledger.snapshot()]
    rig.ledger.dequeue(1, [1, 2])
    rig.clock.advance(1)
    rig.log.commit()
    assert rig.queue.depth == 0
    rig.ledger.on_reset(snapshot, 50)
    assert rig.owner.told[-1] == "reset"
    assert (rig.queue.depth, rig.ledger.state.index, rig.ledger.live_bytes()) == (2, 50, 6)


def test_a_full_disk_is_remembered_until_it_takes_writes_again(rig: Rig) -> None:
    rig.ledger.on_storage_error("full", False)
    assert rig.ledger.room.text == "full"
    rig.ledger.on_writable()
    rig.ledger.on_writable()
    assert rig.ledger.room.text == ""
    rig.ledger.on_storage_error("broken", True)
    assert rig.owner.told == ["full, full", "writable", "broken, fatal"]


def test_a_ledger_that_is_closed_does_nothing_more(rig: Rig) -> None:
    rig.put(b"one")
    rig.ledger.close()
    rig.put(b"two")
    rig.ledger.close()
    assert rig.clock.getDelayedCalls() == []
    rig.ledger.pending.pump()
    assert rig.log.waiting == []


# ---- what this release must not apply


def test_what_comes_before_a_batch_that_must_not_be_applied_is_applied_and_ends_its_waits(rig: Rig) -> None:
    rig.ledger.change(creating_command("more"), rig.answers.append)
    rig.clock.advance(0)
    good = Batch.parse(rig.log.waiting[0])
    builder = BatchBuilder()
    builder.define({"op": "juggle"})
    bad = Batch.parse(builder.seal(1, good.header.index + 1, 0))
    with pytest.raises(CannotApply, match="'juggle' is unknown"):
        rig.ledger.on_committed([good, bad])
    rig.clock.advance(0)
    assert rig.answers == [""]
    assert "more" in rig.owner.nodes.queues
    assert rig.ledger.state.index == good.header.index


def test_a_snapshot_that_must_not_be_applied_leaves_the_state_as_it_was(rig: Rig) -> None:
    builder = BatchBuilder()
    builder.define({"op": "juggle"})
    state = rig.ledger.state
    with pytest.raises(CannotApply):
        rig.ledger.on_reset([Batch.parse(builder.seal(1, 99, 0))], 99)
    assert rig.ledger.state is state
    assert "reset" not in rig.owner.told
