"""The kit that strangers test their arbiters with: ours keep every rule, and each planted fault breaks its rule."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.utils import getProcessOutputAndValue

from resource_manager import arbiters
from resource_manager.conformance import RULES, Outcome, Subject, Untried, examine
from tests.cli.running import ROOT
from tests.resource_manager import planted
from tests.resource_manager.etcd import running_etcd

reactor: Any = installed_reactor

ALONE = RULES[2]
"""Tried before each other rule, for those that look at what others did."""
FAULTS: dict[type[planted.Sound], str] = {
    planted.HasNoGuarantee: "names its guarantee",
    planted.LetsNobodyAct: "alone gets its turn",
    planted.AnswersNothing: "alone gets its turn",
    planted.MovesItsTurn: "stays the same",
    planted.LetsAllAct: "one acts at a time",
    planted.KeepsItsTurnInRest: "When no promotion is needed",
    planted.TellsNobody: "When a daemon closes",
    planted.RaisesInPublish: "in any order",
    planted.LeavesATimer: "After close",
    planted.CallsAfterClose: "After close",
    planted.SaysItIsWellWhenItIsNot: "is unreachable, it says so",
    planted.ActsOnAfterItsLease: "is unreachable, it says so",
    planted.Blocks: "returns at once",
    planted.CallsFromWithin: "from within a call",
}


def verdicts(outcomes: list[Outcome]) -> dict[str, str]:
    return {one.sentence: f"{one.verdict} {one.why}".strip() for one in outcomes}


def plant(monkeypatch: pytest.MonkeyPatch, kind: type[planted.Sound], *, any_option: bool = False) -> None:
    """Have that kind made under the name `planted`."""

    def make(settings: Any, made_in: Any, daemon: str) -> planted.Sound:
        if "no-such-option" in settings.options and not any_option:
            raise ValueError("there is no option 'no-such-option'")
        return kind(settings, made_in, daemon)

    monkeypatch.setattr(planted, "make", make)
    monkeypatch.setitem(arbiters.OWN, "planted", "tests.resource_manager.planted")
    planted.TURNS.clear()


def planted_subject(wait_s: float) -> Subject:
    return Subject("planted", {}, cut=planted.cut, mend=planted.mend, wait_s=wait_s, still_s=0.3)


@pytest_twisted.ensureDeferred
async def test_a_sound_arbiter_keeps_every_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, planted.Sound)
    assert verdicts(await examine(reactor, planted_subject(30.0))) == dict.fromkeys((sentence for sentence, _ in RULES), "holds")


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: str(kind.__name__))
@pytest_twisted.ensureDeferred
async def test_each_planted_fault_breaks_its_rule(monkeypatch: pytest.MonkeyPatch, kind: type[planted.Sound]) -> None:
    plant(monkeypatch, kind)
    [rule] = [rule for rule in RULES if FAULTS[kind] in rule[0]]
    found = verdicts(await examine(reactor, planted_subject(0.5), [ALONE, rule]))
    for call in reactor.getDelayedCalls():
        if call.getTime() - reactor.seconds() > 60:
            call.cancel()
    assert found[rule[0]].startswith("broken "), found


@pytest_twisted.ensureDeferred
async def test_an_arbiter_that_takes_any_option_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, planted.Sound, any_option=True)
    found = verdicts(await examine(reactor, planted_subject(30.0), RULES[:2]))
    sentence = RULES[1][0]
    assert sentence == "An option that it does not know is refused by its name."
    assert found[sentence] == "broken it accepts an option named 'no-such-option'"


async def run_kit(*words: str) -> tuple[str, str, int]:
    """What it prints, and how it ends, while our reactor goes on."""
    arguments = ["-m", "resource_manager.conformance", *words]
    out, err, status = await getProcessOutputAndValue(sys.executable, arguments, {"PYTHONPATH": str(ROOT)}, str(ROOT))
    return out.decode(), err.decode(), status


@pytest_twisted.ensureDeferred
async def test_etcds_keeps_every_rule_while_a_real_etcd_is_frozen_and_thawed(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd") as etcd:
        words = ["--arbiter", "etcd", "--arbiter-option", f"endpoints={etcd.url}", "--arbiter-option", "ttl=2", "--still", "0.3"]
        out, err, status = await run_kit(
            *words, "--break", f"/bin/kill -STOP {etcd.pid}", "--mend", f"/bin/kill -CONT {etcd.pid}"
        )
    assert (out.splitlines(), err, status) == ([f"holds   {sentence}" for sentence, _ in RULES], "", 0)


@pytest_twisted.ensureDeferred
async def test_the_builtin_one_keeps_every_rule_that_can_be_tried() -> None:
    found = await examine(reactor, Subject("builtin", {}, still_s=0.3))
    assert {one.why for one in found if one.verdict == "untried"} == {
        "it promises no leases",
        "it has no external system",
        "give --break and --mend, which disconnect its external system and connect it again",
    }
    assert [one for one in found if one.verdict == "broken"] == []


@pytest.mark.parametrize(
    "cut, mend, why",
    [
        ("false", "true", "`false` failed: Command '['false']' returned non-zero exit status 1."),
        ("true", "/no/such/command", "`/no/such/command` failed: [Errno 2] No such file or directory: '/no/such/command'."),
        ("'", "true", "`'` failed: No closing quotation."),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_rule_whose_command_fails_is_untried_and_the_others_are_told(
    cut: str, mend: str, why: str, tmp_path: Path
) -> None:
    """Breaks when a traceback is all that is left of a long test, with the exit code of a broken rule."""
    if cut == "true":  # an etcd that is frozen, or the arbiter would stay reachable
        with running_etcd(tmp_path / "etcd") as etcd:
            cut, given = f"/bin/kill -STOP {etcd.pid}", ["--arbiter-option", f"endpoints={etcd.url}", "--arbiter-option", "ttl=2"]
            out, err, status = await run_kit("--arbiter", "etcd", *given, "--still", "0.1", "--break", cut, "--mend", mend)
    else:
        out, err, status = await run_kit("--arbiter", "builtin", "--still", "0.1", "--break", cut, "--mend", mend)
    assert (err, status) == ("", 0)
    lines = out.splitlines()
    assert len(lines) == len(RULES)
    assert [line for line in lines if line.startswith("untried")][-1].endswith(why)


@pytest_twisted.ensureDeferred
async def test_of_a_broken_rule_it_is_told_that_it_is_broken_although_the_mending_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, planted.SaysItIsWellWhenItIsNot)

    def mend() -> None:
        planted.mend()
        raise Untried("it cannot be mended")

    subject = Subject("planted", {}, cut=planted.cut, mend=mend, wait_s=0.5, still_s=0.3)
    found = verdicts(await examine(reactor, subject, [rule for rule in RULES if "is unreachable, it says so" in rule[0]]))
    assert [verdict.split()[0] for verdict in found.values()] == ["broken"]


@pytest_twisted.ensureDeferred
async def test_a_rule_that_is_broken_is_told_with_what_was_seen_and_by_the_exit_code() -> None:
    words = ["--arbiter", "etcd", "--arbiter-option", "endpoints=http://127.0.0.1:1", "--wait", "0.1", "--still", "0.1"]
    out, err, status = await run_kit(*words)
    assert (err, status) == ("", 1)
    assert "broken  A daemon that is alone gets its turn. It is not reachable within 0.1 s." in out.splitlines()


@pytest.mark.parametrize(
    "words, text",
    [
        (["--arbiter", "zookeeper"], "conformance: there is no arbiter 'zookeeper'; there are: builtin, etcd, kubernetes"),
        (["--arbiter", "etcd", "--arbiter-option", "x"], "conformance: --arbiter-option: 'x' is not KEY=VALUE"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_where_there_is_nothing_to_try_it_says_so(words: list[str], text: str) -> None:
    out, err, status = await run_kit(*words)
    assert (out, status) == ("", 2)
    assert text in err
    assert len(err.splitlines()) == 1


def test_the_reference_has_every_rule() -> None:
    page = (ROOT / "docs/reference/arbiters.md").read_text()
    assert [sentence for sentence, _ in RULES if f"| {sentence} |" not in page] == []
