"""Learners that stay learners, as a second site has them: they hold everything, count for nothing, and may change places with
voters."""

from __future__ import annotations

import pytest

from ha.core.effects import MembershipEnded, PromotionEnded, TermEnded
from ha.core.membership import BadMembership, Change, Membership
from ha.core.messages import Position
from tests.ha.core.cluster import Cluster, led


def ask(cluster: Cluster, at: str, address: str, change: Change) -> MembershipEnded:
    """Change one member; how it ended."""
    cluster.call(at, lambda replica: replica.change_member(cluster.now, address, f"{change.name} {address}", change=change))
    cluster.pass_time(0.3)
    return cluster[at].ends(MembershipEnded)[-1]


def two_sites() -> Cluster:
    """a, b and c vote; x and y follow."""
    cluster = led("a", "b", "c")
    for address in "xy":
        cluster.add(address, Membership.of("abcxy"))
        assert ask(cluster, "a", address, Change.ADD_STANDBY).done
    return cluster


def test_a_broker_of_a_second_site_follows_and_never_votes() -> None:
    cluster = two_sites()
    cluster.propose("a", 3)
    cluster.pass_time(3.0)
    members = cluster["x"].live.members
    assert (members.voters, members.learners, members.standby) == (("a", "b", "c"), ("x", "y"), ("x", "y"))
    assert (cluster.states()["x"], cluster["x"].applied) == ("ready", cluster["a"].applied)
    cluster.promote("x")
    assert cluster["x"].ends(PromotionEnded)[-1].reason == "x is not a voting member of the cluster (a, b, c)"
    for address in "bc":
        cluster.crash(address)
    cluster.pass_time(2.0)
    assert cluster.states()["a"] == "joining", "two that follow are not a majority"


def test_sites_change_places_one_step_at_a_time_and_nothing_is_lost() -> None:
    cluster = two_sites()
    cluster.propose("a", 3)
    for address in "xy":
        assert ask(cluster, "a", address, Change.LET_VOTE).done
        assert address in cluster["a"].live.members.voters
        cluster.propose("a", 1)
    cluster.call("a", lambda replica: replica.transfer(cluster.now, "x"))
    cluster.pass_time(0.5)
    assert cluster.states()["x"] == "active"
    for address in "abc":
        assert ask(cluster, "x", address, Change.LOWER).done
        cluster.propose("x", 1)
    cluster.pass_time(0.5)
    assert cluster["x"].live.members == Membership.of("xy", "abc", "an-id", standby="abc")
    assert {node.applied for node in cluster.alive} == {cluster["x"].live.log.last_index}
    cluster.isolate("a")
    cluster.pass_time(2.0)
    assert cluster.states()["x"] == "active"


def lowered_at_the_end(*voters: str) -> Cluster:
    """The last of these becomes a learner. Only it has the batch that says so on its disk when the primary a fails."""
    cluster, last = led(*voters), voters[-1]
    cluster.call("a", lambda replica: replica.change_member(cluster.now, last, "", change=Change.LOWER), settle=False)
    cluster.wires = [wire for wire in cluster.wires if wire[1] == last]
    cluster.deliver()
    cluster[last].sync()
    cluster.crash("a")
    assert last in cluster[last].live.members.learners
    return cluster


def test_a_broker_that_became_a_learner_in_a_batch_that_only_it_has_may_still_be_elected() -> None:
    """It leads until the batch is committed. Breaks when nobody can be elected: it refuses the others, whose logs are older."""
    cluster = lowered_at_the_end("a", "b", "c", "d")
    cluster.promote("b")
    cluster.pass_time(3.0)
    assert "d refused: its log is newer" in cluster["b"].ends(PromotionEnded)[-1].reason
    cluster.promote("d")
    assert cluster["d"].ends(PromotionEnded)[-1] == PromotionEnded("promote d", False, "d is a learner now")
    assert cluster["d"].ends(TermEnded)[-1] == TermEnded("d is a learner now", planned=True)
    cluster.pass_time(3.0)
    assert cluster["d"].live.unfit == "d is not a voting member of the cluster (a, b, c)"
    cluster.promote("c")
    assert cluster["c"].ends(PromotionEnded)[-1].won
    assert cluster.states()["c"] == "active"


def test_a_promotion_that_insists_goes_by_way_of_a_broker_that_became_a_learner() -> None:
    """Of two brokers: both come back, and nothing is lost."""
    cluster = lowered_at_the_end("a", "b")
    cluster.restart("a")
    cluster.call("a", lambda replica: replica.promote(cluster.now, "promote a", insist=True))
    cluster.pass_time(5.0)
    assert cluster["a"].ends(PromotionEnded)[-1].won
    assert cluster["a"].live.members == Membership.of("a", "b", "an-id", standby="b")


