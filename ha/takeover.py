"""The text about a takeover by force (ha.core.lineage): from which state it continues, and what is lost as far as known."""

from __future__ import annotations

from datetime import UTC, datetime

from ha.core.status import ReplicaStatus


def begun_with(me: str, status: ReplicaStatus, heard_s: float | None, made_ms: int) -> str:
    """The text that follows "a new cluster". `heard_s`: how long ago a primary was heard; None: not since the start.
    `made_ms`: when the last batch applied here was made, in ms since 1970; 0: no batch is applied.
    """
    others = ", ".join(each for each in status.members.voters if each != me) or "nobody"
    lacks = status.told_commit - status.last_index
    known = f" (so at least the last {lacks} of these are lost)" if lacks > 0 else ""
    facts = ["no batch was known to be committed"]
    if status.told_commit:
        facts = [f"batches up to {status.told_commit} were known to be committed{known}"]
    if made_ms:
        moment = datetime.fromtimestamp(made_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        facts.append(f"the last batch applied was made at {moment}")
    facts.append("no primary was heard since its start" if heard_s is None else f"a primary was heard {heard_s:.0f} s ago")
    return (
        f"after batch {status.last_index} of epoch {status.last_epoch}; {', '.join(facts[:-1])}, and {facts[-1]}; "
        f"given up: {others}, and all that they accepted after that batch"
    )
