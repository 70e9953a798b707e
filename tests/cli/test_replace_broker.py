"""`qpid-ha replace-broker`: a broker takes the place of another one, which keeps its own until then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.running import run
from tests.cli.test_qpid_ha import PRIMARY, READY, following, requests


def test_a_broker_is_replaced_by_adding_one_and_then_removing_the_other(peers: Any, tmp_path: Any) -> None:
    asked = tmp_path / "asked"
    voters = [{"address": address, "role": "voter"} for address in ("a:1", "b:1")]
    primary = peers(ha=PRIMARY | {"members": voters}, record=str(asked))
    assert run("qpid-ha", "replace-broker", "a:1", "b:1", "-b", primary.name).status == 0
    assert requests(asked) == [("REMOVE-BROKER ha", "a:1")], "b:1 is a member already: the command was given again"
    ran = run("qpid-ha", "replace-broker", "x:1", "y:1", "-b", primary.name)
    assert (ran.status, "x:1 is not a member; the members are: a:1, b:1" in ran.err) == (1, True)


@pytest.mark.parametrize(
    "before, after, wait, force",
    [("", "voter", "3", True), ("voter", "voter", "3", False), ("voter", "voter", "0", False)],
    ids=["a new voter", "a voter before", "without waiting"],
)
def test_the_old_broker_is_removed_by_force_only_when_this_run_has_put_a_voter_in_its_place(
    peers: Any, tmp_path: Any, before: str, after: str, wait: str, force: bool
) -> None:
    """Breaks when a broker of a cluster of two cannot be replaced, because two voters are left, as there were before. Or when a
    cluster of three loses a voter, because the new one was a voter already or has no vote."""
    asked = tmp_path / "asked"
    voters = [{"address": address, "role": "voter"} for address in ("a:1", "b:1")]
    first, then = (PRIMARY | {"members": voters + [{"address": "c:1", "role": role}] * bool(role)} for role in (before, after))
    primary = peers(ha=first, then={"ADD-BROKER ha": then}, record=str(asked))
    assert run("qpid-ha", "replace-broker", "b:1", "c:1", "--wait", wait, "-b", primary.name).status == 0
    last = json.loads(asked.read_text().splitlines()[-1])
    assert (last["what"], last["body"]) == ("REMOVE-BROKER ha", {"address": "b:1", "force": force})


@pytest.mark.parametrize("of", ["voter", "learner"])
def test_without_waiting_the_old_broker_stays_until_the_new_one_is_in_its_place_unless_forced(
    peers: Any, tmp_path: Any, of: str
) -> None:
    """Breaks when a vote, or the copy of a second site, is lost without a word."""
    asked = tmp_path / "asked"
    voters = [{"address": address, "role": "voter"} for address in ("a:1", "b:1", "d:1", "e:1")]
    new, behind = {"address": "c:1", "role": "learner"}, following("b:1", "c:1", state="catchup")
    then = behind if of == "learner" else PRIMARY | {"members": [*voters, new]}
    first = following("b:1") if of == "learner" else PRIMARY | {"members": voters}
    words = ["qpid-ha", "replace-broker", "b:1", "c:1", "--wait", "0", "-b"]
    primary = peers(ha=first, then={"ADD-BROKER ha": then}, record=str(asked))
    ran, lacks = run(*words, primary.name), "has no vote yet" if of == "voter" else "has not caught up yet"
    how = "run the command again without --wait 0, or give --force to remove b:1 before that"
    assert (ran.status, ran.err) == (1, f"qpid-ha: b:1 was not removed: c:1 is a member now, but {lacks}; {how}\n")
    ran = run(*words, primary.name, "--force")
    assert (ran.status, ran.err) == (
        0,
        f"warning: b:1 was removed before c:1 was in its place: c:1 {lacks}, which qpid-ha query shows\n",
    )
    assert requests(asked) == [("ADD-BROKER ha", "c:1"), ("REMOVE-BROKER ha", "b:1")]


def test_the_old_broker_is_removed_by_the_primary_that_there_is_when_the_new_one_has_its_vote(peers: Any, tmp_path: Any) -> None:
    """Breaks when another broker has become the primary meanwhile, and the old one is not removed, without a word."""
    asked, voters = tmp_path / "asked", [{"address": name, "role": "voter"} for name in ("a:1", "b:1")]
    next_one = peers(ha=PRIMARY | {"members": [*voters, {"address": "c:1", "role": "voter"}]}, record=str(asked))
    then = {"ADD-BROKER ha": READY | {"primary": next_one.name, "members": voters[:1]}}
    primary = peers(ha=PRIMARY | {"members": voters}, then=then)
    assert run("qpid-ha", "replace-broker", "b:1", "c:1", "-b", primary.name).status == 0
    assert requests(asked) == [("REMOVE-BROKER ha", "b:1")]


def test_another_primary_is_looked_for_among_all_members_when_the_former_one_is_lost(peers: Any, tmp_path: Any) -> None:
    """Breaks when the command asks only the broker that was the primary, and ends although the cluster has another one."""
    asked, voters = tmp_path / "asked", [{"address": name, "role": "voter"} for name in ("a:1", "b:1")]
    next_one = peers(ha=PRIMARY | {"epoch": 5, "members": [*voters, {"address": "c:1", "role": "voter"}]}, record=str(asked))
    cluster = {"brokersUrl": f"amqp:@me,{next_one.name}", "clusterId": "ours"}
    then = {"ADD-BROKER ha": {"members": [*voters, {"address": "c:1", "role": "learner"}]}}
    primary = peers(ha=PRIMARY | cluster | {"members": voters}, then=then, dies_after="ADD-BROKER ha")
    ran = run("qpid-ha", "replace-broker", "b:1", "c:1", "-b", primary.name)
    assert (ran.status, ran.err) == (0, "")
    assert primary.process.wait() == 0, "the former one is lost"
    assert requests(asked) == [("REMOVE-BROKER ha", "b:1")]


def test_a_replacement_that_was_interrupted_when_the_new_broker_had_its_vote_is_finished_with_force(
    peers: Any, tmp_path: Any
) -> None:
    """Breaks when the refusal in a cluster of two names this command itself as the way out, and there is none."""
    asked = tmp_path / "asked"
    voters = [{"address": address, "role": "voter"} for address in ("a:1", "b:1", "c:1")]
    why = "nothing was changed: without b:1 there are 2 voting members (a:1, c:1), and the loss of one of them stops the cluster"
    more = "; to put another broker in its place use qpid-ha replace-broker, to go on use --force"
    once = {"REMOVE-BROKER ha": [409, why + more, {}]}
    primary = peers(ha=PRIMARY | {"members": voters}, once=once, record=str(asked))
    ran = run("qpid-ha", "replace-broker", "b:1", "c:1", "-b", primary.name)
    how = "c:1 had a vote already: if an earlier run was interrupted, give --force to finish it"
    assert (ran.status, ran.err) == (1, f"qpid-ha: {why}; {how}\n")
    assert run("qpid-ha", "replace-broker", "b:1", "c:1", "--force", "-b", primary.name).status == 0
    bodies = [json.loads(line)["body"] for line in asked.read_text().splitlines()]
    assert bodies == [{"address": "b:1", "force": force} for force in (False, True)]
    away = {"REMOVE-BROKER ha": [409, "nothing was changed: a:1 is not connected", {}]}
    primary = peers(ha=PRIMARY | {"members": voters}, answers=away)
    ran = run("qpid-ha", "replace-broker", "b:1", "c:1", "-b", primary.name)
    assert (ran.status, ran.err) == (1, "qpid-ha: nothing was changed: a:1 is not connected\n")
