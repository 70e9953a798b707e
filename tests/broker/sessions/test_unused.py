"""Queues that are deleted when nobody has used them for a time, as clients see it; the time is that of the test's clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from broker.core.nodes import CLUSTER, LOCAL
from broker.sessions.schedule import MOST, TURN_S, Schedule
from broker.sessions.turn import Turn
from tests.broker.clients import Bench, bench, condition, creating, one_turn

TIMED = {"arguments": {"qpid.auto_delete_timeout": 10}}


def there(b: Bench, name: str = "q") -> bool:
    return name in b.broker.nodes.queues


@pytest.fixture
def b() -> Iterator[Bench]:
    """A broker that is alone, with a queue that goes after ten seconds; four have passed."""
    with bench() as made:
        made.queue("q", **TIMED)
        made.pass_time(4)
        yield made


def test_a_queue_that_nobody_uses_goes_when_its_time_is_over_and_not_before(b: Bench) -> None:
    b.pass_time(5.5)
    assert there(b)
    b.pass_time(0.5)
    assert not there(b)
    assert b.broker.schedule._timer is None


@pytest.mark.parametrize("role", ["consumer", "browser", "producer"])
def test_a_link_keeps_it_and_its_whole_time_runs_from_when_the_last_one_has_gone(b: Bench, role: str) -> None:
    client, other = b.client(), b.client()

    def attach(at: Any) -> Any:
        return at.sender("q") if role == "producer" else at.receiver("q", browse=role == "browser")

    first, _ = attach(client), attach(other)
    b.pass_time(30)
    first.close()
    b.settle()
    b.pass_time(30)
    assert there(b)
    other.lose()
    b.settle()
    b.pass_time(9.5)
    assert there(b)
    b.pass_time(0.5)
    assert not there(b)


def test_who_comes_back_in_time_finds_the_queue_with_what_it_holds(b: Bench) -> None:
    client = b.client()
    producer = client.sender("q")
    client.send(producer, "one")
    producer.close()
    b.settle()
    b.pass_time(9.5)
    consumer = client.receiver("q")
    b.pass_time(30)
    assert client.bodies(consumer) == ["one"]
    consumer.close()
    b.settle()
    b.pass_time(9.5)
    assert there(b)
    b.pass_time(0.5)
    assert condition(client.receiver("q")) == "amqp:not-found"


def test_the_arguments_make_it_an_auto_delete_queue_that_does_not_go_at_once(b: Bench) -> None:
    client = b.client()
    (item,) = client.request("QUERY", "queue", "q")[2]["items"]
    assert (item["autoDelete"], item["arguments"]) == (True, TIMED["arguments"])
    client.receiver("q").close()
    b.settle()
    assert there(b)


def test_one_that_was_deleted_and_made_again_has_its_whole_time(b: Bench) -> None:
    admin = b.client()
    assert admin.request("DELETE", "queue", "q")[0] == 204
    b.queue("q", **TIMED)
    b.pass_time(9.5)
    assert there(b)
    b.pass_time(0.5)
    assert not there(b)


def test_many_queues_have_one_timer() -> None:
    with bench() as b:
        before = len(b.clock.getDelayedCalls())
        for number in range(20):
            b.queue(f"q{number}", arguments={"qpid.auto_delete_timeout": 30 - number})
        assert len(b.clock.getDelayedCalls()) == before + 1
        b.pass_time(20, step=1)
        assert there(b, "q0")
        assert not there(b, "q19")
        b.pass_time(10, step=1)
        assert not any(name.startswith("q") for name in b.broker.nodes.queues)


def test_after_a_failover_the_time_runs_anew_on_the_new_primary_alone() -> None:
    """A backup decides nothing by its own clock; the new primary does not know how long nobody was there."""
    with bench(clustered=True) as b, bench(clustered=True, state="ready") as other:
        b.upgraded()
        b.queue("q", replicate="all", **TIMED)
        b.pass_time(8)
        b.lead.replayed_into(other.lead)
        other.pass_time(30)
        assert there(other)
        assert other.lead.committed == b.lead.committed
        b.lead.become("ready")
        other.lead.become("active")
        b.pass_time(30)
        assert there(b)
        other.pass_time(9.5)
        assert there(other)
        other.pass_time(0.5)
        assert not there(other)
        (ended,) = other.lead.committed[len(b.lead.committed) :]
        assert b"queue-del" in ended


def test_a_broker_that_becomes_primary_again_forgets_what_was_due_in_its_former_term() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        b.queue("q", replicate="all", **TIMED)
        b.pass_time(8)
        b.lead.become("ready")
        b.pass_time(1)
        b.lead.become("active")
        b.pass_time(9.5)
        assert there(b)
        b.pass_time(0.5)
        assert not there(b)


def test_a_queue_of_this_broker_alone_is_not_deleted_while_another_one_serves() -> None:
    with bench(clustered=True) as b:
        b.queue("q", replicate="none", **TIMED)
        client = b.client()
        client.receiver("q")
        b.lead.become("ready")
        b.pass_time(30)
        assert there(b)
        b.lead.become("active")
        b.pass_time(10)
        assert not there(b)


def test_a_queue_whose_log_is_not_open_when_its_time_is_over_goes_later() -> None:
    with bench(clustered=True) as b:
        b.queue("q", replicate="none", **TIMED)
        b.logs[LOCAL].become("recovering")
        b.pass_time(12)
        assert there(b)
        b.logs[LOCAL].become("standalone")
        b.pass_time(10)
        assert not there(b)


def test_a_restart_keeps_one_for_its_whole_time_though_it_is_exclusive_and_not_durable() -> None:
    """Without a time such a queue is what a subscription of the last process has left."""
    with bench(start=False) as b:
        b.lead.take(creating("q", level="none", autoDelete=True, exclusive=True, needs=2, **TIMED))
        b.start()
        b.pass_time(9.5)
        assert there(b)
        b.pass_time(0.5)
        assert not there(b)


def test_its_messages_kept_by_this_broker_go_with_it() -> None:
    with bench(clustered=True) as b:
        b.upgraded()
        b.queue("q", replicate="configuration", **TIMED)
        b.pass_time(1)
        client = b.client()
        producer = client.sender("q")
        client.send(producer, "one")
        producer.close()
        b.settle()
        b.pass_time(10)
        assert not there(b)
        assert not b.broker.ledgers[LOCAL].state.definitions.stores
        assert not b.broker.ledgers[CLUSTER].state.definitions.queues


def test_what_one_entry_takes_away_is_not_done() -> None:
    with bench() as b:
        schedule = Schedule(b.clock, Turn(b.clock))
        done: list[str] = []

        def first() -> None:
            done.append("a")
            schedule.cancel("b")

        schedule.after("a", 1.0, first)
        schedule.after("b", 1.0, lambda: done.append("b"))
        schedule.after("c", 1.0, lambda: done.append("c"))
        b.pass_time(2)
        assert done == ["a", "c"]


@pytest.mark.parametrize("fails", [False, True])
def test_what_one_entry_puts_off_is_done_at_its_new_time_and_not_with_the_others(fails: bool) -> None:
    """Breaks when it is done at once, with the action for its new time, and then not at that time."""
    with bench() as b:
        schedule = Schedule(b.clock, Turn(b.clock))
        done: list[tuple[str, float]] = []

        def first() -> None:
            schedule.after("b", 5.0, lambda: done.append(("b, put off", b.clock.seconds())))
            if fails:
                raise ArithmeticError("a defect")

        began = b.clock.seconds()
        schedule.after("a", 1.0, first)
        schedule.after("b", 1.0, lambda: done.append(("b", b.clock.seconds())))
        schedule.after("c", 1.0, lambda: done.append(("c", b.clock.seconds())))
        with pytest.raises(ArithmeticError) if fails else nullcontext():
            b.clock.advance(1)
        b.clock.advance(0)
        assert done == [("c", began + 1)]
        b.clock.advance(5)
        assert done == [("c", began + 1), ("b, put off", began + 6)]


def test_an_entry_that_sets_its_own_next_time_is_done_then() -> None:
    with bench() as b:
        schedule = Schedule(b.clock, Turn(b.clock))
        done: list[float] = []

        def again() -> None:
            done.append(b.clock.seconds() - began)
            schedule.after("a", 0.0 if len(done) == 1 else 2.0, again)

        began = b.clock.seconds()
        schedule.after("a", 1.0, again)
        b.clock.advance(1)
        assert done == [1.0, 1.0]
        b.clock.advance(1.5)
        assert done == [1.0, 1.0]
        b.clock.advance(0.5)
        assert done == [1.0, 1.0, 3.0]
        schedule.clear()


def test_an_action_that_fails_ends_no_other_one() -> None:
    """Breaks when one defect in a timed action stops everything that is due by time."""
    with bench() as b:
        schedule = Schedule(b.clock, Turn(b.clock))
        done: list[str] = []

        def fails() -> None:
            schedule.cancel("cancelled")
            raise ArithmeticError("a defect")

        schedule.after("before", 1.0, lambda: done.append("before"))
        schedule.after("fails", 1.0, fails)
        schedule.after("cancelled", 1.0, lambda: done.append("cancelled"))
        schedule.after("behind", 1.0, lambda: done.append("behind"))
        schedule.after("later", 2.0, lambda: done.append("later"))
        with pytest.raises(ArithmeticError, match="a defect"):
            b.clock.advance(1)
        assert done == ["before"]
        b.clock.advance(0)
        assert done == ["before", "behind"]
        b.clock.advance(1)
        assert done == ["before", "behind", "later"]


@pytest.mark.parametrize("cost_s, most", [(0.0, MOST), (TURN_S / 2.5, 3), (1.0, 1)])
def test_of_many_that_are_due_at_once_a_turn_does_some_and_the_next_ones_the_others(cost_s: float, most: int) -> None:
    """Breaks when all queues whose messages expire at the same time, or that are deleted then, are handled in one turn: with
    thousands of them that takes so long that clients and members wait."""
    with bench() as b:
        schedule = Schedule(b.clock, Turn(b.clock))
        done: list[int] = []

        def act(number: int) -> None:
            b.clock.rightNow += cost_s
            done.append(number)

        numbers = list(range(2 * MOST + 1))
        for number in numbers:
            schedule.after(number, 1.0, partial(act, number))
        b.clock.rightNow += 1.0
        while len(done) < len(numbers):
            before = len(done)
            one_turn(b.clock)
            assert len(done) - before == min(most, len(numbers) - before)
        assert sorted(done) == numbers
        assert schedule._timer is None
