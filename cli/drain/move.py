"""Moves the messages of one queue: from a link of the broker that leaves to a link of the target.

Life of a message here: it arrives with its sequence as the delivery's tag. If the target has said that it holds this
sequence, the message is settled at the source at once. Otherwise it is sent with the same tag, in the order of arrival.
When the target has accepted it, a majority of the target's brokers has it on disk, and it is settled at the source. If
the target rejects a message, or the message is too large for it, the message stays at the source, unsettled until the
link ends, and is listed.

Life of a move: both links attach. The move continues until the source has no more messages. If a link or a connection
ends, the move ends with the reason. The next move continues from the state of the two brokers. Nothing is remembered
here.

Invariants: a message is settled at the source only if the target holds it. The messages here use at most `HERE_BYTES`,
plus what one read of a socket may bring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate, compress

import google_crc32c

from broker.amqp.links import Receiver, Sender
from broker.client import ManagementClient
from broker.core.links import ACCEPTED
from broker.core.origins import SEQUENCE_BYTES, Held
from broker.core.records import runs_of

HERE_BYTES = 16 << 20
LARGEST_BYTES = 1 << 30
_FIRST_CREDIT, _MOST_CREDIT = 50, 5000


class Move:
    """See the module. `held`: the sequences that the target said it holds. `bounded`: messages arrive only as far as
    `allow` permits. `traits`: both brokers support traits, which are sent on unchanged.
    """

    def __init__(
        self,
        source: ManagementClient,
        target: ManagementClient,
        uuid: str,
        address: str,
        held: Held,
        *,
        bounded: bool = False,
        traits: bool = False,
    ) -> None:
        self.moved = 0
        self.refused: dict[int, str] = {}
        """Sequences that the target does not accept, and the reasons."""
        self.ended = ""
        """Why the move cannot continue; "" while it can."""
        self.active = False
        """Whether anything has happened since this was last set to False."""
        self._source = source
        self._target = target
        self._held = held
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._ids: dict[int, int] = {}
        """Sequence -> delivery at the source, for messages that are here or on their way to the target."""
        self._here_bytes = 0
        self.checksum = self.nbytes = self.known = 0
        """The sum of the CRC-32C of the moved messages, their bytes, and the number of messages that the target already
        had.
        """
        self._facts: dict[int, tuple[int, int, bytes]] = {}
        """Sequence -> bytes, CRC-32C and traits of the messages that are here or on their way."""
        self._paused = False
        """Whether reading from the source is paused, because too many bytes are here."""
        self._credit = _FIRST_CREDIT
        self._allowed: float | None = 0.0 if bounded else None
        """How many messages may arrive; None: any number."""
        self._wanted = 0
        """How many more messages would be requested, if they were allowed."""
        self._in: Receiver | None = None
        self._out: Sender | None = None
        self._out = target.wire.send_to(address, _Out(self))
        if traits:
            self._out.traits_of = lambda first, count: [self._facts[each][2] for each in range(first, first + count)]
        self._in = source.wire.receive_from(f"$drain/{uuid}{'/traits' if traits else ''}", _In(self), LARGEST_BYTES)
        for client in (source, target):
            client.lost.addCallback(self._lost)

    def _lost(self, reason: str) -> str:
        self.ended = self.ended or f"connection lost: {reason}"
        return reason

    @property
    def in_flight(self) -> int:
        """The number of messages that are here or on their way to the target."""
        return len(self._ids)

    @property
    def settled(self) -> int:
        """The number of messages that have left the source: moved ones, and those that the target already had."""
        return self.moved + self.known

    def close(self) -> None:
        """End both links."""
        self.ended = self.ended or "ended"
        self._waiting.clear()
        if self._paused:
            self._read_again()
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
        self.active = True
        first, messages = link.take()
        tags = link.tags(first, len(messages))
        sequences = [int.from_bytes(tag[:SEQUENCE_BYTES], "big") for tag in tags]
        ids: Sequence[int] = range(first, first + len(messages))
        known = [delivery_id for delivery_id, sequence in zip(ids, sequences, strict=True) if sequence in self._held]
        if known:
            new = [sequence not in self._held for sequence in sequences]
            sequences, ids, messages = list(compress(sequences, new)), list(compress(ids, new)), list(compress(messages, new))
            tags = list(compress(tags, new))
        sizes = list(map(len, messages))
        self._ids.update(zip(sequences, ids, strict=True))
        facts = zip(sizes, map(google_crc32c.value, messages), (tag[SEQUENCE_BYTES:] for tag in tags), strict=True)
        self._facts.update(zip(sequences, facts, strict=True))
        self._here_bytes += sum(sizes)
        self._waiting.extend(zip(sequences, messages, strict=True))
        if known:
            self.known += len(known)
            self._settle(known)
        if self._here_bytes > HERE_BYTES and not self._paused:
            self._paused = True
            self._source.wire.stop_reading()
        self.send()

    def send(self) -> None:
        """Send messages as far as the target has given credit."""
        link, sent = self._out, False
        if link is None or not link.open:
            return
        largest, waiting = link.largest or LARGEST_BYTES, self._waiting
        while waiting and (credit := link.credit) > 0:
            sequence, data = waiting.popleft()
            if len(data) > largest:
                self._refuse(sequence, f"it has {len(data)} bytes, and the target takes {largest} (--max-message-size)")
                continue
            run = [data]
            while len(run) < credit and waiting and waiting[0][0] == sequence + len(run) and len(waiting[0][1]) <= largest:
                run.append(waiting.popleft()[1])
            link.send(b"".join(run), list(accumulate(map(len, run), initial=0)), 0, len(run), sequence, presettled=False)
            sent = True
        if sent:
            self._target.wire.pump()

    def answered(self) -> None:
        """The target's outcomes."""
        link = self._out
        assert link is not None
        self.active = True
        taken: list[int] = []
        reasons, link.refusals = link.refusals, {}
        for first, count, outcome, _ in link.take_outcomes():
            if outcome == ACCEPTED:
                for sequences in link.account.take(first, count):
                    taken += self._taken(sequences)
                link.settle(first, count)
                continue
            for delivery_id in range(first, first + count):
                for sequences in link.account.take(delivery_id, 1):
                    for sequence in sequences:
                        self._refuse(sequence, reasons.get(delivery_id) or "the target does not take it")
            link.settle(first, count)
        if taken:
            self.moved += len(taken)
            self._settle(taken)
        self.send()

    def _taken(self, sequences: Iterable[int]) -> list[int]:
        """The target has these messages. Returns their deliveries at the source."""
        facts, ids, found = self._facts, self._ids, list[int]()
        nbytes = 0
        for sequence in sequences:
            size, checksum, _ = facts.pop(sequence)
            nbytes += size
            self.checksum += checksum
            found.append(ids.pop(sequence))
        self.nbytes += nbytes
        self._let_go(nbytes)
        return found

    def _gone(self, sequence: int) -> None:
        self._let_go(self._facts.pop(sequence)[0])
        del self._ids[sequence]

    def _let_go(self, nbytes: int) -> None:
        self._here_bytes -= nbytes
        if self._paused and self._here_bytes < HERE_BYTES // 2:
            self._read_again()

    def _read_again(self) -> None:
        self._paused = False
        if not self._source.is_lost:
            self._source.wire.read_again()

    def _refuse(self, sequence: int, why: str) -> None:
        self._gone(sequence)
        self.refused[sequence] = why
        self._grant(1)

    def _settle(self, delivery_ids: list[int]) -> None:
        """These messages are on the target: settle them at the source."""
        link = self._in
        assert link is not None
        for first, count in runs_of(delivery_ids):
            link.settle(first, count, ACCEPTED)
        self._grant(len(delivery_ids))
        self._source.wire.pump()

    def _grant(self, count: int) -> None:
        """Let this many more messages arrive: more at a time while messages are small."""
        here = len(self._ids)
        average = self._here_bytes // here + 1 if here else 0
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
