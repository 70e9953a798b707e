"""The OCF agent: what it tells Pacemaker, and what it does to a broker, with stand-ins for the programs that it calls."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resource_manager.ocf import qpidd
from resource_manager.ocf.qpidd import (
    ERR_CONFIGURED,
    ERR_GENERIC,
    ERR_INSTALLED,
    ERR_UNIMPLEMENTED,
    FAILED_PROMOTED,
    NOT_RUNNING,
    RUNNING_PROMOTED,
    SUCCESS,
)
from tests.resource_manager.ocf.stand_in import Machine, view
from tests.system.harness import eventually


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", made.environ["PATH"])
    yield made
    made.end()


def act(machine: Machine, action: str, **more: str) -> int:
    """One action, as Pacemaker asks for it."""
    return qpidd.main([action], machine.environ | {f"OCF_RESKEY_{name}": value for name, value in more.items()})


def started(machine: Machine, status: str = "ready", **more: Any) -> None:
    """The broker runs, and says this."""
    machine.answers(view(status, **more))
    assert act(machine, "start") == SUCCESS


def test_the_meta_data_are_what_pacemaker_needs_of_a_promotable_agent() -> None:
    """Breaks when a monitor of one role would replace that of the other: Pacemaker tells them apart by their intervals."""
    root = ET.fromstring(qpidd.meta_data())
    assert (root.tag, root.get("name"), root.findtext("version")) == ("resource-agent", "qpidd", "1.1")
    actions = [action.attrib for action in root.iter("action")]
    assert {action["name"] for action in actions} == {
        "start",
        "stop",
        "promote",
        "demote",
        "monitor",
        "notify",
        "meta-data",
        "validate-all",
    }
    monitors = {action["role"]: action["interval"] for action in actions if action["name"] == "monitor"}
    assert set(monitors) == {"Promoted", "Unpromoted"}
    assert len(set(monitors.values())) == 2
    assert [name.get("name") for name in root.iter("parameter")] == list(qpidd.PARAMETERS)


@pytest.mark.parametrize(
    "mine, others, expected",
    [
        (view("active"), [], "1000"),
        (view("recovering"), [], "1000"),
        (view("ready"), [], "900"),
        (view("catchup"), [], "100"),
        (view("joining"), [], "500"),
        (view("joining"), [view("joining"), view("joining", lastIndex=51)], "490"),
        (
            view("joining"),
            [view("joining", lastEpoch=4, lastIndex=1), view("joining", lastIndex=99), {"error": "refused"}],
            "480",
        ),
        (view("joining", lastEpoch=0, lastIndex=0), [view("joining")] * 99, "10"),
        (view("ready", stopped="an unknown record"), [], qpidd.NEVER),
        (view("ready", members=[{"address": "n1:5672", "role": "learner"}]), [], qpidd.NEVER),
        (view("joining", members=[]), [], qpidd.NEVER),
        (view("ready", settings={"pause": {"since": "then"}}), [], qpidd.NEVER),
        (view("active", settings={"pause": {"since": "then"}}), [], "1000"),
        (view("ready", settings={"authority": {"kind": "etcd"}}), [], qpidd.NEVER),
        (view("active", settings={"authority": {"kind": "etcd"}}), [], "1000"),
        (view("ready", settings={"authority": {"kind": "pacemaker"}}), [], "900"),
        (view("ready", settings={"tags:n1:5672": {"nofailover": True}, "tags:n2:5672": {}}), [], qpidd.NEVER),
        (view("ready", settings={"tags:n2:5672": {"nofailover": True}}), [], "900"),
    ],
)
def test_the_score_says_who_would_be_the_better_primary(mine: Any, others: Any, expected: str) -> None:
    """Breaks when a healthy primary could score below a backup, or a broker that must not lead could be chosen."""
    assert qpidd.score(mine, others) == expected


def test_the_best_successor_comes_first_and_only_who_can_be_reached_and_votes() -> None:
    primary = view("active")
    assert qpidd.successors(primary) == ["n3:5672", "n2:5672"]
    primary["members"][1]["connected"] = False
    primary["members"][2]["role"] = "learner"
    assert qpidd.successors(primary) == []


@pytest.mark.parametrize(
    "broker, brokers_url, expected",
    [
        ("localhost:5672", "amqp:n1,n2", "n2:5672"),
        ("ops@localhost", "amqp:n1,n2", "ops@n2:5672"),
        ("amqps:ops@n1:5671", "amqps:n1:5671,n2:5671", "amqps:ops@n2:5672"),
    ],
)
def test_another_member_is_asked_as_this_one_is(broker: str, brokers_url: str, expected: str) -> None:
    """Breaks when a switchover asks without the user, or in the clear."""
    assert qpidd.at("n2:5672", {"brokersUrl": brokers_url}, broker) == expected


def test_a_broker_is_started_watched_promoted_demoted_and_stopped(machine: Machine) -> None:
    """The life of a resource, as the broker itself tells it."""
    assert act(machine, "monitor") == NOT_RUNNING
    started(machine, "joining")
    assert act(machine, "monitor") == SUCCESS
    assert act(machine, "start") == SUCCESS
    assert len(machine.calls("qpidd ")) == 1, "it runs already"
    assert f"--config {machine.folder}/qpidd.conf" in machine.calls("qpidd ")[0]
    machine.says(f"promote.{machine.broker}", "", then=machine.turns(view("active")))
    assert act(machine, "promote") == SUCCESS
    assert act(machine, "monitor") == RUNNING_PROMOTED
    assert act(machine, "promote") == SUCCESS
    assert len(machine.calls("qpid-ha promote")) == 1, "it is the primary already"
    machine.says("promote.n3:5672", "", then=machine.turns(view("ready")))
    assert act(machine, "demote") == SUCCESS
    assert act(machine, "monitor") == SUCCESS
    assert act(machine, "demote") == SUCCESS
    assert len(machine.calls("qpid-ha promote")) == 2, "it is a backup already"
    pid = machine.pid()
    assert act(machine, "stop") == SUCCESS
    assert not machine.pid_file.exists()
    os.waitpid(pid, 0)
    assert act(machine, "monitor") == NOT_RUNNING
    assert act(machine, "stop") == SUCCESS


def test_the_score_is_written_only_when_it_changes_and_goes_with_the_broker(machine: Machine) -> None:
    """Each writing of an attribute has Pacemaker decide anew."""
    started(machine, "joining")
    for _ in range(3):
        act(machine, "monitor")
    machine.answers(view("ready"))
    for _ in range(3):
        act(machine, "monitor")
    assert machine.calls("score ") == ["score 500", "score 900"]
    act(machine, "stop")
    assert not (machine.folder / "score").exists()


def test_what_others_hold_is_asked_only_when_there_is_no_primary(machine: Machine) -> None:
    """It takes time, above all when they are away."""
    machine.says("query-all", '[{"lastEpoch": 9, "lastIndex": 1}, {"lastEpoch": 9, "lastIndex": 2}]')
    started(machine, "joining")
    assert machine.calls("score ") == ["score 480"]
    machine.answers(view("ready"))
    before = len(machine.calls("qpid-ha"))
    act(machine, "monitor")
    assert len(machine.calls("qpid-ha")) == before + 1


def test_without_pacemaker_around_actions_succeed_and_say_that_no_score_was_written(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    (machine.bin / "crm_attribute").unlink()
    started(machine)
    assert "WARNING: the promotion score 900 was not written: crm_attribute: No such file or directory" in capfd.readouterr().err


@pytest.mark.parametrize(
    "action, expected",
    [("start", SUCCESS), ("monitor", RUNNING_PROMOTED), ("promote", SUCCESS), ("demote", SUCCESS), ("stop", SUCCESS)],
)
def test_pacemakers_attributes_that_hang_take_no_action_more_than_its_time(machine: Machine, action: str, expected: int) -> None:
    """Breaks when the monitor of a healthy primary times out, so that Pacemaker recovers the primary."""
    started(machine, "active")
    machine.says("promote.n3:5672", "", then=machine.turns(view("ready")))
    pid = machine.pid()
    (machine.bin / "crm_attribute").write_text("#!/bin/sh\nexec sleep 30\n")
    began = time.monotonic()
    assert act(machine, action, CRM_meta_notify_promote_uname="n2") == expected
    assert time.monotonic() - began < 4
    if action == "stop":
        assert os.waitpid(pid, 0)[1] == signal.SIGTERM, "there was time left to stop it"


def test_a_score_for_which_no_time_is_left_is_not_asked_for(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    started(machine, "joining")
    (machine.folder / "score").unlink()
    machine.says(f"query.{machine.broker}", json.dumps(view("joining")), then="sleep 1.1\n")
    assert act(machine, "monitor", CRM_meta_timeout="1000") == SUCCESS
    assert "WARNING: the promotion score 500 was not written: this action has no more time" in capfd.readouterr().err
    assert len([call for call in machine.calls("qpid-ha query") if "--all" in call]) == 1, "at the start"


@pytest.mark.parametrize("role, expected", [("Promoted", FAILED_PROMOTED), ("Master", FAILED_PROMOTED), ("Started", ERR_GENERIC)])
def test_a_broker_that_does_not_answer_has_failed_when_the_actions_time_is_over(
    machine: Machine, role: str, expected: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Breaks when a broker that is only slow is taken for failed at its first late answer."""
    started(machine, "active")
    machine.is_silent()
    began = time.monotonic()
    assert act(machine, "monitor", CRM_meta_role=role) == expected
    assert time.monotonic() - began >= 2
    assert len(machine.calls("qpid-ha query")) > 3
    assert "ocf-exit-reason:the broker does not answer at localhost:5672" in capfd.readouterr().err


