"""Changes of the members as management asks for them, at logs in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from ha.core.membership import Change, Membership
from ha.member_changes import MemberChanges
from tests.ha.log_cluster import Machine

A, B, C, D = (f"{name}:5672" for name in "abcd")


class Links:
    """A network in which these brokers, and no others, can be reached."""

    def __init__(self, *reachable: str, witness: str = "") -> None:
        self.reachable = reachable
        self.witness = witness
        self.older: list[str] = []
        self.kept: list[Membership] = []

    def reach(self, address: str, within_s: float) -> Deferred[str]:
        return succeed("" if address in self.reachable else "cannot be reached (no such host)")

    def set_members(self, members: Membership) -> None:
        self.kept.append(members)

    def of_older_release(self) -> list[str]:
        return self.older

    def runs_as_witness(self, address: str) -> bool:
        return address == self.witness


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


def changes(machine: Machine, address: str, *reachable: str) -> MemberChanges:
    return MemberChanges(address, machine.brokers[address].log, Links(*reachable))


def ask(machine: Machine, asked: Any) -> tuple[int, str]:
    status, text, _ = machine.result(asked)
    return status, text


def test_a_broker_that_cannot_be_reached_is_no_learner(machine: Machine) -> None:
    """Breaks when a slip of the keyboard makes a member that keeps the cluster's version down and that nobody can talk to."""
    first = machine.cluster(A, B, C)[0]
    links = Links()
    made = MemberChanges(A, first.log, links)

    def learners() -> tuple[str, ...]:
        return first.log.replica.members.learners

    status, text = ask(machine, made.add("nonsense:5672", force=False))
    assert status == 409
    assert text.startswith("nothing was changed: nonsense:5672 cannot be reached (no such host); start that broker first")
    assert learners() == ()
    assert links.kept == [first.log.replica.members], "the link to it is given up"
    assert ask(machine, made.add("nonsense:5672", force=True)) == (200, "committed")
    assert learners() == ("nonsense:5672",)
    assert ask(machine, made.remove("nonsense:5672", force=False)) == (200, "committed"), "it blocks no other change"


def test_a_broker_that_can_be_reached_becomes_a_member(machine: Machine) -> None:
    first = machine.cluster(A, B, C)[0]
    machine.start(D, f"{A},{B},{C},{D}")
    assert ask(machine, changes(machine, A, D).add("d", force=False)) == (200, "committed")
    machine.run_until(lambda: D in first.log.replica.members.voters)


@pytest.mark.parametrize("wrong", ["", "not an address", "a:1,b:1"])
def test_what_is_no_address_of_one_broker_is_bad_input(machine: Machine, wrong: str) -> None:
    machine.cluster(A, B)
    made = changes(machine, A)
    assert (ask(machine, made.add(wrong, force=True))[0], ask(machine, made.remove(wrong, force=True))[0]) == (400, 400)


@pytest.mark.parametrize(
    "members, away, removed, said",
    [
        ((A, B, C, D), "", A, f"{A} is the primary: let it hand over first"),
        ((A, B, C), "", C, f"without {C} there are 2 voting members ({A}, {B})"),
        ((A, B), "", B, f"without {B} there is one voting member ({A}), and its loss stops the cluster"),
        ((A, B, C, D), D, B, ""),
        ((A, B, C, D), D, D, ""),
    ],
)
def test_a_removal_is_refused_where_it_would_hurt_unless_it_is_forced(
    machine: Machine, members: tuple[str, ...], away: str, removed: str, said: str
) -> None:
    first = machine.cluster(*members)[0]
    if away:
        machine.isolate(away)
    made = changes(machine, A)
    status, text = ask(machine, made.remove(removed, force=False))
    if said:
        assert (status, text.startswith(f"nothing was changed: {said}")) == (421 if removed == A else 409, True), text
        assert first.log.replica.members.voters == members
        status, text = ask(machine, made.remove(removed, force=True, abrupt=True))
    assert (status, text) == (200, "committed")


