"""Two brokers and a witness, and other clusters with one: who may be elected after what, and what is on how many disks."""

from __future__ import annotations

import pytest

from ha.core.effects import MembershipEnded, PromotionEnded, Send, Strange, TransferEnded
from ha.core.membership import BadMembership, Membership
from ha.core.messages import Append, AppendReply, Attest, Attested, Position, SnapshotChunk
from ha.core.witness import attested_fields, attested_from
from tests.ha.core.cluster import Cluster, led


def pair() -> Cluster:
    """Two brokers, of which a is the primary, and the witness w, level and at rest."""
    return led("a", "b", "w", witness="w")


def attested(cluster: Cluster) -> tuple[int, int]:
    """The epoch and index that w has on its disk."""
    found = cluster["w"].disk.attested
    return (0, 0) if found is None else (found.epoch, found.index)


def reason(cluster: Cluster, address: str) -> str:
    """Why its last promotion failed."""
    ended = cluster[address].ends(PromotionEnded)[-1]
    assert not ended.won
    return ended.reason


def declined(cluster: Cluster) -> str:
    """Why the last message under way, an answer to a primary, says no."""
    answer = cluster.wires.pop()[2]
    assert isinstance(answer, AppendReply)
    assert not answer.accepted
    return answer.reason


def check_serves(cluster: Cluster, address: str, count: int = 3) -> None:
    """Proposals at this broker commit."""
    assert cluster.states()[address] == "active"
    before = cluster[address].live.commit_index
    cluster.propose(address, count)
    assert cluster[address].live.commit_index == before + count


def test_a_witness_is_not_asked_while_both_brokers_keep_up() -> None:
    """It attests the first batch of an epoch once that is committed, for the members that stand in it, and nothing after it."""
    cluster = pair()
    for _ in range(7):
        cluster.propose("a", 3)
    cluster.pass_time(0.5)
    assert cluster["a"].live.commit_index == 22
    assert attested(cluster) == (1, 1)
    assert cluster["w"].live.commit_index == 1, "of what is committed it knows what it attests, and no more"
    assert cluster["w"].entries == {}
    assert (cluster["w"].live.is_witness, cluster["w"].live.attested) == (True, cluster["w"].disk.attested)
    assert cluster.states() == {"a": "active", "b": "ready", "w": "ready"}
    status = {peer.address: peer for peer in cluster["a"].live.status(cluster.now).peers}
    assert [(peer.role, peer.stores) for peer in (status["w"], status["b"])] == [("witness", False), ("voter", True)]


def test_either_broker_serves_on_when_the_other_is_away() -> None:
    for gone, left in (("b", "a"), ("a", "b")):
        cluster = pair()
        cluster.propose("a", 5)
        cluster.pass_time(0.2)
        cluster.crash(gone)
        cluster.promote(left)
        cluster.pass_time(0.2)
        check_serves(cluster, left)
        end = cluster[left].disk.end
        assert attested(cluster) == (end.epoch, end.index)
        cluster.pass_time(0.2)
        assert cluster["w"].live.commit_index == end.index, "a heartbeat has told it"


def test_a_broker_without_what_the_other_alone_has_is_not_elected_and_hears_who_has_it() -> None:
    cluster = pair()
    cluster.crash("b")
    cluster.pass_time(0.2)
    cluster.propose("a", 5)
    cluster.crash("a")
    cluster.restart("b")
    cluster.promote("b")
    cluster.pass_time(3.0)
    assert cluster.states()["b"] == "joining"
    assert (
        "w refused: it attests the log of a up to epoch 1, index 6, which may be on that broker's disk alone; yours ends at "
        "epoch 1, index 1: start a" in reason(cluster, "b")
    )
    cluster.restart("a")
    cluster.promote("a")
    cluster.pass_time(0.5)
    check_serves(cluster, "a")


def test_a_broker_that_has_caught_up_is_elected_again() -> None:
    cluster = pair()
    cluster.crash("b")
    cluster.pass_time(0.2)
    cluster.propose("a", 5)
    cluster.restart("b")
    cluster.pass_time(0.5)
    held = attested(cluster)
    cluster.propose("a", 5)
    assert attested(cluster) == held, "b keeps up, and nothing more is attested"
    cluster.crash("a")
    cluster.promote("b")
    cluster.pass_time(0.2)
    check_serves(cluster, "b")


def test_what_a_witness_attests_outlives_its_process() -> None:
    cluster = pair()
    cluster.crash("b")
    cluster.pass_time(0.2)
    cluster.propose("a", 5)
    for address in "aw":
        cluster.crash(address)
    for address in "bw":
        cluster.restart(address)
    cluster.promote("b")
    cluster.pass_time(3.0)
    assert "index 6" in reason(cluster, "b")


