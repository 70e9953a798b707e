"""Planted bugs are caught, each by a seed that finds nothing wrong in the code as it is."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path

import pytest

from ha.core.backup import Backup
from tests.groups import SHARED, group_of
from tests.simulation import departures, mutations, takeovers, world
from tests.simulation.bugs import Bug
from tests.simulation.history import Violation
from tests.simulation.mutations import BUGS, Finding, hunt, planted, table
from tests.simulation.provoked import RUNS
from tests.simulation.test_departures import SEEDS as LEAVING
from tests.simulation.test_insisting import SEEDS as INSISTING
from tests.simulation.test_lost_stores import SEEDS as LOSING
from tests.simulation.test_room import SEEDS as HOARDING
from tests.simulation.test_settings import SEEDS as AGREEING
from tests.simulation.test_takeovers import SEEDS as TAKING_OVER
from tests.simulation.test_world import FIXED

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "simulation.md"
FIRST = range(1, 13)
"""Runs shift with every change of the plans or of production code; what is common is still caught by one of these."""
LAST_CAUGHT_BY = {
    "applies-twice": 6,
    "asks-for-what-no-disk-has": 2,
    "attests-before-it-is-saved": 2,
    "begins-without-owners": 2,
    "behind-its-group": 6,
    "checkpoint-forgets-duplicates": 7,
    "checkpoint-forgets-numbers": 2,
    "checkpoint-forgets-owners": 2,
    "checkpoint-forgets-routes": 6,
    "checkpoint-forgets-sequences": 6,
    "checkpoint-forgets-times": 3,
    "checkpoint-keeps-the-dead": 6,
    "counts-before-it-is-committed": 4,
    "counts-its-own-unsynced": 3,
    "counts-old-acknowledgements": 9,
    "counts-received": 3,
    "delivers-what-is-read": 7,
    "drops-the-rejected": 6,
    "drops-what-failed-too-often": 8,
    "follows-old-primaries": 7,
    "forgets-releases": 3,
    "forgets-what-failed-too-often": 8,
    "forgets-what-it-attests": 2,
    "forgets-what-it-gave-up": 7,
    "forgets-what-waits": 3,
    "forgets-what-was-due": 3,
    "frees-a-group-with-its-first": 6,
    "gives-out-what-failed-too-often": 8,
    "gives-out-what-has-expired": 3,
    "gives-out-what-is-to-wait": 3,
    "gives-what-is-not-given": 2,
    "hands-over-without-quiet": 3,
    "holds-for-ever": 6,
    "keeps-files-for-nobody": 91,
    "keeps-subscriptions-to-itself": 2,
    "keeps-the-rejected": 6,
    "keeps-transactions-of-the-gone": 4,
    "knows-filters-of-its-own-term": 2,
    "leaves-parts": 7,
    "lets-go-early": 3,
    "lets-go-for-all": 9,
    "lets-go-late": 9,
    "letters-twice": 6,
    "levels-by-the-batch": 8,
    "lowest-level-first": 8,
    "manifest-lacks-a-part": 7,
    "moves-in-two-batches": 2,
    "numbers-begin-anew": 2,
    "numbers-without-saying": 2,
    "overtakes-a-level-that-is-read": 8,
    "overtakes-what-is-read": 22,
    "owes-for-ever": 9,
    "passes-over-the-unknown": 2,
    "producers-use-nothing": 3,
    "redelivers-last": 3,
    "releases-the-lowest-level": 8,
    "releases-uncounted": 3,
    "reopens-unasked": 3,
    "reopens-unsettled": 3,
    "ring-counts-what-is-committed": 3,
    "ring-lets-go-in-a-batch-of-its-own": 3,
    "ring-lets-the-newest-go": 3,
    "settles-what-is-not-committed": 3,
    "settles-what-is-sent": 20,
    "stands-below-its-floor": 60,
    "stands-unasked": 23,
    "subscription-goes-with-its-connection": 2,
    "sweeps-what-is-held": 7,
    "takes-over-beside-a-voter": 4,
    "times-of-the-next": 3,
    "torn-tail-taken-as-whole": 3,
    "truncates-what-it-holds": 4,
    "two-member-changes": 7,
    "unsubscribes-before-it-is-committed": 2,
    "unsubscribes-nobody": 2,
    "votes-below-its-floor": 4,
    "votes-for-older-logs": 3,
    "waits-for-a-silent-reader": 11,
    "witness-votes-for-whoever-asks": 2,
}
"""Seeds to begin with, where the first finds nothing, or where another bug of the same plan begins with this one, so that the run
without a bug is made once: only a matter of time."""
SOUND: dict[Callable[[int], object], Container[int]] = {
    world.run: FIXED,
    departures.run: LEAVING,
    takeovers.run: TAKING_OVER,
    RUNS["begins-anew"]: LOSING,
    RUNS["gives-up-on-newer-logs"]: INSISTING,
    RUNS["forgets-that-it-is-paused"]: AGREEING,
    RUNS["lets-two-kinds-move-it"]: AGREEING,
    RUNS["compacts-nothing"]: HOARDING,
}
"""Seeds that another test runs without a bug."""


FIRST_OF = {RUNS[name]: name for name in reversed(BUGS) if name in RUNS}
"""By plan: the first bug that is hunted in it."""
HUNTS = [pytest.param(name, id=f"{name}{SHARED}{FIRST_OF[RUNS[name]]}" if name in RUNS else name) for name in BUGS]


@pytest.mark.simulation
@pytest.mark.parametrize("name", HUNTS)
def test_a_planted_bug_is_caught_by_a_seed_that_finds_nothing_wrong_without_it(name: str) -> None:
    """What `SOUND` seeds find without it is what other tests run them for."""
    seeds, run = list(dict.fromkeys([LAST_CAUGHT_BY.get(name, FIRST.start), *FIRST])), RUNS.get(name, world.run)
    finding = hunt(name, run, seeds, sound=SOUND.get(run, ()))
    assert finding.seed, f"{name} is caught by none of the seeds {FIRST.start} to {FIRST.stop - 1}"


def test_bugs_of_one_plan_are_hunted_in_one_worker() -> None:
    """Breaks when each worker makes the run without a bug again."""
    groups = {str(hunt.values[0]): group_of(f"tests/simulation/test_mutations.py::test_a[{hunt.id}]") for hunt in HUNTS}
    assert {name for name, group in groups.items() if not group} == set(BUGS) - set(RUNS)
    assert all((groups[one] == groups[other]) == (RUNS[one] is RUNS[other]) for one in RUNS for other in RUNS)


def test_plans_that_provoke_and_seeds_to_begin_with_are_for_bugs_that_there_are() -> None:
    assert (set(RUNS) | set(LAST_CAUGHT_BY)) - set(BUGS) == set()


def test_a_bug_is_there_while_it_is_planted_and_gone_without_a_trace_after() -> None:
    before = dict(vars(Backup))
    with planted("keeps-a-diverged-tail"):
        assert Backup._add is not before["_add"]
    assert dict(vars(Backup)) == before
    with planted("acknowledges-unsynced"):
        assert isinstance(vars(Backup)["match_index"], property)
    assert dict(vars(Backup)) == before


def test_a_bug_that_does_not_fit_the_code_any_more_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUGS, "stale", Bug("", "ha.core.backup", "Backup.forget", "no such line", "pass"))
    with pytest.raises(AssertionError, match="stands 0 times"), planted("stale"):
        pass


def test_a_hunt_ends_with_the_first_seed_that_a_check_objects_to_because_of_the_bug() -> None:
    tried = []
    right = vars(Backup)["_add"]

    def run(seed: int) -> None:
        tried.append(seed)
        if seed == 2:
            raise Violation("liveness: fails with the bug and without it")
        if seed == 3 and vars(Backup)["_add"] is not right:
            raise Violation("lost: a message")

    finding = hunt("keeps-a-diverged-tail", run, range(1, 10))
    assert tried == [1, 2, 2, 3, 3]
    assert (finding.seed, finding.check) == (3, "lost")
    assert hunt("keeps-a-diverged-tail", run, [1, 2]).seed == 0
    assert hunt("keeps-a-diverged-tail", run, [1, 2], sound=[2]).seed == 2
    assert tried[5:] == [1, 2, 1, 2], "what a seed says without the bug is asked once"


def test_the_command_hunts_a_bug_in_its_own_plan_if_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(seed: int) -> None:
        if seed == 2:
            raise Violation("lost: a message")

    monkeypatch.setattr(mutations, "_objection_without", lambda run, seed: "")
    monkeypatch.setattr(mutations, "run", lambda seed: None)
    monkeypatch.setitem(RUNS, "keeps-a-diverged-tail", found)
    assert mutations.hunt_where_it_shows("keeps-a-diverged-tail", range(1, 10)).seed == 2
    monkeypatch.delitem(RUNS, "keeps-a-diverged-tail")
    assert mutations.hunt_where_it_shows("keeps-a-diverged-tail", range(1, 10)).seed == 0


def test_the_table_says_what_was_caught_and_what_was_not() -> None:
    findings = [
        Finding("skips-fsync", 3, "lost: a message", 0.5),
        Finding("serves-early", 0, "", 9.0),
        Finding("votes-twice", 2, "votes: twice", 0.5),
    ]
    assert table(findings).splitlines()[2:] == [
        f"| skips-fsync | {BUGS['skips-fsync'].says} | of any seed | lost |",
        f"| serves-early | {BUGS['serves-early'].says} | of any seed | not caught |",
        f"| votes-twice | {BUGS['votes-twice'].says} | of its own plan | votes |",
    ]


def test_the_reference_has_each_planted_bug() -> None:
    """All but the check that objects: that may be another one with another seed."""
    head, line, *rows = table([Finding(name, 0, "", 0.0) for name in BUGS]).splitlines()
    _, _, written = DOCUMENT.read_text().partition(f"{head}\n{line}\n")
    found = [row for row in written.splitlines() if row.startswith("| ")]
    assert sorted(row.rsplit("|", 2)[0] for row in found) == sorted(row.rsplit("|", 2)[0] for row in rows)


def test_the_command_refuses_a_bug_that_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        mutations.main(["no-such-bug"])
    assert "there is no bug named no-such-bug" in capsys.readouterr().err