def test_a_primary_that_becomes_a_learner_steps_down_when_that_is_committed() -> None:
    cluster = led("a", "b", "c")
    assert ask(cluster, "a", "a", Change.LOWER).done
    assert cluster["a"].ends(TermEnded)[-1] == TermEnded("a is a learner now", planned=True)
    cluster.pass_time(1.5)
    cluster.promote("b")
    cluster.pass_time(0.5)
    assert cluster.states() == {"a": "ready", "b": "active", "c": "ready"}


PAIR = Membership.of("abw", "xy", witness="w", standby="x")


@pytest.mark.parametrize(
    "change, address, text",
    [
        (Change.LET_VOTE, "y", r"y is not a learner that stays one \(x\)"),
        (Change.LET_VOTE, "a", r"a is not a learner that stays one \(x\)"),
        (Change.LOWER, "w", r"w is not a voting member that stores messages \(a, b\)"),
        (Change.LOWER, "x", "x is not a voting member"),
        (Change.ADD_STANDBY, "b", "b is a member already"),
    ],
)
def test_a_change_of_a_role_that_cannot_be_says_why(change: Change, address: str, text: str) -> None:
    with pytest.raises(BadMembership, match=text):
        PAIR.changed(change, address)


def test_who_stays_a_learner_is_known_after_every_other_change() -> None:
    assert Membership.from_dict(PAIR.to_dict()) == PAIR
    for change, address in (
        (Change.ADD, "z"),
        (Change.REMOVE, "b"),
        (Change.REMOVE, "w"),
        (Change.LOWER, "a"),
        (Change.REMOVE, "y"),
    ):
        assert "x" in PAIR.changed(change, address).standby
    assert PAIR.changed(Change.REMOVE, "x").standby == ()
    assert PAIR.with_voter("y").standby == ("x",)
    assert Membership.of("ab", "x", standby="x").with_witness("w").standby == ("x",)
    with pytest.raises(BadMembership, match="a is the last voting member that stores"):
        Membership.of("aw", witness="w").changed(Change.LOWER, "a")
    with pytest.raises(BadMembership, match="z stay learners, and not all are ones"):
        Membership.of("ab", standby="z")
    with pytest.raises(BadMembership, match="not a description"):
        Membership.from_dict(PAIR.to_dict() | {"standby": "x"})


def lost_site() -> Cluster:
    """x and y followed; of a, b and c nothing is left, and x has a batch that y lacks."""
    cluster = two_sites()
    cluster.isolate("y")
    cluster.propose("a", 2)
    for address in "abc":
        cluster.crash(address)
    cluster.connect("x", "y")
    cluster.pass_time(2.0)
    return cluster


def take_over(cluster: Cluster, address: str) -> PromotionEnded:
    """As an operator has it, with the id `new`."""
    node = cluster[address]
    node.disk.change_cluster("new")  # what the edge does first
    cluster.call(address, lambda replica: replica.take_over(cluster.now, "takeover", "new"), settle=False)
    cluster.settle_unchecked()  # its log matches nobody's any more
    return node.ends(PromotionEnded)[-1]


def test_a_broker_that_followed_begins_a_new_lineage_with_all_that_it_has() -> None:
    cluster = lost_site()
    had = cluster["x"].live.log.last_index
    assert take_over(cluster, "x").won
    cluster.propose("x", 1)
    x = cluster["x"].live
    assert (x.state, x.epoch, x.members) == ("active", 2, Membership.of("x", cluster_id="new"))
    assert cluster["x"].applied == had + 2
    cluster.crash("x")
    cluster.restart("x")
    cluster.promote("x")
    assert cluster.states()["x"] == "active", "it needs nobody's vote but its own"


def test_the_old_cluster_and_the_new_one_never_mix_when_the_lost_site_comes_back() -> None:
    """Neither a vote, nor a batch; whoever speaks first."""
    cluster = lost_site()
    take_over(cluster, "x")
    cluster.propose("x", 2)
    for address in "abc":
        cluster.restart(address)
    cluster.settle_unchecked()
    cluster.parts()
    cluster["a"].run(cluster["a"].live.promote(cluster.now, "back"))
    for _ in range(40):
        cluster.now += 0.05
        for node in cluster.alive:
            node.run(node.live.tick(cluster.now))
        cluster.settle_unchecked()
    assert cluster["a"].ends(PromotionEnded)[-1].won
    assert (cluster["x"].live.members.cluster_id, cluster["a"].live.members.cluster_id) == ("new", "an-id")
    assert {node.live.members.cluster_id for node in cluster.alive if node.address in "bcy"} == {"an-id"}
    assert cluster["x"].live.state == "active"


