"""A promotion that is insisted on: "make this member the primary, whenever a majority can be reached".

Life of a pursuit: it begins with such a request. The member goes whichever way is open. While a primary is heard it asks that one
to hand over, and the primary waits for it to come level (`Primary.transfer`). Without a primary it campaigns. When the members
that can be reached refuse it their votes because their logs are newer, it asks the one with the newest log to stand for election;
as soon as that one, or anybody else, is heard as the primary, it asks that one to hand over. What may pass (the primary is not
active yet, somebody else asks for votes) sets it back for a heartbeat. It ends when the member is the primary, when there is a
reason that does not pass, when a campaign finds no majority, or at `deadline`.

Invariants: a member stands for another one only while it is in the epoch in which it was asked, so that an old request does
nothing; each request moves the primary to its own member at most once, so any number of them comes to an end.
"""

from __future__ import annotations

from ha.core.messages import Position, PreVoteReply


class Pursuit:
    """Times in seconds. `retry_at`: when it goes on after a setback, whose `reason` is told if nothing comes of it. `cannot`: the
    members that were asked to stand and will not, and why."""

    __slots__ = ("_asked", "_asked_at", "_heartbeat_s", "cannot", "deadline", "reason", "retry_at")

    def __init__(self, now: float, within_s: float, heartbeat_s: float) -> None:
        self.deadline = now + within_s
        self.retry_at = now
        self.reason = ""
        self.cannot: dict[str, str] = {}
        self._heartbeat_s = heartbeat_s
        self._asked = ""
        self._asked_at = now

    def set_back(self, now: float, reason: str, turn: int = 0) -> None:
        """This way is closed; another may be open a heartbeat later, and `turn` more: those that have split the votes try again
        at different times."""
        self.reason = reason
        self.retry_at = now + self._heartbeat_s * (1 + turn)

    def may_ask(self, now: float, member: str) -> bool:
        """Whether to ask this member to stand now: once a heartbeat, in case the word was lost."""
        if self._asked == member and now - self._asked_at < self._heartbeat_s:
            return False
        self._asked, self._asked_at = member, now
        return True

    def refused(self, member: str, reason: str) -> bool:
        """The member says that it does not stand. Returns whether it was asked to."""
        if member != self._asked:
            return False
        self.cannot[member] = reason
        return True

    def best_of(self, replies: dict[str, PreVoteReply], mine: Position) -> str:
        """Who can be elected rather than a member whose log ends at `mine`: the newest of the logs told, or ""."""
        newer = [
            (Position(reply.end_epoch, reply.end_index), member)
            for member, reply in replies.items()
            if member not in self.cannot and Position(reply.end_epoch, reply.end_index) > mine
        ]
        return max(newer)[1] if newer else ""

    def told(self, reason: str) -> str:
        """`reason`, and why nobody was elected to hand over."""
        others = "".join(f"; {member} was asked to be elected first: {why}" for member, why in sorted(self.cannot.items()))
        return reason + others
