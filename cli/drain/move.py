"""Moves the messages of one queue: from a link of the broker that leaves to a link of the target.

Life of a message here: it arrives with its sequence as the delivery's tag. If the target has said that it holds this
sequence, the message is settled at the source at once. Otherwise it is sent with the same tag, in the order of arrival.
When the target has accepted it, a majority of the target's brokers has it on disk, and it is settled at the source. If
the target rejects a message, or the message is too large for it, the message stays at the source, unsettled until the
link ends, and is listed.

Life of a move: both links attach. The move continues until the source has no more messages. If a link or a connection
ends, the move ends with the reason. The next move continues from the state of the two brokers. Only which messages are
counted is remembered, because a message can come again: the next move settles it, and does not count it again.

Messages are handled by runs of consecutive sequences (`in_flight`). Only reading and writing their tags, and the calls into
proton, are done for each message.

Invariants: a message is settled at the source only if the target holds it. The messages here use at most `HERE_BYTES`,
plus what one read of a socket may bring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.amqp.receiver import Receiver
from broker.amqp.sender import Sender
from broker.client import ManagementClient
from broker.core.links import ACCEPTED
from broker.core.origins import Held, read_tags
from broker.core.packs import Credit
from cli.drain.in_flight import InFlight

HERE_BYTES = 16 << 20
LARGEST_BYTES = 1 << 30
_FIRST_CREDIT, _MOST_CREDIT = 50, 5000


class Move:
    """See the module. `queue`: its name in the drain. `held`: the sequences that the target said it holds. `bounded`:
    messages arrive only as far as `allow` permits. `traits`: both brokers support traits, which are sent on unchanged.
    `packed`: they support packs too. `counted`: the sequences that this and earlier moves of the queue have counted as moved or
    known; this move adds its own.
    """

    def __init__(
        self,
        source: ManagementClient,
        target: ManagementClient,
        queue: str,
        address: str,
        held: Held,
        counted: Held,
        *,
        bounded: bool = False,
        traits: bool = False,
        packed: bool = False,
    ) -> None:
        self.moved = 0
        self.settled = 0
        """The number of messages that have left the source."""
        self.refused: dict[int, str] = {}
        """Sequences that the target does not accept, and the reasons."""
        self.ended = ""
        """Why the move cannot continue; "" while it can."""
        self._active = False
        """Whether messages or outcomes have come since `has_advanced` was last asked."""
        self._progress = 0, 0
        """The bytes of an unfinished message from the source, and those that have not left for the target, at that time."""
        self._source = source
        self._target = target
        self._held = held
        self._counted = counted
        self._here = InFlight()
        self.checksum = self.nbytes = self.known = 0
        """The sum of the CRC-32C of the moved messages, their bytes, and the number of messages that the target already
        had, without those that are counted.
        """
        self._paused = False
        """Whether reading from the source is paused, because too many bytes are here."""
        self._credit = _FIRST_CREDIT
        self._allowed: float | None = 0.0 if bounded else None
        """How many messages may arrive; None: any number."""
        self._wanted = 0
        """How many more messages would be requested, if they were allowed."""
        self._in: Receiver | None = None
        self._out: Sender | None = None
        self._out = target.wire.send_to(address + "/packs" * packed, _Out(self))
        if traits:
            self._out.traits_of = self._here.traits
        self._out.packed = packed
        how = "/packs" if packed else "/traits" if traits else ""
        self._in = source.wire.receive_from(f"$drain/{queue}{how}", _In(self), LARGEST_BYTES)
        self._in.packed = Credit() if packed else None
        for client in (source, target):
            client.lost.addCallback(self._lost)

    def _lost(self, reason: str) -> str:
        self.ended = self.ended or f"connection lost: {reason}"
        return reason

    @property
    def in_flight(self) -> int:
        """The number of messages that are here or on their way to the target."""
        return self._here.count

    @property
    def arriving(self) -> bool:
        """Whether a message from the source has arrived in part."""
        return self._in is not None and self._in.unfinished > 0

    @property
    def lacks_credit(self) -> bool:
        """Whether messages wait because the target gives no credit, and it has answered all that were sent."""
        link = self._out
        return link is not None and link.credit <= 0 and link.is_answered and self._here.count > 0

    def has_advanced(self) -> bool:
        """Whether anything has happened since the last call: of a large message, any of its bytes."""
        coming = 0 if self._in is None else self._in.unfinished
        going = self._out.buffered_bytes if self._out is not None and self._out.open else 0
        advanced = self._active or (coming, going) != self._progress
        self._active, self._progress = False, (coming, going)
        return advanced

    def close(self) -> None:
        """End both links."""
        self.ended = self.ended or "ended"
        self._here.stop()
        if self._paused:
            self._read_again()
        if self._in is not None:
            self._in.withhold_rest()
        for client, link in ((self._source, self._in), (self._target, self._out)):
            if link is not None and not client.is_lost and link.open:
                link.context = None
                link.close()
                client.wire.pump()

    # ---- what the links tell

    def source_opened(self) -> None:
        """Let messages come."""
        self._flow(self._credit)

    def came(self) -> None:
        """Messages from the source have arrived."""
        link = self._in
        assert link is not None
        self._active = True
        first, messages = link.take()
        sequences, traits = read_tags(link.tags(first, len(messages)))
        if len(sequences) < len(messages):
            self.ended = self.ended or "source: a message came without its sequence"
            return
        known: list[tuple[int, int]] = []
        for begin, stop in _runs(sequences):
            start = begin
            for held, count in _parts(self._held, sequences[begin], stop - begin):
                end = start + count
                if held:
                    known.append((first + start, count))
                    self.known += self._count(range(sequences[start], sequences[start] + count))
                elif not self._here.add(sequences[start], first + start, messages[start:end], traits[start:end]):
                    self.ended = self.ended or f"source: message {sequences[start]} or one after it came twice"
                    return
                start = end
        if known:
            self._settle(known)
        if self._here.nbytes > HERE_BYTES and not self._paused:
            self._paused = True
            self._source.wire.stop_reading()
        self.send()

    def send(self) -> None:
        """Send messages as far as the target has given credit."""
        link, sent = self._out, False
        if link is None or not link.open:
            return
        largest = link.largest or LARGEST_BYTES
        while (credit := link.credit) > 0 and (part := self._here.next_part(credit, largest)) is not None:
            if part.nbytes > largest and part.stop - part.start == 1:
                why = f"it has {part.nbytes} bytes, and the target takes {largest} (--max-message-size)"
                self._refuse(range(part.sequence, part.sequence + 1), why)
                continue
            base = -part.ends[part.start]
            link.send(part.data, part.ends, part.start, part.stop, part.sequence, presettled=False, base=base)
            sent = True
        if sent:
            self._target.wire.pump()

    def answered(self) -> None:
        """The target's outcomes."""
        link = self._out
        assert link is not None
        self._active = True
        taken: list[tuple[int, int]] = []
        reasons, link.refusals = link.refusals, {}
        for first, count, outcome, _ in link.take_outcomes():
            if outcome == ACCEPTED:
                for sequences in link.account.take(first, count):
                    self.moved += self._count(sequences)
                    gone = self._here.leave(sequences)
                    taken += gone.deliveries
                    self.nbytes += gone.nbytes
                    self.checksum += gone.checksum
                link.settle(first, count)
                continue
            for delivery_id in range(first, first + count):
                for sequences in link.account.take(delivery_id, 1):
                    self._refuse(sequences, reasons.get(delivery_id) or "the target does not take it")
            link.settle(first, count)
        if taken:
            self._read_if_room()
            self._settle(taken)
        self.send()

    def _count(self, sequences: range) -> int:
        """How many of these are counted for the first time. A message that the target has comes again if the source has not
        got its settlement.
        """
        new = sum(count for there, count in _parts(self._counted, sequences.start, len(sequences)) if not there)
        if new:
            self._counted.add(sequences.start, len(sequences))
        return new

    def _read_if_room(self) -> None:
        if self._paused and self._here.nbytes < HERE_BYTES // 2:
            self._read_again()

    def _read_again(self) -> None:
        self._paused = False
        if not self._source.is_lost:
            self._source.wire.read_again()

    def _refuse(self, sequences: range, why: str) -> None:
        """The target does not take these messages: they stay at the source, unsettled."""
        link = self._in
        assert link is not None
        for first, count in self._here.leave(sequences).deliveries:
            link.withhold(first, count)
        self._read_if_room()
        self.refused.update(dict.fromkeys(sequences, why))
        self._grant(len(sequences))

    def _settle(self, deliveries: list[tuple[int, int]]) -> None:
        """The messages of these runs of deliveries are on the target: settle them at the source."""
        link, total = self._in, 0
        assert link is not None
        for first, count in deliveries:
            link.settle(first, count, ACCEPTED)
            total += count
        self.settled += total
        self._grant(total)
        self._source.wire.pump()

    def _grant(self, count: int) -> None:
        """Let this many more messages arrive: more at a time while messages are small."""
        here = self._here
        average = here.nbytes // here.count + 1 if here.count else 0
        wanted = min(_MOST_CREDIT, HERE_BYTES // average) if average else self._credit * 2
        wanted = max(1, min(wanted, _MOST_CREDIT, self._credit * 2))
        grow = max(wanted - self._credit, -count)
        self._credit += grow
        self._flow(count + grow)

    def allow(self, count: float) -> None:
        """This many more messages may arrive."""
        assert self._allowed is not None, "it is bounded"
        self._allowed += count
        self._flow(0)

    def _flow(self, count: int) -> None:
        link = self._in
        assert link is not None
        self._wanted += count
        now = self._wanted if self._allowed is None else min(self._wanted, int(self._allowed))
        if now > 0 and link.open:
            self._wanted -= now
            link.flow(now)
            if self._allowed is not None:
                self._allowed -= now
                self._source.wire.pump()


class _In:
    """The link from the source. Fulfils `broker.net.management_wire.DataLink`."""

    def __init__(self, move: Move) -> None:
        self._move = move

    def opened(self) -> None:
        """Let messages come."""
        self._move.source_opened()

    def messages(self) -> None:
        """Messages have arrived."""
        self._move.came()

    def outcomes(self) -> None:
        """Nothing is sent here."""

    def credit(self) -> None:
        """Nothing is sent here."""

    def closed(self, reason: str) -> None:
        """The source sends no more messages."""
        self._move.ended = self._move.ended or f"source: {reason}"


class _Out:
    """The link to the target. Fulfils `broker.net.management_wire.DataLink`."""

    def __init__(self, move: Move) -> None:
        self._move = move

    def opened(self) -> None:
        """The link is attached; the target will give credit."""

    def messages(self) -> None:
        """This link receives no messages."""

    def outcomes(self) -> None:
        """The target has answered."""
        self._move.answered()

    def credit(self) -> None:
        """The target has given credit."""
        self._move.send()

    def closed(self, reason: str) -> None:
        """The target accepts no more messages."""
        self._move.ended = self._move.ended or f"target: {reason}"


def _parts(present: Held, first: int, count: int) -> Iterator[tuple[bool, int]]:
    """Cut a run of sequences into stretches that are present, and stretches that are missing: for each, whether it is present,
    and its length.
    """
    while count:
        known, missing = present.covered(first, count)
        if missing:
            yield False, missing
        if known:
            yield True, known
        first, count = first + missing + known, count - missing - known


def _runs(sequences: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The stretches of consecutive ascending sequences, as positions (start, stop)."""
    count = len(sequences)
    if count and sequences[-1] - sequences[0] == count - 1 and sequences == tuple(range(sequences[0], sequences[0] + count)):
        yield 0, count
        return
    start = 0
    for at in range(1, count + 1):
        if at == count or sequences[at] != sequences[at - 1] + 1:
            yield start, at
            start = at
