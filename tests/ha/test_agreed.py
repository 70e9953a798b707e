"""The cluster's settings at a broker: asked for, committed, told, and carried out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.core.commands import MachineVersion, Term
from ha.agreed import LATE_S, Agreed
from ha.core.cluster_settings import Tags
from ha.core.membership import Membership
from tests.broker.clients import Bench, bench

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
AT = "2027-01-15T08:01:00Z"


@dataclass
class Rig:
    """A primary and what it was told to do."""

    b: Bench
    now_s: float = NOW
    primary: str = "a:1"
    handed_over: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        members = Membership.of(["a:1", "b:1", "w:1"], ["c:1"], witness="w:1")
        self.agreed = Agreed(self.b.broker, lambda: members, lambda: self.primary, lambda: self.now_s, self.handed_over.append)

    def ask(self, **body: Any) -> list[tuple[int, str]]:
        """The answers so far."""
        answers: list[tuple[int, str]] = []
        self.agreed.ask(body).addCallback(lambda answer: answers.append(answer[:2]))
        self.b.settle()
        return answers


@pytest.fixture
def rig() -> Iterator[Rig]:
    with bench(clustered=True) as b:
        b.upgraded()
        yield Rig(b)


def test_a_setting_is_answered_when_it_is_committed_and_told_from_then_on(rig: Rig) -> None:
    rig.b.lead.automatic = False
    answers: list[Any] = []
    rig.agreed.ask({"setting": "authority", "kind": "etcd"}).addCallback(answers.append)
    rig.b.settle()
    assert (answers, rig.agreed.told()) == ([], {})
    rig.b.lead.commit()
    rig.b.settle()
    assert answers == [(200, "done", {"setting": "authority", "value": {"kind": "etcd"}})]
    assert rig.agreed.told() == {"authority": {"kind": "etcd"}}


def test_what_is_not_set_may_be_ended_again(rig: Rig) -> None:
    """Breaks when a script that resumes twice is told of an error."""
    assert rig.ask(setting="resume") == [(200, "done")]


@pytest.mark.parametrize(
    "body, status, said",
    [
        ({"setting": "colour"}, 400, "there is no setting 'colour'"),
        (
            {"setting": "tags", "address": "z:1", "tags": {"priority": 1}},
            409,
            "z:1 is not a member; the members are: a:1, b:1, w:1, c:1",
        ),
        ({"setting": "switchover", "at": AT, "candidate": "c:1"}, 409, "c:1 cannot take over: it has no vote"),
        ({"setting": "switchover", "at": AT, "candidate": "w:1"}, 409, "w:1 cannot take over"),
        ({"setting": "switchover", "at": AT, "candidate": "z:1"}, 409, "z:1 is not a member"),
    ],
)
def test_what_cannot_be_is_refused_and_not_proposed(rig: Rig, body: Any, status: int, said: str) -> None:
    ((found, text),) = rig.ask(**body)
    assert (found, text.startswith(said), rig.agreed.told()) == (status, True, {})


def test_tags_of_a_broker_that_is_gone_may_be_taken_off(rig: Rig) -> None:
    rig.b.broker.lead.change(_tags_of("z:1"), lambda reason: None)
    rig.b.settle()
    assert rig.ask(setting="tags", address="z:1", tags={}) == [(200, "done")]
    assert rig.agreed.told() == {}


def _tags_of(address: str) -> Any:
    from broker.core.commands import Setting

    return Setting(key=f"tags:{address}", value={"priority": 1})


def test_a_backup_sets_nothing_and_says_who_does() -> None:
    with bench(clustered=True, state="ready") as b:
        ((status, text),) = Rig(b).ask(setting="resume")
        assert status == 409
        assert text == "this broker is ready, and only the primary can change settings of the cluster: ask the primary, a:1"
        ((_, text),) = Rig(b, primary="").ask(setting="resume")
        assert text.endswith("settings of the cluster")


def test_a_cluster_that_is_not_all_upgraded_has_no_settings() -> None:
    """Breaks when a record is proposed that an older member stops at."""
    with bench(clustered=True) as b:
        b.broker.lead.change(MachineVersion(needs=3), lambda reason: None)
        b.settle()
        has = "the cluster has version 3 until all its brokers are connected and support a newer one"
        assert Rig(b).ask(setting="resume") == [(409, f"a setting needs machine version 4, and {has}")]


def test_a_request_that_outlives_the_term_is_answered(rig: Rig) -> None:
    """Breaks when the tool waits for an answer that never comes."""
    rig.b.lead.automatic = False
    answers: list[Any] = []
    rig.agreed.ask({"setting": "pause"}).addCallback(answers.append)
    rig.b.settle()
    rig.agreed.state_changed("active")
    assert answers == []
    rig.agreed.state_changed("ready")
    assert [status for status, _, _ in answers] == [503]


def test_tags_are_told_for_whoever_has_any(rig: Rig) -> None:
    rig.ask(setting="tags", address="b:1", tags={"site": "east", "nofailover": True})
    assert (rig.agreed.tags("b:1"), rig.agreed.tags("a:1")) == (Tags(0, nofailover=True, site="east"), Tags())


def test_a_manager_is_held_back_by_the_settings_and_by_the_history(rig: Rig) -> None:
    rig.b.broker.lead.change(Term(epoch=1, ts="2027-01-15T07:59:30Z", by="etcd"), lambda reason: None)
    rig.b.settle()
    assert rig.agreed.objection("builtin", "") == ""
    assert rig.agreed.objection("builtin", "a:1").startswith("a:1 serves, and 'etcd' made it so 30 s ago")
    rig.ask(setting="pause", reason="disks")
    assert "(disks)" in rig.agreed.objection("etcd", "")


@pytest.mark.parametrize("late_s, handed_over", [(0.0, ["b:1"]), (LATE_S - 1, ["b:1"]), (LATE_S + 1, [])])
def test_a_planned_switchover_happens_once_at_its_time_and_not_long_after(
    rig: Rig, late_s: float, handed_over: list[str]
) -> None:
    rig.ask(setting="switchover", at=AT, candidate="b:1")
    rig.now_s += 59.9
    rig.agreed.tick()
    rig.b.settle()
    assert rig.handed_over == []
    rig.now_s = NOW + 60 + late_s
    for _ in range(3):
        rig.agreed.tick()
    rig.b.settle()
    rig.agreed.tick()
    assert (rig.handed_over, rig.agreed.told()) == (handed_over, {})


def test_a_plan_that_cannot_be_read_is_dropped(rig: Rig) -> None:
    from broker.core.commands import Setting

    rig.b.broker.lead.change(Setting(key="switchover", value={"at": "soon"}), lambda reason: None)
    rig.b.settle()
    rig.agreed.tick()
    rig.b.settle()
    assert (rig.handed_over, rig.agreed.told()) == ([], {})


@pytest.mark.parametrize("later_s, cancelled", [(30.0, False), (6 * 3600.0, False), (30.0, True)])
def test_a_plan_whose_removal_waited_for_the_disk_is_carried_out_in_its_minute_only(
    rig: Rig, later_s: float, cancelled: bool
) -> None:
    """Breaks when a switchover happens hours after its time, or after it was cancelled."""
    rig.ask(setting="switchover", at=AT, candidate="b:1")
    rig.b.lead.automatic = False
    rig.now_s = NOW + 60.1
    rig.agreed.tick()
    rig.now_s = NOW + 60 + later_s
    rig.agreed.tick()
    answers: list[Any] = []
    if cancelled:
        rig.agreed.ask({"setting": "switchover", "at": ""}).addCallback(answers.append)
    for _ in range(2):
        rig.b.settle()
        rig.b.lead.commit()
        rig.agreed.tick()
    rig.b.settle()
    assert [status for status, *_ in answers] == [200] * cancelled
    assert rig.handed_over == ["b:1"] * (later_s < LATE_S and not cancelled)
    assert rig.agreed.told() == {}


@pytest.mark.parametrize("replaced_by", ["2027-01-15T09:00:00Z", ""])
def test_a_plan_that_is_replaced_or_cancelled_just_before_its_time_is_not_carried_out_and_the_new_one_stays(
    rig: Rig, replaced_by: str
) -> None:
    """Breaks when the removal of the plan that is due comes behind its replacement in the log: it takes out the new plan, and
    the switchover happens at the time of the old one."""
    rig.ask(setting="switchover", at=AT)
    rig.b.lead.automatic = False
    answers: list[Any] = []
    rig.now_s = NOW + 59
    rig.agreed.ask({"setting": "switchover", "at": replaced_by}).addCallback(answers.append)
    rig.b.settle()
    rig.now_s = NOW + 61
    for _ in range(2):
        rig.agreed.tick()
        rig.b.settle()
        rig.b.lead.commit()
        rig.b.settle()
    assert [status for status, *_ in answers] == [200]
    assert {key: value["at"] for key, value in rig.agreed.told().items()} == ({"switchover": replaced_by} if replaced_by else {})
    assert rig.handed_over == []
    rig.b.lead.automatic = True
    rig.now_s = NOW + 3600
    rig.agreed.tick()
    rig.b.settle()
    assert (rig.handed_over, rig.agreed.told()) == ([""] if replaced_by else [], {})


def test_a_plan_whose_replacement_is_not_committed_in_this_term_is_carried_out_in_the_next_one(rig: Rig) -> None:
    """Its requester is told that the primary has changed."""
    rig.ask(setting="switchover", at=AT)
    rig.b.lead.automatic = False
    rig.now_s = NOW + 59
    rig.agreed.ask({"setting": "switchover", "at": "2027-01-15T09:00:00Z"})
    rig.now_s = NOW + 61
    rig.agreed.tick()
    rig.b.lead.automatic = True
    for state in ("ready", "active"):
        rig.b.lead.become(state)
        rig.agreed.state_changed(state)
    rig.b.settle()
    rig.agreed.tick()
    rig.b.settle()
    assert (rig.handed_over, rig.agreed.told()) == ([""], {})
