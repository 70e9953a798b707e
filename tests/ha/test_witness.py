"""Two brokers and a witness with real stores: what lies on which disk, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ha.copies import SETTLED_S, Copies, copies, notice
from ha.core.membership import Change
from tests.ha.log_cluster import Broker, Machine, bodies


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    made.witness = "w"
    yield made
    made.close()


def proposed(machine: Machine, broker: Broker, message: bytes) -> int:
    """The batch's index, once the log takes one."""
    machine.run_until(lambda: broker.log.may_propose)
    return broker.propose(message)


def test_either_broker_serves_on_with_the_witness_which_stores_no_message(machine: Machine) -> None:
    """Its log stays empty, though it learns the cluster's id and votes."""
    first, second, witness = machine.cluster("a", "b", "w")
    assert machine.cluster_ids["w"] == machine.cluster_ids["b"] == {"", first.log.replica.members.cluster_id}
    machine.kill("b")
    index = proposed(machine, first, b"alone")
    machine.run_until(lambda: first.log.applied == index)
    attested = witness.log.replica.attested
    assert attested is not None
    assert (attested.index, attested.primary) == (index, "a")
    figures = witness.log.journal.figures
    assert (figures.last_index, figures.batches_written, bodies(witness)) == (0, 0, [])
    del second
    second = machine.start("b", "a,b,w")
    machine.run_until(lambda: bodies(second) == [b"alone"])
    machine.kill("a")
    assert machine.promote("b").won
    after = proposed(machine, second, b"after")
    machine.run_until(lambda: second.log.applied == after)


def test_what_is_attested_is_read_again_and_keeps_the_broker_without_it_from_being_elected(machine: Machine) -> None:
    first = machine.cluster("a", "b", "w")[0]
    machine.kill("b")
    index = proposed(machine, first, b"alone")
    machine.run_until(lambda: first.log.applied == index)
    machine.kill("a")
    before = machine.brokers["w"].log.replica.attested
    machine.kill("w")
    again = machine.start("w", "a,b,w")
    assert again.log.replica.attested == before
    machine.start("b", "a,b,w")
    ended = machine.promote("b")
    assert not ended.won
    assert f"it attests the log of a up to epoch 1, index {index}" in ended.reason
    assert "start a" in ended.reason
    machine.start("a", "a,b,w")
    assert machine.promote("a").won


def test_a_restarted_witness_takes_no_membership_as_committed_that_is_not(machine: Machine) -> None:
    """a and w are a majority neither with d nor without it: the removal of d may still be taken back."""
    first = machine.cluster("a", "b", "c", "d", "w")[0]
    machine.kill("b")
    machine.kill("c")
    first.log.requests.change_member("d", Change.REMOVE)
    running = machine.brokers["w"].log.replica
    machine.run_until(lambda: running.members.voters == ("a", "b", "c", "w"))
    assert running.commit_index < running.log.members_index
    machine.kill("a")
    machine.kill("w")
    del machine.cluster_ids["w"]
    again = machine.start("w", "a,b,c,d,w").log.replica
    assert again.members.voters == ("a", "b", "c", "w")
    assert again.commit_index < again.log.members_index
    assert "w" not in machine.cluster_ids, "no membership is reported as committed"


def test_stores_of_brokers_and_of_witnesses_are_not_taken_for_each_other(machine: Machine) -> None:
    first = machine.cluster("a", "b", "w")[0]
    plain = machine.settings
    witness = replace(plain, witness=True)
    other = machine.brokers["w"]
    assert (first.log.misfit(plain), other.log.misfit(witness)) == ("", "")
    assert first.log.misfit(witness).startswith("holds the log of a broker, and a is the witness (--ha-witness)")
    assert other.log.misfit(plain) == "is that of a witness, which stores no messages: give --ha-witness w, or another --data-dir"
    blank = machine.start("d", "a,b,w", connect=False)
    assert (blank.log.misfit(plain), blank.log.misfit(witness)) == ("", "")


def test_one_copy_is_told_when_it_has_lasted_and_told_again_when_there_are_more(machine: Machine) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    watched = Copies(lambda kind, **fields: told.append((kind, fields)))
    first = machine.cluster("a", "b", "w")[0]

    def look() -> str:
        status = first.log.status()
        watched.tick(status, machine.clock.seconds())
        return notice(status)

    assert (look(), copies(first.log.status()), copies(machine.brokers["b"].log.status())) == ("", 2, 0)
    machine.kill("b")
    index = proposed(machine, first, b"alone")
    machine.run_until(lambda: first.log.applied == index)
    assert copies(first.log.status()) == 1
    assert look() == (
        f"one copy: the committed batches up to {index} are only on the disk of a, with w as witness; b is not connected and "
        f"has acknowledged batch {index - 1}"
    )
    assert told == []
    machine.run_for(SETTLED_S)
    look()
    look()
    assert [kind for kind, _ in told] == ["one_copy"]
    machine.start("b", "a,b,w")
    machine.run_until(lambda: copies(first.log.status()) == 2)
    look()
    assert [(kind, fields["index"]) for kind, fields in told] == [("one_copy", index), ("more_copies", index)]


def test_the_primary_keeps_no_log_for_a_witness_and_tells_no_lag_of_it(machine: Machine) -> None:
    """What it attests stands still, so that the whole log would wait for it."""
    first, _, witness = machine.cluster("a", "b", "w")
    for number in range(5):
        index = proposed(machine, first, b"%d" % number)
        machine.run_until(lambda at=index: first.log.held_by_all() == at)  # type: ignore[misc]
    attested = witness.log.replica.attested
    assert attested is not None
    assert attested.index < first.log.replica.log.last_index
    assert list(first.log.lag()) == ["b"]
