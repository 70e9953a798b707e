"""The office of a member: a backup, a witness, or the primary; and what has been announced about it.

Life of an office: a member follows when it starts, leads when it is elected, and follows again when its term ends. Each
office of an epoch is a new `Backup`, `Witness` or `Primary`. A change is announced at once, so that the following
effects in the list are those of the new office.

Invariant: the edge is told of each change once, in the order of the changes.
"""

from __future__ import annotations

from ha.core.backup import Backup
from ha.core.effects import State, StateChanged, WritableChanged
from ha.core.member import Member
from ha.core.primary import Primary
from ha.core.witness import Witness


class Office:
    """`role` is the role of `member` in this epoch."""

    __slots__ = ("_announced", "_writable", "member", "role")

    def __init__(self, member: Member) -> None:
        self.member = member
        self._announced: tuple[State, int, str] | None = None
        self._writable = False
        self.role: Backup | Primary = self._follower()

    @property
    def state(self) -> State:
        """The state in Apache Qpid's words."""
        return self.role.state

    @property
    def primary(self) -> str:
        """The primary's address, or "" when none is known."""
        return self.role.primary

    @property
    def writable(self) -> bool:
        """Whether batches may be proposed."""
        return self.role.writable

    def follow(self) -> None:
        """Be a backup, or a witness, that knows no primary."""
        self.role = self._follower()

    def lead(self, now: float) -> Primary:
        """Be the primary of this epoch."""
        role = self.role = Primary(self.member, now)
        return role

    @property
    def has_news(self) -> bool:
        """Whether anything is to be announced."""
        role = self.role
        return (role.state, self.member.epoch, role.primary) != self._announced or role.writable != self._writable

    def announce_state(self) -> bool:
        """Announce the state of this member. Returns whether it is new."""
        role = self.role
        now_is = (role.state, self.member.epoch, role.primary)
        if now_is == self._announced:
            return False
        self._announced = now_is
        self.member.emit(StateChanged(*now_is))
        return True

    def announce_writable(self) -> None:
        """Announce whether batches may be proposed, if that has changed."""
        writable = self.role.writable
        if writable != self._writable:
            self._writable = writable
            self.member.emit(WritableChanged(writable))

    def loyalty(self, now: float) -> str:
        """Why no election is needed, as far as this member knows, or ""."""
        role = self.role
        if isinstance(role, Primary):
            return f"it is itself the primary, of epoch {self.member.epoch}"
        return f"it hears the primary {role.primary} of epoch {self.member.epoch}" if role.hears(now) else ""

    def _follower(self) -> Backup:
        """The role of a member that is not the primary, when an epoch begins."""
        return Witness(self.member) if self.member.settings.witness else Backup(self.member)
