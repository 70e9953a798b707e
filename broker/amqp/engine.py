"""Proton's C engine, which works in batches here.

Life of an engine: `push` gives it the bytes from a socket. For a server's connection they pass the door first
(`broker.core.door`), which handles SASL and stops bytes that proton must not get; for a client's connection they pass the SASL
layer (`broker.core.sasl_client`). `drain` empties the whole event queue and calls its listener once for each link with everything
that arrived for it, not once for each message. `take_output` returns the bytes to write. `free` ends the engine and all C objects
that it owns. They must not be used afterwards, so code that keeps a `Link` checks `link.open` first. Proton's own SASL is not
used on either side.

Ownership: `broker.amqp.remote` reads what the peer says of itself; `broker.amqp.gathering` has the messages of which only a part
has arrived; `broker.amqp.later` has what proton gets when it has nothing to write; a link has its own deliveries.

The C functions are called directly through proton's cffi module: with wrapper objects for each event a message took 47 us,
without them 5 us.

Invariants: the event queue is empty between calls; a delivery pointer is used only while its engine lives; an incoming delivery
is unsettled until `Receiver.settle`; an outgoing one until its outcome has arrived and `Sender.settle` was called, or its link
has ended.

Source: AMQP 1.0 part 2 (transport). Objects are freed in the order that proton needs: unbind, collector, connection, transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from cproton_ffi import ffi, lib

from broker.amqp.data import Condition, condition_text, put_value, set_condition
from broker.amqp.gathering import Gathering
from broker.amqp.later import Later
from broker.amqp.links import Link
from broker.amqp.receiver import Receiver, txn_id_of
from broker.amqp.remote import Remote
from broker.amqp.scratch import SCRATCH_BYTES, Scratch
from broker.amqp.sender import Sender
from broker.amqp.unfinished import Unfinished
from broker.core import limits, packs, sasl, values
from broker.core.door import Door
from broker.core.performatives import LIMIT_EXCEEDED, Refusal
from broker.core.sasl_client import ANONYMOUS, ClientLayer, Login

NULL = ffi.NULL
_DELIVERY = lib.PN_DELIVERY
_FLOW = lib.PN_LINK_FLOW
_LOCAL_UNINIT = lib.PN_LOCAL_UNINIT
_CONTROLS = frozenset(
    {
        _FLOW,
        lib.PN_CONNECTION_REMOTE_OPEN,
        lib.PN_SESSION_REMOTE_OPEN,
        lib.PN_LINK_REMOTE_OPEN,
        lib.PN_LINK_REMOTE_CLOSE,
        lib.PN_LINK_REMOTE_DETACH,
        lib.PN_SESSION_REMOTE_CLOSE,
        lib.PN_CONNECTION_REMOTE_CLOSE,
        lib.PN_TRANSPORT_ERROR,
        lib.PN_TRANSPORT_CLOSED,
    }
)
"""The events that `_control` handles. Most of the others occur once for each write and are not needed here."""


class EngineListener(Protocol):
    """The user of an engine. Its methods are called only within `Engine.drain`."""

    def on_open(self, engine: Engine) -> None:
        """The peer's Open has arrived; answer with `engine.open`, or not at all."""

    def on_link(self, engine: Engine, link: Link) -> None:
        """The peer attached a link; answer with `link.accept` or `link.refuse`."""

    def on_link_open(self, engine: Engine, link: Link) -> None:
        """The peer answered a link that this side attached."""

    def on_messages(self, engine: Engine, link: Receiver) -> None:
        """`link.inbox` has filled: `link.take` it. It is empty if the peer has only used its credit up: that is due again."""

    def on_lost_post(self, engine: Engine, txn_id: bytes) -> None:
        """A message in this transaction has come on a link that this side has ended, and is dropped. Told before what follows."""

    def on_outcomes(self, engine: Engine, link: Sender) -> None:
        """Outcomes have arrived: get them by `link.take_outcomes`."""

    def on_credit(self, engine: Engine, link: Sender) -> None:
        """The peer changed the link's credit or asked to drain it."""

    def on_link_closed(self, engine: Engine, link: Link) -> None:
        """The link has ended: detached by the peer, or with its session."""

    def on_close(self, engine: Engine, reason: str) -> None:
        """The peer closed the connection, or violated the protocol (`reason` says how; "" for an orderly close)."""


