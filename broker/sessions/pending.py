"""What is put into one log and not committed yet: the batch that is gathered, those that are cut, and those that are proposed.

Life of a batch here: what is put in one turn of the reactor is gathered in `builder`, and what waits for its commit in `waits`.
Whoever puts something calls `arm`: at the end of the turn, or as soon as the log accepts another batch, the batch is proposed. A
full batch is cut before that, and the next one begins. When the state has applied a batch, `end` ends its waits: producers get
their outcome, consumers their settlement, requests their answer. When the term ends before that, `void` drops everything; its
clients are disconnected, so they know that the result is unknown.

Invariants: batches are proposed in the order in which they were cut, and only to a log that this broker may write to; waits end
in the order of the log's indexes, and never before their batch is applied; what is put within `one_batch` is in one batch, if any
batch may be so large; no batch has a large message and the end of a queue that was put after it: the commands of a batch are
applied before its messages, and with the queue the parts of a message would go that has just been moved from it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from twisted.internet.interfaces import IReactorTime

from broker.amqp.receiver import Receiver
from broker.amqp.sender import Sender
from broker.commit_log import CommitLog
from broker.core import limits
from broker.core.commands import Command, ExchangeDel, MachineVersion, QueueDel, QueueDelIfEmpty, StoreDel
from broker.core.links import ACCEPTED
from broker.core.pace import Pace
from broker.core.passage import Passage
from broker.core.records import BatchBuilder, runs_of
from broker.sessions.arriving import Arriving
from broker.sessions.inflow import Inflow

DEQUEUE_DELAY_S = 0.010
"""A batch that only takes messages off, and that nobody waits for, may be proposed so much later, with more of them."""


def _nothing() -> None:
    """The call of a wait that only has to end in order."""


def _heard(reason: str) -> None:
    """The answer to a command without a request."""


class Waits:
    """The waits that end when one batch is committed. Deliveries are stored as runs: link -> (first id, count) of each."""

    __slots__ = (
        "accepts",
        "answers",
        "calls",
        "commands",
        "going",
        "held",
        "lag_s",
        "letters",
        "nbytes",
        "proposed_s",
        "returns",
        "settles",
    )

    def __init__(self) -> None:
        self.accepts: dict[Receiver, list[tuple[int, int]]] = {}
        self.settles: dict[Sender, list[tuple[int, int, int]]] = {}
        """With the outcome that is repeated to the peer: (first id, count, outcome)."""
        self.answers: list[Callable[[str], None]] = []
        self.calls: list[Callable[[], None]] = []
        self.returns: list[Callable[[], None]] = []
        self.commands: list[Command] = []
        """The changes in the batch that somebody has asked for."""
        self.going: list[str] = []
        """The identities of the queues and exchanges that they delete."""
        self.held: list[tuple[int, Sequence[int]]] = []
        self.nbytes = 0
        """Bytes of messages in the batch."""
        self.letters = 0
        """How many of these bytes are dead letters."""
        self.proposed_s = self.lag_s = 0.0
        """When the batch was proposed, and by how much the reactor was late then."""

    def settle_links(self) -> None:
        """Producers get their outcome, and consumers their settlement."""
        for link, runs in self.accepts.items():
            for first, count in runs:
                link.settle(first, count, ACCEPTED)
            if link.open and link.context is not None:
                link.context.accepted(sum([count for _, count in runs]))
        for sender, settled in self.settles.items():
            for first, count, outcome in settled:
                sender.settle(first, count, outcome)
            if sender.context is not None:
                sender.context.session.touch()


class Pending:
    """See the module. `clock` is the reactor's time. `writable` returns the log while this broker may write to it, `index` the
    index of the newest applied batch. `flush` is called after answers."""

    def __init__(
        self,
        clock: IReactorTime,
        inflow: Inflow,
        arriving: Arriving,
        *,
        writable: Callable[[], CommitLog | None],
        index: Callable[[], int],
        flush: Callable[[], None],
    ) -> None:
        self.builder = BatchBuilder()
        self.waits = Waits()
        self.letter_bytes = 0
        """Bytes of dead letters that were put and are not committed."""
        self.rises_to = 0
        """The machine version to which a command of this term raises the log, 0: to none. It counts as soon as it is put: what is
        put later is applied later."""
        self.moved_s = -math.inf
        """The time of the last proposal or commit of a batch, by the reactor's clock."""
        self._clock = clock
        self._inflow = inflow
        self._arriving = arriving
        self._writable = writable
        self._index = index
        self._flush = flush
        self._pace = Pace()
        self._full: deque[tuple[BatchBuilder, Waits]] = deque()
        self._proposed: deque[tuple[int, Waits]] = deque()
        self._turn_call: Any = None
        self._turn_is_late = False
        self._due_s = self._lag_s = 0.0
        """When the call is due, and by how much the reactor was late with the last one."""
        self._passages: dict[str, Passage] = {}
        """Exchanges that messages of the next batch go through, and that number or keep them."""
        self._going: Counter[str] = Counter()
        """Identity of a queue or an exchange -> how many commands under way delete it."""
        self.interrupted = 0
        """How often this broker has stopped serving while the log went on, and what was put before is not all applied."""
        self._closed = False
        self._whole = False
        """Whether the current content must not be split into batches."""

    # ---- what is put

    def count_bytes(self, nbytes: int) -> None:
        """Messages of so many bytes are put."""
        self.waits.nbytes += nbytes
        self._inflow.came(nbytes)

    def count_letter(self, nbytes: int) -> None:
        """A dead letter of this size is about to be put."""
        self.waits.letters += nbytes
        self.letter_bytes += nbytes
        self._inflow.letter_bytes += nbytes

    def hold(self, origin: int, sequences: Sequence[int]) -> None:
        """Say in this batch that these messages of an origin have arrived."""
        for first, count in runs_of(sequences):
            self.builder.hold(origin, first, count)
        self.waits.held.append((origin, sequences))
        self._arriving.put(origin, sequences)

    def change(self, command: Command, answer: Callable[[str], None]) -> None:
        """Propose a command; `answer` gets "" when it is committed and carried out, or why it changed nothing."""
        if self.builder.has_large and isinstance(command, QueueDel | QueueDelIfEmpty | StoreDel):
            self.cut()
        self.builder.define_text(command.text)
        self.waits.answers.append(answer)
        self.waits.commands.append(command)
        if isinstance(command, QueueDel | QueueDelIfEmpty | ExchangeDel):
            self.waits.going.append(command.uuid)
            self._going[command.uuid] += 1
        elif isinstance(command, MachineVersion):
            self.rises_to = command.needs
        self.arm()

    def passes(self, exchange: str, passage: Passage) -> None:
        """Messages that are put now have gone through this exchange: the log is to say so with them, or before."""
        self._passages[exchange] = passage
        self.arm()

    def when_committed(self, call: Callable[[], None]) -> None:
        """Call when everything that was put so far in this turn is committed."""
        self.waits.calls.append(call)
        self.arm()

    def when_applied(self, call: Callable[[], None]) -> None:
        """As `when_committed`, but call before anything else acts on the new state."""
        self.waits.returns.append(call)
        self.arm()

    def interrupt(self, over: Callable[[], None]) -> None:
        """This broker stops serving, but the log goes on: nobody knows any more which messages leave their queues by what is
        under way. `over` is called when all of that is applied."""
        if self.idle:
            return

        def applied() -> None:
            self.interrupted -= 1
            if not self.interrupted:
                over()

        self.interrupted += 1
        self.when_applied(applied)

    def in_order(self) -> None:
        """Something was put whose waits must end in order, though perhaps nothing of it is in the batch."""
        self.waits.calls.append(_nothing)

    @contextmanager
    def one_batch(self, nbytes: int) -> Iterator[None]:
        """Everything that is put within this context, messages of `nbytes` bytes, goes into one batch. Within another one: into
        that one's batch. If this would be larger than any batch may be, it goes into several, in order: a failover between them
        may repeat what is put first, and loses nothing if what is taken off is put last."""
        if self._whole or nbytes > limits.MAX_BATCH_BYTES:
            yield
            return
        before = self.builder.nbytes
        if self.builder.has_large or (before and before + nbytes > self._pace.batch_bytes):
            self.cut()
        self._whole = True
        try:
            yield
        finally:
            self._whole = False
            self.arm()

    # ---- what is under way

    def under_way(self) -> Iterator[Command]:
        """The commands that wait to be proposed, or to be committed."""
        for waits in self._all_waits():
            yield from waits.commands

    def is_going(self, uuid: str) -> bool:
        """Whether one of them deletes this queue or exchange. It costs the same however many there are."""
        return uuid in self._going

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be proposed, and nothing that was proposed waits to be committed."""
        return not (self._proposed or self._has_to_propose)

    @property
    def _has_to_propose(self) -> bool:
        """Whether there is content for a batch, or a call that waits for the next commit."""
        return bool(self._full or self._passages or self.waits.calls or self.waits.returns or self.builder)

    def _all_waits(self) -> tuple[Waits, ...]:
        return (*(waits for _, waits in self._proposed), *(waits for _, waits in self._full), self.waits)

    # ---- turns

    def arm(self) -> None:
        """Something was put: see that it is proposed."""
        if self._closed or self._whole:
            return
        if self.builder.nbytes >= self._pace.batch_bytes:
            self.cut()
        late = not self._full and self._may_wait()
        if self._turn_call is None:
            delay_s = DEQUEUE_DELAY_S if late else 0
            self._turn_call = self._clock.callLater(delay_s, self._turn)
            self._due_s = self._clock.seconds() + delay_s
            self._turn_is_late = late
        elif self._turn_is_late and not late:
            self._turn_call.reset(0)
            self._due_s = self._clock.seconds()
            self._turn_is_late = False

    def cut(self) -> None:
        """Later content goes into the next batch."""
        self._say_what_passed()
        self._full.append((self.builder, self.waits))
        self.builder, self.waits = BatchBuilder(), Waits()

    def _say_what_passed(self) -> None:
        """Once a batch for each exchange, however many messages went through."""
        for exchange, passage in self._passages.items():
            self.builder.define_text(passage.command(exchange).text)
            self.waits.answers.append(_heard)
        self._passages.clear()

    def _may_wait(self) -> bool:
        return self.builder.only_dequeues and not (self.waits.settles or self.waits.calls or self.waits.returns or self._passages)

    def _turn(self) -> None:
        self._turn_call = None
        self._lag_s = max(0.0, self._clock.seconds() - self._due_s)
        self.pump()

    def pump(self) -> None:
        """Propose the waiting batches, as far as the log accepts them."""
        log = self._writable()
        if log is None:
            return
        while self._has_to_propose and log.may_propose:
            self._say_what_passed()
            if self._full:
                builder, waits = self._full.popleft()
            else:
                builder, waits = self.builder, self.waits
                self.builder, self.waits = BatchBuilder(), Waits()
            if builder:
                waits.proposed_s = self.moved_s = self._clock.seconds()
                waits.lag_s = self._lag_s
                index = log.propose(builder)
                self._proposed.append((index, waits))
            else:
                index = self._proposed[-1][0] if self._proposed else self._index()
                self._proposed.append((index, waits))
                if index <= self._index():
                    self.end({})

    def close(self) -> None:
        """Stop: nothing more is proposed."""
        if self._turn_call is not None and self._turn_call.active():
            self._turn_call.cancel()
        self._turn_call = None
        self._closed = True

    # ---- how it ends

    def end(self, reasons: Mapping[int, list[str]]) -> None:
        """End the waits of applied batches. `reasons` has, by index, the result of each change in a batch."""
        answered: list[tuple[Callable[[str], None], str]] = []
        calls: list[Callable[[], None]] = []
        returns: list[Callable[[], None]] = []
        applied = self._index()
        while self._proposed and self._proposed[0][0] <= applied:
            index, waits = self._proposed.popleft()
            self._inflow.gone(waits.nbytes)
            self.letter_bytes -= waits.letters
            self._inflow.letter_bytes -= waits.letters
            if waits.nbytes:
                self._pace.took(waits.nbytes, self._clock.seconds() - waits.proposed_s, waits.lag_s)
            waits.settle_links()
            for origin, sequences in waits.held:
                self._arriving.applied(origin, sequences)
            for uuid in waits.going:
                self._going[uuid] -= 1
                if not self._going[uuid]:
                    del self._going[uuid]
            if waits.answers:
                answered += zip(waits.answers, reasons[index], strict=True)
            calls += waits.calls
            returns += waits.returns
        for call in returns:
            call()
        if answered or calls:
            self._clock.callLater(0, self._answer, answered, calls)

    def _answer(self, answered: list[tuple[Callable[[str], None], str]], calls: list[Callable[[], None]]) -> None:
        for answer, reason in answered:
            answer(reason)
        for call in calls:
            call()
        self._flush()

    def void(self) -> None:
        """The term ended: drop everything, without an answer."""
        self._inflow.gone(sum(waits.nbytes for waits in self._all_waits()))
        self._inflow.letter_bytes -= self.letter_bytes
        self.letter_bytes = 0
        self._proposed.clear()
        self._full.clear()
        self._going.clear()
        self.rises_to = self.interrupted = 0
        self._passages.clear()
        self._arriving.void()
        self.builder, self.waits = BatchBuilder(), Waits()
