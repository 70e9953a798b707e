"""What an operator is told of a takeover by force: where it begins, what is known to be lost, and what is not known."""

from __future__ import annotations

from dataclasses import replace

from ha.core.effects import State
from ha.core.membership import Membership
from ha.core.status import ReplicaStatus
from ha.takeover import begun_with

STATUS = ReplicaStatus(
    state=State.JOINING,
    epoch=3,
    primary="",
    first_index=1,
    last_index=40,
    last_epoch=3,
    durable_index=40,
    commit_index=38,
    told_commit=39,
    writable=False,
    members=Membership.of("ab", "x", "an-id", standby="x"),
    peers=(),
)


def test_an_operator_is_told_where_a_takeover_begins_and_whom_it_gives_up() -> None:
    assert begun_with("x", STATUS, 12.4, 1_700_000_000_000) == (
        "after batch 40 of epoch 3; batches up to 39 were known to be committed, the last batch applied was made at "
        "2023-11-14T22:13:20.000Z, and a primary was heard 12 s ago; given up: a, b, and all that they accepted after that batch"
    )


def test_batches_of_which_it_was_told_and_that_it_lacks_are_told_as_lost() -> None:
    said = begun_with("x", replace(STATUS, told_commit=44), 1.0, 0)
    assert "batches up to 44 were known to be committed (so at least the last 4 of these are lost), and a primary" in said


def test_what_is_not_known_is_not_told_as_a_figure() -> None:
    alone = replace(STATUS, told_commit=0, members=Membership.of("x", cluster_id="new"))
    assert begun_with("x", alone, None, 0) == (
        "after batch 40 of epoch 3; no batch was known to be committed, and no primary was heard since its start; "
        "given up: nobody, and all that they accepted after that batch"
    )
