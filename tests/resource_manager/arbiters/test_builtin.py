"""Daemons take turns without an outside system."""

from __future__ import annotations

import pytest

from resource_manager.arbiters.builtin import MAX_RANK, BuiltinArbiter
from resource_manager.core.arbiter import Arbiter, Guarantee, Health, Published


def test_a_daemon_alone_acts_at_once() -> None:
    """Breaks when a cluster with one daemon pays for coordination that it does not need."""
    assert BuiltinArbiter("only").acts_at(10.0, 10.0) == 10.0


def test_daemons_that_know_of_each_other_never_act_at_the_same_time() -> None:
    names = ["rm-c", "rm-a", "rm-b"]
    turns = {}
    for name in names:
        arbiter = BuiltinArbiter(name, step_s=0.2)
        arbiter.hears_of(names)
        turns[name] = arbiter.acts_at(10.0, 10.0)
    assert turns == {"rm-a": 10.0, "rm-b": pytest.approx(10.2), "rm-c": pytest.approx(10.4)}


def test_a_daemon_counts_itself_even_where_the_brokers_do_not_list_it() -> None:
    arbiter = BuiltinArbiter("rm-b", step_s=0.2)
    arbiter.hears_of(["rm-a"])
    assert arbiter.acts_at(10.0, 10.0) == pytest.approx(10.2)


def test_when_the_first_daemon_goes_the_next_moves_up() -> None:
    """Breaks when the daemons behind a dead one keep waiting for it."""
    arbiter = BuiltinArbiter("rm-b", step_s=0.2)
    arbiter.hears_of(["rm-a", "rm-b"])
    assert arbiter.acts_at(10.0, 10.0) == pytest.approx(10.2)
    arbiter.hears_of(["rm-b"])
    assert arbiter.acts_at(10.0, 10.0) == 10.0


def test_a_crowd_of_daemons_delays_nobody_without_bound() -> None:
    arbiter = BuiltinArbiter("z", step_s=0.2)
    arbiter.hears_of([f"a{number}" for number in range(1000)])
    assert arbiter.rank == MAX_RANK


def test_it_fulfils_the_protocol_and_names_its_guarantee() -> None:
    arbiter: Arbiter = BuiltinArbiter("rm-a")
    assert (arbiter.guarantee, arbiter.health()) == (Guarantee.STAGGERED, Health(True))
    arbiter.watch(lambda: None)
    arbiter.publish(Published("a:1", 3))
    arbiter.rest()
    arbiter.close()
