"""A client's sending link: its credit, and the outcomes of its messages. The terminus decides where the messages go.

A large message arrives in parts, for an `Upload` that its target makes (broker.sessions.uploads).

A bundle is several messages in one delivery (broker.core.bundles): all of them are enqueued in one batch of the log, or none.

Life of a producer: its link attaches to a `Target`, and gets credit for the target's window. Each batch of arriving messages is
passed to the target with the delivery ids. A message gets its outcome when it is known; for most messages this is when a batch of
the log is committed. With the outcome the credit is returned, unless the target has no room.

Invariants: a delivery that is not an AMQP message is rejected, and so is one whose user-id names another user than the one that
has logged in: no target gets them; a message gets `accepted` only when every queue that it was routed to has it durably (or no
queue wanted it), and `released` while one of them has no place for it on this broker: for a moment on a new primary, and while
the disk is nearly full; credit plus messages without an outcome never exceed the window, and the link of a client that sends more
than its credit ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.amqp.data import Condition
from broker.amqp.receiver import Receiver
from broker.core import arrivals, bundles, limits, message
from broker.core.acl.questions import Lookups, shown
from broker.core.arrivals import Arrivals
from broker.core.links import ACCEPTED, REJECTED, RELEASED
from broker.core.nodes import Routed, Unplaced
from broker.core.transactions import BadRequest
from broker.core.values import Encoded
from broker.sessions.attach import Attach, LinkEnd, Output
from broker.sessions.guard import UNAUTHORIZED


class Full(Exception):
    """A queue accepts no more messages; the text says which one and why. `queue` is its name, and `reason` the code for programs,
    in RabbitMQ's terms."""

    def __init__(self, text: str, queue: str, reason: str = "maxlen") -> None:
        super().__init__(text)
        self.queue = queue
        self.reason = reason


class Denied(Exception):
    """The client may not send a message there; the text names the user and the denied lookup, or says why it may not now. `name`:
    of the condition that the client gets."""

    def __init__(self, text: str, name: str = UNAUTHORIZED) -> None:
        super().__init__(text)
        self.name = name


class Upload(Protocol):
    """A large message of which parts have come."""

    def put(self, data: bytes) -> Upload:
        """Take the next part. Returns the object for the following parts: itself, or one that drops them if this part cannot be
        accepted."""

    def finish(self, delivery_id: int) -> None:
        """All parts have come: the message gets its outcome through its producer, now or later."""

    def abandon(self) -> None:
        """The message ends early."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of it that are in memory until it is complete."""


class Target(Protocol):
    """A terminus that messages are sent to."""

    @property
    def window(self) -> int:
        """Messages that one link may send ahead of their outcomes."""

    @property
    def serves_queues(self) -> bool:
        """Whether its links end when this broker stops serving."""

    @property
    def takes_large(self) -> bool:
        """Whether it gets large messages in parts. If not, it gets complete ones, up to `limits.GATHERED_BYTES`."""

    @property
    def in_transactions(self) -> bool:
        """Whether messages for it may be part of a transaction: then it puts them on queues, which `destinations` returns."""

    @property
    def in_any_order(self) -> bool:
        """Whether it takes, and judges itself, messages that are not as they are to be."""

    @property
    def of_any_user(self) -> bool:
        """Whether its messages may say that they are other users': a drain brings messages that others have sent."""

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        """The queues for this message. Raises the exceptions that `Producer.one_by_one` handles."""

    @property
    def identity(self) -> str:
        """Its permanent identity; "" if it has no lookups."""

    def needs_of_sender(self, session: Output) -> Lookups:
        """The lookups for a client that sends here, without those that depend on a message's routing key."""

    def admit(self, attach: Attach) -> None:
        """A link whose lookups are allowed will attach here: Condition when it cannot."""

    def attached(self, producer: Producer) -> None:
        """It has attached."""

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """Messages of this producer, with the ids from `first` on. Each gets its outcome through the producer, now or later."""

    def begin(self, producer: Producer, head: bytes) -> Upload:
        """A large message begins with this part, which is passed to the result afterwards. Raises the exceptions that
        `Producer.one_by_one` handles."""

    def may_flow(self, producer: Producer) -> bool:
        """Whether more messages can be accepted now. If not, `resume` of the producer is called when they can."""

    def left(self, producer: Producer) -> None:
        """Its link has ended."""


