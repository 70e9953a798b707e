"""The history of a run: everything that the clients of a simulated cluster have seen. The checks judge it.

Life of a message here: `sent` names one attempt to send it, by client, link and number, and returns the body to send,
which contains these names. Then comes one of `accepted`, `refused` and `unknown` (the connection ended before the
outcome arrived). When a consumer gets a body, it calls `received`. It calls `taken` when it sends its accept or reject
(from then on the broker may forget the message), and `settled` when the broker has confirmed it (from then on the
message must never be delivered again).

If a client sends a message again after `unknown`, it uses another link, and this is another attempt. So each attempt is
on the queue at most once, and the numbers show the promised order, which is that of one link. A message for an exchange
that routes it to several queues is `sent` once for each of them. A message that a consumer rejects arrives as a dead
letter on the queue behind its queue's alternate exchange. There it is another attempt, and one more after each
rejection.

The history is told of a queue's priority levels when the queue is created, and of a message's priority when it is sent.
The promised order is that of one link and one level.

If each broker keeps a queue's messages for itself (levels `configuration` and `none`), the messages on different
brokers are separate. Here such a queue is called by the queue's name and the store's identity, `queue@store`.

Invariants: an attempt has one outcome, and nothing is recorded twice. Notes are kept per attempt: together they cost
one entry of a dictionary per message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import NamedTuple, Protocol

_SIZED = 600
_SIZED_TOKEN = re.compile(rb"<([^/<>]{1,64})/(\d{1,9})/(\d{1,9})>#(\d{1,9})#")
_TOKEN = re.compile(rb"<([^/<>]{1,64})/(\d{1,9})/(\d{1,9})>")


class Violation(Exception):
    """A promise was broken; the text says which, where and by what."""


class Key(NamedTuple):
    """One attempt to put one message on one queue. `link` counts the links that this client has sent over, in turn."""

    client: str
    link: int
    number: int
    queue: str

    def __str__(self) -> str:
        return f"message {self.number} of {self.client}'s link {self.link} for {self.queue}"


class Outcome(StrEnum):
    """What a producer knows of an attempt."""

    OPEN = "open"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Note:
    """What is known of one attempt."""

    outcome: Outcome = Outcome.OPEN
    received: int = 0
    taken: int = 0
    settled: int = 0
    rejected: int = 0
    over_limit: bool = False
    """Whether its delivery has failed as often as its queue allows."""
    attempts: int = 1
    """How often it may be on its queue: a dead letter as often as there was a reason for one, another message once."""
    priority: int | None = None
    """What its header says; None: it has none."""
    ttl_ms: int = 0
    delay_ms: int = 0
    """What it says of its time to live, and of its delay; 0: nothing."""
    arrived_ms: int = 0
    """When the primary that put it on its queue took it, by that broker's time of the log; 0: not seen."""
    expired: bool = False
    """Whether a primary has let it go because its time was over."""


@dataclass(frozen=True, slots=True, eq=False)
class Discharged:
    """What a client has done in a transaction that it is about to discharge: what it sent, and what it consumed."""

    posts: tuple[Key, ...]
    retired: tuple[Key, ...]


class Observer(Protocol):
    """Who wants to judge at once."""

    def on_accepted(self, key: Key) -> None:
        """A producer was told that this is safe."""

    def on_received(self, client: str, link: int, key: Key) -> None:
        """A consumer has got this on its link."""

    def on_unselected(self, client: str, key: Key) -> None:
        """A consumer has got this, which its selector does not name."""

    def on_overdrawn(self, client: str, link: int, count: int) -> None:
        """A consumer's link has brought so many more messages than the consumer had given credit for."""

    def on_settled(self, key: Key) -> None:
        """A consumer was told that this is gone for good."""

    def on_unsubscribed(self, queue: str) -> None:
        """A client was told that its subscription is gone for good."""


def body(client: str, link: int, number: int, size: int = 0) -> bytes:
    """The body of a message: who sent it, padded to `size` bytes; a longer one says its size, and at each place which that is."""
    token = b"<%s/%d/%d>" % (client.encode(), link, number)
    if size < _SIZED:
        return token.ljust(size, b".")
    return (token + b"#%d#" % size + _marks(8 << size.bit_length()))[:size]


@cache
def _marks(size: int) -> bytes:
    return b"".join(b"%07d " % at for at in range(0, size, 8))


def is_whole(message: bytes) -> bool:
    """Whether a message, be it a bare body or an encoded one, ends with the very bytes that its body says it has."""
    found = _SIZED_TOKEN.search(message)
    return found is None or message.endswith(body(found[1].decode(), int(found[2]), int(found[3]), int(found[4])))