def test_a_crash_between_the_new_id_and_the_first_batch_leaves_a_broker_that_belongs_to_nobody() -> None:
    cluster = lost_site()
    cluster["x"].disk.change_cluster("new")
    cluster.crash("x")
    cluster.restart("x")
    cluster.restart("a")
    cluster.restart("b")
    cluster["a"].run(cluster["a"].live.promote(cluster.now, "back"))
    cluster.settle_unchecked()
    assert cluster["x"].live.state == "joining", "it follows its old primary no more"
    for address in "ab":
        cluster.crash(address)
    cluster.pass_time(2.0)
    cluster.parts()
    assert take_over(cluster, "x").won


def test_a_takeover_is_refused_where_an_election_would_do_or_nothing_is_there() -> None:
    cluster = two_sites()
    assert take_over(cluster, "x").reason == "a is the primary and serves: use qpid-ha switch-site or switchover"
    assert cluster["a"].live.obstacle_to_takeover(cluster.now).startswith("a is the primary")
    cluster.crash("a")
    cluster.crash("b")
    cluster.pass_time(2.0)
    assert "c votes in this cluster and is connected" in cluster["x"].live.obstacle_to_takeover(cluster.now)
    cluster.crash("c")
    assert cluster["x"].live.obstacle_to_takeover(cluster.now) == ""
    cluster.call("x", lambda replica: replica.halt(cluster.now, "it cannot apply its log"))
    assert cluster["x"].live.obstacle_to_takeover(cluster.now) == "it cannot apply its log"
    cluster.crash("y")
    cluster["y"].disk.floor = Position(1, 99)
    cluster.restart("y")
    assert "has lost a part: it once held epoch 1, index 99" in cluster["y"].live.obstacle_to_takeover(cluster.now)
    cluster.wipe("y")
    assert "is empty; use qpid-ha bootstrap" in cluster["y"].live.obstacle_to_takeover(cluster.now)
    pair = led("a", "b", "w", witness="w")
    pair.crash("a")
    pair.crash("b")
    assert pair["w"].live.obstacle_to_takeover(pair.now) == "w is a witness, and stores no messages"


GIVE_UP = "whose data is given up (compare the stores with qpid-ha store-info), and repeat this command"


def test_a_takeover_is_not_referred_to_an_election_that_cannot_be_won() -> None:
    """Breaks when takeover and failover refer to each other, and no command brings the service back."""
    cluster = led("a", "b", "c", "d", "e")
    for address in "de":
        cluster.crash(address)
    cluster.crash("a")
    cluster.pass_time(2.0)
    told = "c votes in this cluster and is connected, but 2 of 5 votes are no majority: if the others are lost for good, stop c"
    assert cluster["b"].live.obstacle_to_takeover(cluster.now) == f"{told} first, {GIVE_UP}"
    cluster.crash("c")
    assert take_over(cluster, "b").won


def test_a_learner_counts_for_no_majority_of_those_who_vote() -> None:
    """Two of three that vote can elect one of them; a second site's broker adds nothing to one of them."""
    cluster = two_sites()
    cluster.crash("a")
    cluster.pass_time(2.0)
    told = "b, c vote in this cluster and are connected: qpid-ha failover promotes a broker without a loss"
    assert cluster["x"].live.obstacle_to_takeover(cluster.now) == told
    cluster.crash("b")
    assert "c votes in this cluster and is connected, but 1 of 3 votes" in cluster["x"].live.obstacle_to_takeover(cluster.now)


def test_a_broker_beside_a_witness_that_refuses_it_may_take_over_without_the_witness() -> None:
    cluster = led("a", "b", "w", witness="w")
    cluster.crash("b")
    cluster.pass_time(1.5)
    cluster.propose("a", 2)
    cluster.crash("a")
    cluster.restart("b")
    cluster.pass_time(2.0)
    cluster.promote("b")
    cluster.pass_time(3.0)
    assert "w refused: it attests the log of a" in cluster["b"].ends(PromotionEnded)[-1].reason
    told = (
        "w votes in this cluster and is connected: qpid-ha failover promotes a broker without a loss; if w refuses, because it "
        f"attests the log of a broker that is lost for good, stop w first, {GIVE_UP}"
    )
    assert cluster["b"].live.obstacle_to_takeover(cluster.now) == told
    cluster.crash("w")
    cluster.parts()
    assert take_over(cluster, "b").won
