"""Each of Raft's promises is broken by a member that does wrong, and the check sees it."""

import pytest

from ha.core.log import Log
from ha.core.membership import Membership
from ha.core.messages import Entry, Position
from tests.simulation.checks.consensus import Consensus, StoredEntry

ABC = Membership.of("abc")


class Members:
    """Members that do what a test says."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.checks = Consensus(self.faults)

    def elect(self, me: str, epoch: int) -> None:
        self.checks.asked(me)
        self.checks.saved(me, epoch, me)
        self.checks.answered(me)
        self.checks.announces(me, epoch, primary=True, active=False)

    def store(self, members: str, epoch: int, index: int, data: bytes = b"", change: Membership | None = None) -> None:
        for me in members:
            self.checks.stored(me, [StoredEntry(index, epoch, data, change)])

    def sync(self, members: str, epoch: int, index: int) -> None:
        for me in members:
            self.checks.synced(me, index, epoch)

    def write(self, members: str, epoch: int, index: int) -> None:
        self.store(members, epoch, index)
        self.sync(members, epoch, index)

    def restart(
        self,
        me: str,
        *epochs: int,
        epoch: int = 1,
        voted_for: str | None = None,
        blank: bool = False,
        floor: Position | None = None,
    ) -> None:
        log = Log(ABC)
        for index, each in enumerate(epochs, 1):
            log.append(Entry(index, each, 100))
        self.checks.started(me, log, epoch, voted_for, blank=blank, floor=floor)

    def become_whole(self, *members: str) -> None:
        for me in members:
            self.checks.counts_as_whole(me)
            self.checks.noted_whole(me)


@pytest.fixture
def members() -> Members:
    made = Members()
    made.elect("a", 1)
    made.write("ab", 1, 1)
    made.checks.commits("a", 1, members=ABC)
    made.checks.announces("a", 1, primary=True, active=True)
    made.checks.commits("b", 1, members=ABC)
    made.checks.saved("b", 1, None)
    made.become_whole("a", "b")
    made.checks.noted_whole("c")
    assert made.faults == []
    return made


def test_a_second_vote_in_an_epoch(members: Members) -> None:
    for candidate in "ab":
        members.checks.saved("c", 2, candidate)
        members.checks.granted("c", 2, candidate)
    assert members.faults[0] == "votes: c votes for b in epoch 2, in which it has voted for a"


def test_a_second_vote_after_a_restart_that_forgot_the_first(members: Members) -> None:
    members.checks.saved("c", 2, "a")
    members.restart("c", epoch=2)
    members.checks.saved("c", 2, "b")
    assert members.faults == [
        "durability: c had saved epoch 2 and vote a, and came back with epoch 2 and vote None",
        "votes: c votes for b in epoch 2, in which it has voted for a",
    ]


def test_a_vote_that_is_forgotten_within_its_epoch(members: Members) -> None:
    members.checks.saved("c", 2, "a")
    members.checks.saved("c", 2, None)
    assert members.faults == ["votes: c forgets that it has voted for a in epoch 2"]


def test_a_vote_that_is_given_before_it_is_saved(members: Members) -> None:
    members.checks.granted("c", 2, "a")
    assert members.faults == ["votes: c gives a its vote of epoch 2, and has saved (0, None)"]


def test_a_vote_for_an_older_log(members: Members) -> None:
    members.checks.vote_wanted("b", "c", Position(0, 0))
    members.checks.saved("b", 2, "c")
    members.checks.granted("b", 2, "c")
    assert members.faults == ["votes: b, whose log ends at (epoch 1, index 1), votes for c, whose log ends at (epoch 0, index 0)"]


def test_an_epoch_that_goes_back(members: Members) -> None:
    members.checks.saved("c", 3, None)
    members.checks.saved("c", 2, None)
    assert members.faults == ["epochs: c went from epoch 3 back to epoch 2"]


def test_standing_for_election_unasked(members: Members) -> None:
    members.checks.saved("b", 2, "b")
    assert members.faults == ["asked for: b stands for election in epoch 2, and nobody had asked it to"]


def test_standing_for_election_because_the_primary_let_go_is_asked_for_once(members: Members) -> None:
    members.checks.let_go("b")
    members.checks.saved("b", 2, "b")
    assert members.faults == []
    members.checks.saved("b", 3, "b")
    assert members.faults == ["asked for: b stands for election in epoch 3, and nobody had asked it to"]


def test_two_primaries_of_one_epoch(members: Members) -> None:
    members.elect("b", 1)
    assert members.faults == ["one primary: epoch 1 has two, a and b"]


def test_a_primary_that_lacks_what_is_committed(members: Members) -> None:
    members.elect("c", 2)
    assert members.faults == ["completeness: c is primary of epoch 2, and its log lacks batch 1 of epoch 1, which is committed"]


def test_a_candidate_may_learn_of_its_votes_when_a_later_primary_has_committed(members: Members) -> None:
    """Raft's leaders have what was committed in earlier terms, not in later ones (§5.4.3)."""
    members.elect("b", 3)
    members.elect("c", 2)
    assert members.faults == []


