"""What a takeover by force (ha.core.lineage) goes on from, and what it gives up as far as that can be known, for people."""

from __future__ import annotations

from datetime import UTC, datetime

from ha.replicated_log import ReplicatedLog


def begun_with(me: str, log: ReplicatedLog, made_ms: int) -> str:
    """In words that follow "a new cluster". `made_ms`: when the last batch that is applied here was made, in ms since 1970."""
    status, heard_s = log.status(), log.silence_s()
    moment = datetime.fromtimestamp(made_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    others = ", ".join(each for each in status.members.voters if each != me) or "nobody"
    heard = "" if heard_s is None else f", and a primary was heard {heard_s:.0f} s ago"
    return (
        f"after batch {status.last_index} of epoch {status.last_epoch}; up to batch {status.told_commit} it was told of commits, "
        f"the last batch applied was made at {moment}{heard}; given up: {others}, and what they have accepted beyond that"
    )
