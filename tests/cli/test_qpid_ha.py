"""`qpid-ha` as an operator and his scripts use it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import pytest

from cli.commands.ha_operations import staleness
from cli.options import NO_REPLICATION
from ha.core.membership import BadMembership, Membership
from tests.cli.running import Forked, run

PRIMARY = {
    "status": "active",
    "brokerId": "6e1f",
    "brokersUrl": "",
    "publicUrl": "amqp:vip",
    "replicateDefault": "all",
    "epoch": 4,
    "lastIndex": 120,
    "commitIndex": 119,
    "members": [
        {
            "address": "a:1",
            "role": "voter",
            "connected": True,
            "ackedIndex": 118,
            "lagRecords": 2,
            "lagBytes": 900,
            "lagMs": 3.2,
            "state": "ready",
        }
    ],
    "store": {"segments": 2, "bytes": 4096, "checkpointIndex": 7},
}
READY = {"status": "ready", "epoch": 4, "lastIndex": 118, "primary": "a:1"}
NOWHERE = "127.0.0.1:1"


@contextmanager
def watching(address: str) -> Iterator[Iterator[Any]]:
    """The tables that `list --watch` prints."""
    ours, theirs = os.pipe()
    with os.fdopen(ours) as said, open(os.devnull, "wb") as nothing:
        words = ["list", "--watch", "--interval", "0.1", "-b", address, "--format", "json"]
        forked = Forked("cli.commands.qpid_ha", "qpid-ha", words, theirs, nothing.fileno())
        os.close(theirs)
        try:
            yield map(json.loads, iter(lambda: "".join(takewhile(lambda line: line != "}\n", said)) + "}", "}"))
        finally:
            forked.send_signal(signal.SIGINT)
            assert forked.wait() == 130


@pytest.fixture(scope="module")
def primary(peers: Any) -> Any:
    return peers(
        ha=PRIMARY,
        items={"history": [{"ts": "2026-01-02T03:04:05Z", "epoch": 4, "primary": "a:1", "reason": "start", "gap_ms": -1}]},
    )


@pytest.fixture(scope="module")
def backup(peers: Any) -> Any:
    return peers(ha=READY, refuse=True)


def test_ping_says_nothing_and_ends_well(primary: Any) -> None:
    assert run("qpid-ha", "ping", "-b", primary.name) == run("qpid-ha", "ping", "--broker", primary.name)
    assert run("qpid-ha", "ping", "-b", primary.name).status == 0


def test_without_a_broker_the_exit_code_is_3_and_the_line_says_why() -> None:
    ran = run("qpid-ha", "ping", "-b", NOWHERE)
    assert (ran.status, ran.out, ran.err) == (3, "", "qpid-ha: 127.0.0.1:1: connection refused\n")


def test_options_may_stand_before_the_command_as_in_the_original(backup: Any) -> None:
    after = run("qpid-ha", "status", "-b", backup.name, "--expect", "active")
    before = run("qpid-ha", "-b", backup.name, "--expect", "active", "status")
    assert (before.status, before.err) == (after.status, after.err) == (1, "qpid-ha: the broker is ready, not active\n")
    nothing = run("qpid-ha", "-b", backup.name)
    assert nothing.status == 2
    assert nothing.err.startswith("qpid-ha: name a command: add-broker, ")


@pytest.mark.parametrize("words", [["--nosuch"], ["-b", "a:1", "--nosuch=5"], ["-t5", "-Z"], ["--nosuch", "status"]])
def test_an_option_that_no_command_has_is_named_without_a_command_too(words: list[str]) -> None:
    ran = run("qpid-ha", *words)
    name = next(word for word in words if word.startswith(("--nosuch", "-Z"))).partition("=")[0]
    assert (ran.status, ran.err) == (2, f"qpid-ha: No such option {name!r}. (see qpid-ha --help)\n")


def test_without_a_word_the_help_is_shown_as_it_is() -> None:
    ran = run("qpid-ha")
    assert (ran.status, ran.err) == (2, "")
    assert ran.out.startswith("Usage: qpid-ha [OPTIONS] COMMAND [ARGS]...\n\n")


def test_status_is_one_word(primary: Any, backup: Any) -> None:
    assert (run("qpid-ha", "status", "-b", primary.name).out, run("qpid-ha", "status", "-b", backup.name).out) == (
        "active\n",
        "ready\n",
    )


@pytest.mark.parametrize("options, code", [(["--expect", "ready"], 0), (["--expect", "active"], 1), (["--is-primary"], 1)])
def test_what_is_expected_decides_the_exit_code(backup: Any, options: list[str], code: int) -> None:
    """Breaks when a health check is told that all is well whatever the broker says."""
    assert run("qpid-ha", "status", "-b", backup.name, *options).status == code


def test_the_primary_is_primary(primary: Any) -> None:
    assert run("qpid-ha", "status", "-b", primary.name, "--is-primary").status == 0


def test_status_of_all_names_each_and_what_is_wrong(primary: Any, backup: Any) -> None:
    ran = run("qpid-ha", "status", "-b", f"{primary.name},{backup.name},{NOWHERE}", "--all")
    assert ran.out.splitlines() == [f"{primary.name} active", f"{backup.name} ready", f"{NOWHERE} connection refused"]
    assert ran.status == 3


def test_one_broker_tells_who_all_are(peers: Any, backup: Any) -> None:
    knowing = peers(ha=PRIMARY | {"brokersUrl": f"amqp:{backup.name}"})
    assert run("qpid-ha", "status", "-b", knowing.name, "--all").out == f"{backup.name} ready\n"


def test_members_that_no_given_address_names_are_asked_too(peers: Any) -> None:
    """Breaks when a script stops the next broker while a voter, which was added later, is down."""
    third = peers(ha=READY | {"lastIndex": 119})
    backup = peers(ha=READY | {"address": "b:1"})
    members = [{"address": third.name, "role": "voter", "lagRecords": 1}]
    primary = peers(ha=PRIMARY | {"brokersUrl": f"amqp:@me,b:1,{third.name},{NOWHERE}", "members": members})
    given = f"{backup.name},{primary.name}"
    ran = run("qpid-ha", "status", "--all", "-b", given)
    lines = ["b:1 ready", f"{primary.name} active", f"{third.name} ready", f"{NOWHERE} connection refused"]
    assert (ran.status, ran.out.splitlines()) == (3, lines), "b:1 is the address that the first calls its own"
    told = json.loads(run("qpid-ha", "list", "-b", given, "--format", "json").out)["members"]
    assert [(each["member"], each["role"]) for each in told][2:] == [(third.name, "voter"), (NOWHERE, "")]
    assert run("qpid-ha", "switchover", "-b", given, "--candidate", third.name).out.split()[0] == third.name


def test_a_primary_that_no_given_address_names_is_found_where_a_backup_knows_it(peers: Any) -> None:
    primary = peers(ha=PRIMARY)
    backup = peers(ha=READY | {"primary": primary.name, "brokersUrl": f"amqp:@me,{primary.name}"})
    lost = peers(ha={"status": "joining", "epoch": 9, "primary": "", "brokersUrl": f"amqp:{NOWHERE}"})
    assert run("qpid-ha", "pause", "-b", f"{backup.name},{lost.name}").status == 0
    assert run("qpid-ha", "status", "--all", "-b", f"{lost.name},{lost.name.replace('127.0.0.1', 'localhost')}").status == 0


def test_of_several_addresses_the_primary_answers(primary: Any, backup: Any) -> None:
    assert run("qpid-ha", "status", "-b", f"{backup.name},{primary.name}").out == "active\n"


def test_query_prints_what_the_original_prints_and_the_lag(primary: Any) -> None:
    lines = run("qpid-ha", "query", "-b", primary.name).out.splitlines()
    assert [line.split(":")[0] for line in lines[:5]] == ["Status", "Broker ID", "Brokers URL", "Public URL", "Replicate"]
    assert lines[0] == "Status:              active"
    assert "Lag:" in lines
    assert lines[-1].split() == ["a:1", "voter", "ready", "yes", "118", "2", "900", "3"]


def test_query_says_why_a_broker_applies_or_writes_nothing(peers: Any) -> None:
    """Breaks when an operator has to find the reason in a log."""
    full = peers(ha=READY | {"stopped": "", "disk": "no room; producers wait"})
    halted = peers(ha=READY | {"stopped": "version 9 is not known here", "disk": ""})
    assert run("qpid-ha", "query", "-b", full.name).out.splitlines()[-1] == "Disk:                no room; producers wait"
    assert run("qpid-ha", "query", "-b", halted.name).out.splitlines()[-1] == "Stopped:             version 9 is not known here"


def test_query_says_with_which_member_there_is_no_link_and_why(peers: Any) -> None:
    """Breaks when several links are refused, and their lines are the same."""
    member = {"address": "c:3", "role": "voter", "refused": 'it answered "a:1 belongs to cluster 1" (amqp:not-allowed)'}
    foreign = peers(ha=READY | {"members": [member]})
    line = 'No link:             c:3: it answered "a:1 belongs to cluster 1" (amqp:not-allowed)'
    assert run("qpid-ha", "query", "-b", foreign.name).out.splitlines()[-1] == line


def test_query_says_which_linked_member_cannot_catch_up_and_why(peers: Any) -> None:
    member = {"address": "c:3", "role": "voter", "connected": True, "refused": "it runs release 0.1: upgrade c:3"}
    older = peers(ha=READY | {"members": [member]})
    line = "Cannot catch up:     c:3: it runs release 0.1: upgrade c:3"
    assert run("qpid-ha", "query", "-b", older.name).out.splitlines()[-1] == line


def test_a_backup_that_applies_nothing_is_not_passed_off_as_ready(peers: Any) -> None:
    """Breaks when the last upgraded broker is restarted though no other one could take over."""
    why = "version 9 is not known here"
    backup = peers(ha=READY | {"stopped": why})
    told = f"has stopped applying the log and cannot take over: {why}"
    ran = run("qpid-ha", "status", "-b", backup.name)
    assert (ran.status, ran.out, ran.err) == (0, "ready\n", f"qpid-ha: {told}\n")
    ran = run("qpid-ha", "status", "-b", backup.name, "--expect", "ready")
    assert (ran.status, ran.err) == (1, f"qpid-ha: the broker is ready, but {told}\n")
    ran = run("qpid-ha", "status", "-b", backup.name, "--all")
    assert (ran.status, ran.out, ran.err) == (0, f"{backup.name} ready\n", f"qpid-ha: {backup.name} {told}\n")
    assert f"{backup.name} {told}" in run("qpid-ha", "list", "-b", backup.name).out.splitlines()
    reasons = [
        json.loads(run("qpid-ha", *words, "-b", backup.name, "--format", "json").out)
        for words in (["status"], ["status", "--all"], ["list"])
    ]
    assert reasons[0]["stopped"] == reasons[1][0]["stopped"] == reasons[2]["members"][0]["stopped"] == why


def test_query_as_json_is_the_whole_view(primary: Any) -> None:
    assert json.loads(run("qpid-ha", "query", "-b", primary.name, "--format", "json").out) == PRIMARY


def test_promote_says_what_came_of_it(peers: Any) -> None:
    peer = peers(ha=READY)
    ran = run("qpid-ha", "promote", "-b", peer.name, "--cluster-manager")
    assert (ran.status, ran.out) == (0, f"{peer.name} is active in epoch 5 in 3 ms\n")


def test_a_refused_promotion_ends_with_1_and_the_reason(peers: Any) -> None:
    peer = peers(ha=READY, answers={"PROMOTE ha": [409, "b:1 has a newer log", None]})
    ran = run("qpid-ha", "promote", "-b", peer.name)
    assert (ran.status, ran.err) == (1, "qpid-ha: b:1 has a newer log\n")


def test_a_broker_that_never_answers_ends_with_3(peers: Any) -> None:
    peer = peers(ha=READY, silent_on=["PROMOTE ha"])
    ran = run("qpid-ha", "promote", "-b", peer.name, "--timeout", "0.3")
    assert ran.status == 3
    assert "no answer to PROMOTE ha in 0.3 s" in ran.err


def test_a_switchover_asks_the_ready_backup_with_the_longest_log(peers: Any) -> None:
    primary, short, long = peers(ha=PRIMARY), peers(ha=READY), peers(ha=READY | {"lastIndex": 119})
    ran = run("qpid-ha", "switchover", "-b", f"{primary.name},{short.name},{long.name}")
    assert (ran.status, ran.out.split()[0]) == (0, long.name)


def test_a_switchover_to_a_candidate_asks_that_one(peers: Any) -> None:
    primary, wanted, long = peers(ha=PRIMARY), peers(ha=READY), peers(ha=READY | {"lastIndex": 119})
    everyone = f"{primary.name},{wanted.name},{long.name}"
    assert run("qpid-ha", "switchover", "-b", everyone, "--candidate", wanted.name).out.split()[0] == wanted.name


@pytest.mark.parametrize("status, code", [("catchup", 0), ("standalone", 1)])
def test_a_candidate_that_is_behind_is_asked_all_the_same_and_the_primary_waits_for_it(
    peers: Any, status: str, code: int
) -> None:
    primary, behind = peers(ha=PRIMARY), peers(ha=READY | {"status": status})
    ran = run("qpid-ha", "switchover", "-b", f"{primary.name},{behind.name}", "--candidate", behind.name)
    assert ran.status == code
    assert ran.err == f"qpid-ha: {behind.name} cannot take over: it is {status}\n" * bool(code)
    primary, away = peers(ha=PRIMARY), NOWHERE
    ran = run("qpid-ha", "switchover", "-b", f"{primary.name},{away}", "--candidate", away)
    assert (ran.status, ran.err) == (1, f"qpid-ha: {away} cannot take over: connection refused\n")


def test_a_switchover_that_cannot_be_is_refused_with_the_reason(peers: Any) -> None:
    primary, catching_up = peers(ha=PRIMARY), peers(ha=READY | {"status": "catchup"})
    everyone = f"{primary.name},{catching_up.name}"
    refusals = {
        (): "no backup is ready to take over",
        ("--candidate", primary.name): "is already the primary",
        ("--candidate", "z:1"): "z:1 is not a member",
    }
    for options, reason in refusals.items():
        ran = run("qpid-ha", "switchover", "-b", everyone, *options)
        assert ran.status == 1
        assert reason in ran.err


def test_history_is_a_table_with_no_gap_where_none_is_known(primary: Any) -> None:
    assert run("qpid-ha", "history", "-b", primary.name).out.splitlines()[-1].split() == [
        "2026-01-02T03:04:05Z",
        "4",
        "a:1",
        "start",
    ]


@pytest.mark.parametrize("words", [["add-broker", "--wait", "0"], ["remove-broker"]], ids=" ".join)
def test_members_come_and_go_by_address(primary: Any, words: list[str]) -> None:
    assert run("qpid-ha", *words, "d:5672", "-b", primary.name).status == 0


def test_a_broker_that_does_not_catch_up_is_said_to_be_a_member(primary: Any) -> None:
    ran = run("qpid-ha", "add-broker", "--wait", "0.1", "d:5672", "-b", primary.name)
    assert ran.status == 1
    assert "d:5672 is a member now, but has not caught up within 0.1 s" in ran.err


def test_a_witness_is_added_as_one_and_not_waited_for_as_a_voter(peers: Any, tmp_path: Any) -> None:
    asked = tmp_path / "asked"
    primary = peers(ha=PRIMARY, record=str(asked))
    ran = run("qpid-ha", "add-broker", "--witness", "--wait", "0", "w:1", "-b", primary.name)
    (line,) = (json.loads(line) for line in asked.read_text().splitlines())
    assert (ran.status, line["body"]) == (0, {"address": "w:1", "force": False, "witness": True})
    members = [{"address": "w:1", "role": "witness"}]
    there = peers(ha=PRIMARY | {"members": members}, record=str(tmp_path / "not asked"))
    assert run("qpid-ha", "add-broker", "--witness", "w:1", "-b", there.name).status == 0
    assert not (tmp_path / "not asked").exists()


def with_witness(*away: str, stores: tuple[str, ...] = ("a:1", "b:1")) -> dict[str, Any]:
    """What a primary says that has a witness w:1, and is not connected to these brokers."""
    roles = dict.fromkeys(stores, "voter") | {"w:1": "witness"}
    members = [{"address": name, "role": role, "connected": name not in away} for name, role in roles.items()]
    return PRIMARY | {"members": members}


with pytest.raises(BadMembership) as enough:
    Membership.of(("a:1", "w:1"), witness="w:1").with_witness("z:1")
ONE_WITNESS = [409, str(enough.value), {}]
"""What a primary answers that reaches a second witness."""


@pytest.mark.parametrize("away", [["w:1"], ["d:1"]], ids=" ".join)
def test_a_witness_is_replaced_by_a_witness_and_goes_first(peers: Any, tmp_path: Any, away: list[str]) -> None:
    """There is one at most. Breaks when the new one is added as a broker that stores messages, or when a broker that is down
    forbids it though the others are a majority."""
    asked = tmp_path / "asked"
    once = {"ADD-BROKER ha": ONE_WITNESS}
    primary = peers(ha=with_witness(*away, stores=("a:1", "b:1", "c:1", "d:1")), once=once, record=str(asked))
    new = peers(ha=READY | {"witness": True})
    assert run("qpid-ha", "replace-broker", "w:1", new.name, "--wait", "0", "-b", primary.name).status == 0
    said = [(line["what"], line["body"]) for line in map(json.loads, asked.read_text().splitlines())]
    assert said == [
        ("ADD-BROKER ha", {"address": new.name, "force": False, "witness": True}),
        ("REMOVE-BROKER ha", {"address": "w:1", "force": True}),
        ("ADD-BROKER ha", {"address": new.name, "force": False, "witness": True}),
        ("REMOVE-BROKER ha", {"address": "w:1", "force": False}),
    ], "this responder still has the old one among its members"


def test_a_witness_that_the_primary_cannot_reach_replaces_none(peers: Any, tmp_path: Any) -> None:
    """Although it answers the operator. Breaks when the old one is gone, and the command says that nothing was changed."""
    asked = tmp_path / "asked"
    new = peers(ha=READY | {"witness": True})
    why = f"nothing was changed: {new.name} belongs to another cluster; start that broker first, with this cluster's brokers"
    primary = peers(ha=with_witness(), answers={"ADD-BROKER ha": [409, why, {}]}, record=str(asked))
    ran = run("qpid-ha", "replace-broker", "w:1", new.name, "-b", primary.name)
    assert (ran.status, ran.err, requests(asked)) == (1, f"qpid-ha: {why}\n", [("ADD-BROKER ha", new.name)])


def test_a_witness_that_is_lost_in_between_is_said_to_be_missing(peers: Any, tmp_path: Any) -> None:
    """The primary reached the new one, and does not a moment later."""
    asked = tmp_path / "asked"
    new = peers(ha=READY | {"witness": True})
    late = {"ADD-BROKER ha": [409, f"nothing was changed: {new.name} is away", {}]}
    primary = peers(ha=with_witness(), once={"ADD-BROKER ha": ONE_WITNESS}, answers=late, record=str(asked))
    ran = run("qpid-ha", "replace-broker", "w:1", new.name, "-b", primary.name)
    assert (ran.status, ran.err) == (
        1,
        f"qpid-ha: w:1 is removed, and {new.name} is not added, so the cluster has no witness: {new.name} is away; "
        "mend that, and run the command again\n",
    )
    assert requests(asked) == [("ADD-BROKER ha", new.name), ("REMOVE-BROKER ha", "w:1"), ("ADD-BROKER ha", new.name)]


def test_a_witness_stays_while_the_primary_needs_it_or_no_new_one_runs(peers: Any, tmp_path: Any) -> None:
    """Breaks when the old one goes first and the primary has no majority then, or a typing error leaves none."""
    asked = tmp_path / "asked"
    whole, alone = (peers(ha=with_witness(*away), record=str(asked)) for away in ([], ["b:1"]))
    new, store = peers(ha=READY | {"witness": True}), peers(ha=READY | {"witness": False})
    refusals = [
        (alone, new.name, "b:1 is not connected, and without w:1 the primary has no majority: wait until qpid-ha query shows"),
        (whole, NOWHERE, f"{NOWHERE} does not answer ("),
        (whole, store.name, f"{store.name} does not run as a witness: start it with --ha-witness, its own address"),
    ]
    for primary, come, reason in refusals:
        ran = run("qpid-ha", "replace-broker", "w:1", come, "--wait", "0", "-b", primary.name)
        assert (ran.status, ran.err.startswith(f"qpid-ha: nothing was changed: {reason}")) == (1, True), ran.err
    assert not asked.exists()


def test_the_replacement_of_a_witness_that_was_interrupted_is_finished_when_it_is_run_again(peers: Any, tmp_path: Any) -> None:
    """The old one is removed first. Breaks when the command then knows it no more, and the cluster stays without a witness."""
    asked = tmp_path / "asked"
    voters = [{"address": name, "role": "voter", "connected": True} for name in ("a:1", "b:1")]
    new, store = peers(ha=READY | {"witness": True}), peers(ha=READY | {"witness": False})
    without = peers(ha=PRIMARY | {"members": voters}, record=str(asked))
    for come in (store.name, NOWHERE):
        ran = run("qpid-ha", "replace-broker", "w:1", come, "--wait", "0", "-b", without.name)
        assert (ran.status, ran.err) == (
            1,
            "qpid-ha: w:1 is not a member; the members are: a:1, b:1; if it was the witness, and this command was interrupted, "
            f"start {come} with --ha-witness, its own address, and run the command again\n",
        )
    assert not asked.exists()
    assert run("qpid-ha", "replace-broker", "w:1", new.name, "--wait", "0", "-b", without.name).status == 0
    said = [(line["what"], line["body"]) for line in map(json.loads, asked.read_text().splitlines())]
    assert said == [("ADD-BROKER ha", {"address": new.name, "force": False, "witness": True})]
    done = peers(ha=PRIMARY | {"members": [*voters, {"address": new.name, "role": "witness"}]}, record=str(asked))
    assert run("qpid-ha", "replace-broker", "w:1", new.name, "-b", done.name).status == 0
    assert len(asked.read_text().splitlines()) == 1, "there is nothing left to do"
    ran = run("qpid-ha", "replace-broker", "x:1", "y:1", "-b", done.name)
    assert ran.err == f"qpid-ha: x:1 is not a member; the members are: a:1, b:1, {new.name}\n"


MIXED = [{"address": "a:1", "role": "voter"}, {"address": "w:1", "role": "witness"}]
MIXED += [{"address": address, "role": "learner"} for address in ("x:1", "y:1")]


@pytest.mark.parametrize(
    "words, said",
    [
        (["add-broker", "x:1"], "x:1 is a member already, as a learner that never votes"),
        (["add-broker", "w:1"], "w:1 is a member already, as the witness"),
        (["add-broker", "--learner", "a:1"], "a:1 is a member already, as a voter"),
        (["add-broker", "--learner", "y:1"], "y:1 is a member already, as a learner that gets a vote when it has caught up"),
        (["add-broker", "--witness", "a:1"], "a:1 is a member already, as a voter"),
        (["replace-broker", "w:1", "a:1"], "a:1 is a member already, as a voter"),
        (["replace-broker", "a:1", "x:1"], "x:1 is a member already, as a learner that never votes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_member_in_another_role_is_not_waited_for_and_nothing_is_changed(
    peers: Any, tmp_path: Any, words: list[str], said: str
) -> None:
    asked = tmp_path / "asked"
    primary = peers(ha=PRIMARY | {"members": MIXED, "membership": {"standby": ["x:1"]}}, record=str(asked))
    ran = run("qpid-ha", *words, "--wait", "3", "-b", primary.name)
    address = said.partition(" ")[0]
    assert (ran.status, ran.err) == (
        1,
        f"qpid-ha: {said}: to give it another role, remove it first (qpid-ha remove-broker {address})\n",
    )
    assert not asked.exists()


def following(*brokers: str, state: str = "ready") -> dict[str, Any]:
    """What a primary says that these brokers of the west follow for good; all but x:1 are in this state."""
    members = [{"address": "a:1", "role": "voter"}, {"address": "x:1", "role": "learner", "state": "ready"}]
    members += [{"address": name, "role": "learner", "state": state} for name in brokers if name != "x:1"]
    settings = {"tags:x:1": {"site": "west", "nofailover": True}}
    return PRIMARY | {"members": members, "membership": {"standby": list(brokers)}, "settings": settings}


def test_a_broker_that_follows_is_replaced_by_one_that_follows_of_the_same_site(peers: Any, tmp_path: Any) -> None:
    """Breaks when a broker of the second site gets a vote, or the next switch of sites leaves it out."""
    asked = tmp_path / "asked"
    primary = peers(ha=following("x:1"), then={"ADD-BROKER ha": following("x:1", "z:1")}, record=str(asked))
    assert run("qpid-ha", "replace-broker", "x:1", "z:1", "-b", primary.name).status == 0
    said = [(line["what"], line["body"]) for line in map(json.loads, asked.read_text().splitlines())]
    assert said == [
        ("ADD-BROKER ha", {"address": "z:1", "force": False, "standby": True}),
        ("SET ha", {"setting": "tags", "address": "z:1", "tags": {"site": "west"}}),
        ("REMOVE-BROKER ha", {"address": "x:1", "force": False}),
    ]


def test_a_broker_that_follows_is_removed_when_its_replacement_has_caught_up(peers: Any, tmp_path: Any) -> None:
    asked = tmp_path / "asked"
    behind = peers(ha=following("x:1", "z:1", state="catchup"), record=str(asked))
    ran = run("qpid-ha", "replace-broker", "x:1", "z:1", "--wait", "0.1", "-b", behind.name)
    assert (ran.status, "z:1 is a member now, but has not caught up within 0.1 s" in ran.err) == (1, True), ran.err
    assert not asked.exists()


def test_the_replacement_of_a_broker_that_follows_is_finished_when_it_is_run_again(peers: Any, tmp_path: Any) -> None:
    """Breaks when the command, which no longer finds the old one, waits until the new one has a vote."""
    asked = tmp_path / "asked"
    done = following("x:1", "z:1")
    done |= {"members": [each for each in done["members"] if each["address"] != "x:1"], "membership": {"standby": ["z:1"]}}
    done |= {"settings": {"tags:x:1": {"site": "west"}, "tags:z:1": {"site": "far west"}}}
    primary = peers(ha=done, record=str(asked))
    assert run("qpid-ha", "replace-broker", "x:1", "z:1", "-b", primary.name) == run("qpid-ha", "ping", "-b", primary.name)
    assert not asked.exists(), "it has a site of its own"


def test_a_broker_that_was_added_by_force_and_belongs_elsewhere_is_not_waited_for(peers: Any) -> None:
    why = "this broker is not in a cluster"
    members = [{"address": "d:1", "role": "learner", "refused": why}]
    ran = run("qpid-ha", "add-broker", "--force", "d:1", "-b", peers(ha=PRIMARY | {"members": members}).name)
    assert (ran.status, ran.err) == (
        1,
        f"qpid-ha: d:1 is a member now, but cannot be linked to the primary: {why}; "
        "start it as a broker of this cluster, or remove it (qpid-ha remove-broker d:1)\n",
    )


def test_one_copy_is_told_beside_the_status(peers: Any) -> None:
    primary = peers(ha=PRIMARY | {"notice": "one copy: of all", "copies": 1})
    ran = run("qpid-ha", "status", "-b", primary.name)
    assert (ran.status, ran.out, ran.err) == (0, "active\n", "qpid-ha: one copy: of all\n")
    assert "Notice:              one copy: of all" in run("qpid-ha", "query", "-b", primary.name).out
    told = json.loads(run("qpid-ha", "status", "-b", primary.name, "--format", "json").out)
    assert told == {"status": "active", "notice": "one copy: of all"}


def test_a_broker_of_a_second_site_is_added_to_follow_and_tagged(peers: Any, tmp_path: Any) -> None:
    asked = tmp_path / "asked"
    primary = peers(ha=PRIMARY | {"settings": {"tags:x:1": {"nofailover": True}}}, record=str(asked))
    assert run("qpid-ha", "add-broker", "--learner", "--site", "west", "--wait", "0", "x:1", "-b", primary.name).status == 0
    added, tagged = (json.loads(line)["body"] for line in asked.read_text().splitlines())
    assert added == {"address": "x:1", "force": False, "standby": True}
    assert tagged == {"setting": "tags", "address": "x:1", "tags": {"nofailover": True, "site": "west"}}
    assert run("qpid-ha", "add-broker", "--learner", "--witness", "x:1", "-b", primary.name).status == 2


def sites(*west: str, role: str = "learner", connected: bool = True) -> dict[str, Any]:
    """What a primary says that votes in the east, with these brokers in the west."""
    members = [{"address": "a:1", "role": "voter", "connected": True}]
    members += [{"address": address, "role": role, "connected": connected} for address in west]
    tags = {f"tags:{address}": {"site": "west"} for address in west} | {"tags:a:1": {"site": "east"}}
    return PRIMARY | {"members": members, "settings": tags}


@pytest.mark.parametrize(
    "view, site, said",
    [
        (sites("x:1"), "north", "no broker of site north is a member; sites that have brokers: east, west"),
        (sites("x:1", "y:1"), "west", "site west would have 2 voting members (x:1, y:1), and the loss of one of them stops"),
        (sites("x:1"), "west", "site west would have one voting member (x:1), and its loss stops the cluster"),
        (sites("x:1", "y:1", "z:1", connected=False), "west", "x:1, y:1, z:1 of site west is not connected to the primary"),
    ],
)
def test_a_site_that_cannot_serve_is_not_switched_to_and_nothing_was_changed(
    peers: Any, tmp_path: Any, view: dict[str, Any], site: str, said: str
) -> None:
    asked = tmp_path / "asked"
    ran = run("qpid-ha", "switch-site", site, "-b", peers(ha=view, record=str(asked)).name)
    assert (ran.status, said in ran.err) == (1, True), ran.err
    assert not asked.exists()


def test_a_takeover_by_force_is_asked_of_the_broker_that_has_most_and_says_what_is_lost(peers: Any, tmp_path: Any) -> None:
    asked = tmp_path / "asked"
    answer = [200, "done", {"epoch": 5, "lineage": {"cluster": "new", "was": "old", "begun": "after batch 9"}}]
    lost = {"status": "joining", "epoch": 4, "lastEpoch": 4}
    newest = peers(ha=lost | {"lastIndex": 9, "address": "x:1"}, answers={"TAKEOVER ha": answer}, record=str(asked))
    older = peers(ha=lost | {"lastIndex": 8, "address": "y:1"})
    ran = run("qpid-ha", "takeover", "--force", "-b", f"{older.name},{newest.name}")
    assert ran.out.splitlines() == ["x:1 is active in epoch 5 of the new cluster new", "begun after batch 9"]
    assert json.loads(asked.read_text())["body"] == {"force": True}
    told = json.loads(run("qpid-ha", "takeover", "--force", "-b", newest.name, "--format", "json").out)
    assert (told["broker"], told["lineage"]["was"]) == ("x:1", "old")


def requests(path: Any) -> list[tuple[str, Any]]:
    """What the responder was asked to do."""
    return [(line["what"], (line["body"] or {}).get("address")) for line in map(json.loads, path.read_text().splitlines())]


def test_a_primary_that_is_to_be_removed_hands_over_and_its_successor_removes_it(peers: Any, tmp_path: Any) -> None:
    """Breaks when it goes without a handover: a second without service."""
    asked = tmp_path / "asked"
    refusal = [421, "it is the primary", None]
    primary = peers(ha=PRIMARY, answers={"REMOVE-BROKER ha": refusal}, record=str(asked))
    backup = peers(ha=READY, record=str(asked))
    assert run("qpid-ha", "remove-broker", "a:1", "-b", f"{primary.name},{backup.name}").status == 0
    assert requests(asked) == [("REMOVE-BROKER ha", "a:1"), ("PROMOTE ha", None), ("REMOVE-BROKER ha", "a:1")]


@pytest.mark.parametrize(
    "words, body",
    [
        (["authority", "etcd"], {"setting": "authority", "kind": "etcd"}),
        (["pause", "--reason", "disks"], {"setting": "pause", "reason": "disks"}),
        (["resume"], {"setting": "resume"}),
        (["tag", "a:1", "--site", "west"], {"setting": "tags", "address": "a:1", "tags": {"priority": 3, "site": "west"}}),
        (["tag", "a:1", "--clear", "--nofailover"], {"setting": "tags", "address": "a:1", "tags": {"nofailover": True}}),
        (
            ["switchover", "--scheduled", "2027-01-15T08:00", "--candidate", "b:1"],
            {"setting": "switchover", "at": "2027-01-15T08:00", "candidate": "b:1"},
        ),
        (["switchover", "--cancel"], {"setting": "switchover", "at": "", "candidate": ""}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_cluster_is_to_agree_on_is_asked_of_its_primary(
    peers: Any, tmp_path: Any, words: list[str], body: dict[str, Any]
) -> None:
    settings = {"authority": {"kind": "hand"}, "tags:a:1": {"priority": 3}}
    peer = peers(ha=PRIMARY | {"settings": settings}, record=str(tmp_path / "asked"))
    assert run("qpid-ha", *words, "-b", peer.name).status == 0
    (line,) = (tmp_path / "asked").read_text().splitlines()
    assert (json.loads(line)["what"], json.loads(line)["body"]) == ("SET ha", body)


def test_an_authority_that_no_manager_is_known_to_be_is_not_set_without_force(peers: Any, tmp_path: Any) -> None:
    """A misspelt one would end automatic failover, and nothing would say so before the primary fails."""
    asked = tmp_path / "asked"
    peer = peers(ha=PRIMARY, record=str(asked))
    ran = run("qpid-ha", "authority", "bultin", "-b", peer.name)
    assert (ran.status, ran.out) == (1, "")
    assert "'bultin' is not a known kind of cluster manager, and with a wrong one no backup is promoted" in ran.err
    assert (
        "the kinds are builtin, etcd, kubernetes, pacemaker, hand, any; for a plug-in that is not installed here, give --force"
        in ran.err
    )
    assert not asked.exists()
    kinds = ["builtin", "kubernetes", "pacemaker", "hand", "any"]
    for words in (*([kind] for kind in kinds), ["stars", "--force"]):
        assert run("qpid-ha", "authority", *words, "-b", peer.name).status == 0
    told = [json.loads(line)["body"]["kind"] for line in asked.read_text().splitlines()]
    assert told == [*kinds, "stars"]


MEMBERSHIP = {"index": 1, "committed": True, "voters": ["a:1", "b:1", "c:1"], "learners": []}


@pytest.mark.parametrize(
    "views, said",
    [
        ({"a": ("active", 4), "b": ("ready", 4)}, ""),
        ({"a": ("active", 4), "b": ("", 0)}, "1 of 3 voters answer and are in the primary's epoch: no majority"),
        ({"a": ("active", 4), "b": ("ready", 4), "c": ("joining", 5)}, "c:1 knows a newer epoch than the primary a:1"),
        ({"a": ("active", 4), "b": ("active", 5), "c": ("ready", 5)}, ""),
        ({"b": ("ready", 4), "c": ("ready", 4)}, "no member says that it is the primary"),
    ],
)
def test_a_picture_is_stale_unless_a_majority_is_of_one_mind(views: dict[str, tuple[str, int]], said: str) -> None:
    """Breaks when a primary that was deposed, and does not know it, passes for the primary."""
    told = [
        {"broker": f"{name}:1", "status": status, "epoch": epoch, "membership": MEMBERSHIP}
        for name, (status, epoch) in views.items()
    ]
    assert staleness(told) == said


def test_the_list_shows_every_member_and_what_keeps_it_from_being_promoted(peers: Any) -> None:
    backup = peers(ha=READY)
    settings = {f"tags:{backup.name}": {"nofailover": True}, "pause": {"since": "then"}}
    members = [{"address": backup.name, "role": "voter", "lagRecords": 7}]
    primary = peers(ha=PRIMARY | {"members": members, "settings": settings, "appliedIndex": 5})
    out = run("qpid-ha", "list", "-b", f"{primary.name},{backup.name}").out.splitlines()
    assert [line.split() for line in out if line.split()[:1] in ([primary.name], [backup.name])] == [
        [primary.name, "active", "4", "120"],
        [backup.name, "voter", "ready", "4", "118", "7", "nofailover"],
    ]
    assert "Paused since then: qpid-ha resume ends that" in out
    told = json.loads(run("qpid-ha", "list", "-b", f"{backup.name},{NOWHERE}", "--format", "json").out)
    assert told["stale"] == "no member says that it is the primary"


def test_a_watch_goes_on_with_the_other_members_when_the_broker_of_b_dies(peers: Any) -> None:
    """Breaks when the table ends in the moment for which an operator watches it."""
    backup = peers(ha=READY | {"clusterId": "c"})
    primary = peers(ha=PRIMARY | {"clusterId": "c", "brokersUrl": f"amqp:@me,{backup.name}"})
    with watching(primary.name) as told:
        assert [member["status"] for member in next(told)["members"]] == ["active", "ready"]
        primary.kill()
        seen = next(each for each in told if each["stale"])
        assert [(member["member"], member["status"]) for member in seen["members"]] == [
            (primary.name, "connection refused"),
            (backup.name, "ready"),
        ]
        backup.kill()
        seen = next(each for each in told if each["members"][1]["status"] != "ready")
        assert seen["stale"] == "no member says that it is the primary"


def test_a_watch_of_a_broker_by_itself_goes_on_without_it(peers: Any) -> None:
    alone = peers(ha={"status": "standalone"})
    with watching(alone.name) as told:
        assert next(told)["stale"] == "", "outside a cluster there is no primary to hear"
        alone.kill()
        found = next(each for each in told if each["stale"])
        why = ("connection refused", "connection reset by peer")  # the latter if it was killed with the connection in its backlog
        assert found["stale"] in [f"{alone.name}: {reason}; in a cluster, name all brokers with -b" for reason in why]
        assert found["members"] == []


def test_a_watch_that_reaches_nobody_at_its_start_ends() -> None:
    assert run("qpid-ha", "list", "--watch", "-b", NOWHERE).status == 3


@pytest.mark.parametrize("words", ["list", "status --all", "switchover", "failover", "pause", "remove-broker x:1"])
def test_who_names_one_broker_that_is_lost_is_told_to_name_all(words: str) -> None:
    """Breaks when a tired operator takes the loss of that broker for the loss of the cluster."""
    ran = run("qpid-ha", *words.split(), "-b", NOWHERE)
    told = f"qpid-ha: {NOWHERE}: connection refused; in a cluster, name all brokers with -b\n"
    assert (ran.status, ran.out, ran.err) == (3, "", told)


def test_who_promotes_a_broker_that_is_lost_is_told_how_to_promote_another_one() -> None:
    ran = run("qpid-ha", "promote", "-b", NOWHERE)
    told = "connection refused; to promote another broker, use qpid-ha failover, and name all brokers with -b"
    assert (ran.status, ran.out, ran.err) == (3, "", f"qpid-ha: {NOWHERE}: {told}\n")


@pytest.mark.parametrize("words", ["promote", "failover"])
def test_a_promotion_whose_end_is_not_waited_for_is_told_how_to_learn_it(peers: Any, words: str) -> None:
    lost = peers(ha={"status": "joining", "epoch": 4}, silent_on=["PROMOTE ha"])
    ran = run("qpid-ha", words, "-b", lost.name, "-t", "0.2")
    told = "no answer to PROMOTE ha in 0.2 s, but it may still succeed: see qpid-ha status --all. To be told why it fails, give "
    told += "a --timeout above the broker's --ha-promote-timeout (in a switchover, --ha-switchover-timeout)"
    assert (ran.status, ran.out, ran.err) == (3, "", f"qpid-ha: {lost.name}: {told}\n")


def test_the_old_way_to_copy_a_queue_is_refused_with_all_its_options() -> None:
    ran = run("qpid-ha", "replicate", "-b", "a:1", "--password-file", "x", "jobs", "b:1")
    assert (ran.status, ran.out, ran.err) == (2, "", f"qpid-ha: {NO_REPLICATION} (see qpid-ha --help)\n")


HOSTS = [f"host{number}.example:5672" for number in (1, 2, 3)]


def called(peers: Any, asked: Any, **primary: Any) -> str:
    """The addresses of three brokers that call themselves HOSTS, which nobody can reach. What they are asked is recorded."""
    names = {"voters": HOSTS[:2], "learners": [HOSTS[2]], "standby": [HOSTS[2]]}
    roles = dict.fromkeys(HOSTS[:2], "voter") | {HOSTS[2]: "learner"}
    members = [{"address": name, "role": role, "lagRecords": 7, "connected": True} for name, role in roles.items()]
    settings = {f"tags:{name}": {"site": "west"} for name in HOSTS[1:]}
    told = {"brokersUrl": f"amqp:{','.join(HOSTS)}", "membership": names, "record": str(asked)}
    first = PRIMARY | told | {"members": members, "settings": settings, "appliedIndex": 5} | primary
    views = [first, READY | told, READY | told | {"lastIndex": 119}]
    return ",".join(peers(ha=view | {"address": name}, record=str(asked)).name for view, name in zip(views, HOSTS, strict=True))


def test_brokers_are_shown_by_their_names_among_the_members_however_they_are_reached(peers: Any, tmp_path: Any) -> None:
    """By a short name, an alias or a tunnel. Breaks when the list has no roles and tags, and says that no majority answers."""
    given = called(peers, tmp_path / "asked")
    told = json.loads(run("qpid-ha", "list", "-b", given, "--format", "json").out)
    assert told["stale"] == ""
    assert [(each["member"], each["role"], each["lag"], each["tags"]) for each in told["members"]] == [
        (HOSTS[0], "voter", 7, ""),
        (HOSTS[1], "voter", 7, "site=west"),
        (HOSTS[2], "learner", 7, "site=west"),
    ]
    views = json.loads(run("qpid-ha", "query", "--all", "-b", given, "--format", "json").out)
    assert [view["broker"] for view in views] == HOSTS
    assert not any("reached" in view for view in views)
    twice = f"{given.split(',')[0]},{given.split(',')[0].replace('127.0.0.1', 'localhost')}"
    ran = run("qpid-ha", "list", "-b", twice)
    assert "STALE: 1 of 2 voters answer" in ran.out, "one broker by two names is one vote"


@pytest.mark.parametrize("by_alias", [False, True])
def test_a_candidate_is_found_by_either_name_and_asked_where_it_was_reached(peers: Any, tmp_path: Any, by_alias: bool) -> None:
    """Breaks when a member that is named like the cluster names it is said to be none."""
    given = called(peers, tmp_path / "asked")
    candidate = given.split(",")[1] if by_alias else HOSTS[1]
    assert run("qpid-ha", "switchover", "-b", given, "--candidate", candidate).status == 0
    assert requests(tmp_path / "asked") == [("PROMOTE ha", None)]
    lost = called(peers, tmp_path / "asked", status="joining")
    candidate = lost.split(",")[1] if by_alias else HOSTS[1]
    ran = run("qpid-ha", "failover", "-b", lost, "--candidate", candidate)
    assert (ran.status, ran.out) == (0, f"{HOSTS[1]} is active in epoch 5\n")


def test_a_learner_is_no_candidate_however_it_is_reached(peers: Any, tmp_path: Any) -> None:
    """Its log is the longest. Breaks when it is asked because it is reached by another name than the members have."""
    given = called(peers, tmp_path / "asked")
    assert run("qpid-ha", "switchover", "-b", given).out.split()[0] == given.split(",")[1]


def test_a_site_is_switched_to_however_its_brokers_are_reached(peers: Any, tmp_path: Any) -> None:
    """Breaks when the brokers of the site get votes, and then none of them is found to take over."""
    members = [{"address": name, "role": "voter", "connected": True} for name in HOSTS]
    given = called(peers, tmp_path / "asked", members=members)
    ran = run("qpid-ha", "switch-site", "west", "--force", "-b", given)
    assert (ran.status, ran.out) == (0, f"{HOSTS[2]} of site west is the primary; the other sites follow\n"), ran.err
    assert requests(tmp_path / "asked") == [("PROMOTE ha", None)]


def test_a_failover_by_hand_asks_the_newest_log_first_and_no_cluster_that_has_a_primary(peers: Any, tmp_path: Any) -> None:
    asked = tmp_path / "asked"
    refusal = [409, "not enough votes", None]
    lost = {"status": "joining", "epoch": 4, "lastEpoch": 4}
    newest = peers(ha=lost | {"lastIndex": 9}, answers={"PROMOTE ha": refusal}, record=str(asked))
    older = peers(ha=lost | {"lastIndex": 8})
    everyone = f"{older.name},{newest.name}"
    out = run("qpid-ha", "failover", "-b", everyone).out
    assert (out, requests(asked)) == (f"{older.name} is active in epoch 5\n", [("PROMOTE ha", None)])
    ran = run("qpid-ha", "failover", "-b", everyone)
    assert (ran.status, f"{older.name} is the primary and serves: use qpid-ha switchover" in ran.err) == (1, True)
    ran = run("qpid-ha", "failover", "-b", newest.name, "--candidate", newest.name)
    assert (ran.status, "no broker could be promoted" in ran.err, "not enough votes" in ran.err) == (1, True, True)


@pytest.mark.parametrize(
    "words, said",
    [
        (["pause"], "there is no primary: "),
        (["remove-broker", "x:1", "--force"], "there is no primary: "),
        (["switchover"], "there is no primary to hand over: "),
        (["failover"], "no broker could be promoted: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_broker_of_an_old_cluster_changes_nothing_in_the_new_one_that_its_list_names(
    peers: Any, tmp_path: Any, words: list[str], said: str
) -> None:
    """As after a takeover by a second site, when a broker of the first one is back."""
    asked = tmp_path / "asked"
    new = peers(ha=PRIMARY | {"clusterId": "new", "epoch": 9}, record=str(asked))
    backup = peers(ha=READY | {"clusterId": "new", "epoch": 9}, record=str(asked))
    lost = {"status": "joining", "epoch": 4, "clusterId": "old", "brokersUrl": f"amqp:{new.name},{backup.name},{NOWHERE}"}
    for old in (peers(ha=lost), peers(ha=lost | {"primary": new.name})):
        ran = run("qpid-ha", *words, "-b", old.name)
        assert (ran.status, said in ran.err, f"{new.name} (of another cluster, new)" in ran.err) == (1, True, True), ran.err
    assert not asked.exists()
    listed = run("qpid-ha", "status", "--all", "-b", old.name)
    assert listed.out.splitlines()[0] == f"{new.name} of another cluster, new"
    assert "active" not in run("qpid-ha", "list", "-b", old.name).out


def test_brokers_of_two_clusters_are_not_taken_for_one(peers: Any, tmp_path: Any) -> None:
    asked = tmp_path / "asked"
    new, old = peers(ha=PRIMARY | {"clusterId": "new"}, record=str(asked)), peers(ha=READY | {"clusterId": "old"})
    blank = peers(ha={"status": "joining", "clusterId": ""})
    ran = run("qpid-ha", "pause", "-b", f"{blank.name},{old.name},{new.name}")
    told = f"{old.name} belongs to cluster old, {new.name} belongs to cluster new"
    assert (ran.status, ran.err) == (1, f"qpid-ha: {told}: name only brokers of one cluster with -b\n")
    assert not asked.exists()
    assert run("qpid-ha", "pause", "-b", f"{blank.name},{new.name}").status == 0


def test_a_stop_is_asked_of_one_broker(primary: Any, backup: Any) -> None:
    assert run("qpid-ha", "stop", "-b", primary.name).status == 0
    assert run("qpid-ha", "stop", "-b", f"{primary.name},{backup.name}").status == 2


def test_what_the_cluster_agrees_on_is_told(peers: Any) -> None:
    settings = {
        "authority": {"kind": "hand"},
        "pause": {"since": "2027-01-15T08:00:00Z", "reason": "disks"},
        "switchover": {"at": "2027-01-15T09:00:00Z", "candidate": "a:1"},
        "tags:a:1": {"priority": 3, "nofailover": True},
    }
    peer = peers(ha=PRIMARY | {"settings": settings})
    assert run("qpid-ha", "authority", "-b", peer.name).out == "hand\n"
    out = run("qpid-ha", "query", "-b", peer.name).out
    for line in (
        "Authority:           hand",
        "Paused:              since 2027-01-15T08:00:00Z: disks",
        "Switchover:          2027-01-15T09:00:00Z to a:1",
        "Tags:                a:1 nofailover, priority=3",
    ):
        assert line in out.splitlines()


def test_store_info_of_a_broker_shows_its_place_in_the_log(primary: Any) -> None:
    out = run("qpid-ha", "store-info", "-b", primary.name).out
    assert "lastIndex:           120" in out
    assert "segments:            2" in out


def test_store_info_of_a_folder_without_a_store_is_refused(tmp_path: Any) -> None:
    ran = run("qpid-ha", "store-info", "--data-dir", tmp_path)
    assert (ran.status, "there is no store in" in ran.err) == (1, True)


def test_store_info_of_a_folder_needs_no_broker(tmp_path: Any) -> None:
    from broker.disk.store import Store

    Store.open(tmp_path / "store").close(clean=True)
    found = json.loads(run("qpid-ha", "store-info", "--data-dir", tmp_path / "store", "--format", "json").out)
    assert (found["clean"], found["cluster_id"]) == (True, "")
    assert "clean:               True" in run("qpid-ha", "store-info", tmp_path / "store").out


def test_of_several_stores_the_newest_is_told_and_damage_ends_with_1(tmp_path: Any) -> None:
    """Breaks when a damaged store passes for a whole one after an outage of all."""
    from broker.disk.store import Store

    for name in ("one", "two"):
        Store.open(tmp_path / name).close(clean=True)
    ran = run("qpid-ha", "store-info", tmp_path / "one", tmp_path / "two")
    assert ran.status == 0
    assert [line.split()[:2] for line in ran.out.splitlines()[-2:]] == [[str(tmp_path / name), "Y"] for name in ("one", "two")]
    (tmp_path / "two" / "store.json").write_bytes(b"garbled")
    ran = run("qpid-ha", "store-info", tmp_path / "one", tmp_path / "two", "--format", "json")
    assert (ran.status, ran.err) == (1, f"qpid-ha: damaged: {tmp_path / 'two'}\n")
    assert "store.json" in json.loads(ran.out)[1]["error"]


def test_help_lists_the_commands_and_help_all_their_options() -> None:
    assert "switchover" in run("qpid-ha", "help").out
    assert "--candidate" in run("qpid-ha", "help", "switchover").out
    assert "--candidate" in run("qpid-ha", "help-all").out
    assert run("qpid-ha", "help", "dance").status == 2
    assert "there is no command 'switchovr'; there are: " in (said := run("qpid-ha", "help", "switchovr").err)
    assert "; did you mean 'switchover'?" in said


@pytest.mark.parametrize(
    "words",
    [
        ["dance"],
        ["status", "--expect", "happy"],
        ["status", "-b", "a b"],
        ["status", "--timeout", "soon"],
        ["status", "--expect", "ready", "--is-primary"],
        ["promote", "-b", "a,b"],
        ["add-broker"],
        ["replace-broker", "a:1"],
        ["tag", "a:1"],
        ["tag", "a:1,b:1", "--clear"],
        ["switchover", "--scheduled", "2027-01-15T08:00", "--cancel"],
        ["switchover", "--scheduled", "yesterday"],
        ["switchover", "--scheduled", ""],
        ["switchover", "--candidate", ""],
        ["failover", "--candidate", ""],
        ["tag", "a:1", "--priority", "99999999999999999999"],
        ["replace-broker", "a:1", "a:1"],
        ["remove-broker", "a:1,b:1"],
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(words: list[str]) -> None:
    ran = run("qpid-ha", *words)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("qpid-ha: ")


@pytest.mark.parametrize("how", ["awk '{print $1}'", "ssh {hots}", "ssh {host", "ssh 'abc", "{}", "{host.a.b}"])
def test_a_command_that_cannot_be_read_is_refused_before_a_broker_is_asked(how: str) -> None:
    ran = run("qpid-ha", "rolling-restart", "--command", how, "-b", "127.0.0.1:1")
    assert ran.status == 2
    assert "write {host}, {port} or {address} for the broker, and {{ and }} for braces" in ran.err


def in_turn(peers: Any, asked: Any, **given: Any) -> list[Any]:
    """A primary that takes both its backups for ready; the first backup is what `given` says. What they are asked is recorded."""
    record: dict[str, Any] = {"record": str(asked), "items": {"broker": [{"uptime_s": 0.0}]}}
    backups = [peers(ha=READY, **record), peers(ha=READY | given.pop("ha", {}), **record | given)]
    members = [{"address": backup.name, "role": "voter", "connected": True, "state": "ready"} for backup in reversed(backups)]
    members.append({"address": "@me", "role": "voter", "connected": True, "state": "active"})
    told = {"address": "@me", "members": members, "brokersUrl": ",".join(str(each["address"]) for each in members)}
    return [peers(ha=PRIMARY | told, **record), *reversed(backups)]


@pytest.mark.parametrize(
    "given, why",
    [
        ({"ha": {"stopped": "batch 9 cannot be applied: upgrade"}}, "has stopped applying the log"),
        ({"ha": {"status": "catchup"}}, "catchup"),
        ({"close": ["amqp:connection:forced", "it is down"]}, "it is down"),
    ],
)
def test_no_broker_is_restarted_while_another_is_not_there(peers: Any, tmp_path: Any, given: dict[str, Any], why: str) -> None:
    """Whatever the primary still takes it for. Breaks when a restart costs the majority."""
    primary, away, _ = in_turn(peers, tmp_path / "asked", **given)
    ran = run("qpid-ha", "rolling-restart", "--wait", "0.5", "-b", primary.name)
    assert (ran.status, f"qpid-ha: {away.name}" in ran.err, why in ran.err) == (1, True, True), ran.err
    assert not (tmp_path / "asked").exists(), "nothing but what they are"


def test_a_broker_that_is_back_and_has_not_caught_up_keeps_the_others_from_a_restart(peers: Any, tmp_path: Any) -> None:
    """Although the primary still takes it for ready, by the connection that it had before."""
    primary, first, _ = in_turn(peers, tmp_path / "asked", then={"STOP ha": {"status": "joining"}})
    ran = run("qpid-ha", "rolling-restart", "--wait", "1", "-b", primary.name)
    assert (ran.status, ran.out) == (1, f"{first.name} restarted\n")
    assert f"{first.name} (joining) has not caught up with the primary after 1 s" in ran.err
    said = [json.loads(line)["what"] for line in (tmp_path / "asked").read_text().splitlines()]
    assert said.count("STOP ha") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("qpid-ha", "status"),
        ("qpid-stat", "-q"),
        ("qpid-config", "queues"),
        ("qpid-route", "route", "list", "a:1"),
        ("qpid-drain", "--from", "a:1", "--to", "b:1"),
        ("qpid-verify", "-b", "a:1"),
    ],
)
def test_an_empty_name_of_a_configuration_file_is_wrong_usage_for_every_command(words: tuple[str, ...]) -> None:
    ran = run(*words, "--config", "")
    assert ran.status == 2
    assert ran.err.startswith(f"{words[0]}: --config: a file is needed")


def test_an_empty_command_is_refused() -> None:
    ran = run("qpid-ha", "rolling-restart", "--command", "", "-b", "127.0.0.1:1")
    assert (ran.status, "leave it out" in ran.err) == (2, True)