def test_a_primary_that_lacked_what_an_earlier_one_turns_out_to_have_committed(members: Members) -> None:
    members.write("a", 1, 2)
    members.elect("b", 2)
    members.write("c", 1, 1)
    members.write("c", 1, 2)
    members.checks.commits("a", 2, members=ABC)
    assert members.faults == ["completeness: b became primary of epoch 2 without batch 2 of epoch 1, which a commits"]


def test_serving_before_a_batch_of_the_own_epoch_is_committed(members: Members) -> None:
    members.elect("b", 2)
    members.checks.announces("b", 2, primary=True, active=True)
    assert members.faults == ["term: b is active in epoch 2 before a batch of that epoch is committed"]


def test_another_batch_at_the_same_index_and_epoch(members: Members) -> None:
    members.store("c", 1, 1, b"other")
    assert members.faults == ["log matching: c holds another batch 1 of epoch 1 than others do"]


def test_the_same_batch_after_another_one(members: Members) -> None:
    members.store("c", 2, 1)
    members.store("ac", 3, 2)
    assert members.faults == ["log matching: batch 2 of epoch 3 follows epoch 2 at c, and epoch 1 elsewhere"]


def test_a_batch_that_is_stored_where_another_comes_next(members: Members) -> None:
    members.store("b", 1, 3)
    assert members.faults == ["log: b stores batch 3 after batch 1"]


def test_a_commit_that_a_minority_holds(members: Members) -> None:
    members.store("ab", 1, 2)
    members.sync("a", 1, 2)
    members.checks.commits("a", 2, members=ABC)
    assert members.faults == ["commit: a commits batch 2 of epoch 1, which 1 of 3 voters have on disk"]


def test_a_commit_for_which_a_learner_was_counted(members: Members) -> None:
    members.write("d", 1, 1)
    members.write("ad", 1, 2)
    members.checks.commits("a", 2, members=Membership.of("abc", "d"))
    assert members.faults == ["commit: a commits batch 2 of epoch 1, which 1 of 3 voters have on disk"]


def test_a_commit_of_an_older_epoch_by_counting(members: Members) -> None:
    members.write("b", 1, 2)
    members.elect("b", 2)
    members.write("c", 1, 1)
    members.write("c", 1, 2)
    members.checks.commits("b", 2, members=ABC)
    assert members.faults == ["commit: b commits batch 2 of epoch 1 by counting, in epoch 2"]


def test_a_backup_that_commits_more_than_any_primary(members: Members) -> None:
    members.write("b", 1, 2)
    members.checks.commits("b", 2, members=ABC)
    assert members.faults == ["commit: b takes batch 2 as committed, and no primary has committed more than 1"]


def test_a_snapshot_of_what_nobody_has_committed(members: Members) -> None:
    members.checks.installed("c", 5, 1)
    assert members.faults == ["commit: c installs a snapshot of batch 5 of epoch 1, which nobody has committed"]


def test_truncating_what_is_committed_and_truncating_what_is_not(members: Members) -> None:
    members.store("b", 1, 2)
    members.checks.truncated("b", 2)
    assert members.faults == []
    members.checks.truncated("b", 1)
    assert members.faults == ["committed changed: b takes batch 1 of epoch 1 off its log, which is committed"]


def test_acknowledging_what_is_not_synced(members: Members) -> None:
    members.store("b", 1, 2)
    members.checks.acknowledged("b", 2)
    assert members.faults == ["durability: b acknowledges batch 2, and its journal has synced 1"]


