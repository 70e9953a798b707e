"""Mailboxes: volatile places for answers, which clients request with a dynamic source (docs/adr/0003).

Life of a mailbox: a client attaches a receiving link with a dynamic source, and the mailbox gets an address. Messages to this
address go directly to this link, or wait for its credit, up to a limit. The mailbox ends with its link.

Invariants: nothing is redelivered, because everything is sent settled; the waiting messages are limited by `limits.MAILBOX*`,
and the oldest are dropped first, because a client with so many unread answers does not read them; each message that counts can be
dropped, at a cost that does not depend on the number of mailboxes; nothing waits for a client that is gone.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

from broker.amqp.sender import Sender
from broker.core import limits
from broker.core.acl.questions import Lookups
from broker.core.nodes import Routed
from broker.sessions.attach import Attach, LinkEnd, Output
from broker.sessions.producer import Producer, Upload
from broker.sessions.uploads import Gathering


class Mailbox(LinkEnd):
    """One mailbox: the link end of its own link, and the terminus of links that send to it."""

    __slots__ = ("_mailboxes", "_waiting", "address", "link", "nbytes")
    window = limits.CREDIT_WINDOW
    takes_large = False
    in_transactions = False
    in_any_order = False
    of_any_user = False
    identity = ""

    def __init__(self, mailboxes: Mailboxes, session: Output, link: Sender, address: str) -> None:
        super().__init__(session)
        self.link = link
        self.address = address
        self._mailboxes = mailboxes
        self._waiting: deque[bytes] = deque()
        self.nbytes = 0
        """Bytes that the waiting messages take."""

    @property
    def serves_queues(self) -> bool:
        """Answers go to clients of a backup, too."""
        return False

    # ---- its own link

    def credit(self) -> None:
        """The client takes more."""
        self._send()

    def resume(self) -> None:
        """The waiting output was written."""
        self._send()

    def detached(self) -> None:
        """Its client is gone."""
        self._mailboxes.forget(self.address)
        self._count(-self.nbytes)
        self._waiting.clear()

    def _send(self) -> None:
        link, session = self.link, self.session
        while self._waiting and link.open and link.account.credit > 0:
            if session.is_stuffed or link.buffered_bytes > limits.MAX_OUTPUT_BYTES:
                session.choke()
                break
            link.send_one(self.forget_oldest(), 0, True)
        if link.open and link.account.draining and not self._waiting:
            link.drained()
        self.session.touch()

    # ---- those who send to it

    def put(self, data: bytes) -> None:
        """Send or keep a message; drop it if the client is gone."""
        if not self.link.open:
            return
        self._waiting.append(data)
        self._count(len(data) + limits.MAILBOX_MESSAGE_BYTES)
        while len(self._waiting) > limits.MAILBOX_MESSAGES or (self.nbytes > limits.MAILBOX_BYTES and len(self._waiting) > 1):
            self.forget_oldest()
        self._send()
        self._mailboxes.make_room()

    def forget_oldest(self) -> bytes:
        """Take away the message that waits longest."""
        data = self._waiting.popleft()
        self._count(-len(data) - limits.MAILBOX_MESSAGE_BYTES)
        return data

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._mailboxes.counted(self, nbytes)

    def needs_of_sender(self, session: Output) -> Lookups:
        """Nothing: every client that knows the address may answer."""
        return ()

    def admit(self, attach: Attach) -> None:
        """Everybody may answer."""

    def attached(self, producer: Producer) -> None:
        """Nothing is kept of its producers."""

    def left(self, producer: Producer) -> None:
        """Nothing was kept of it."""

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """All of them, in order."""
        producer.one_by_one(first, messages, self._put)

    def _put(self, producer: Producer, delivery_id: int, data: bytes) -> None:
        self.put(data)
        producer.done(delivery_id)

    def begin(self, producer: Producer, head: bytes) -> Upload:
        """A large message from a link that is not to it alone: it is put together."""
        return Gathering(producer, self.receive, f"mailbox {self.address}")

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        """None: it takes no part in transactions."""
        return Routed([])

    def may_flow(self, producer: Producer) -> bool:
        """Old messages make room for new ones."""
        return True


class Mailboxes:
    """The mailboxes of a broker. `new_id` makes their addresses."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self.nbytes = 0
        """Bytes that the waiting messages of all mailboxes take."""
        self._boxes: dict[str, Mailbox] = {}
        """By its address, each to which messages can be sent."""
        self._filled: defaultdict[int, dict[Mailbox, None]] = defaultdict(dict)
        """All in which messages wait, also those without an address of their own, by the bit length of their bytes: so none needs
        to be compared with all others."""

    def counted(self, box: Mailbox, nbytes: int) -> None:
        """So many bytes more wait in this mailbox."""
        self.nbytes += nbytes
        before, size = (box.nbytes - nbytes).bit_length(), box.nbytes.bit_length()
        if size != before:
            self._filled[before].pop(box, None)
            if size:
                self._filled[size][box] = None

    def make_room(self) -> None:
        """Take the oldest messages away, while there is too much, from one of those than which none has twice as much."""
        while self.nbytes > limits.MAILBOXES_BYTES:
            fullest = max(size for size, boxes in self._filled.items() if boxes)
            next(iter(self._filled[fullest])).forget_oldest()

    def named(self, address: str) -> Mailbox | None:
        """The mailbox of that address."""
        return self._boxes.get(address)

    def add(self, box: Mailbox) -> None:
        """Add this mailbox."""
        self._boxes[box.address] = box

    def forget(self, address: str) -> None:
        """This mailbox is gone."""
        self._boxes.pop(address, None)

    def dynamic(self, attach: Attach) -> Mailboxes | None:
        """For a source that this side is to make."""
        return self if attach.asked.dynamic else None

    def knows_filter(self, name: str) -> bool:
        """None is applied."""
        return False

    def subscribe(self, attach: Attach, link: Sender) -> None:
        """Make a mailbox for this link."""
        box = Mailbox(self, attach.session, link, f"$reply/{self._new_id()}")
        link.accept(dynamic_address=box.address, settled=True)
        self.add(box)
        link.context = box