def test_a_broker_whose_disk_stands_still_is_not_waited_for() -> None:
    """Its link is up and it answers heartbeats: only its acknowledgements do not come."""
    cluster = pair()
    cluster.propose("a", 1, settle=False)
    for _ in range(12):
        cluster.tick(0.05)
        for _ in range(100):
            if cluster.wires:
                cluster.deliver()
        for address in "aw":
            cluster[address].sync()
    assert cluster["a"].live.commit_index == 2
    assert attested(cluster) == (1, 2)
    assert cluster["b"].disk.end == Position(1, 1)


def test_a_broker_that_acknowledges_but_not_nearly_enough_is_not_waited_for() -> None:
    cluster = pair()
    cluster.propose("a", 1, settle=False)
    cluster.propose("a", 7, settle=False)
    cluster["a"].sync()
    for _ in range(4):
        while cluster.wires:
            cluster.deliver()
        if cluster["b"].writing:
            cluster["b"].sync(1)
    assert cluster["b"].disk.end.index < cluster["a"].live.commit_index == 9


def test_a_new_witness_counts_when_the_other_broker_dies_before_the_first_batch_of_an_epoch() -> None:
    """Nothing of this epoch was committed, so that it cannot have attested any of it before."""
    cluster = pair()
    cluster.crash("a")
    cluster.wipe("w")
    cluster.restart("a")
    cluster.promote("a", settle=False)
    while cluster.states()["a"] != "recovering":
        cluster.deliver()
    cluster.crash("b")
    cluster.pass_time(0.3)
    assert cluster.states()["a"] == "active"
    check_serves(cluster, "a")
    assert not cluster["w"].disk.blank


def test_a_late_question_takes_nothing_back() -> None:
    cluster = pair()
    cluster.crash("b")
    cluster.pass_time(0.2)
    cluster.propose("a", 5)
    members = cluster["a"].live.members
    cluster.call("w", lambda replica: replica.step(cluster.now, "a", Attest(1, 0, 3, members, 1, 3)))
    assert attested(cluster) == (1, 6)


def test_a_broker_that_is_sent_a_snapshot_is_not_waited_for() -> None:
    cluster = pair()
    cluster.crash("b")
    cluster.pass_time(0.2)
    cluster.propose("a", 30)
    cluster["a"].compact()
    cluster.restart("b")
    for _ in range(40):
        if cluster.wires:
            cluster.deliver()
    cluster.propose("a", 1, settle=False)
    cluster["a"].sync()
    for _ in range(8):
        if cluster.wires:
            cluster.deliver()
    assert cluster["a"].live.commit_index == 32


def test_a_witness_never_stands_and_is_never_handed_over_to() -> None:
    text = "w is a witness: it votes, stores no messages, and is never the primary"
    cluster = pair()
    cluster.promote("w")
    assert reason(cluster, "w") == text
    cluster.call("w", lambda replica: replica.bootstrap(cluster.now, "begin"))
    assert reason(cluster, "w").startswith("w hears the primary a")
    cluster.call("a", lambda replica: replica.transfer(cluster.now, "w"))
    assert cluster["a"].ends(TransferEnded)[-1].reason == text
    cluster.crash("a")
    cluster.promote("w")
    cluster.call("w", lambda replica: replica.bootstrap(cluster.now, "begin"))
    assert [ended.reason for ended in cluster["w"].ends(PromotionEnded)[-2:]] == [text, text]
    assert cluster.states()["w"] == "joining"


def test_who_is_insisted_on_has_the_broker_with_the_newer_log_elected_and_not_the_witness() -> None:
    cluster = pair()
    cluster.crash("b")
    cluster.pass_time(0.2)
    cluster.propose("a", 5)
    cluster.crash("a")
    for address in "ab":
        cluster.restart(address)
    cluster.call("b", lambda replica: replica.promote(cluster.now, "insist", insist=True))
    cluster.pass_time(3.0)
    check_serves(cluster, "b")


def test_a_new_witness_votes_only_with_everybody_until_it_attests_something() -> None:
    """It may be the replacement of one whose disk was lost, and with it what it had attested."""
    cluster = pair()
    cluster.crash("b")
    cluster.pass_time(0.2)
    cluster.propose("a", 5)
    cluster.crash("a")
    cluster.wipe("w")
    cluster.restart("b")
    cluster.promote("b")
    cluster.pass_time(3.0)
    assert "w has an empty store, so its vote counts only if all members vote" in reason(cluster, "b")
    cluster.restart("a")
    cluster.promote("a")
    cluster.pass_time(0.5)
    check_serves(cluster, "a")
    assert cluster["w"].disk.blank is False
    assert cluster["w"].disk.cluster_id == "an-id"