def kept_at(queue: str, store_id: str) -> str:
    """What a queue is called here whose messages the broker with this store keeps for itself."""
    return f"{queue}@{store_id[:8]}"


def asked_for(queue: str) -> str:
    """The name that clients use for a queue which may be kept by a broker for itself."""
    return queue.partition("@")[0]


def read(message: bytes, queue: str) -> Key | None:
    """Whose message this is, be it the bare body or an encoded message around it; None when it is none of ours."""
    found = _TOKEN.search(message)
    return None if found is None else Key(found[1].decode(), int(found[2]), int(found[3]), queue)


def level_of(priority: int | None, levels: int) -> int:
    """The level of a message with this priority on a queue with so many, as docs/reference/cli.md says it."""
    asked = 4 if priority is None else priority
    lowest = max(0, 5 - -(-levels // 2))
    return sorted((lowest, asked, lowest + levels - 1))[1] - lowest


class History:
    """See the module. `t` is in seconds of simulated time, for what people read."""

    def __init__(self) -> None:
        self.notes: dict[Key, Note] = {}
        self.unexpected: list[str] = []
        self.repeated: list[str] = []
        """What came again after a consumer had let its accept go out."""
        self.created: set[str] = set()
        self.deleted: set[str] = set()
        self.lossy: set[str] = set()
        self.rings: dict[str, int] = {}
        """Queues, and how many messages each keeps: its oldest leave for what comes."""
        self.values: dict[str, int] = {}
        """Queues that keep the newest message of each key, and how many keys there are: a message's number, modulo these."""
        self.undrained: set[str] = set()
        self.volatile: set[str] = set()
        """Exchanges: what a consumer gets through one is a copy, which goes with its link."""
        self.levels: dict[str, int] = {}
        """Queues, by the names that clients use, and how many levels of priority they have; other queues have none."""
        self.shares: dict[str, int] = {}
        """Queues, and how many messages of a level of priority they give out in a row."""
        self.groups: dict[str, int] = {}
        """Queues of groups, and how many groups there are: a message's number, modulo these."""
        self.letters: dict[str, str] = {}
        """Queues, and the queue to which what is rejected there goes."""
        self.in_transactions: dict[Key, Discharged] = {}
        """Of messages that were sent in a transaction which was to be carried out: that one."""
        self.given_back: set[Key] = set()
        """What a broker did not take, and a client was told so: it comes behind what was sent before it is sent again."""
        self.retired: set[Key] = set()
        """What leaves its queue in a transaction, or not at all."""
        self.observer: Observer | None = None

    # ---- queues

    def queue_created(
        self,
        queue: str,
        *,
        lossy: bool = False,
        drained: bool = True,
        levels: int = 0,
        ring: int = 0,
        values: int = 0,
        groups: int = 0,
    ) -> None:
        """A client asks for a queue; `lossy`: messages may leave it though nobody accepts them, because it is purged or deletes
        itself, or because a consumer gets everything settled; not `drained`: nobody need have emptied it at the end; `levels`
        of priority, 0 for none; `ring`: how many messages it keeps, 0 for all; `values`:
        how many keys its messages have, each of which keeps its newest; `groups`: how many groups they are of."""
        self.created.add(queue)
        if ring:
            self.rings[queue] = ring
        if values:
            self.values[queue] = values
        if groups:
            self.groups[queue] = groups
        if lossy or ring or values:
            self.lossy.add(queue)
        if not drained:
            self.undrained.add(queue)
        if levels:
            self.levels[queue] = levels

    def queue_deleted(self, queue: str) -> None:
        """A client is about to ask for the end of this queue: what it holds may be gone from now on."""
        self.deleted.add(queue)

    # ---- producers

    def sent(
        self,
        client: str,
        queue: str,
        number: int,
        t: float,
        *,
        link: int = 0,
        size: int = 0,
        priority: int | None = None,
        ttl_ms: int = 0,
        delay_ms: int = 0,
    ) -> bytes:
        """A producer sends a message; returns its body. Numbers ascend on one link."""
        key = Key(client, link, number, queue)
        assert key not in self.notes, f"{key} is sent twice, at {t}: another attempt goes over another link"
        self.notes[key] = Note(priority=priority, ttl_ms=ttl_ms, delay_ms=delay_ms)
        return body(client, link, number, size)

    def level_of(self, key: Key) -> int:
        """The level of priority that this message has on its queue; 0 where the queue has no levels."""
        levels = self.levels.get(asked_for(key.queue), 0)
        return level_of(self.notes[key].priority, levels) if levels else 0

    def line_of(self, key: Key) -> int:
        """What of its queue comes in order with this message: its level of priority, or its group."""
        groups = self.groups.get(asked_for(key.queue), 0)
        return key.number % groups if groups else self.level_of(key)

    def accepted(self, client: str, queue: str, number: int, t: float, *, link: int = 0) -> None:
        """The broker has accepted it: it is safe."""
        key = self._outcome(Key(client, link, number, queue), Outcome.ACCEPTED, t)
        if self.observer is not None:
            self.observer.on_accepted(key)

    def refused(self, client: str, queue: str, number: int, t: float, *, link: int = 0) -> None:
        """The broker has rejected or released it: it is not there."""
        self._outcome(Key(client, link, number, queue), Outcome.REFUSED, t)

    def unknown(self, client: str, queue: str, number: int, t: float, *, link: int = 0) -> None:
        """The connection went before the outcome: it may be there or not."""
        self._outcome(Key(client, link, number, queue), Outcome.UNKNOWN, t)

    def _outcome(self, key: Key, outcome: Outcome, t: float) -> Key:
        note = self.notes[key]
        assert note.outcome is Outcome.OPEN, f"{key} is {outcome} at {t}, and was {note.outcome} before"
        note.outcome = outcome
        return key

    # ---- consumers

    def received(self, client: str, queue: str, message: bytes, t: float, *, link: int = 0) -> Key | None:
        """A consumer has got a message (its body, or the encoded whole). `link` counts the links of this consumer."""
        self.looked(client, queue, message, t)
        key = read(message, queue)
        note = None if key is None else self.notes.get(key)
        if key is None or note is None:
            self.unexpected.append(f"{client} got {message[:80]!r} from {queue} at {t:.6f}, which nobody had sent there")
            return None
        note.received += 1
        if note.taken:
            self.repeated.append(f"{key} came again after {client} or another had taken it")
        if self.observer is not None:
            self.observer.on_received(client, link, key)
        return key

    def looked(self, client: str, queue: str, message: bytes, t: float) -> None:
        """A consumer or a browser has seen this message: it must be whole."""
        if not is_whole(message):
            self.unexpected.append(f"{client} got {message[:80]!r} from {queue} at {t:.6f}, cut short or altered")

    def unselected(self, client: str, key: Key) -> None:
        """This consumer has got a message that its selector does not name."""
        if self.observer is not None:
            self.observer.on_unselected(client, key)

    def overdrawn(self, client: str, link: int, count: int) -> None:
        """So many more messages have come on this consumer's link than it has given credit for (AMQP part 2.6.7)."""
        if self.observer is not None:
            self.observer.on_overdrawn(client, link, count)

    def taken(self, key: Key) -> None:
        """A consumer is about to let its accept or reject of this message go out (on a link that gets all settled: at once)."""
        self.notes[key].taken += 1

    def rejected(self, key: Key) -> None:
        """A consumer is about to let its reject of this message go out, on a queue with an alternate exchange."""
        self.notes[key].rejected += 1
        self._has_letter(key)

    def failed_too_often(self, key: Key) -> None:
        """By what is committed, delivery of this message has failed as often as its queue allows."""
        self.notes[key].over_limit = True
        if key.queue in self.letters:
            self._has_letter(key)

    def let_expire(self, key: Key) -> None:
        """A primary is about to let this message go because its time is over."""
        self.notes[key].expired = True
        if key.queue in self.letters:
            self._has_letter(key)

    def _has_letter(self, key: Key) -> None:
        """There is a reason more for a dead letter of this message."""
        letter = key._replace(queue=self.letters[key.queue])
        note = self.notes.get(letter)
        if note is None:
            self.notes[letter] = Note(Outcome.UNKNOWN)
        else:
            note.attempts += 1

    def settled(self, key: Key) -> None:
        """The broker has confirmed this consumer's accept."""
        self.notes[key].settled += 1
        if self.observer is not None:
            self.observer.on_settled(key)

    def unsubscribed(self, queue: str) -> None:
        """A client was told that its subscription, with this queue, is gone for good."""
        if self.observer is not None:
            self.observer.on_unsubscribed(queue)

    # ---- transactions

    def consumed_in_transactions(self, key: Key) -> None:
        """A consumer has got this, and will take it in a transaction."""
        self.retired.add(key)

    def discharging(self, posts: list[Key], retired: list[Key]) -> None:
        """A client is about to let the discharge of a transaction go out: all of this takes effect at once, or nothing."""
        found = Discharged(tuple(posts), tuple(retired))
        for key in posts:
            self.in_transactions[key] = found
        for key in retired:
            self.taken(key)

    def undone(self, retired: list[Key]) -> None:
        """A client was told that its transaction was undone: what it consumed is there again."""
        for key in retired:
            self.notes[key].taken -= 1
