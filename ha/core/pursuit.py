"""A promotion with `insist`: "make this member the primary, whenever a majority can be reached".

Life of a pursuit: it begins with such a request. The member uses every possible way. While a primary is heard, it asks
the primary to hand over, and the primary waits until the member has caught up (`Primary.transfer`). Without a primary
it campaigns. If the reachable members refuse their votes because their logs are newer, it asks the one with the newest
log to campaign. As soon as that one, or any other member, is heard as the primary, it asks that primary to hand over. A
temporary obstacle (the primary is not active yet, or another member campaigns) delays it by a heartbeat. It ends when
the member is the primary, when there is a permanent obstacle, when a campaign finds no majority, or at `deadline`.

Invariants: a member campaigns for another one only in the epoch in which it was asked, so an old request has no effect.
Each request moves the primary to its own member at most once, so any number of requests ends.
"""

from __future__ import annotations

from ha.core.messages import Position, PreVoteReply


class Pursuit:
    """Times are in seconds. `retry_at`: when to continue after a setback, whose `reason` is reported if the promotion
    fails. `cannot`: the members that were asked to campaign and refuse, and why.
    """

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
        """This way is not possible. Another one may be possible after a heartbeat, and `turn` more: members that have
        split the votes try again at different times.
        """
        self.reason = reason
        self.retry_at = now + self._heartbeat_s * (1 + turn)

    def may_ask(self, now: float, member: str) -> bool:
        """Whether to ask this member to campaign now: once a heartbeat, in case the request was lost."""
        if self._asked == member and now - self._asked_at < self._heartbeat_s:
            return False
        self._asked, self._asked_at = member, now
        return True

    def refused(self, member: str, reason: str) -> bool:
        """The member refuses to campaign. Returns whether it was asked to."""
        if member != self._asked:
            return False
        self.cannot[member] = reason
        return True

    def best_of(self, replies: dict[str, PreVoteReply], mine: Position) -> str:
        """The member that can be elected rather than one whose log ends at `mine`: the one with the newest reported
        log, or "".
        """
        newer = [
            (Position(reply.end_epoch, reply.end_index), member)
            for member, reply in replies.items()
            if member not in self.cannot and Position(reply.end_epoch, reply.end_index) > mine
        ]
        return max(newer)[1] if newer else ""

    def told(self, reason: str) -> str:
        """`reason`, and why no member was elected that could hand over."""
        others = "".join(f"; {member} was asked to be elected first: {why}" for member, why in sorted(self.cannot.items()))
        return reason + others
