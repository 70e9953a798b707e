"""Checks what happened to every message: it gets the clients' reports, and makes the final report.

A stream has the messages that one producer sends to one queue, numbered 0, 1, 2, ... in the order of sending. Life of a
message: it is sent. If its connection ends before an outcome has arrived, it is sent again. The broker accepts or
refuses it. Consumers receive it and accept it. The broker confirms that, or the link ends first; then the message may
be delivered again.

Each client reports its events in order, but the report of one client may arrive long before or after that of another.
So messages are judged at the end:

* lost: accepted, and never received;
* duplicated: received once more than needed. A message may be received as often as it was sent, and once more for each
  acceptance that was not confirmed when its link ended. Every further time is unexplained. If producers send `once`,
  sending again explains no duplicate;
* unexpected: received but never sent, or received although it was sent once and refused;
* altered: received with another body than it was sent with; it also counts as received;
* reordered: received for the first time after a later message of its stream. Order is promised to the only consumer of
  a queue; if several compete, to each one over one link. A message that may be received twice has no promised place,
  and neither has a message that an ended link may have held and given back (`_may_have_come_back`);
* recovered: received, although its producer gave it up without knowing its outcome.

Memory: at most a few bits per message, and almost nothing while no message is missing (`tally.py`). The lists are
bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cli.verify.core.measures import Measures
from cli.verify.core.tally import Numbers, Tally

MAX_NUMBER = 1 << 40
MAX_LATE = 10_000
MAX_ENDS = 2_000
MAX_EXAMPLES = 5
NOTICED_EARLIER_S = 5.0
"""A broker may notice the end of a link, and deliver its messages to others, this long before its client does."""
NOTICED_LATER_S = 120.0
"""The messages of an ended link return at most this long after its end. If a client gave a link up because the broker
was silent, the link exists on the broker until its idle timeout, and then another consumer must receive the messages.
"""

Stream = tuple[int, int]
"""Producer and queue, both by number."""

_FAULTS = {
    "lost": "accepted and never received",
    "altered": "received with another body than they were sent with",
    "reordered": "received behind messages that were sent later",
    "unexpected": "received but never sent, or received although they were refused",
    "unexplained": "received once more without a reason",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What happened to the messages. Each message counts once; duplicates count by arrival."""

    sent: int
    sent_again: int
    """The number of sendings after each message's first one."""
    accepted: int
    refused: int
    received: int
    lost: int
    duplicated: int
    unexplained: int
    """The part of `duplicated` that is explained neither by sending again nor by a missing confirmation."""
    unexpected: int
    altered: int
    reordered: int
    recovered: int
    unknown: int
    """Sent, but with neither an outcome nor an arrival when the report was made."""
    examples: Mapping[str, Sequence[str]]
    """A few of the messages that are lost, reordered and so on, by the name of the figure."""
    measures: Measures

    def faults(self) -> list[str]:
        """The faults, a sentence each."""
        counts = {name: getattr(self, name) for name in _FAULTS}
        return [
            f"{counts[name]:,} {'message' if counts[name] == 1 else 'messages'} {text}{self._such_as(name)}"
            for name, text in _FAULTS.items()
            if counts[name]
        ]

    def _such_as(self, name: str) -> str:
        examples = self.examples.get(name)
        return f", such as {'; '.join(examples)}" if examples else ""

    def __str__(self) -> str:
        return (
            f"{self.accepted:,} accepted of {self.sent:,} sent ({self.sent_again:,} times again), {self.received:,} received, "
            f"{self.lost:,} lost, {self.duplicated:,} duplicated ({self.unexplained:,} unexplained), "
            f"{self.unexpected:,} unexpected, {self.altered:,} altered, {self.reordered:,} reordered, {self.refused:,} refused; "
            f"longest gap {self.measures.accept_gap_s:.2f} s"
        )