@pytest.mark.parametrize(
    "runs, asked, said",
    [
        (True, False, f"nothing was changed: {D} runs as a witness: add it with --witness"),
        (False, True, f"nothing was changed: {D} does not run as a witness: start it with --ha-witness"),
        (True, True, ""),
    ],
)
def test_a_witness_is_added_as_what_it_runs_as(machine: Machine, runs: bool, asked: bool, said: str) -> None:
    """Breaks when the cluster waits for ever for a member to keep, or to leave out, what it does not."""
    machine.witness = D if runs else ""
    first = machine.cluster(A, B)[0]
    machine.start(D, f"{A},{B},{D}")
    made = MemberChanges(A, first.log, Links(D, witness=D if runs else ""))
    status, text = ask(machine, made.add(D, force=False, change=Change.ADD_WITNESS if asked else Change.ADD))
    assert (status, text.startswith(said)) == (409, True) if said else (status, text) == (200, "committed")
    assert first.log.replica.members.witness == ("" if said else D)


def test_what_a_connected_member_of_an_older_release_would_not_understand_is_refused(machine: Machine) -> None:
    """It would take a witness for a store, or let vote who is to follow, when it is the primary."""
    first = machine.cluster(A, B, C)[0]
    links = Links(D)
    links.older = [B]
    made = MemberChanges(A, first.log, links)
    for asked in (
        made.add(D, force=True, change=Change.ADD_WITNESS),
        made.add(D, force=True, change=Change.ADD_STANDBY),
        made.set_role(C, "learner", force=True),
    ):
        assert ask(machine, asked) == (
            409,
            f"nothing was changed: {B} would not understand it, because of an older release: upgrade first",
        )
    assert ask(machine, made.remove(C, force=True)) == (200, "committed")


def test_a_witness_beside_an_odd_number_of_brokers_is_of_no_use_and_refused(machine: Machine) -> None:
    machine.witness = D
    first = machine.cluster(A, B, C)[0]
    machine.start(D, f"{A},{B},{C},{D}")
    made = MemberChanges(A, first.log, Links(D, witness=D))
    status, text = ask(machine, made.add(D, force=False, change=Change.ADD_WITNESS))
    assert (status, f"beside 3 voting members that store messages ({A}, {B}, {C})" in text) == (409, True)
    assert ask(machine, made.add(D, force=True, change=Change.ADD_WITNESS)) == (200, "committed")


@pytest.mark.parametrize(
    "role, status, text",
    [
        ("voter", 409, f"{B} is not a learner that stays one (there is none)"),
        ("king", 400, "a broker's role is voter or learner, not 'king'"),
        ("learner", 200, "committed"),
    ],
)
def test_a_voter_becomes_one_that_follows_as_it_would_be_removed(machine: Machine, role: str, status: int, text: str) -> None:
    first = machine.cluster(A, B, C, D)[0]
    made = changes(machine, A)
    assert ask(machine, made.set_role(B, role, force=False)) == (status, text)
    if status == 200:
        assert first.log.replica.members.standby == (B,)
        assert ask(machine, made.set_role(A, "learner", force=True))[0] == 421, "it hands over first"
        assert ask(machine, made.set_role("", "voter", force=True))[0] == 400
        refused = ask(machine, made.set_role(C, "learner", force=False))
        assert (refused[0], f"without {C} there are 2 voting members" in refused[1]) == (409, True)
        assert ask(machine, made.set_role(B, "voter", force=False)) == (200, "committed")
        machine.run_until(lambda: B in first.log.replica.members.voters)


def test_beside_a_witness_two_brokers_are_left_unless_it_is_forced(machine: Machine) -> None:
    machine.witness = D
    first = machine.cluster(A, B, D)[0]
    made = changes(machine, A)
    status, text = ask(machine, made.remove(B, force=False))
    assert (status, f"without {B} the messages are on {A} alone, which needs the witness {D} beside" in text) == (409, True)
    assert ask(machine, made.remove(D, force=False))[0] == 409
    assert ask(machine, made.remove(D, force=True)) == (200, "committed")
    assert (first.log.replica.members.voters, first.log.replica.members.witness) == ((A, B), "")


@pytest.mark.parametrize("force", [False, True])
def test_a_removal_that_leaves_no_majority_connected_is_refused(machine: Machine, force: bool) -> None:
    first, *_ = machine.cluster(A, B, C, D)
    machine.isolate(D)
    machine.disconnect(A, C)  # noticed, and the term not yet over
    status, text = ask(machine, changes(machine, A).remove(B, force=force))
    assert (status, first.log.state) == (409, "active")
    assert "of the 3 voting members after it only 1 are connected" in text