class _Nobody:
    """The listener of an engine that was freed. Fulfils `EngineListener`."""

    def on_open(self, engine: Engine) -> None:
        """Nothing follows."""

    def on_link(self, engine: Engine, link: Link) -> None:
        """Nothing follows."""

    on_link_open = on_link_closed = on_link

    def on_messages(self, engine: Engine, link: Receiver) -> None:
        """Nothing follows."""

    def on_outcomes(self, engine: Engine, link: Sender) -> None:
        """Nothing follows."""

    on_credit = on_outcomes

    def on_lost_post(self, engine: Engine, txn_id: bytes) -> None:
        """Nothing follows."""

    def on_close(self, engine: Engine, reason: str) -> None:
        """Nothing follows."""


_NOBODY = _Nobody()


class Engine:
    """The protocol state of one AMQP connection.

    A server has a door, which handles logins; a client logs in with `login`. `nonce`: a text that cannot be guessed, for a
    client's login. `offer`: the mechanisms that a server offers, in frames of at most `sasl_frame` bytes. `scratch` is shared by
    the engines of a thread; without one this engine has its own. `unfinished`: the sum to which this engine's unfinished messages
    are added.
    """

    def __init__(
        self,
        listener: EngineListener,
        *,
        server: bool,
        container: str,
        max_frame: int = limits.MAX_FRAME_BYTES,
        login: Login = ANONYMOUS,
        nonce: str = "",
        offer: sasl.Offer = sasl.OFFERED,
        sasl_frame: int = limits.SASL_FRAME_BYTES,
        scratch: Scratch | None = None,
        unfinished: Unfinished | None = None,
    ) -> None:
        self.listener: EngineListener = listener
        self.is_client = not server
        self.scratch = scratch or Scratch()
        self.connection = lib.pn_connection()
        self.transport = lib.pn_transport()
        self.remote = Remote(self.connection, self.transport)
        self._collector = lib.pn_collector()
        self._links: dict[Any, Link] = {}
        self.n_links = 0
        """Links that were attached, of all time."""
        self._unanswered: dict[Link, bool] = {}
        """Links that the peer has ended and that wait for an answer; and whether they were closed, not only detached."""
        self.alive = True
        self.remote_open = False
        self._close_told = False
        self._deaf = False
        self._refused = 0
        self._early_sessions: list[Any] = []
        self.messages_in = self.messages_out = 0
        self._named = 0
        """How many further events may come of the dispositions in the last `push`."""
        self._in_vain = 0
        """How often the peer has named a delivery without a new outcome."""
        self.gathering = Gathering(unfinished)
        self.sent_bytes = 0
        """At least as much as has been given to proton on all links and has not been written."""
        self.unsettled = 0
        """Deliveries to the peer, on all links, that proton keeps because they are not settled, or because their link is closed
        and the peer has not detached it."""
        self._left: dict[Any, int] = {}
        """Handle of a link that only this side has closed -> how many of these are on it."""
        self._after_close: dict[Any, int] = {}
        """Handle of a link that only this side has closed -> how much of a session's window has arrived on it since."""
        self.max_message_bytes = limits.MAX_MESSAGE_BYTES
        self.part_bytes = limits.PART_BYTES
        lib.pn_connection_set_container(self.connection, container.encode())
        lib.pn_connection_collect(self.connection, self._collector)
        lib.pn_transport_set_max_frame(self.transport, max_frame)
        lib.pn_transport_set_channel_max(self.transport, limits.MAX_SESSIONS_PER_CONNECTION - 1)
        self._door = Door(max_frame, offer, sasl_frame) if server else None
        self.later = Later(self.transport, set() if self._door is None else self._door.asked_of)
        self._layer = None if server else ClientLayer(login, nonce)
        """A client's, until it is over."""
        self._idle_ms = 0
        self._layer_heard_ms: int | None = None
        """By `tick`, while that lasts: proton has not begun, and does not notice that the peer is silent."""
        if server:
            lib.pn_transport_set_server(self.transport)
        lib.pn_transport_bind(self.transport, self.connection)

    # ---- opening and closing

    def open(
        self,
        properties: dict[str, Any] | None = None,
        *,
        hostname: str | None = None,
        offered: Sequence[str] = (),
        idle_timeout_s: float = 0.0,
    ) -> None:
        """Send this side's Open. `idle_timeout_s` is the silence after which this side gives the peer up (0: never)."""
        if hostname is not None:
            lib.pn_connection_set_hostname(self.connection, hostname.encode())
        if properties:
            named = values.encode({values.Symbol(key): value for key, value in properties.items()})
            put_value(lib.pn_connection_properties(self.connection), named)
        if offered:
            put_value(lib.pn_connection_offered_capabilities(self.connection), values.symbols(offered))
        if idle_timeout_s:
            self._idle_ms = int(idle_timeout_s * 1000)
            lib.pn_transport_set_idle_timeout(self.transport, self._idle_ms)
        lib.pn_connection_open(self.connection)
        if self._door is not None:
            self._door.admit()
        for session in self._early_sessions:
            lib.pn_session_open(session)
        self._early_sessions.clear()

    def take_frames(self, max_bytes: int) -> None:
        """Set the largest frame in this side's Open, which was not sent yet."""
        lib.pn_transport_set_max_frame(self.transport, max_bytes)
        if self._door is not None:
            self._door.max_frame_bytes = max_bytes

    def close(self, condition: Condition | None = None) -> None:
        """Send this side's Close."""
        if self.alive:
            if condition is not None:
                set_condition(lib.pn_connection_condition(self.connection), condition)
            lib.pn_connection_close(self.connection)
            if self._door is not None:
                self._door.leave()

    def new_session(self) -> Any:
        """Begin a session from this side."""
        session = lib.pn_session(self.connection)
        lib.pn_session_set_incoming_capacity(session, limits.SESSION_WINDOW_BYTES)
        lib.pn_session_open(session)
        return session

    def attach_sender(self, session: Any, name: str, target: str, *, presettled: bool = True) -> Sender:
        """Attach a sending link from this side."""
        handle = lib.pn_sender(session, name.encode())
        lib.pn_terminus_set_address(lib.pn_link_target(handle), target.encode())
        lib.pn_terminus_set_address(lib.pn_link_source(handle), name.encode())
        if presettled:
            lib.pn_link_set_snd_settle_mode(handle, lib.PN_SND_SETTLED)
        lib.pn_link_open(handle)
        link = Sender(self, handle)
        self._add(handle, link)
        return link

    def attach_receiver(self, session: Any, name: str, source: str, max_bytes: int) -> Receiver:
        """Attach a receiving link from this side, for messages of up to `max_bytes`, which are put together in memory."""
        handle = lib.pn_receiver(session, name.encode())
        lib.pn_terminus_set_address(lib.pn_link_source(handle), source.encode())
        lib.pn_terminus_set_address(lib.pn_link_target(handle), name.encode())
        lib.pn_link_set_max_message_size(handle, max_bytes)
        lib.pn_link_open(handle)
        link = Receiver(self, handle)
        link.take_whole(max_bytes)
        self._add(handle, link)
        return link

    def attach_mailbox(self, session: Any, name: str) -> Receiver:
        """Attach a receiving link from this side, whose address the peer creates."""
        handle = lib.pn_receiver(session, name.encode())
        lib.pn_terminus_set_dynamic(lib.pn_link_source(handle), True)
        lib.pn_link_set_max_message_size(handle, self.max_message_bytes)
        lib.pn_link_open(handle)
        link = Receiver(self, handle)
        self._add(handle, link)
        return link

    def _add(self, handle: Any, link: Link) -> None:
        self.n_links = link.number = self.n_links + 1
        self._links[handle] = link

    def free(self) -> None:
        """Give every C object back. The engine and its links are dead after this."""
        if not self.alive:
            return
        self.alive = False
        self.gathering.forget_all()
        for link in self._links.values():
            link.open = False
        self._links.clear()
        self.later.clear()
        self._unanswered.clear()
        self._left.clear()
        lib.pn_transport_unbind(self.transport)
        lib.pn_collector_release(self._collector)
        lib.pn_connection_release(self.connection)
        lib.pn_decref(self.connection)
        lib.pn_decref(self.transport)
        lib.pn_collector_free(self._collector)
        self.listener = _NOBODY  # engine and owner would hold each other until the garbage collector runs

    # ---- bytes

    @property
    def has_more(self) -> bool:
        """Whether received bytes were too much for one turn: call `push` with no bytes in a later one."""
        return self._door is not None and self._door.enough

    @property
    def was_costly(self) -> bool:
        """Whether there were begins, attaches, detaches, ends or requests for a state in the last `push`, or many deliveries were
        named in it."""
        return self._door is not None and self._door.costly

    def allow(self, count: int) -> None:
        """So many begins, attaches, detaches, ends and requests for a state may be looked at in one `push`."""
        if self._door is not None:
            self._door.allowance = count

    def push(self, data: bytes) -> bool:
        """Feed bytes from the socket. If the peer violates the protocol, the next `drain` calls `on_close`. Returns whether they
        were too much (`has_more`), or costly (`was_costly`): mostly they are neither."""
        door = self._door
        if door is not None:
            passed = door.take(data)
            self._named = door.named
            if door.more or door.refusal is not None:
                self._let_through(door, passed)
            elif passed:
                self._to_proton(passed)
            return door.enough or door.costly
        if self._layer is not None:
            self._layer_heard_ms = None
            self._after_layer(self._layer, self._layer.take(data))
        else:
            self._to_proton(data)
        return False

    def _after_layer(self, layer: ClientLayer, passed: bytes) -> None:
        if layer.refusal is not None:
            self._deaf = True
        elif layer.done:
            self._layer = None
            if passed:
                self._to_proton(passed)

    @property
    def login_waits(self) -> sasl.Wait | None:
        """The work before the login can continue, on either side: do it, then call `resume_login`."""
        login = self.login or self._layer
        return None if login is None else login.waits

    @property
    def login(self) -> sasl.Exchange | None:
        """How the client logs in; None on a client's side."""
        return None if self._door is None else self._door.login

    def resume_login(self, result: bytes) -> None:
        """Continue the login with the result of its work, and take the bytes that arrived meanwhile."""
        if not self.alive:
            return
        if self._door is not None:
            self._door.resume(result)
            self._let_through(self._door, b"")
        elif self._layer is not None:
            self._after_layer(self._layer, self._layer.resume(result))

    def refuse_login(self, reason: str) -> None:
        """The login cannot continue, for a reason of this side."""
        if self.alive and self._door is not None:
            self._door.give_up_login(reason)
            self._let_through(self._door, b"")

    def _let_through(self, door: Door, passed: bytes) -> None:
        if passed:
            self._to_proton(passed)
        while door.more and self.alive:
            self.drain()  # the answer to an Open decides which frames may follow it
            if self.alive:
                self._to_proton(door.take(b""))
        if door.refusal is not None:
            self._deaf = True

    def _to_proton(self, data: bytes) -> None:
        size, transport = len(data), self.transport
        if size:
            taken = lib.pn_transport_push(transport, data, size)
            if 0 <= taken < size:
                self._rest_to_proton(data, taken)
        self._deaf = self.alive and (lib.pn_transport_capacity(transport) < 0 or (not self.remote_open and self.finished))

    def _rest_to_proton(self, data: bytes, position: int) -> None:
        """Proton's buffer is full: drain the engine, and give it the rest, for as long as it takes any."""
        base, size = ffi.from_buffer(data), len(data)
        while position < size and (lib.pn_transport_capacity(self.transport) > 0 or self._make_room()):
            taken = lib.pn_transport_push(self.transport, base + position, size - position)
            if taken <= 0:
                break
            position += taken

    def _make_room(self) -> bool:
        self.drain()
        return bool(self.alive and lib.pn_transport_capacity(self.transport) > 0)

    def end_of_input(self) -> None:
        """The peer's TCP stream ended."""
        if self.alive:
            lib.pn_transport_close_tail(self.transport)

    @property
    def pending(self) -> bool:
        """Whether there is output to take, or (False with `finished`) there never will be."""
        if self._layer is not None:
            return bool(self._layer.output)
        return bool(lib.pn_transport_pending(self.transport) > 0 or (self._door is not None and self._door.output))

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to write, and no reason to end the TCP stream. Most bytes from a member change neither."""
        if self._deaf or self._layer is not None or self.sent_bytes or self.later.waits:
            return False
        return (self._door is None or not self._door.output) and bool(lib.pn_transport_pending(self.transport) == 0)

    @property
    def finished(self) -> bool:
        """Whether all output was taken and this side is closed: the TCP stream may be ended."""
        if self._layer is not None:
            return self._deaf and not self._layer.output
        pending = lib.pn_transport_pending(self.transport)
        if (pending >= 0 and not self._deaf) or (self._door is not None and self._door.output):
            return False
        return bool(pending < 0 or (pending == 0 and (not self.remote_open or self._refused_by_door)))

    @property
    def _refused_by_door(self) -> bool:
        return self._door is not None and self._door.refusal is not None

    def send_output(self, send: Callable[[Any], int]) -> tuple[int, bool]:
        """Give the bytes that wait to `send`, which returns how many it took, for as long as it takes all that it is given.

        Returns how many it took, and whether nothing waits any more; the rest stays here. An OSError of `send` is taken for 0.
        """
        transport, scratch = self.transport, self.scratch.area
        sent = 0
        front = self._door or self._layer
        if front is not None and front.output:
            output = front.output
            try:
                sent = send(bytes(output))
            except OSError:
                return 0, False
            del output[:sent]
            if output:
                return sent, False
        if self._layer is not None:
            return sent, True
        while (waiting := lib.pn_transport_pending(transport)) > 0 or self.later.feed(waiting):
            if waiting <= 0:
                continue
            count = lib.pn_transport_peek(transport, scratch, min(waiting, SCRATCH_BYTES))
            if count <= 0:
                break
            try:
                taken = send(ffi.buffer(scratch, count))
            except OSError:  # the socket is full or gone: the code that writes the rest finds out which
                return sent, False
            lib.pn_transport_pop(transport, taken)
            sent += taken
            if taken < count:
                return sent, False
        return sent, True

    def take_output(self, max_bytes: int = 1 << 24) -> list[bytes]:
        """All bytes that wait to be written, up to `max_bytes`. If pieces of messages wait behind these, proton has the next one,
        so that `pending` says that there is more."""
        pieces: list[bytes] = []
        transport, scratch = self.transport, self.scratch.area
        taken = 0
        front = self._door or self._layer
        if front is not None and front.output:
            pieces.append(bytes(front.output))
            front.output.clear()
        if self._layer is not None:
            return pieces
        while True:
            waiting = lib.pn_transport_pending(transport)
            if waiting <= 0 and self.later.feed(waiting):
                continue
            if waiting <= 0 or taken >= max_bytes:
                break
            count = lib.pn_transport_peek(transport, scratch, min(waiting, SCRATCH_BYTES, max_bytes - taken))
            if count <= 0:
                break
            pieces.append(ffi.buffer(scratch, count)[:])
            lib.pn_transport_pop(transport, count)
            taken += count
        return pieces

    def recount_sent(self) -> None:
        """Output was written: count the rest again, if it may be much."""
        if not self.sent_bytes:
            return
        if not self.pending:
            self.sent_bytes = 0
        elif self.sent_bytes > limits.MAX_SENT_BYTES:
            senders = [link for link in self._links.values() if isinstance(link, Sender)]
            by_session = {link.session: int(lib.pn_session_outgoing_bytes(link.session)) for link in senders}
            waiting = max(0, int(lib.pn_transport_pending(self.transport)))
            self.sent_bytes = waiting + sum(by_session.values()) + sum(link.waiting_bytes for link in senders)

    def expect_within(self, idle_timeout_s: float) -> None:
        """From now on, disconnect the peer after this time of silence (0: never). The value in this side's Open does not
        change."""
        lib.pn_transport_set_idle_timeout(self.transport, int(idle_timeout_s * 1000))

    def tick(self, now_ms: int) -> bool:
        """Let time pass (monotonic ms): heartbeats to the peer, and the end of a silent one. Returns whether it is given up now:
        a Close waits for it, which may never leave if its socket is full."""
        if not self.alive:
            return False
        if self._layer is not None:
            if self._layer_heard_ms is None:
                self._layer_heard_ms = now_ms
            return 0 < self._idle_ms <= now_ms - self._layer_heard_ms
        condition = lib.pn_transport_condition(self.transport)
        failed = lib.pn_condition_is_set(condition)
        lib.pn_transport_tick(self.transport, now_ms)
        return bool(lib.pn_condition_is_set(condition) and not failed)

    # ---- events

    def drain(self) -> None:
        """Handle every event that waits, then tell the listener of whole batches. What came before a request to a coordinator, on
        any link, is told before it: the request decides about it."""
        collector, links = self._collector, self._links
        peek, pop, kind_of = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
        delivery_of, link_of = lib.pn_event_delivery, lib.pn_delivery_link
        touched: dict[Link, None] = {}
        while True:
            event = peek(collector)
            if not event:
                if not touched:
                    if self._deaf and not self._close_told:
                        self._undecodable()
                    return
                self._tell(touched)
                touched = {}
                if not self.alive:
                    return
                continue
            kind = kind_of(event)
            if kind == _DELIVERY:
                delivery = delivery_of(event)
                link = links.get(link_of(delivery))
                if isinstance(link, Receiver):
                    if link.to_coordinator and any(each is not link for each in touched):
                        self._tell(touched)
                        touched = {}
                        if not self.alive:
                            return
                        continue
                    self._incoming(link, delivery)
                    touched[link] = None
                elif isinstance(link, Sender):
                    link.came(delivery)
                    touched[link] = None
                elif lib.pn_link_is_receiver(link_of(delivery)):
                    self._came_late(link_of(delivery), delivery)
                else:
                    self.told_nothing_new()
            elif kind in _CONTROLS:
                if touched:
                    self._tell(touched)
                    touched = {}
                if self.alive:
                    self._control(kind, event)
            if not self.alive:
                return
            pop(collector)

    def _tell(self, touched: dict[Link, None]) -> None:
        for link in touched:
            if not link.open:
                continue
            if isinstance(link, Receiver):
                if link.inbox:
                    self.messages_in += len(link.inbox)
                    self.listener.on_messages(self, link)
            elif isinstance(link, Sender) and link.has_outcomes:
                self.listener.on_outcomes(self, link)
            if not self.alive:
                return

    def _incoming(self, link: Receiver, delivery: Any) -> None:
        """Bytes of a delivery to us: a whole message goes to the link's inbox, a part of one is gathered."""
        handle = link.handle
        if lib.pn_link_current(handle) != delivery:
            self.told_nothing_new()
            return
        size = lib.pn_delivery_pending(delivery)
        if link.partial is not None or size > link.whole_bytes:
            data = self.gathering.more_of(link, delivery, size)
            if data is None:
                return
        elif lib.pn_delivery_partial(delivery):
            if size > link.gather_from:
                self.gathering.more_of(link, delivery, size)
            else:
                self.gathering.keeps(link, size)
            return  # below this size proton holds the part; the session's window is far larger
        else:
            scratch = self.scratch.area
            if lib.pn_link_recv(handle, scratch, size) != size and (size or lib.pn_delivery_aborted(delivery)):
                self.gathering.given_up(link, delivery)
                return
            data = ffi.unpack(scratch, size)
            if size > link.max_bytes:
                self.gathering.too_large(link, size)
                return
        if link.unfinished:
            self.gathering.finished(link)
        if link.packed is not None:
            if lib.pn_delivery_remote_state(delivery):
                text = "the messages of a drain cannot be in a transaction, or have another state"
                self.gathering.give_up(link, Condition("amqp:not-implemented", text))
                return
            lib.pn_link_advance(handle)
            try:
                link.take_in(delivery, data)
            except packs.BadPack as fault:
                self.gathering.give_up(link, Condition("amqp:decode-error", str(fault)))
            return
        if lib.pn_delivery_remote_state(delivery):
            link.note_state(delivery)
        lib.pn_link_advance(handle)
        link.inbox.append(data)
        if lib.pn_delivery_settled(delivery):
            lib.pn_delivery_settle(delivery)
            link.deliveries.append(None)
        else:
            link.deliveries.append(delivery)

    def _came_late(self, handle: Any, delivery: Any) -> None:
        """Drop data on a link that this side has closed, because proton would keep it. When the link was closed, at most the
        session's window was in transit, in frames. A peer that sends more ignores the end of the link, and only the end of the
        connection can stop it."""
        self._lose_post(txn_id_of(delivery))
        nbytes = lib.pn_delivery_pending(delivery)
        if lib.pn_delivery_partial(delivery):  # if it were settled now, we would not see its remaining parts
            while lib.pn_link_recv(handle, self.scratch.area, SCRATCH_BYTES) > 0:
                continue
        else:
            nbytes = max(nbytes, 0 if self._door is None else self._door.max_frame_bytes)  # it took one frame at least
            lib.pn_delivery_settle(delivery)
        self._after_close[handle] = came = self._after_close.get(handle, 0) + nbytes
        if came > limits.SESSION_WINDOW_BYTES and self._door is not None and self._door.refusal is None:
            self._door.refuse(Refusal(LIMIT_EXCEEDED, "the client sent more than a session's window on a link after its end"))
            self._deaf = True

    def _lose_post(self, txn_id: bytes | None) -> None:
        """A message is dropped, which came in this transaction, if it came in one."""
        if txn_id is not None:
            self.listener.on_lost_post(self, txn_id)

    def told_nothing_new(self) -> None:
        """There was an event of a delivery that brings nothing. If a disposition has named it: one of some thirty bytes names all
        of a session, again and again, and a client that does not stop is cut off."""
        if not self._named:  # the events of a message's frames may follow after all of it was taken
            return
        self._named -= 1
        self._in_vain += 1
        most = limits.NAMED_IN_VAIN + limits.NAMED_AGAIN * (self.messages_in + self.messages_out)
        if self._in_vain > most and self._door is not None and self._door.refusal is None:
            self.refuse(Refusal(LIMIT_EXCEEDED, "the client says the same of its deliveries again and again"))

    def hand_over(self, link: Receiver) -> None:
        """Report the arrived messages of this link to the listener, before later events."""
        self._tell({link: None})

    def lost(self, link: Link) -> None:
        """This side is about to end the link, for its peer's fault."""
        self.listener.on_link_closed(self, link)

    def refuse(self, refusal: Refusal) -> None:
        """End this connection of a client because of a fault: its further input is ignored."""
        if self._door is not None:
            self._door.refuse(refusal)
            self._deaf = True

    def _control(self, kind: int, event: Any) -> None:
        if kind == _FLOW:
            link = self._links.get(lib.pn_event_link(event))
            if isinstance(link, Sender):
                link.flowed()
                self.listener.on_credit(self, link)
            elif isinstance(link, Receiver) and self._door is not None:
                self._producer_flowed(link, bool(self._door.asked))
        elif kind == lib.PN_CONNECTION_REMOTE_OPEN:
            self.remote_open = True
            self.listener.on_open(self)
        elif kind == lib.PN_SESSION_REMOTE_OPEN:
            session = lib.pn_event_session(event)
            if self._door is not None:
                self.later.begun(self._door.begun.popleft(), session)
            if lib.pn_session_state(session) & _LOCAL_UNINIT:
                lib.pn_session_set_incoming_capacity(session, limits.SESSION_WINDOW_BYTES)
                if lib.pn_connection_state(self.connection) & _LOCAL_UNINIT:
                    self._early_sessions.append(session)  # proton would forget to send a Begin that is due before its Open
                else:
                    lib.pn_session_open(session)
        elif kind == lib.PN_LINK_REMOTE_OPEN:
            self._link_opened(lib.pn_event_link(event))
        elif kind in (lib.PN_LINK_REMOTE_CLOSE, lib.PN_LINK_REMOTE_DETACH):
            self._link_gone(lib.pn_event_link(event), kind == lib.PN_LINK_REMOTE_CLOSE)
        elif kind == lib.PN_SESSION_REMOTE_CLOSE:
            self._session_gone(lib.pn_event_session(event))
        elif kind == lib.PN_CONNECTION_REMOTE_CLOSE:
            self._told_close(condition_text(lib.pn_connection_remote_condition(self.connection)))
            if self.alive:
                lib.pn_connection_close(self.connection)
        elif kind == lib.PN_TRANSPORT_ERROR:
            self._told_close(condition_text(lib.pn_transport_condition(self.transport)) or "the transport failed")
        elif kind == lib.PN_TRANSPORT_CLOSED:
            self._told_close("")

    def _producer_flowed(self, link: Receiver, asks: bool) -> None:
        try:
            if link.flowed():
                self.listener.on_messages(self, link)
        except Condition as condition:
            self.gathering.give_up(link, condition)
        if asks and link.open:
            self.later.asked(link)

    def _undecodable(self) -> None:
        """The door, a client's SASL layer, or proton (without an event) has stopped, because of a wrong frame or a failed login:
        report it."""
        front = self._door or self._layer
        refusal = None if front is None else front.refusal
        if refusal is None:
            condition = Condition("amqp:decode-error", "a frame cannot be decoded")
        else:
            condition = Condition(refusal.name, refusal.text)
        self._told_close(str(condition))
        if self._door is not None and self._door.speaks_amqp:
            lib.pn_connection_open(self.connection)  # a Close comes behind an Open
        self.close(condition)

    def _told_close(self, reason: str) -> None:
        if not self._close_told:
            self._close_told = True
            self.listener.on_close(self, reason)

    def _link_opened(self, handle: Any) -> None:
        known = self._links.get(handle)
        if known is not None:
            self.listener.on_link_open(self, known)
            return
        link: Link = Sender(self, handle) if lib.pn_link_is_sender(handle) else Receiver(self, handle)
        if not link.is_answerable:
            text = f"an answer to a link with a name of {len(link.name)} characters does not fit into a frame of the client's"
            text = f"{text} max-frame-size, {self.remote.max_frame} bytes: use a shorter name, or a larger max-frame-size"
            self.close(Condition("amqp:frame-size-too-small", text))
            return
        if len(self._links) >= limits.MAX_LINKS_PER_CONNECTION:
            text = f"a connection may have {limits.MAX_LINKS_PER_CONNECTION} links"
            self._refused += 1
            if self._refused > limits.MAX_LINKS_PER_CONNECTION:
                self.close(Condition("amqp:resource-limit-exceeded", f"{text}; this client keeps asking for more links"))
            else:
                link.refuse(Condition("amqp:resource-limit-exceeded", f"{text}; close some first"))
            return
        self._add(handle, link)
        self.listener.on_link(self, link)

    def _link_gone(self, handle: Any, closed: bool) -> None:
        self._after_close.pop(handle, None)
        self.unsettled -= self._left.pop(handle, 0)
        link = self._links.pop(handle, None)
        if link is not None:
            link.reason = condition_text(lib.pn_link_remote_condition(handle))
            link.closed_by_peer = link.ended_by_peer = closed
            self._ended(link)
            self._unanswered[link] = closed
            if not link.ends_later:
                self.answer_end(link)
        elif self.alive:
            lib.pn_link_free(handle)

    def answer_end(self, link: Link) -> None:
        """Answer the peer's end of the link, if that still waits for it."""
        closed = self._unanswered.pop(link, None)
        if closed is None or not self.alive:
            return
        if link.end_condition is not None:
            set_condition(lib.pn_link_condition(link.handle), link.end_condition)
        if lib.pn_link_state(link.handle) & _LOCAL_UNINIT:  # its attach is not answered yet, and a Detach comes behind an Attach
            link.attach_to_nothing()
        if closed:
            lib.pn_link_close(link.handle)
        else:
            lib.pn_link_detach(link.handle)
        lib.pn_link_free(link.handle)

    def _ended(self, link: Link) -> None:
        if isinstance(link, Receiver):
            self.gathering.finished(link)
            self.later.forget(link)
        self.listener.on_link_closed(self, link)
        link.open = False
        if isinstance(link, Sender):
            self.unsettled -= link.unsettled
            link.unsettled = 0

    def _session_gone(self, session: Any) -> None:
        for handle, link in list(self._links.items()):
            if lib.pn_link_session(handle) == session:
                del self._links[handle]
                link.reason = condition_text(lib.pn_session_remote_condition(session))
                link.ended_by_peer = True
                self._ended(link)
        for link in [each for each in self._unanswered if lib.pn_link_session(each.handle) == session]:
            del self._unanswered[link]
        for handle in [each for each in self._after_close if lib.pn_link_session(each) == session]:
            del self._after_close[handle]
        for handle in [each for each in self._left if lib.pn_link_session(each) == session]:
            self.unsettled -= self._left.pop(handle)
        self.later.session_gone(session)
        if session in self._early_sessions:
            self._early_sessions.remove(session)
        if self.alive:
            lib.pn_session_close(session)
            lib.pn_session_free(session)

    def forget(self, link: Link) -> None:
        """A link that this side has closed: the listener gets no further events of it."""
        if self._links.pop(link.handle, None) is not None:
            if isinstance(link, Receiver):
                for txn_id in (*link.posted.values(), link.coming_in):
                    self._lose_post(txn_id)
                self.gathering.finished(link)
                self.later.forget(link)
            link.open = False
            if isinstance(link, Sender) and link.unsettled:
                self._left[link.handle] = link.unsettled

    @property
    def links(self) -> Iterable[Link]:
        """The links that are attached."""
        return tuple(self._links.values())
