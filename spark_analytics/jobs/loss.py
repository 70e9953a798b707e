"""Answers an operator's question: can I lose the primary now? The answer comes from the primary's last report.

A promotion needs a majority of the voters, and a record that a majority has is never lost. So the primary can be lost if the
remaining voters are a majority by themselves. Records that no backup has acknowledged are only on the primary; their senders
have not received an acceptance.

The primary's roster names the voters. Learners have no vote, and a witness has a vote, but no records: while it attests the
primary's log, accepted records may be on the primary's disk alone, and then no backup is promoted. Telemetry without voters
is of an older release; then all members count as voters. For the past, the votes of that time count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from spark_analytics.jobs.series import GONE, NO_BACKUP, Rows

_AWAY: Final = (*GONE, "REWOUND")


def primary_loss(
    backups: Rows,
    timeline: dict[str, Any],
    terms: Rows,
    *,
    begin_ms: int,
    end_ms: int,
    votes: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The report's `loss`: `answer` (`yes`, `at risk` or `no`), the sentences `said` and `why`, `records` at risk,
    `since_ms`, `as_of_ms`, the number of `members` with a vote, the number `needed` for a promotion, the number of connected
    backups with a vote (`left`), `away`: the other ones, with their status `now`, and `witness`: whether the witness is
    connected, None without one. `votes` are those rosters of the primary with which the votes changed (`vote`), in order.
    """
    voters, witness = _votes_of(votes[-1] if votes else None)
    standing = [row for row in backups if row["now"] not in NO_BACKUP]
    voting = [row for row in standing if not voters or row["backup"] in voters]
    away = [{"backup": row["backup"], "now": row["now"]} for row in voting if row["now"] in _AWAY]
    gone = {row["backup"] for row in away}
    left = [row for row in voting if row["backup"] not in gone]
    members = len(voters) if voters else 1 + len(voting)
    needed = members // 2 + 1
    records = min((row["lag_records"] or 0 for row in left), default=0)
    lacking = [row["backlog"] for row in left] if witness is not None else []
    enough = _is_enough(len(left), needed, witness=witness, lacking=lacking)
    found: dict[str, Any] = {
        "answer": "no" if not enough else "at risk" if records else "yes",
        "records": records,
        "since_ms": max(_since(backups, timeline, votes, begin_ms, enough=enough), terms[-1]["begin_ms"] if terms else begin_ms),
        "as_of_ms": end_ms,
        "members": members,
        "needed": needed,
        "left": len(left),
        "away": away,
        "witness": witness,
    }
    whole = sum(not row["lag_records"] for row in left)
    said, why = _sentence(found, whole, has_learners=len(voting) < len(standing))
    state = {None: "", True: " The witness is connected.", False: " The witness is not connected."}[witness]
    return found | {"said": said, "why": why + state}


def _is_enough(left: int, needed: int, *, witness: bool | None, lacking: list[int | None]) -> bool:
    """Whether so many backups can promote one of them, with the witness. `lacking` are the committed batches that each of
    them lacks: if all of them lack some, the witness attests more than they have, and refuses its vote."""
    return left + bool(witness) >= needed and not (lacking and all(lacking))


def vote(roster: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a roster says of the votes: equal for rosters with the same votes."""
    return sorted(roster["voters"] or ()), roster["witness"], roster["witness_connected"]


def _votes_of(roster: Mapping[str, Any] | None) -> tuple[list[str] | None, bool | None]:
    """The voters, and whether the witness is connected; None if they are not known, or if there is no witness."""
    if not roster or not roster["voters"]:
        return None, None
    return roster["voters"], bool(roster["witness_connected"]) if roster["witness"] else None


def _since(backups: Rows, timeline: dict[str, Any], votes: Sequence[Mapping[str, Any]], begin_ms: int, *, enough: bool) -> int:
    """The start of the steps, up to the last one, in which the answer was the same by the votes at the end of each. The last one
    may have been different for the most part: then it is the start of this step."""
    primaries = {row["backup"] for row in backups if row["now"] == "PRIMARY"}
    series = {name: its for name, its in timeline["backups"].items() if name not in primaries}
    step, at = timeline["count"], len(votes) - 1
    while step and series and all(its["status"][step - 1] is None for its in series.values()):
        step -= 1  # of the last interval, no sample is due yet
    while step:
        while at > 0 and votes[at]["from_ms"] >= timeline["start_ms"] + step * timeline["step_ms"]:
            at -= 1
        voters, witness = _votes_of(votes[at] if votes else None)
        voting = [its for name, its in series.items() if its["status"][step - 1] is not None and (not voters or name in voters)]
        there = [its for its in voting if its["status"][step - 1] not in _AWAY]
        needed = (len(voters) if voters else 1 + len(voting)) // 2 + 1
        lacking = [its["backlog"][step - 1] for its in there] if witness is not None else []
        if _is_enough(len(there), needed, witness=witness, lacking=lacking) != enough:
            break
        step -= 1
    step = min(step, timeline["count"] - 1)
    return int(max(begin_ms, timeline["start_ms"] + step * timeline["step_ms"]))


def _sentence(loss: dict[str, Any], whole: int, *, has_learners: bool) -> tuple[str, str]:
    """The answer and its reason, as sentences for people. `whole` is the number of connected backups that hold every record."""
    left, members, needed, records = (loss[name] for name in ("left", "members", "needed", "records"))
    count, votes, voting = left + len(loss["away"]), left + bool(loss["witness"]), "voting " if has_learners else ""
    if not count:
        alone = "no other broker can be promoted" if has_learners else "every record stands on the primary alone"
        return "No", f"there is no {voting}backup: {alone}."
    reached = f"{left} of {count} {voting}backups can be reached"
    if votes < needed:
        return "No", f"{reached}, and a promotion needs {needed} of the {members} {voting}brokers."
    if loss["answer"] == "no":
        return "No", f"{reached}, and none of them has all accepted records, so none of them can be promoted."
    spare = votes - needed
    more = f"{spare} more may fail" if spare else "no other broker may fail as well"
    if loss["answer"] == "yes":
        holding = "hold" if whole == left else f"{whole} of them hold{'s' if whole == 1 else ''}"
        return "Yes", f"{reached}, and {holding} every record; {more}."
    some, are = ("record", "is") if records == 1 else ("records", "are")
    return f"Yes, with {records:,} {some} at risk", f"{records:,} {some} {are} on no backup yet, and not accepted; {more}."