class _Account:
    """The account of one stream."""

    __slots__ = ("accepted", "again", "altered", "end", "moved", "received", "refused", "reordered", "sent_again")

    def __init__(self) -> None:
        self.end = 0
        self.sent_again = 0
        self.accepted = Numbers()
        self.refused = Numbers()
        self.received = Tally()
        self.altered = Numbers()
        self.reordered = Numbers()
        self.again = Tally()
        """How often each message may be received after the first time."""
        self.moved = Numbers()
        """Messages that were sent again, but must arrive only once."""

    @property
    def came(self) -> Numbers:
        """The numbers that were received."""
        return self.received.at_least(1)

    @property
    def lost(self) -> Numbers:
        """The numbers that were accepted and not received so far."""
        return self.accepted - self.came

    @property
    def sent(self) -> Numbers:
        """All numbers that were sent."""
        numbers = Numbers()
        numbers.add(0, self.end)
        return numbers

    @property
    def unexpected(self) -> Numbers:
        """The numbers that were received, but should not have been."""
        return (self.came - self.sent) | ((self.came & self.refused) - self.again.at_least(1))

    @property
    def out_of_order(self) -> Numbers:
        """The numbers that were received late, but had a promised place."""
        return self.reordered - self.again.at_least(1) - self.moved

    @property
    def without_outcome(self) -> Numbers:
        """The numbers that were sent, and neither accepted nor refused."""
        return self.sent - self.accepted - self.refused