@pytest.mark.parametrize("change", [Change.REMOVE, Change.LOWER])
@pytest.mark.parametrize("force", [False, True])
def test_a_voter_is_not_taken_away_when_the_others_could_not_commit_it(machine: Machine, change: Change, force: bool) -> None:
    """Breaks when two of three brokers serve, and a command stops the cluster until the third one is back, if ever."""
    first = machine.cluster(A, B, C)[0]
    machine.isolate(C)
    made = changes(machine, A)
    asked = made.remove(B, force=force) if change is Change.REMOVE else made.set_role(B, "learner", force=force)
    text = (
        "of the 2 voting members after it only 1 are connected, so it could not be committed, and the cluster would have no "
        f"primary until {C} is connected"
    )
    assert ask(machine, asked) == (409, f"nothing was changed: {text}")
    machine.run_for(3.0)
    assert (first.log.state, first.log.replica.members.voters) == ("active", (A, B, C))
    assert ask(machine, made.remove(C, force=True)) == (200, "committed"), "the one that is away may go"


def test_the_primary_does_not_leave_two_of_which_one_is_away(machine: Machine) -> None:
    """Also at once and by force: its successor could not be elected."""
    first = machine.cluster(A, B, C)[0]
    machine.isolate(C)
    status, text = ask(machine, changes(machine, A).remove(A, force=True, abrupt=True))
    assert (status, f"until {C} is connected" in text, first.log.state) == (409, True, "active")


@pytest.mark.parametrize("force", [False, True])
def test_a_witness_stays_while_one_of_the_two_brokers_is_away(machine: Machine, force: bool) -> None:
    machine.witness = D
    first = machine.cluster(A, B, D)[0]
    machine.isolate(B)
    status, text = ask(machine, changes(machine, A).remove(D, force=force))
    machine.run_for(3.0)
    assert (status, f"until {B} is connected" in text, first.log.state) == (409, True, "active")


@pytest.mark.parametrize("reachable", [False, True])
def test_a_witness_that_is_needed_at_once_is_added_by_force_only_where_it_answers(machine: Machine, reachable: bool) -> None:
    """Breaks when a slip of the keyboard makes four voters of two that are there and two that are not."""
    machine.witness = D
    first = machine.cluster(A, B, C)[0]
    machine.isolate(C)
    links = Links(witness=D)
    if reachable:
        machine.start(D, f"{A},{B},{C},{D}")
        links.reachable = (D,)
    answer = ask(machine, MemberChanges(A, first.log, links).add(D, force=True, change=Change.ADD_WITNESS))
    machine.run_for(3.0)
    assert first.log.state == "active"
    if reachable:
        assert answer == (200, "committed")
    else:
        text = "nothing was changed: of the 4 voting members after it only 2 are connected"
        assert (answer[0], answer[1].startswith(text), answer[1].endswith(f"until {C}, {D} is connected")) == (409, True, True)
        assert links.kept == [first.log.replica.members], "the link to it is given up"


def test_a_backup_changes_nothing_and_says_who_does(machine: Machine) -> None:
    machine.cluster(A, B, C)
    made = changes(machine, B)
    for asked in (made.add(D, force=False), made.remove(C, force=False)):
        assert ask(machine, asked) == (409, f"{B} is not the primary; {A} is")


def test_a_broker_knows_that_it_was_removed_until_it_is_added_again(machine: Machine) -> None:
    """Breaks when it says `joining` for ever, or when an old word outlives a new membership."""
    first, _, _, fourth = machine.cluster(A, B, C, D)
    of_first, of_fourth = changes(machine, A, D), changes(machine, D)
    assert (of_first.removed_at(D), of_fourth.removed) == (0, False)
    assert ask(machine, of_first.remove(D, force=False)) == (200, "committed")
    assert of_first.removed_at(D) == first.log.replica.log.members_index
    of_fourth.is_removed_from(of_first.removed_at(D))
    assert of_fourth.removed
    machine.run_for(1.0)
    assert ask(machine, of_first.add(D, force=False)) == (200, "committed")
    machine.run_until(lambda: fourth.log.state == "ready")
    assert (of_fourth.removed, of_first.removed_at(D)) == (False, 0)


def test_a_primary_that_was_removed_by_force_knows_it_by_its_own_log(machine: Machine) -> None:
    first = machine.cluster(A, B, C)[0]
    made = changes(machine, A)
    assert ask(machine, made.remove(A, force=True))[0] == 421, "it hands over first all the same"
    assert ask(machine, made.remove(A, force=False, abrupt=True)) == (200, "committed")
    machine.run_until(lambda: first.log.state == "joining")
    assert made.removed