def test_a_new_witness_counts_as_whole_only_when_it_attests_all_that_it_may_have_attested_before() -> None:
    """It hears of a later commit than the position that it is asked for: the answer is that it attests nothing."""
    cluster = pair()
    cluster.propose("a", 3)
    cluster.propose("a", 3)
    cluster.wipe("w")
    cluster.wires.clear()
    members = cluster["a"].live.members
    for index, commit in ((0, 9), (5, 6)):
        cluster.call("w", lambda it, i=index, c=commit: it.step(cluster.now, "a", Attest(1, 0, i, members, 1, c)), settle=False)  # type: ignore[misc]
    assert (attested(cluster), cluster["w"].disk.blank) == ((1, 5), True)
    answers = [message for sender, _, message in cluster.wires if sender == "w" and isinstance(message, AppendReply)]
    assert [answer.match_index for answer in answers] == [0, 0]
    cluster.pass_time(0.3)
    cluster.propose("a", 12)
    cluster.pass_time(0.3)
    assert not cluster["w"].live.blank


def test_what_one_broker_had_alone_is_given_up_by_emptying_its_disk_and_the_witness_s() -> None:
    """As the how-to has it, when that disk is lost for good: every vote is there, and two of them know of nothing."""
    cluster = pair()
    cluster.propose("a", 3)
    cluster.crash("b")
    cluster.pass_time(0.2)
    cluster.propose("a", 5)
    cluster.crash("a")
    for address in "aw":
        cluster.wipe(address)
    cluster.restart("b")
    cluster.parts()
    cluster.promote("b")
    cluster.pass_time(0.5)
    assert cluster.states() == {"a": "ready", "b": "active", "w": "ready"}
    assert cluster["a"].applied == cluster["b"].applied == 5


def test_a_witness_joins_without_learning_and_leaves() -> None:
    cluster = led("a", "b")
    cluster.witness = "w"
    cluster.add("w", Membership.of("abw", witness="w"))
    cluster.call("a", lambda replica: replica.add_member(cluster.now, "w", "add", witness=True))
    cluster.pass_time(0.3)
    assert cluster["a"].ends(MembershipEnded)[-1] == MembershipEnded("add", True, "committed")
    for address in "abw":
        assert (cluster[address].live.members.voters, cluster[address].live.members.witness) == (("a", "b", "w"), "w")
    cluster.crash("b")
    cluster.pass_time(0.2)
    check_serves(cluster, "a")
    cluster.restart("b")
    cluster.pass_time(0.5)
    cluster.call("a", lambda replica: replica.remove_member(cluster.now, "w", "remove"))
    cluster.pass_time(0.3)
    assert cluster["a"].live.members == Membership.of("ab", cluster_id="an-id")
    check_serves(cluster, "a")


def test_two_pairs_and_a_witness_serve_with_two_brokers_left() -> None:
    cluster = led("a", "b", "c", "d", "w", witness="w")
    cluster.propose("a", 3)
    for address in "cd":
        cluster.crash(address)
    cluster.pass_time(0.2)
    check_serves(cluster, "a")
    cluster.crash("a")
    cluster.promote("b")
    cluster.pass_time(3.0)
    assert "c is not connected" in reason(cluster, "b")
    cluster.restart("c")
    cluster.promote("c")
    cluster.pass_time(3.0)
    assert "w refused: it attests the log of a" in reason(cluster, "c")
    cluster.promote("b")
    cluster.pass_time(0.5)
    check_serves(cluster, "b")