def test_a_store_that_comes_back_without_what_it_had_acknowledged(members: Members) -> None:
    members.write("b", 1, 2)
    members.checks.acknowledged("b", 2)
    members.restart("b", 1)
    assert members.faults == [
        "durability: b had acknowledged (epoch 1, index 2), and its store came back with (epoch 1, index 1)"
    ]


def test_a_store_that_comes_back_with_another_batch_in_the_place(members: Members) -> None:
    members.checks.acknowledged("b", 1)
    members.restart("b", 0, 2, epoch=2)
    assert members.faults[0].startswith("durability: b had acknowledged (epoch 1, index 1)")


def test_a_primary_whose_own_disk_loses_what_it_had_counted(members: Members) -> None:
    members.restart("a")
    assert members.faults[0].startswith("durability: a had acknowledged (epoch 1, index 1)")


@pytest.mark.parametrize("blank, floor", [(True, None), (False, Position(1, 1))])
def test_a_damaged_store_that_knows_that_it_has_lost_something(members: Members, blank: bool, floor: Position | None) -> None:
    members.checks.acknowledged("b", 1)
    members.checks.decayed("b")
    members.restart("b", blank=blank, floor=floor)
    assert members.faults == []


def test_a_damaged_store_that_does_not_know_that_it_has_lost_something(members: Members) -> None:
    members.checks.acknowledged("b", 1)
    members.checks.decayed("b")
    members.restart("b", floor=Position(0, 0))
    assert members.faults == [
        "durability: b had acknowledged (epoch 1, index 1), and its store came back with (epoch 0, index 0)"
    ]


def test_a_disk_that_was_replaced_keeps_no_promise(members: Members) -> None:
    members.checks.acknowledged("b", 1)
    members.checks.wiped("b")
    members.restart("b", epoch=0, blank=True)
    assert members.faults == []


@pytest.mark.parametrize("blank, floor, how", [(True, None, "blank"), (False, Position(1, 2), "damaged")])
def test_a_crash_alone_damages_nothing(members: Members, blank: bool, floor: Position | None, how: str) -> None:
    members.restart("b", 1, blank=blank, floor=floor)
    assert members.faults == [f"durability: b came back {how}, and nothing had damaged its disk"]


def test_a_blank_store_that_counts_as_whole_before_its_primary_has_committed_anything(members: Members) -> None:
    members.checks.wiped("c")
    members.restart("c", epoch=1, blank=True)
    members.become_whole("c")
    members.write("c", 1, 1)
    members.become_whole("c")
    members.checks.saved("c", 2, None)
    members.checks.wiped("c")
    members.restart("c", 1, epoch=2, blank=True)
    members.become_whole("c")
    assert members.faults == [
        f"whole: c, whose store was blank, counts as whole, and no committed batch of epoch {epoch} is on its disk"
        for epoch in (1, 2)
    ]


def test_a_blank_store_that_counts_as_whole_while_the_batch_is_on_its_way_to_the_disk(members: Members) -> None:
    members.checks.wiped("c")
    members.restart("c", epoch=1, blank=True)
    members.store("c", 1, 1)
    members.become_whole("c")
    assert members.faults == [
        "whole: c, whose store was blank, counts as whole, and no committed batch of epoch 1 is on its disk"
    ]


def test_a_damaged_store_that_counts_as_whole_without_what_it_has_lost(members: Members) -> None:
    members.checks.decayed("b")
    members.restart("b", floor=Position(1, 1))
    members.store("b", 1, 1)
    members.become_whole("b")
    assert members.faults == ["whole: b counts as whole without batch 1, which is committed, and which its store has lost"]


def test_a_damaged_store_that_counts_as_whole_with_what_it_had_lost_or_lost_what_was_never_committed(members: Members) -> None:
    members.write("b", 1, 2)
    members.checks.decayed("b")
    members.restart("b", floor=Position(1, 2))
    members.elect("a", 2)
    members.write("c", 1, 1)
    members.write("ac", 2, 2)
    members.checks.commits("a", 2, members=ABC)
    members.write("b", 1, 1)
    members.become_whole("b")
    assert members.faults == []


