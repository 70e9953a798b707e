"""The room that the disk of one log has for messages.

Life: while the disk has room, everything is taken. When the log says that the disk is nearly full (`falls`), producers wait: a
little of the credit that they have already is still taken, and dead letters as far as the log allows, from time to time, some
more of them (`spares`). When there is room again (`recovers`), the limits end.

Invariants: `text` says why producers wait, and is empty while they do not; `low` implies `text`; what is taken is taken once,
from what producers may still send or from what is left for dead letters.
"""

from __future__ import annotations

from broker.sessions.inflow import Inflow


class DiskRoom:
    """See the module. `inflow` knows the dead letters, in all logs, that are put and not written yet."""

    def __init__(self, inflow: Inflow) -> None:
        self.text = ""
        """Why producers wait: the disk is full, or nearly full, or fails. Empty while it takes writes."""
        self.low = False
        """Whether the disk is nearly full: call `takes` before a message is put."""
        self._inflow = inflow
        self._spare_bytes = self._letters_spare_bytes = self._letter_most_bytes = 0

    def takes(self, nbytes: int) -> bool:
        """Whether the disk has room for messages of this size. While it is nearly full, a little of the clients' credit is still
        accepted, and nothing after the first message that is too large."""
        if not self.low:
            return True
        fits = nbytes <= self._spare_bytes
        self._spare_bytes = self._spare_bytes - nbytes if fits else 0
        return fits

    def fits_letter(self, nbytes: int) -> bool:
        """Whether the disk has room for a dead letter of this size, with its copies in all logs: call `take_letter` of every log
        before it is put. While the disk is nearly full, some are still accepted from time to time: each replaces its original,
        and consumers of the dead letters free space."""
        return not self.low or nbytes <= max(self._letter_most_bytes, self._spare_bytes)

    def take_letter(self, nbytes: int) -> None:
        """A dead letter of this size, with its copies, is about to be put, here or in another log of this broker: all logs lie in
        one data folder, so they share the room."""
        if not (self.low and nbytes):
            return
        if nbytes <= self._letter_most_bytes:
            self._letters_spare_bytes = self._letter_most_bytes = max(self._letters_spare_bytes - nbytes, 0)
        else:
            self._spare_bytes = max(self._spare_bytes - nbytes, 0)

    def falls(self, text: str, spare_bytes: int) -> None:
        """The disk is nearly full, as `text` says: so many bytes of what producers have credit for are still taken."""
        self.low, self.text, self._spare_bytes = True, text, spare_bytes
        self._letters_spare_bytes = self._letter_most_bytes = 0

    def spares(self, spare_bytes: int, most_bytes: int) -> None:
        """The disk, which is nearly full, takes so many bytes more of dead letters, or one large one. Those that are not written
        yet, in any log, are among them."""
        coming = self._inflow.letter_bytes
        self._letters_spare_bytes = max(spare_bytes - coming, 0)
        self._letter_most_bytes = max(self._letters_spare_bytes, most_bytes - coming)

    def recovers(self) -> bool:
        """The disk is not nearly full any more. Returns whether producers waited."""
        self.low, self._spare_bytes = False, 0
        self._letters_spare_bytes = self._letter_most_bytes = 0
        return self.writes_again()

    def writes_again(self) -> bool:
        """The disk takes writes. Returns whether producers waited, and need not wait any longer."""
        waited = bool(self.text) and not self.low
        if waited:
            self.text = ""
        return waited
