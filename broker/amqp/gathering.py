"""Messages that arrive in several frames: the broker collects them, passes them on in parts, or gives them up, and counts the
memory of unfinished ones.

Life of such a message: its first frame is counted and left in proton while the message is small. Above this size its bytes are
collected in its link's `partial`, so that the session's window opens again. The message ends as a complete message in the inbox,
as parts that its terminus takes (`Receiver.take_parts`), aborted by its sender, or too large for its link, which then ends too.

Invariants: `nbytes` is the sum of `unfinished` of the engine's links, and the sum of all connections contains the same bytes;
when either sum exceeds its limit, this connection's messages are passed on as far as possible, and if this is not enough, a
connection is closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cproton_ffi import lib

from broker.amqp.data import Condition
from broker.amqp.links import Link
from broker.amqp.partial import Partial
from broker.amqp.receiver import PartsTaker, Receiver, ReceivingEngine
from broker.amqp.scratch import SCRATCH_BYTES
from broker.amqp.unfinished import Unfinished
from broker.core import limits, message, packs
from broker.core.performatives import LIMIT_EXCEEDED, Refusal


class Gathering:
    """The unfinished messages of one engine. `of_all`: the sum that they count in."""

    __slots__ = ("_of_all", "nbytes")

    def __init__(self, of_all: Unfinished | None) -> None:
        self.nbytes = 0
        """Bytes of unfinished messages in memory, of all links."""
        self._of_all = of_all or Unfinished(1 << 62)

    def forget_all(self) -> None:
        """The engine was freed, with its unfinished messages."""
        self._count(-self.nbytes)

    def more_of(self, link: Receiver, delivery: Any, size: int) -> bytes | None:
        """Collect the bytes of a message that arrives in several frames, so that the session's window opens again. None if it is
        not complete yet, aborted by its sender, or too large; or if it is a large message that is passed on in parts.
        """
        if lib.pn_delivery_aborted(delivery):
            self.given_up(link, delivery)
            return None
        if lib.pn_delivery_partial(delivery) and size <= link.gather_from and link.partial is not None:
            self.keeps(link, size)
            return None  # as with the first bytes, so that no piece is small
        if link.partial is None:
            link.partial = Partial()
        parts = None if (is_pack := link.is_pack(delivery)) else link.parts
        part_bytes = link.engine.part_bytes  # no piece lies in two parts: the rest of it would keep the memory of all of it
        while size > 0:
            count = link.partial.receive(link.handle, min(size, part_bytes - len(link.partial) % part_bytes))
            if count <= 0:
                break
            size -= count
            if link.parted + len(link.partial) > link.max_bytes:
                self.too_large(link, link.parted + len(link.partial))
                return None
            if is_pack and len(link.partial) > packs.PACK_BYTES:
                self.give_up(link, Condition("amqp:decode-error", f"a pack of messages has up to {packs.PACK_BYTES} bytes"))
                return None
            if parts is not None and (link.parted or len(link.partial) > limits.LARGE_PARTS * part_bytes):
                self._hand_on(link, parts)
                if not (link.engine.alive and link.open):
                    return None
        if lib.pn_delivery_partial(delivery):
            self.keeps(link, 0)
            return None
        assert link.partial is not None
        data, link.partial = link.partial.take(len(link.partial)), None
        if not link.parted:
            return data
        link.parted = 0
        self._arrived(link, delivery)
        link.engine.messages_in += 1
        if link.parts is not None:
            link.parts.part(data, True)
        return None

    def keeps(self, link: Receiver, in_proton: int) -> None:
        """More of an unfinished message has arrived; `in_proton` bytes of it are in proton."""
        kept = in_proton + (len(link.partial) if link.partial is not None else 0)
        if link.parted and link.parts is not None:
            kept += link.parts.kept_bytes
        self._count(kept - link.unfinished)
        link.unfinished = kept
        if not link.engine.is_client and (self.nbytes > limits.UNFINISHED_BYTES or self._of_all.is_too_much):
            self._relieve(link.engine)

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._of_all.nbytes += nbytes

    def finished(self, link: Receiver) -> None:
        """Nothing is kept any more of the message that was coming."""
        if link.unfinished:
            self._count(-link.unfinished)
            link.unfinished = 0

    def count_apart(self) -> None:
        """Let the unfinished messages of this connection, which is not client's, count for it alone."""
        self._of_all.nbytes -= self.nbytes
        self._of_all = Unfinished(1 << 62)
        self._of_all.nbytes = self.nbytes

    def drop(self, links: Iterable[Link]) -> None:
        """Drop unfinished messages: this connection will end, and accepts no more of them."""
        for link in links:
            if isinstance(link, Receiver) and link.unfinished:
                while lib.pn_link_recv(link.handle, link.engine.scratch.area, SCRATCH_BYTES) > 0:
                    continue
                link.partial = None
                self.finished(link)

    def _relieve(self, engine: ReceivingEngine) -> None:
        """Pass on unfinished messages as far as possible. If too much remains, end this connection."""
        unfinished: list[Receiver] = [one for one in engine.links if isinstance(one, Receiver) and one.unfinished]
        for link in unfinished:
            if not (engine.alive and link.open) or link.is_pack(lib.pn_link_current(link.handle)):
                continue
            if link.parts is not None and link.unfinished >= limits.SMALL_PART_BYTES:
                self._hand_on_early(link, link.parts)
        if not engine.alive:
            return
        if self.nbytes - max((link.unfinished for link in unfinished), default=0) > limits.UNFINISHED_BYTES:
            text = f"the unfinished messages of a connection may take {limits.UNFINISHED_BYTES} bytes beside the largest"
            engine.refuse(Refusal(LIMIT_EXCEEDED, text))
        elif self._of_all.is_too_much:
            self._of_all.over()

    def _hand_on_early(self, link: Receiver, parts: PartsTaker) -> None:
        """Pass on a message in parts even if less than a part has arrived, if its body has begun. Until it has, few bytes are
        left in proton, so that what has come is not searched again for each of them."""
        if link.partial is None:
            link.partial = Partial()
        pending = int(lib.pn_delivery_pending(lib.pn_link_current(link.handle)))
        begun = link.parted > 0 or message.body_begins_in(link.partial.joined())
        if pending and (begun or pending >= limits.SMALL_PART_BYTES):
            pending -= link.partial.receive(link.handle, min(pending, SCRATCH_BYTES))
            begun = begun or message.body_begins_in(link.partial.joined())
        if begun:
            self._hand_on(link, parts, early=True)
        if link.engine.alive and link.open and link.partial is not None:
            kept = pending + len(link.partial) + (parts.kept_bytes if link.parted else 0)
            self._count(kept - link.unfinished)
            link.unfinished = kept

    def _hand_on(self, link: Receiver, parts: PartsTaker, *, early: bool = False) -> None:
        """Pass on the complete parts, after the messages before them; the last bytes stay here. `early`: also pass on an
        incomplete part, except its last byte.
        """
        if not link.parted:
            link.engine.hand_over(link)
        assert link.partial is not None
        size = link.engine.part_bytes
        while link.engine.alive and link.open and len(link.partial) > size:
            data = link.partial.take(size)
            link.parted += size
            parts.part(data, False)
        if early and link.engine.alive and link.open and len(link.partial) > 1:
            data = link.partial.take(len(link.partial) - 1)
            link.parted += len(data)
            parts.part(data, False)

    def _arrived(self, link: Receiver, delivery: Any) -> None:
        """All of this delivery has been taken."""
        self.finished(link)
        lib.pn_link_advance(link.handle)
        link.used_credit(1)
        if lib.pn_delivery_settled(delivery):
            lib.pn_delivery_settle(delivery)
            link.deliveries.append(None)
        else:
            link.deliveries.append(delivery)

    def given_up(self, link: Receiver, delivery: Any) -> None:
        """The sender aborted this delivery (part 2.6.14): forget it, and give back the credit that it took."""
        self.finished(link)
        link.partial = None
        if link.parted and link.parts is not None:
            link.parts.aborted()
        link.parted = 0
        lib.pn_delivery_settle(delivery)
        lib.pn_link_flow(link.handle, 1)  # the account never counted this message, because it never became complete

    def too_large(self, link: Receiver, size: int) -> None:
        """End a link on which so much came of a message that is larger than it may be."""
        condition = Condition(
            "amqp:link:message-size-exceeded",
            f"a message of at least {size} bytes is larger than the {link.max_bytes} bytes that this broker takes "
            "(--max-message-size)",
        )
        self.give_up(link, condition)

    def give_up(self, link: Receiver, condition: Condition) -> None:
        """End a link whose messages cannot be taken, for its peer's fault."""
        self.finished(link)
        link.partial = None
        link.parted = 0
        link.inbox.clear()
        link.reason = str(condition)
        link.engine.lost(link)
        link.close(condition)