def test_a_vote_of_a_blank_store_counts_only_if_all_grant(members: Members) -> None:
    members.checks.wiped("c")
    members.restart("c", epoch=1, blank=True)
    members.checks.vote_wanted("c", "b", Position(1, 1))
    members.checks.would_grant("c", "b", provisional=True)
    assert members.faults == []
    members.checks.would_grant("c", "b", provisional=False)
    assert members.faults == ["votes: c, whose store is blank, gives b a vote that counts, be others silent or not"]


def test_a_vote_of_a_damaged_store_for_a_log_that_may_lack_what_it_has_lost(members: Members) -> None:
    members.checks.decayed("b")
    members.restart("b", floor=Position(1, 1))
    members.checks.vote_wanted("b", "c", Position(0, 0))
    members.checks.would_grant("b", "c", provisional=False)
    assert members.faults == [
        "votes: b, whose store once held (epoch 1, index 1), votes for c, whose log ends at (epoch 0, index 0)"
    ]


def test_a_damaged_store_that_stands_for_election(members: Members) -> None:
    members.checks.decayed("b")
    members.restart("b", floor=Position(1, 1))
    members.checks.asked("b")
    members.checks.saved("b", 2, "b")
    assert members.faults == [
        "votes: b stands for election with a log that ends at (epoch 0, index 0), and once held (epoch 1, index 1)"
    ]


@pytest.mark.parametrize(
    "given, counted", [({}, "1 votes that count and 0"), ({"c": True}, "1 votes that count and 1"), ({"c": False}, "")]
)
def test_a_primary_is_elected_by_a_majority_of_votes_that_count(members: Members, given: dict[str, bool], counted: str) -> None:
    voters = ABC.voters if given.get("c") is not False else ("b", "c")
    for voter, provisional in given.items():
        members.checks.saved(voter, 2, "b")
        members.checks.granted(voter, 2, "b", provisional=provisional)
    members.checks.announces("b", 2, primary=True, active=False, voters=voters)
    wrong = f"votes: b is primary of epoch 2 by {counted} that count only if all grant, of 3 voters"
    assert members.faults == ([wrong] if counted else [])


def test_votes_that_count_only_if_all_grant_count_when_all_have_granted(members: Members) -> None:
    for voter in "ac":
        members.checks.saved(voter, 2, "b")
        members.checks.granted(voter, 2, "b", provisional=True)
    members.checks.announces("b", 2, primary=True, active=False, voters=ABC.voters)
    assert members.faults == []


def test_two_changes_of_the_members_at_a_time(members: Members) -> None:
    members.store("a", 1, 2, change=ABC)
    members.store("a", 1, 3, change=ABC.with_learner("d"))
    assert members.faults == ["members: a changes the members in batch 3, and the change in batch 2 is not committed"]


def test_two_members_changed_in_one_step(members: Members) -> None:
    members.store("a", 1, 2, change=ABC)
    members.sync("a", 1, 2)
    members.write("b", 1, 2)
    members.checks.commits("a", 2, members=ABC)
    members.store("a", 1, 3, change=Membership.of("abcde"))
    assert members.faults == ["members: batch 3 changes d, e in one step"]


def test_a_member_that_was_away_during_two_changes_gets_to_know_them_with_a_snapshot(members: Members) -> None:
    members.store("c", 1, 1, change=ABC)
    for index, change in enumerate((ABC, ABC.with_learner("d"), Membership.of("abcd"), Membership.of("abcd", "e")), 2):
        members.store("ab", 1, index, change=change)
        members.sync("ab", 1, index)
        members.checks.commits("a", index, members=ABC)
    members.checks.installed("c", 5, 1)
    members.elect("c", 2)
    members.store("c", 2, 6, change=Membership.of("abcd", "e"))
    assert members.faults == []
    members.store("c", 2, 7, change=Membership.of("abc"))
    assert members.faults[-1] == "members: batch 7 changes d, e in one step"


def test_a_change_that_was_truncated_is_none(members: Members) -> None:
    members.store("b", 1, 2, change=ABC)
    members.store("b", 1, 3, change=ABC.with_learner("d"))
    members.checks.truncated("b", 3)
    members.elect("b", 2)
    members.store("b", 2, 3, change=ABC)
    assert members.faults == []


def test_the_first_batch_of_an_epoch_repeats_the_members_which_is_no_change(members: Members) -> None:
    members.store("b", 1, 2, change=ABC)
    members.elect("b", 2)
    members.store("b", 2, 3, change=ABC.named("an id"))
    assert members.faults == []