class Producer(LinkEnd):
    """See the module."""

    __slots__ = ("_arrivals", "_names", "_paused", "_upload", "link", "pause", "target", "timed")

    def __init__(self, session: Output, link: Receiver, target: Target) -> None:
        super().__init__(session)
        self.link = link
        self.target = target
        self.pause: Callable[[Producer], None] | None = None
        """Takes the credit of a released message, and gives it back later by `go_on`. None: it is given back at once."""
        self._paused = 0
        """How much credit is there."""
        self.timed = False
        """Whether any of the messages that it hands on may say when it expires or is to be given out."""
        self._upload: Upload | None = None
        self._names = None if target.of_any_user else session.rights.names
        """What its messages may give as their user-id; None: anything."""
        self._arrivals = Arrivals(self._names)

    @property
    def serves_queues(self) -> bool:
        """As its target."""
        return self.target.serves_queues

    @property
    def waits_for_queues(self) -> bool:
        """Whether messages without an outcome may be on their way to queues, or a part of one."""
        account, target = self.link.account, self.target
        known = account.credit + account.held + self._paused
        return target.in_transactions and (self._upload is not None or known < target.window)

    def needs(self) -> Lookups:
        """As its target."""
        return self.target.needs_of_sender(self.session)

    def start(self) -> None:
        """Give the first credit."""
        self._grant(self.target.window)

    def accepted(self, count: int) -> None:
        """So many of its messages have their outcome: the credit they took may come back."""
        self._grant(count)

    def go_on(self, count: int) -> None:
        """The pause for so many released messages is over."""
        self._paused -= count
        self._grant(count)

    def _grant(self, count: int) -> None:
        self.link.flow(count, self.target.may_flow(self))
        self.session.touch()

    def resume(self) -> None:
        """Give back credit that was held, if there is room again."""
        if self.link.account.held and self.link.open:
            self._grant(0)

    def detached(self) -> None:
        """The link has ended."""
        self.link.parts = None
        self.aborted()
        self.target.left(self)

    # ---- messages

    def take(self) -> None:
        """Pass on the messages that have arrived on the link."""
        link = self.link
        posted = link.take_posted() if link.posted else None
        first, messages = link.take()
        if link.account.credit < 0:
            for txn_id in () if posted is None else posted.values():
                self.session.transactions.lost(txn_id)
            self._end_heedless(-link.account.credit)
        elif not messages:
            self.resume()
        elif posted:
            self._sort_by_transaction(first, messages, posted)
        else:
            bad, self.timed = self._arrivals.look(messages)
            if bad and not self.target.in_any_order:
                self._sort_out(first, messages, bad)
            else:
                self.target.receive(self, first, messages)

    def _sort_by_transaction(self, first: int, messages: list[bytes], posted: dict[int, bytes]) -> None:
        """Pass on messages without a transaction, and give the others to their transactions, in runs."""
        start = 0
        for stop in range(1, len(messages) + 1):
            txn_id = posted.get(start)
            if stop < len(messages) and posted.get(stop) == txn_id:
                continue
            run, at = messages[start:stop], first + start
            bad = arrivals.malformed(run)
            others = [] if self._names is None else arrivals.of_others(run, self._names)
            if txn_id is None:
                self.timed = True
                self._sort_out(at, run, sorted({*bad, *others}))
            elif bad:
                self._refuse_run(at, len(run), txn_id, "amqp:decode-error", "not a valid AMQP message by itself")
            elif others:
                self._refuse_run(at, len(run), txn_id, UNAUTHORIZED, f"of another user than {self._user}, by its user-id")
            else:
                self.session.transactions.post(self, at, run, txn_id)
            start = stop

    def _refuse_run(self, first: int, count: int, txn_id: bytes, name: str, why: str) -> None:
        """One of these messages of a transaction cannot be taken, so the transaction cannot be carried out."""
        self.session.transactions.refuse(txn_id, f"one of its messages is {why}")
        for delivery_id in range(first, first + count):
            text = f"this message, or another one of its transaction, is {why}"
            self.refuse(delivery_id, REJECTED, Condition(name, text))

    @property
    def _user(self) -> str:
        return shown(self.session.rights.user)

    def _check_user(self, data: Encoded) -> None:
        """Denied, if the message says that it is another user's. BadMessage when that cannot be read."""
        if self._names is not None and message.is_of_others(data, self._names):
            named = shown((message.user_id(data) or b"").decode(errors="replace"))
            raise Denied(f"{self._user} may not send a message of another user: its user-id is {named}")

    def _sort_out(self, first: int, messages: list[bytes], bad: list[int]) -> None:
        """Refuse the messages at these positions, which are not messages or name another user, and pass on all others."""
        done = 0
        for at in bad:
            if done < at:
                self.target.receive(self, first + done, messages[done:at])
            if bundles.is_bundle(messages[at]):
                self._take_apart(first + at, messages[at])
            else:
                try:
                    message.check(messages[at])
                    self._check_user(messages[at])
                except (Denied, message.BadMessage) as error:
                    self.refuse(first + at, *outcome_of(error))
            done = at + 1
        if done < len(messages):
            self.target.receive(self, first + done, messages[done:])

    def _take_apart(self, delivery_id: int, bundle: bytes) -> None:
        """A bundle has come."""
        try:
            if not self.target.in_transactions:
                raise BadRequest("amqp:not-implemented", "messages for this node cannot come as one: send them one by one")
            found = bundles.messages_of(bundle)
            for each in found:
                self._check_user(each)
            self.session.transactions.at_once(self, found, lambda: self.done(delivery_id))
        except BadRequest as error:
            self.refuse(delivery_id, REJECTED, Condition(error.name, str(error)))
        except (Unplaced, Full, Denied, message.BadMessage, LookupError) as error:
            self.refuse(delivery_id, *outcome_of(error))

    def part(self, data: bytes, whole: bool) -> None:
        """A part of a large message has arrived; with the last one, `whole` is true."""
        if self._upload is None:
            if self.link.account.credit <= 0:
                self._end_heedless(1)
                return
            self._upload = self._begin(data)
        self._upload = self._upload.put(data)
        if whole:
            upload, self._upload = self._upload, None
            upload.finish(self.link.account.came(1))
        self.session.brought_parts()

    def _begin(self, head: bytes) -> Upload:
        if bundles.is_bundle(head):
            most = limits.LARGE_PARTS * limits.PART_BYTES
            text = f"messages that come as one may have {most} bytes together: send fewer at a time"
            return Refused(self, REJECTED, Condition("amqp:link:message-size-exceeded", text))
        txn_id = self.link.coming_in
        if txn_id is not None:
            text = (
                f"a message in a transaction may have {limits.LARGE_PARTS * limits.PART_BYTES} bytes: send this one outside of it"
            )
            self.session.transactions.refuse(txn_id, text)
            return Refused(self, REJECTED, Condition("amqp:link:message-size-exceeded", text))
        try:
            self._check_user(head)
            return self.target.begin(self, head)
        except (Unplaced, Full, Denied, message.BadMessage, LookupError) as error:
            return Refused(self, *outcome_of(error))

    def aborted(self) -> None:
        """The large message in progress will not be completed."""
        if self._upload is not None:
            self._upload.abandon()
            self._upload = None

    @property
    def kept_bytes(self) -> int:
        """How much of the large message that is coming is kept in memory."""
        return 0 if self._upload is None else self._upload.kept_bytes

    def _end_heedless(self, beyond: int) -> None:
        """The client sent more than its credit (part 2.6.7): end the link, because there would be no limit for such messages."""
        text = f"{beyond} messages were sent without credit, or counted in a flow: send only while the link has credit"
        self.session.end_link(self.link, Condition("amqp:link:transfer-limit-exceeded", text))

    def one_by_one(self, first: int, messages: list[bytes], put: Callable[[Producer, int, bytes], None]) -> None:
        """Call `put` for each message with its delivery id. An exception decides the message's outcome: Unplaced, Full, Denied,
        BadMessage, or LookupError if the node that the message names does not exist."""
        for delivery_id, data in enumerate(messages, first):
            try:
                put(self, delivery_id, data)
            except (Unplaced, Full, Denied, message.BadMessage, LookupError) as error:
                self.refuse(delivery_id, *outcome_of(error))

    def done(self, delivery_id: int) -> None:
        """This message is where it should be."""
        if self.link.open:
            self.link.settle(delivery_id, 1, ACCEPTED)
            self.accepted(1)

    # ---- transactions

    @property
    def in_transactions(self) -> bool:
        """As its target."""
        return self.target.in_transactions

    def destinations(self, data: bytes) -> Routed:
        """As its target."""
        return self.target.destinations(self, data)

    def enlisted(self, first: int, count: int, txn_id: bytes) -> None:
        """These messages are kept for a transaction."""
        self.link.enlisted(first, count, txn_id)
        self.accepted(count)

    def declared(self, delivery_id: int, txn_id: bytes) -> None:
        """This message has brought a new transaction."""
        self.link.declared(delivery_id, txn_id)
        self.accepted(1)

    def refuse(self, delivery_id: int, outcome: int, condition: Condition | None) -> None:
        """This message was not taken."""
        if self.link.open:
            self.link.settle(delivery_id, 1, outcome, condition)
            if outcome == RELEASED and self.pause is not None:
                self._paused += 1
                self.pause(self)
            else:
                self.accepted(1)


class Refused:
    """A large message that cannot be taken: its bytes are dropped as they come, and at its end it gets its outcome."""

    kept_bytes = 0

    def __init__(self, producer: Producer, outcome: int, condition: Condition | None) -> None:
        self._producer = producer
        self._outcome = outcome
        self._condition = condition

    def put(self, data: bytes) -> Upload:
        """Drop it."""
        return self

    def finish(self, delivery_id: int) -> None:
        """Say its outcome."""
        self._producer.refuse(delivery_id, self._outcome, self._condition)

    def abandon(self) -> None:
        """Nothing is left of it."""


def outcome_of(error: Exception) -> tuple[int, Condition | None]:
    """Outcome and condition of a message that a target does not take: Unplaced, Full, Denied, BadMessage or LookupError."""
    match error:
        case Unplaced():
            return RELEASED, None
        case Full():
            info = {"queue": error.queue, "reason": error.reason}
            return REJECTED, Condition("amqp:resource-limit-exceeded", str(error), info)
        case Denied():
            return REJECTED, Condition(error.name, str(error))
        case message.BadMessage():
            return REJECTED, Condition("amqp:decode-error", str(error))
        case _:
            return REJECTED, Condition("amqp:not-found", str(error.args[0]))
