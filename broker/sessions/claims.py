"""Tokens after an anonymous login: the node `$cbs`, to which a client sends its token before it does anything else.

Life of such a connection: it logs in by ANONYMOUS and its Open is answered, but it stays a stranger. It may attach only to
`$cbs`, and has the time limit of an Open to send a valid token. It sends `put-token` with a JSON Web Token. The token is verified
like the token of a login (`broker.core.tokens`), and the answer contains the result. From then on the connection acts as the
token's user. It ends when the token expires, unless the same user has sent a later one.

Invariants: a link may send one token before the last one is answered, and a connection has one token verified at a time; answers
and log files contain nothing of a token; answers are short, and count and are dropped like those in mailboxes; a connection that
has logged in by other means cannot put a token.

Source: AMQP Claims-based Security Version 1.0, a working draft of OASIS, as the clients of Azure Service Bus use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.amqp.sender import Sender
from broker.core import limits, message
from broker.core.acl.questions import Lookups
from broker.core.bearer import CBS_NODE
from broker.core.message import BadMessage, MessageId
from broker.core.nodes import Routed
from broker.sessions.attach import Attach, Output
from broker.sessions.mailboxes import Mailbox, Mailboxes
from broker.sessions.producer import Producer, Upload
from broker.sessions.uploads import Gathering

TYPES = frozenset(("jwt", "amqp:jwt"))
"""The accepted type names of a JSON Web Token."""
Answer = Callable[[int, str], None]
"""Status, as in HTTP, and text."""


class TakeToken(Protocol):
    """The object that verifies tokens."""

    def take_token(self, number: int, token: str, answer: Answer) -> None:
        """A client has put this token over the connection of that number."""


class Claims:
    """The node, as links see it: a target for tokens and a source of answers."""

    window = 1
    serves_queues = False
    takes_large = False
    in_transactions = False
    in_any_order = False
    of_any_user = False
    identity = ""

    def __init__(self, mailboxes: Mailboxes) -> None:
        self.desk: TakeToken
        """To be set before a link attaches."""
        self._mailboxes = mailboxes
        self._answers: dict[Output, Mailbox] = {}
        """Session -> its link for answers."""

    def named(self, address: str) -> Claims | None:
        """Itself, by its address."""
        return self if address == CBS_NODE else None

    # ---- answers

    def knows_filter(self, name: str) -> bool:
        """No filter is known: the answers go to the client that asked."""
        return False

    def subscribe(self, attach: Attach, link: Sender) -> None:
        """Send the answers for this connection's tokens here, instead of to an earlier link."""
        link.accept(settled=True)
        self._answers[attach.session] = link.context = _Answers(self._mailboxes, attach.session, link, CBS_NODE, self._forget)

    def _forget(self, box: Mailbox) -> None:
        if self._answers.get(box.session) is box:
            del self._answers[box.session]

    # ---- tokens

    def needs_of_sender(self, session: Output) -> Lookups:
        """Nothing: the client is not known yet."""
        return ()

    def admit(self, attach: Attach) -> None:
        """Everybody may put a token."""

    def attached(self, producer: Producer) -> None:
        """A stranger's messages are small."""
        producer.link.take_whole(limits.TOKEN_MESSAGE_BYTES)

    def left(self, producer: Producer) -> None:
        """Nothing was kept of it."""

    def destinations(self, producer: Producer, data: bytes) -> Routed:
        """None: it takes no part in transactions."""
        return Routed([])

    def may_flow(self, producer: Producer) -> bool:
        """Always: the window limits the waiting requests."""
        return True

    def begin(self, producer: Producer, head: bytes) -> Upload:
        """A token that comes over a link which is not to this node alone."""
        return Gathering(producer, self.receive, CBS_NODE)

    def receive(self, producer: Producer, first: int, messages: list[bytes]) -> None:
        """Tokens, which have their outcome when they have their answer."""
        producer.one_by_one(first, messages, self._put)

    def _put(self, producer: Producer, delivery_id: int, data: bytes) -> None:
        session, number, about = producer.session, producer.session.number, _asked_by(data)

        def answer(status: int, text: str) -> None:
            box = self._answers.get(session)
            if box is not None:
                properties = {"status-code": status, "status-description": text}
                box.put(message.encoded(to=CBS_NODE, correlation_id=about, properties=properties, body=None))
            producer.done(delivery_id)

        fault, token = _token_of(data)
        if fault:
            answer(400, fault)
        else:
            self.desk.take_token(number, token, answer)


class _Answers(Mailbox):
    """Where the answers for one connection wait for its credit."""

    __slots__ = ("_left",)

    def __init__(
        self, mailboxes: Mailboxes, session: Output, link: Sender, address: str, left: Callable[[Mailbox], None]
    ) -> None:
        super().__init__(mailboxes, session, link, address)
        self._left = left

    def detached(self) -> None:
        """Its link is gone."""
        super().detached()
        self._left(self)


def _asked_by(data: bytes) -> MessageId | None:
    """The correlation id of the answer to this request. BadMessage, also when that is too long."""
    correlation_id = message.correlation_id(data)
    known_as = message.message_id(data) if correlation_id is None else correlation_id
    nbytes = len(known_as.encode() if isinstance(known_as, str) else known_as) if isinstance(known_as, (str, bytes)) else 0
    if nbytes > limits.MAX_NAME_BYTES:
        raise BadMessage(f"the id of a message with a token may have {limits.MAX_NAME_BYTES} bytes, this one has {nbytes}")
    return known_as


def _token_of(data: bytes) -> tuple[str, str]:
    """Why there is no token in a request, or "" and the token. BadMessage."""
    said = message.application_properties(data)
    if said.get("operation") != "put-token":
        return "this node has the operation put-token alone", ""
    if str(said.get("type")) not in TYPES:
        return f"a token is of the type {' or '.join(sorted(TYPES))} here", ""
    token = message.body_value(data)
    return ("", token) if isinstance(token, str) else ("the token is to be a text, the value that is the body", "")