@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_a_cluster_of_this_many_brokers_serves_with_the_smallest_majority_and_not_with_less(size: int) -> None:
    names = "abcdefg"[:size]
    cluster = led(*names)
    cluster.propose("a", 5)
    lost = names[: size // 2]
    for address in lost:
        cluster.crash(address)
    last = names[-1]
    cluster.promote(last)
    cluster.pass_time(0.3)
    check_serves(cluster, last)
    assert cluster[last].live.log.last_index >= 6
    if size > 1:
        cluster.crash(names[size // 2])
        cluster.pass_time(2.0)
        assert cluster.states()[last] == "joining"
        for address in names[: size // 2 + 1]:
            cluster.restart(address)
        cluster.promote(last)
        cluster.pass_time(1.0)
        check_serves(cluster, last)
        assert set(cluster.states().values()) == {"active", "ready"}


def test_brokers_that_disagree_on_who_the_witness_is_attest_and_store_nothing_wrong() -> None:
    """One says no to a question that is for a witness; a witness says no to batches and snapshots."""
    cluster = led("a", "b")
    members = Membership.of("ab", cluster_id="an-id")
    cluster.call("b", lambda replica: replica.step(cluster.now, "a", Attest(1, 3, 1, members, 1, 1)), settle=False)
    assert declined(cluster) == "it is not a witness: give every broker the same --ha-witness"
    cluster = pair()
    for message in (Append(1, 4, 0, 0, 1, 0, 1, cluster_id="an-id"), SnapshotChunk(1, 1, 1, cluster["a"].live.members, 0, 1, 3)):
        cluster.call("w", lambda replica, m=message: replica.step(cluster.now, "a", m), settle=False)  # type: ignore[misc]
        assert declined(cluster) == "it is a witness and stores no messages: give every broker the same --ha-witness"
    cluster.call("a", lambda replica: replica.step(cluster.now, "w", AppendReply(1, 0, False, 0, 0, reason="no")))
    check_serves(cluster, "a")


def test_a_question_of_another_cluster_or_of_an_epoch_that_is_over_is_not_answered() -> None:
    cluster = pair()
    held = attested(cluster)
    strange = Membership.of("abw", cluster_id="other", witness="w")
    cluster.call("w", lambda replica: replica.step(cluster.now, "a", Attest(1, 0, 9, strange, 1, 1)))
    cluster.promote("b")
    cluster.pass_time(0.3)
    members = cluster["a"].live.members
    cluster.call("w", lambda replica: replica.step(cluster.now, "a", Attest(1, 0, 9, members, 1, 1)))
    assert held < attested(cluster) == (2, 2)


def test_a_restarted_witness_belongs_to_no_cluster_of_which_it_attests_only_an_uncommitted_beginning() -> None:
    """As with a broker that stores messages: the others may begin another one. Breaks when it ignores the primary of that one
    for ever."""
    cluster = Cluster("a", "b", "c", "d", "w", witness="w")
    members = Membership.of("abcdw", witness="w")
    cluster["w"].disk.epoch = 1
    cluster["w"].disk.attested = Attested(1, 1, "a", members.named("begun"), 1)
    cluster.restart("w")
    begins = Attest(2, 1, 0, members.named("another"), 1, 0)
    (answer,) = [each.message for each in cluster["w"].live.step(cluster.now, "b", begins) if isinstance(each, Send)]
    assert isinstance(answer, AppendReply)
    assert answer.accepted
    cluster["w"].disk.cluster_id = "begun"
    cluster.restart("w")
    assert Strange("b", "another") in cluster["w"].live.step(cluster.now, "b", begins)


def test_what_is_attested_survives_json() -> None:
    found = pair()["w"].disk.attested
    assert found is not None
    assert attested_from(attested_fields(found)) == found
    for wrong in (None, {"epoch": 1}, attested_fields(found) | {"members": {"voters": []}}):
        with pytest.raises(ValueError, match="not "):
            attested_from(wrong)


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda: Membership.of("ab", witness="w"), "the witness w is not among the voting members a, b"),
        (lambda: Membership.of("w", witness="w"), "w is a witness, and somebody has to store the messages"),
        (
            lambda: Membership.of("abw", witness="w").with_witness("x"),
            "w is the witness of this cluster already, and one is enough",
        ),
        (lambda: Membership.of("ab").with_witness("a"), "a is a member already"),
        (lambda: Membership.of("aw", witness="w").without("a"), "a alone stores the messages and cannot be removed"),
        (lambda: Membership.of(["a" * 3000, "w"], witness="w"), "a witness can note members whose addresses have 3000 bytes"),
    ],
)
def test_a_membership_with_a_witness_that_cannot_be_says_why(change, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadMembership, match=text):
        change()


def test_a_membership_with_a_witness_survives_json_and_changes_of_others() -> None:
    members = Membership.of("abw", cluster_id="x", witness="w")
    assert Membership.from_dict(members.to_dict()) == members
    assert "witness" not in Membership.of("ab").to_dict()
    assert members.stores == ("a", "b")
    grown = members.with_learner("c").with_voter("c")
    assert (grown.witness, grown.stores) == ("w", ("a", "b", "c"))
    assert (grown.without("b").witness, grown.without("w").witness) == ("w", "")
    assert [members.role(address) for address in "awz"] == ["voter", "witness", ""]
