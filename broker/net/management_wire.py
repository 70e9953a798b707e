"""The connection of a management client: a Twisted Protocol with an AMQP engine, from TCP up to both links.

Life: TCP connects. The engine is created, and opens its connection, session and two links. When the broker has opened both links
as well, `opened` fires. From then on `send` takes requests, and arriving messages go to the function that `listen` was given.
When the connection ends (by `close`, `abort`, the broker, the network, or silence), `reason` keeps one line about it. `on_lost`
is called once, at the very end.

Invariants: a callback never enters the engine's event loop again; the engine's memory is freed when TCP has ended; nothing is
written after that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import chain
from typing import Any
from typing import Protocol as TypingProtocol

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from broker.amqp import management_node
from broker.amqp.engine import Engine
from broker.amqp.links import Link
from broker.amqp.receiver import Receiver
from broker.amqp.scratch import Scratch
from broker.amqp.sender import Sender
from broker.core.links import ACCEPTED, REJECTED
from broker.core.message import BadMessage
from broker.core.sasl import UNAUTHORIZED
from broker.core.sasl_client import PERHAPS_TLS, TLS_HERE, Login
from broker.host import new_uuid
from broker.net.logins import Logins
from broker.net.output import TlsFailed, write_output

MAX_ANSWER_BYTES = 64 << 20
REPLY_CREDIT = 64
_SCRATCH = Scratch()
"""For all clients of this process: they share its reactor."""


class ClientError(Exception):
    """A broker could not be asked, or did not do as asked. The text is one line for a person."""


class ConnectError(ClientError):
    """There is no usable connection: refused, lost, not authenticated, or not AMQP."""


class Denied(ConnectError):
    """A broker is there, and one of the two sides does not let the other one in: its login, its rights, or TLS."""


class DataLink(TypingProtocol):
    """Who uses one more link of the connection, for messages: it hangs on the link as its context."""

    def opened(self) -> None:
        """The broker has attached the link, with a terminus: it may be used."""

    def messages(self) -> None:
        """Messages have come."""

    def outcomes(self) -> None:
        """Outcomes of what was sent have come."""

    def credit(self) -> None:
        """The broker takes more."""

    def closed(self, reason: str) -> None:
        """The broker has ended the link, or not attached it: "name: text"."""


class Wire(Protocol):
    """The socket and the AMQP engine behind one client. `opened` fires when requests may be sent, or fails with a ClientError.

    `admin`: whether a backup is to answer too. `container`: the AMQP container id, "" to have one made up. An EngineListener.
    """

    transport: Any
    engine: Engine

    def __init__(
        self,
        reactor: Any,
        name: str,
        login: Login,
        admin: bool,
        heartbeat_s: float | None,
        seconds: Callable[[], float],
        container: str = "",
    ) -> None:
        self._name = name
        self._login = login
        self._admin = admin
        self._heartbeat_s = heartbeat_s
        self._seconds = seconds
        self._container = container
        self._on_answer: Callable[[Any, management_node.Answer | str], None] = lambda number, answer: None
        self.on_lost: Callable[[str], None] = lambda reason: None
        self.opened: Deferred[None] = Deferred()
        self.reason = ""
        self.reply_to = ""
        self._logins = Logins(reactor)
        self._pumping = False
        self._begun = self._heard = self._ended = False
        self._denied = False
        """Whether the reason is one of `Denied`."""
        self._n_data = 0
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = reactor

    # The Twisted side.

    def connectionMade(self) -> None:
        """TCP is up, and TLS where it is to be: open everything down to both links in one flight."""
        self._begun = True
        program = os.path.basename(sys.argv[0])
        container = self._container or f"{program or 'client'}-{os.getpid()}-{id(self):x}"
        engine = self.engine = Engine(
            self, server=False, container=container, login=self._login, nonce=new_uuid(), scratch=_SCRATCH
        )
        engine.max_message_bytes = MAX_ANSWER_BYTES
        properties: dict[str, Any] = {"qpid.client_process": program, "qpid.client_pid": os.getpid()}
        if self._admin:
            properties["qpid.ha-admin"] = True
        engine.open(properties, hostname=self._name.rpartition(":")[0], idle_timeout_s=(self._heartbeat_s or 0.0) * 1.5)
        session = engine.new_session()
        self._sender = engine.attach_sender(session, "requests", management_node.ADDRESS, presettled=False)
        self._receiver = engine.attach_mailbox(session, "answers")
        self._receiver.flow(REPLY_CREDIT)
        self.transport.setTcpNoDelay(True)
        if self._heartbeat_s:
            self._ticker.start(self._heartbeat_s / 4)
        self.pump()

    def dataReceived(self, data: bytes) -> None:
        """Bytes from the broker."""
        self._heard = True
        if not self._ended:
            self.engine.push(data)
            self.pump()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """TCP has ended, for whatever reason."""
        if not self.reason:
            self.reason = self._how(reason)
            self._denied = isinstance(reason.value, TlsFailed)
        self._ended = True
        if self._ticker.running:
            self._ticker.stop()
        if self._begun and not self._pumping:
            self.engine.free()
        self._fail_opening()
        self.on_lost(self.reason)

    def _how(self, reason: Failure) -> str:
        if isinstance(reason.value, TlsFailed):
            return str(reason.value)
        done = isinstance(reason.value, ConnectionDone)
        how = "closed the connection" if done else f"connection lost ({reason.getErrorMessage()})"
        if not self._heard and not self._login.encrypted:
            how += f"; {PERHAPS_TLS}"
        elif not self.opened.called and not self._admin:
            how += "; a backup, or a broker that is being drained, does this to clients: name all the brokers, or use --ha-admin"
        return how

    def _fail_opening(self) -> None:
        if not self.opened.called:
            kind = Denied if self._denied else ConnectError
            self.opened.errback(kind(f"{self._name}: {self.reason}"))

    def abort(self, reason: str) -> None:
        """Drop TCP at once; `reason` is what `lost` will say."""
        self.reason = self.reason or reason
        if self.transport is not None and not self._ended:
            self.transport.abortConnection()

    def close(self) -> None:
        """End the AMQP connection in order."""
        self.reason = self.reason or "closed by this program"
        if self._begun and not self._ended:
            self.engine.close()
            self.pump()

    # The engine's side.

    def pump(self) -> None:
        """Handle all events, then write all bytes. A nested call does nothing: the outer one goes on until nothing is left."""
        if self._is_busy():
            return
        self._pumping = True
        try:
            self.engine.drain()
            while write_output(self.transport, self.engine):
                self.engine.drain()
        finally:
            self._pumping = False
        if self._ended:
            self.engine.free()
            return
        self._logins.follow(self.engine, self._logged_in)
        if self.engine.finished:
            self.transport.loseConnection()
        elif self.reply_to and not self.reason and not self.opened.called:
            self.opened.callback(None)

    def _logged_in(self, result: bytes) -> None:
        if not self._ended:
            self.engine.resume_login(result)
            self.pump()

    def _is_busy(self) -> bool:
        return self._pumping or self._ended

    def _tick(self) -> None:
        self.engine.tick(int(self._seconds() * 1000))
        self.pump()

    @property
    def remote_properties(self) -> dict[str, Any]:
        """The properties of the broker's Open."""
        return self.engine.remote.properties

    def on_open(self, engine: Engine) -> None:
        """The broker's Open, which says how often it wants to hear from us."""
        theirs_s = engine.remote.idle_timeout_s
        every = [wanted_s / 4 for wanted_s in (theirs_s, self._heartbeat_s) if wanted_s]
        if every and (not self._ticker.running or min(every) < (self._ticker.interval or 0)):
            if self._ticker.running:
                self._ticker.stop()
            self._ticker.start(min(every), now=False)

    def on_link(self, engine: Engine, link: Link) -> None:
        """A broker attaches nothing over a connection that it did not open."""
        link.close()

    def stop_reading(self) -> None:
        """Leave what comes in the socket, and do not take the broker for silent meanwhile."""
        if not self._ended:
            self.engine.expect_within(0)
            self.transport.pauseProducing()

    def read_again(self) -> None:
        """Take what comes again."""
        if not self._ended:
            self.engine.expect_within((self._heartbeat_s or 0.0) * 1.5)
            self.transport.resumeProducing()

    def receive_from(self, address: str, user: DataLink, max_bytes: int) -> Receiver:
        """Attach one more link, for messages from there; of a session of its own."""
        self._n_data += 1
        link = self.engine.attach_receiver(self.engine.new_session(), f"from-{self._n_data}", address, max_bytes)
        link.context = user
        self.pump()
        return link

    def send_to(self, address: str, user: DataLink) -> Sender:
        """Attach one more link, for messages to there, each of whose tags is its sequence."""
        self._n_data += 1
        link = self.engine.attach_sender(self.engine.new_session(), f"to-{self._n_data}", address, presettled=False)
        link.context, link.tags_sequences = user, True
        self.pump()
        return link

    def on_link_open(self, engine: Engine, link: Link) -> None:
        """The broker has attached one of our links; with both of its own requests may go."""
        if link.context is not None:
            if link.remote_address:
                link.context.opened()
            return
        if self._sender.open and self._receiver.open and self._sender.remote_address and not self.reply_to:
            self.reply_to = self._receiver.remote_address

    def on_credit(self, engine: Engine, link: Sender) -> None:
        """The engine keeps requests until there is credit for them."""
        if link.context is not None:
            link.context.credit()

    def on_link_closed(self, engine: Engine, link: Link) -> None:
        """Without both of its own links there is nothing to be had from this connection."""
        if link.context is not None:
            link.context.closed(link.reason or "the broker detached the link")
            return
        if "message-size-exceeded" in link.reason and link is self._receiver:
            self._end(f"the broker's answer is longer than {MAX_ANSWER_BYTES} bytes")
        else:
            self._end_told(link.reason)
        engine.close()

    def on_close(self, engine: Engine, reason: str) -> None:
        """The broker closed, or was silent for too long, or spoke something else than AMQP."""
        if "idle-timeout" in reason:
            self._end("the broker is silent")
        else:
            self._end_told(reason)

    def _end_told(self, condition: str) -> None:
        """The condition says why: "name: text"."""
        self._denied = self._denied or (not self.reason and (condition.startswith(UNAUTHORIZED) or TLS_HERE in condition))
        self._end(_for_people(condition))

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason or "the broker closed the connection"

    # Requests and answers.

    def send(self, number: int, request: bytes) -> None:
        """Send a request to the broker; a refusal of the message itself comes back through `on_answer` by its number."""
        if self._sender.open:
            self._sender.send_one(request, number)
            self.pump()

    def listen(self, on_answer: Callable[[Any, management_node.Answer | str], None]) -> None:
        """From now on call `on_answer(number, answer or refusal text)`."""
        self._on_answer = on_answer

    def on_lost_post(self, engine: Engine, txn_id: bytes) -> None:
        """Messages of a broker are in no transaction."""

    def on_outcomes(self, engine: Engine, link: Sender) -> None:
        """What the broker says of the messages that the requests were in."""
        if link.context is not None:
            link.context.outcomes()
            return
        refusals, link.refusals = link.refusals, {}
        refused = []
        for first, count, outcome, _ in link.take_outcomes():
            for delivery_id in range(first, first + count):
                for number in chain.from_iterable(link.account.take(delivery_id, 1)):
                    if outcome and outcome != ACCEPTED:
                        text = _for_people(refusals.get(delivery_id, "")) if outcome == REJECTED else ""
                        refused.append((number, text or "the broker did not take the request"))
            link.settle(first, count)
        for number, text in refused:
            self._on_answer(number, text)

    def on_messages(self, engine: Engine, link: Receiver) -> None:
        """Answers."""
        if link.context is not None:
            link.context.messages()
            return
        first, answers = link.take()
        link.settle(first, len(answers), ACCEPTED)
        link.flow(len(answers))
        for data in answers:
            try:
                answer = management_node.decode_answer(data)
            except BadMessage as error:
                self.abort(f"the broker sent an answer that cannot be read: {error}")
                return
            self._on_answer(answer.correlation_id, answer)


def _for_people(condition: str) -> str:
    """An error condition, "name: text", with what it means before what it is called."""
    name, _, text = condition.partition(": ")
    return f"{text} ({name})" if text else condition
