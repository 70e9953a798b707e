"""Threads of a simulation take turns in the order of the event queue, and wait for each other as real ones do."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from twisted.internet.task import Clock

from broker.disk.threads import REAL_THREADS, Condition, Threads
from tests.simulation.threads import SimulatedPool, SimulatedThreads


def run(clock: Clock, for_s: float = 1000.0) -> None:
    """Let the event queue go on until nothing is due any more."""
    end = clock.seconds() + for_s
    while clock.calls and clock.calls[0].getTime() <= end:
        clock.advance(clock.calls[0].getTime() - clock.seconds())


def sleeps(threads: SimulatedThreads, seconds: float, then: Callable[[], None]) -> Callable[[], None]:
    def body() -> None:
        threads.sleep(seconds)
        then()

    return body


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def threads(clock: Clock) -> SimulatedThreads:
    return SimulatedThreads(clock.callLater, clock.seconds)


def test_a_thread_begins_in_its_turn_and_threads_of_one_moment_in_the_order_of_their_starts(
    clock: Clock, threads: SimulatedThreads
) -> None:
    said: list[str] = []
    for name in "abc":
        threads.start(name, lambda name=name: said.append(name))  # type: ignore[misc]
    assert said == []
    run(clock)
    assert said == ["a", "b", "c"]


def test_sleeping_takes_simulated_time_and_lets_others_run(clock: Clock, threads: SimulatedThreads) -> None:
    said: list[tuple[str, float]] = []

    def sleeper(name: str, seconds: float) -> Callable[[], None]:
        def sleep() -> None:
            for _ in range(2):
                threads.sleep(seconds)
                said.append((name, clock.seconds()))

        return sleep

    threads.start("slow", sleeper("slow", 3.0))
    threads.start("fast", sleeper("fast", 1.0))
    run(clock)
    assert said == [("fast", 1.0), ("fast", 2.0), ("slow", 3.0), ("slow", 6.0)]


def test_join_waits_for_the_end(clock: Clock, threads: SimulatedThreads) -> None:
    said: list[str] = []
    first = threads.start("first", sleeps(threads, 5.0, lambda: said.append("first")))

    def second() -> None:
        first.join()
        first.join()
        said.append(f"second at {clock.seconds()}")

    threads.start("second", second)
    run(clock)
    assert said == ["first", "second at 5.0"]


def test_a_lock_keeps_others_out_while_its_holder_waits_and_goes_to_who_came_first(
    clock: Clock, threads: SimulatedThreads
) -> None:
    lock = threads.condition()
    said: list[str] = []

    def hold(name: str) -> Callable[[], None]:
        def body() -> None:
            with lock, lock:  # reentrant
                said.append(f"{name} in")
                threads.sleep(1.0)
                said.append(f"{name} out")

        return body

    for name in "abc":
        threads.start(name, hold(name))
    run(clock)
    assert said == ["a in", "a out", "b in", "b out", "c in", "c out"]


def test_notify_wakes_those_who_have_waited_longest(clock: Clock, threads: SimulatedThreads) -> None:
    condition = threads.condition()
    woken: list[str] = []

    def wait(name: str) -> Callable[[], None]:
        def body() -> None:
            with condition:
                assert condition.wait()
                woken.append(name)

        return body

    for name in "abc":
        threads.start(name, wait(name))
    run(clock)
    threads.enter(lambda: notify(condition, 2))
    run(clock)
    assert woken == ["a", "b"]
    threads.enter(lambda: notify(condition, 2))
    run(clock)
    assert woken == ["a", "b", "c"]


def notify(condition: Condition, n: int) -> None:
    with condition:
        condition.notify(n)


def test_a_wait_with_a_timeout_ends_at_its_time_unless_it_was_notified_before(clock: Clock, threads: SimulatedThreads) -> None:
    condition, event = threads.condition(), threads.event()
    said: list[tuple[str, bool, float]] = []

    def body() -> None:
        with condition:
            said.append(("condition", condition.wait(2.0), clock.seconds()))
            said.append(("condition", condition.wait(2.0), clock.seconds()))
            said.append(("predicate", condition.wait_for(lambda: False, 1.5), clock.seconds()))
        said.append(("event", event.wait(2.0), clock.seconds()))
        said.append(("event", event.wait(2.0), clock.seconds()))
        said.append(("event", event.wait(), clock.seconds()))

    threads.start("waits", body)
    clock.callLater(3.0, lambda: threads.enter(lambda: notify(condition, 1)))
    clock.callLater(6.0, lambda: threads.enter(event.set))
    run(clock)
    assert said == [
        ("condition", False, 2.0),
        ("condition", True, 3.0),
        ("predicate", False, 4.5),
        ("event", True, 6.0),
        ("event", True, 6.0),
        ("event", True, 6.0),
    ]
    assert not clock.calls, "a timer of a wait that is over is left"


def test_an_event_that_nobody_sets_lets_go_when_the_time_is_up(clock: Clock, threads: SimulatedThreads) -> None:
    event = threads.event()
    said: list[tuple[bool, float]] = []
    threads.start("waits", lambda: said.append((event.wait(2.0), clock.seconds())))
    run(clock)
    assert said == [(False, 2.0)]
    assert not event.is_set()


def test_the_reactor_runs_what_is_entered_at_once_and_in_line_while_it_waits(clock: Clock, threads: SimulatedThreads) -> None:
    said: list[str] = []
    threads.enter(lambda: said.append("at once"))
    assert said == ["at once"]
    threads.enter(sleeps(threads, 1.0, lambda: said.append("slow")))
    assert threads.reactor_waits
    threads.enter(lambda: said.append("in line"))
    threads.start("other", lambda: said.append("other"))
    assert said == ["at once"]
    run(clock)
    assert said == ["at once", "other", "slow", "in line"]
    assert not threads.reactor_waits


def test_what_a_thread_raises_is_raised_by_the_event_queue(clock: Clock, threads: SimulatedThreads) -> None:
    said: list[str] = []

    def fail() -> None:
        raise ValueError("of a thread")

    threads.start("fails", fail)
    with pytest.raises(ValueError, match="of a thread"):
        run(clock)
    with pytest.raises(ValueError, match="of a thread"):
        threads.enter(fail)
    threads.enter(lambda: threads.sleep(1.0))
    threads.enter(fail)
    threads.enter(lambda: said.append("goes on"))
    with pytest.raises(ValueError, match="of a thread"):
        run(clock)
    run(clock)
    assert said == ["goes on"]


def test_a_kill_ends_every_thread_where_it_stands(clock: Clock, threads: SimulatedThreads) -> None:
    condition, event = threads.condition(), threads.event()
    ended: list[str] = []

    def waits(name: str, wait: Callable[[], object]) -> Callable[[], None]:
        def body() -> None:
            try:
                wait()
                ended.append(f"{name} went on")
            finally:
                with condition:
                    condition.notify()
                ended.append(name)

        return body

    def in_lock() -> None:
        with condition:
            condition.wait(100.0)

    asleep = threads.start("asleep", waits("asleep", lambda: threads.sleep(100.0)))
    threads.start("event", waits("event", event.wait))
    threads.start("condition", waits("condition", in_lock))
    threads.start("joins", waits("joins", asleep.join))
    run(clock, for_s=1.0)
    threads.enter(waits("reactor", lambda: threads.sleep(100.0)))
    threads.enter(lambda: ended.append("reactor went on"))
    threads.start("never begun", lambda: ended.append("never begun"))
    threads.kill()
    assert sorted(ended) == ["asleep", "condition", "event", "joins", "reactor"]
    threads.enter(lambda: ended.append("entered"))
    run(clock)
    assert len(ended) == 5


def test_code_that_swallows_its_end_cannot_wait_again(clock: Clock, threads: SimulatedThreads) -> None:
    said: list[str] = []

    def stubborn() -> None:
        try:
            threads.sleep(10.0)
        except BaseException:
            said.append("swallowed")
        threads.sleep(10.0)
        said.append("slept")

    threads.start("stubborn", stubborn)
    threads.enter(stubborn)
    run(clock, for_s=1.0)
    threads.kill()
    run(clock)
    assert said == ["swallowed", "swallowed"]


def test_a_pool_tells_what_came_of_a_call(clock: Clock, threads: SimulatedThreads) -> None:
    told: list[object] = []
    pool = SimulatedPool(threads)
    pool.callInThreadWithCallback(lambda good, result: told.append((good, result)), lambda a, b: a + b, 1, b=2)
    pool.callInThreadWithCallback(lambda good, result: told.append((good, result.type)), lambda: 1 // 0)
    run(clock)
    assert told == [(True, 3), (False, ZeroDivisionError)]


def workers(threads: Threads, take: Callable[[int], None]) -> list[int]:
    """Three workers empty a queue of forty jobs; whoever is last says so."""
    lock, ended, jobs, done = threads.condition(), threads.event(), list(range(40)), list[int]()

    def work() -> None:
        while True:
            with lock:
                lock.wait_for(lambda: jobs or ended.is_set())
                if not jobs:
                    return
                job = jobs.pop()
            take(job)
            with lock:
                done.append(job)
                if len(done) == 40:
                    ended.set()
                    lock.notify(3)

    for each in [threads.start(f"worker {n}", work) for n in range(3)]:
        each.join()
    return done


def test_the_same_code_runs_on_real_and_on_simulated_threads() -> None:
    assert sorted(workers(REAL_THREADS, lambda job: None)) == list(range(40))
    assert sorted(simulated_workers(1)) == list(range(40))


def simulated_workers(seed: int) -> list[int]:
    clock, rng, found = Clock(), Random(seed), list[list[int]]()
    threads = SimulatedThreads(clock.callLater, clock.seconds)
    threads.enter(lambda: found.append(workers(threads, lambda job: threads.sleep(rng.random()))))
    run(clock)
    return found[0]


def test_a_seed_gives_the_same_order_each_time_and_another_seed_another() -> None:
    assert simulated_workers(1) == simulated_workers(1)
    assert simulated_workers(1) != simulated_workers(2)