@dataclass(slots=True)
class _Link:
    """A consumer's present links, and the highest number of each stream that arrived over them."""

    began_s: float
    highest: dict[Stream, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _End:
    """A consumer's links have ended; `silent`: the consumer ended them."""

    consumer: int
    at_s: float
    silent: bool


@dataclass(frozen=True, slots=True)
class _Late:
    """Messages that arrived for the first time, after later ones."""

    consumer: int
    began_s: float
    at_s: float
    stream: Stream
    numbers: tuple[int, ...]


class Checker:
    """Gets the clients' reports, and makes the final report. `once`: a message that is sent again must be stored once."""

    def __init__(self, queues: Sequence[str], producers: int, consumers: int, *, once: bool = False) -> None:
        self._once = once
        self._queues = list(queues)
        self._competing = consumers > 1
        self._accounts = {(producer, queue): _Account() for producer in range(producers) for queue in range(len(queues))}
        self._links: dict[int, _Link] = {}
        self._ends: list[_End] = []
        self._late: list[_Late] = []
        self.arrived = 0
        """Messages received so far, each counted once."""
        self._altered = 0
        self._strange = 0
        self._strange_examples: list[str] = []

    # ---- what producers tell

    def sent(self, stream: Stream, first: int, count: int = 1) -> None:
        """New messages were sent, in order."""
        account = self._accounts[stream]
        assert first == account.end, f"{stream}: number {first} was sent after {account.end - 1}"
        account.end += count

    def sent_again(self, stream: Stream, first: int, count: int = 1) -> None:
        """Messages were sent once more: no outcome was known."""
        account = self._accounts[stream]
        (account.moved if self._once else account.again).add(first, count)
        account.sent_again += count

    def accepted(self, stream: Stream, first: int, count: int = 1) -> None:
        """The broker accepted messages."""
        self._accounts[stream].accepted.add(first, count)

    def refused(self, stream: Stream, first: int, count: int = 1) -> None:
        """The broker refused messages, and they are not sent again."""
        self._accounts[stream].refused.add(first, count)

    # ---- what consumers tell

    def attached(self, consumer: int, at_s: float) -> None:
        """A consumer has new links."""
        if self._competing or consumer not in self._links:  # a queue's only consumer sees it in order over however many links
            self._links[consumer] = _Link(at_s)

    def detached(self, consumer: int, at_s: float, *, silent: bool = False) -> None:
        """A consumer's links have ended; `silent`: the consumer ended them because it heard nothing."""
        if len(self._ends) >= MAX_ENDS:
            self._judge(at_s - 2 * NOTICED_EARLIER_S)
            del self._ends[: MAX_ENDS // 2]
        self._ends.append(_End(consumer, at_s, silent))

    def unconfirmed(self, stream: Stream, first: int, count: int = 1) -> None:
        """Messages were accepted, but this was not confirmed when the link ended."""
        self._accounts[stream].again.add(first, count)

    def received(self, consumer: int, stream: Stream, first: int, count: int, at_s: float) -> None:
        """A run of consecutive messages arrived."""
        account, link = self._accounts.get(stream), self._links[consumer]
        if account is None or not 0 <= first < first + count <= MAX_NUMBER:
            self.strange(f"number {first} of producer {stream[0]}", count)
            return
        highest = link.highest.get(stream, -1)
        if first < highest:
            came = account.came
            late = tuple(number for number in range(first, min(first + count, highest)) if number not in came)
            if late:
                if len(self._late) >= MAX_LATE:
                    self._judge(math.inf)
                self._late.append(_Late(consumer, link.began_s, at_s, stream, late))
        link.highest[stream] = max(highest, first + count - 1)
        before = len(account.came)
        account.received.add(first, count)
        self.arrived += len(account.came) - before

    def altered(self, stream: Stream, number: int) -> None:
        """A message had another body than it was sent with. Its arrival is reported separately."""
        self._altered += 1
        if stream in self._accounts and 0 <= number < MAX_NUMBER:
            self._accounts[stream].altered.add(number)

    def strange(self, what: str, count: int = 1) -> None:
        """A message arrived that does not belong to this run."""
        self._strange += count
        if len(self._strange_examples) < MAX_EXAMPLES:
            self._strange_examples.append(what)

    # ---- what came of it

    def missing(self) -> int:
        """The number of accepted messages that have not arrived so far."""
        return sum(len(account.lost) for account in self._accounts.values())

    def report(self, measures: Measures) -> Report:
        """The final report, when all reports of the clients have arrived."""
        self._judge(math.inf)
        every = self._accounts
        counts: dict[str, int] = {}
        examples: dict[str, list[str]] = {}
        for name, figure in (
            ("lost", "lost"),
            ("altered", "altered"),
            ("reordered", "out_of_order"),
            ("unexpected", "unexpected"),
        ):
            found: dict[Stream, Numbers] = {stream: getattr(account, figure) for stream, account in every.items()}
            counts[name] = sum(map(len, found.values()))
            examples[name] = [self._name(stream, one) for stream, numbers in found.items() for one in numbers.first(MAX_EXAMPLES)]
        examples["unexpected"] += self._strange_examples
        without = [(account.without_outcome, account.came) for account in every.values()]
        recovered = sum(len(numbers & came) for numbers, came in without)
        return Report(
            sent=sum(account.end for account in every.values()),
            sent_again=sum(account.sent_again for account in every.values()),
            accepted=sum(len(account.accepted) for account in every.values()),
            refused=sum(len(account.refused) for account in every.values()),
            received=sum(len(account.came) for account in every.values()),
            lost=counts["lost"],
            duplicated=sum(account.received.repeats() for account in every.values()),
            unexplained=sum(account.received.repeats_not_in(account.again) for account in every.values()),
            unexpected=counts["unexpected"] + self._strange,
            altered=self._altered,
            reordered=counts["reordered"],
            recovered=recovered,
            unknown=sum(len(numbers) for numbers, _ in without) - recovered,
            examples={name: texts[:MAX_EXAMPLES] for name, texts in examples.items() if texts},
            measures=measures,
        )

    def _judge(self, before_s: float) -> None:
        """Judge the messages that arrived late before that time: later reports do not concern them."""
        for late in self._late:
            if late.at_s < before_s and not self._may_have_come_back(late):
                for number in late.numbers:
                    self._accounts[late.stream].reordered.add(number)
        self._late = [late for late in self._late if late.at_s >= before_s]

    def _may_have_come_back(self, late: _Late) -> bool:
        """Whether an ended link may have held these messages: a link of another consumer that ended while this link
        existed, or any link that its client gave up, because the broker may have noticed this much later.
        """
        return any(
            end.at_s - NOTICED_EARLIER_S <= late.at_s <= end.at_s + NOTICED_LATER_S
            and (end.silent or (end.consumer != late.consumer and end.at_s >= late.began_s))
            for end in self._ends
        )

    def _name(self, stream: Stream, number: int) -> str:
        return f"number {number} of producer {stream[0]} on {self._queues[stream[1]]}"