def test_a_process_that_got_the_number_of_a_dead_broker_is_not_the_broker(machine: Machine) -> None:
    """It would be killed for it."""
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            machine.pid_file.parent.mkdir()
            machine.pid_file.write_text(f"{other.pid} 12345\n")
            machine.answers(view("active"))
            assert act(machine, "monitor") == NOT_RUNNING
            assert act(machine, "stop") == SUCCESS
            assert other.poll() is None
        finally:
            other.kill()
    machine.pid_file.write_text("no number\n")
    assert act(machine, "monitor") == NOT_RUNNING


def test_a_broker_that_does_not_come_up_is_told_with_its_last_words(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    (machine.folder / "dies").touch()
    assert act(machine, "start") == ERR_GENERIC
    assert "ocf-exit-reason:qpidd has ended: qpidd: the store is in use" in capfd.readouterr().err


def test_a_broker_that_ended_does_not_count_as_started_although_another_one_answers_at_its_address(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    """Breaks when Pacemaker takes a broker that was started by hand, and has the port, for the one of this resource."""
    (machine.folder / "dies").touch()
    ended = f'p=$(cut -d" " -f1 {machine.pid_file})\nwhile [ -e /proc/$p ] && ! grep -q "^State:.Z" /proc/$p/status; do :; done\n'
    machine.says(f"query.{machine.broker}", json.dumps(view("active")), then=ended)
    assert act(machine, "start") == ERR_GENERIC
    assert "ocf-exit-reason:qpidd has ended: qpidd: the store is in use" in capfd.readouterr().err


def test_no_broker_is_started_where_another_one_answers_already(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    """It answers before ours has failed to listen there. Breaks when `start` succeeds, and the next monitor finds nothing."""
    (machine.folder / "foreign").touch()
    machine.answers(view("active"))
    assert act(machine, "start") == ERR_GENERIC
    assert "another broker than this resource's answers at localhost:5672: stop it" in capfd.readouterr().err
    assert machine.calls("qpidd ") == []
    (machine.folder / "foreign").unlink()
    assert act(machine, "start") == SUCCESS
    (machine.folder / "foreign").touch()
    assert act(machine, "start") == SUCCESS, "it is the one that runs"


def test_a_broker_that_runs_and_never_answers_does_not_count_as_started(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert act(machine, "start") == ERR_GENERIC
    assert "the broker does not answer at localhost:5672" in capfd.readouterr().err
    assert act(machine, "stop") == SUCCESS


def test_a_broker_outside_a_cluster_is_refused_on_every_node(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    """It would be a primary of its own on each."""
    machine.answers(view("standalone"))
    assert act(machine, "start") == ERR_CONFIGURED
    assert "lacks ha-cluster=yes" in capfd.readouterr().err


def test_a_broker_that_cannot_be_stopped_in_time_is_killed(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    """Pacemaker would fence the node for a stop that fails."""
    (machine.folder / "deaf").touch()
    started(machine)
    pid = machine.pid()
    assert act(machine, "stop") == SUCCESS
    assert f"killed (process {pid})" in capfd.readouterr().err
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9


def test_a_refused_promotion_is_told_with_the_brokers_own_reason(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    started(machine)
    machine.says(f"promote.{machine.broker}", "qpid-ha: n2 is not connected; n3 is not connected\n", 1)
    assert act(machine, "promote") == ERR_GENERIC
    assert "ocf-exit-reason:not promoted: qpid-ha: n2 is not connected; n3 is not connected" in capfd.readouterr().err


AGREED = {"authority": {"kind": "pacemaker"}}


@pytest.mark.parametrize(
    "primary, settings, words",
    [
        ("", {}, "--manager pacemaker"),
        ("n2:5672", {}, ""),
        ("n2:5672", {"authority": {"kind": "etcd"}}, ""),
        ("n2:5672", AGREED, "--manager pacemaker"),
        ("n2:5672", AGREED | {"pause": {}}, ""),
    ],
)
def test_a_failover_is_pacemakers_and_a_move_an_administrators(
    machine: Machine, primary: str, settings: dict[str, Any], words: str
) -> None:
    """A pause, or the authority of another manager, holds for the first alone. Where the cluster agrees on Pacemaker, the history
    shows that it has moved the primary."""
    started(machine, "joining", primary=primary, settings=settings)
    machine.says(f"promote.{machine.broker}", "")
    assert act(machine, "promote") == SUCCESS
    (call,) = machine.calls("qpid-ha promote")
    assert call.partition(" -t ")[2].partition(" ")[2] == words


def test_demote_asks_the_next_one_when_the_best_will_not(machine: Machine) -> None:
    started(machine, "active")
    machine.says("promote.n3:5672", "qpid-ha: no\n", 1)
    machine.says("promote.n2:5672", "", then=machine.turns(view("ready")))
    assert act(machine, "demote") == SUCCESS
    assert [call.split()[3] for call in machine.calls("qpid-ha promote")] == ["n3:5672", "n2:5672"]


@pytest.mark.parametrize("node, asked", [("n2", "n2:5672"), ("n3", "n3:5672"), ("unknown", "n3:5672"), ("n2 n3", "n3:5672")])
def test_demote_hands_over_to_the_broker_that_pacemaker_promotes_next(machine: Machine, node: str, asked: str) -> None:
    """Breaks when a third one becomes the primary in between: its monitor would find it promoted, and have it recovered."""
    for name in ("n2", "n3"):
        (machine.folder / f"attribute.{name}").write_text(f"{name}:5672\n")
        machine.says(f"promote.{name}:5672", "", then=machine.turns(view("ready")))
    started(machine, "active")
    assert (machine.folder / "attribute.here").read_text() == "n1:5672\n"
    assert act(machine, "notify") == SUCCESS
    assert act(machine, "demote", CRM_meta_notify_promote_uname=f"{node} ") == SUCCESS
    assert [call.split()[3] for call in machine.calls("qpid-ha promote")] == [asked]
    assert machine.calls("score ") == ["score 1000"], "another score would have Pacemaker decide anew before it promotes"


@pytest.mark.parametrize("connected, reason", [(True, "qpid-ha: n3 no; qpid-ha: n2 no"), (False, "no other voting member")])
def test_a_primary_that_nobody_can_replace_goes_on(
    machine: Machine, connected: bool, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A demote stops nothing: what becomes of it is for Pacemaker, and its administrator, to decide."""
    alone = view("active")
    for member in alone["members"][1:]:
        member["connected"] = connected
    machine.answers(alone)
    assert act(machine, "start") == SUCCESS
    for name in ("n2", "n3"):
        machine.says(f"promote.{name}:5672", f"qpid-ha: {name} no\n", 1)
    assert act(machine, "demote") == ERR_GENERIC
    assert reason in capfd.readouterr().err
    assert act(machine, "monitor") == RUNNING_PROMOTED


@pytest.mark.parametrize("action", ["promote", "demote"])
def test_a_broker_that_does_not_run_is_neither_promoted_nor_demoted(machine: Machine, action: str) -> None:
    assert act(machine, action) == NOT_RUNNING


IDENTITY = "sh -c 'id -u; id -g; id -G; exec sleep 1000' --"
"""A broker that logs who it is."""


def test_a_broker_runs_as_its_user_with_the_groups_of_that_user_alone(machine: Machine) -> None:
    """Breaks when it keeps root's group and those of Pacemaker, or lacks its own, which may read the key of its certificate."""
    name = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    who = pwd.getpwnam(name)
    before = os.getgroups()
    if os.geteuid() == 0:
        os.setgroups([0, 4, 6])
    try:
        assert act(machine, "start", qpidd=IDENTITY, user=name) == ERR_GENERIC, "nothing answers there"
    finally:
        if os.geteuid() == 0:
            os.setgroups(before)
    log = machine.pid_file.with_suffix(".log")
    said = log.read_text().splitlines()
    assert said[:2] == [str(who.pw_uid), str(who.pw_gid)]
    assert {*map(int, said[2].split())} == {*os.getgrouplist(name, who.pw_gid)}
    assert (log.stat().st_uid, log.stat().st_gid) == (who.pw_uid, who.pw_gid)
    assert act(machine, "stop") == SUCCESS


def test_a_log_that_is_a_link_is_not_given_to_the_user(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    """Breaks when whoever owns the folder of the log gets any file of root's at the next start."""
    name = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    other, log = machine.folder / "shadow", machine.folder / "log"
    other.write_text("secret\n")
    log.symlink_to(other)
    assert act(machine, "start", qpidd=IDENTITY, user=name, log=str(log)) == ERR_CONFIGURED
    assert f"{log} is a symbolic link: name the file itself (parameter log)" in capfd.readouterr().err
    assert (other.stat().st_uid, other.read_text()) == (os.geteuid(), "secret\n")
    assert act(machine, "start", qpidd=IDENTITY, user=name, log=str(machine.folder / "no" / "log")) == ERR_GENERIC


@pytest.mark.parametrize(
    "given, code, reason",
    [
        ({"user": "no-such-user"}, ERR_INSTALLED, "there is no user no-such-user on this node (parameter user)"),
        ({"qpidd": "no-such-qpidd"}, ERR_INSTALLED, "no-such-qpidd is not installed (parameter qpidd)"),
        ({"qpid_ha": "no-such-tool --x"}, ERR_INSTALLED, "no-such-tool is not installed (parameter qpid_ha)"),
        ({"config": "/no/such/file"}, ERR_INSTALLED, "/no/such/file cannot be read (parameter config)"),
        ({"ha_config": "/no/such/file"}, ERR_INSTALLED, "/no/such/file cannot be read (parameter ha_config)"),
        ({"broker": "n1:5672,n2:5672"}, ERR_CONFIGURED, "is not the one address of this node's broker"),
        ({"options": "--x 'open"}, ERR_CONFIGURED, "parameter options: No closing quotation"),
        ({}, SUCCESS, ""),
    ],
)
def test_parameters_are_judged_in_one_line(
    machine: Machine, given: dict[str, str], code: int, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert act(machine, "validate-all", **given) == code
    said = capfd.readouterr().err
    assert said.count("\n") == bool(reason)
    assert reason in said


def test_a_probe_needs_no_program_to_see_that_nothing_runs(machine: Machine) -> None:
    """On a node where the broker is not installed, or whose disk is not mounted yet."""
    assert act(machine, "monitor", qpidd="no-such-qpidd", config="/no/such/file", CRM_meta_interval="0") == NOT_RUNNING


@pytest.mark.parametrize("words", [[], ["reload"], ["migrate_to"], ["monitor", "twice"]])
def test_an_action_that_is_not_built_is_said_to_be_so(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert qpidd.main(words, {}) == ERR_UNIMPLEMENTED
    assert "usage: qpidd start|stop" in capfd.readouterr().err


def test_the_agent_is_one_file_that_any_python_runs() -> None:
    """As Pacemaker does, without our packages."""
    ran = subprocess.run(
        [qpidd.__file__, "meta-data"], capture_output=True, text=True, check=True, env={"PATH": os.defpath}, cwd="/"
    )
    assert ran.stdout.strip() == qpidd.meta_data()


def test_a_frozen_broker_is_ended_by_stop(machine: Machine) -> None:
    """SIGTERM alone would wait for a process that stands still."""
    started(machine)
    pid = machine.pid()
    os.kill(pid, 19)
    eventually(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2], lambda state: state == "T", "it stands still")
    assert act(machine, "stop") == SUCCESS
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -15
