"""One AMQP connection of a simulated client: proton's C engine on a simulated socket.

Life: `connectionMade` sends Open, Begin and Attach together. The owner is told when the broker's Open has arrived and
the link may be used. It is told of each outcome, message and settlement, and once of the end: whether the broker had
answered the Open at all, and whether it sent a Close. A real client's failover depends on these two facts.

This is a small client of its own and not `broker.amqp.engine`, because clients of other makes settle, browse and give
credit in ways that the broker's engine never uses.

It counts the credit that it has written to its socket, and tells its user of each message that arrives without credit
(AMQP part 2.6.7). The credit that the broker's end of the link reports would not be independent.
"""

from __future__ import annotations

from typing import Any, Protocol

from cproton_ffi import ffi, lib
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

from broker.amqp.data import condition_text, encoded_of, names_of, put_value, text_of
from broker.core.filters import SELECTOR
from broker.core.links import NUMBERED
from broker.core.values import Ready, Symbol, encode

NULL = ffi.NULL
_DELIVERY = lib.PN_DELIVERY
_FLOW = lib.PN_LINK_FLOW
_CONTROLS = frozenset(
    {
        lib.PN_CONNECTION_REMOTE_OPEN,
        lib.PN_LINK_REMOTE_OPEN,
        lib.PN_LINK_REMOTE_CLOSE,
        lib.PN_LINK_REMOTE_DETACH,
        lib.PN_SESSION_REMOTE_CLOSE,
        lib.PN_CONNECTION_REMOTE_CLOSE,
        lib.PN_TRANSPORT_ERROR,
    }
)
ACCEPTED: int = lib.PN_ACCEPTED
REJECTED: int = lib.PN_REJECTED
RELEASED: int = lib.PN_RELEASED
MODIFIED: int = lib.PN_MODIFIED
_DELAY = b"\xa3\x14x-opt-delivery-delay\x70"
_SCRATCH_BYTES = 1 << 18
_scratch = ffi.new("char[]", _SCRATCH_BYTES)
_tag_number = ffi.new("uint32_t *")
_tag = ffi.new("pn_delivery_tag_t *", {"size": 4, "start": ffi.cast("char *", _tag_number)})[0]
_wide_bytes = ffi.new("char[8]")
_wide_tag = ffi.new("pn_delivery_tag_t *", {"size": 8, "start": _wide_bytes})[0]


class LinkUser(Protocol):
    """Who uses the connection's one link."""

    name: str
    queue: str

    def usable(self) -> None:
        """The broker has attached the link."""

    def credit(self) -> None:
        """There is credit to send."""

    def outcome(self, delivery: Any, outcome: int) -> None:
        """The broker's word on a message that was sent."""

    def message(self, delivery: Any, data: bytes) -> None:
        """A message has come."""

    def overdrawn(self, count: int) -> None:
        """So many more messages have come than the broker has been given credit for."""

    def settled(self, delivery: Any) -> None:
        """The broker has settled a message that it had sent."""

    def taken_back(self, delivery: Any) -> None:
        """The broker has taken back a message that it had sent: it was kept for too long."""

    def over(self, *, opened: bool, reason: str) -> None:
        """The connection has ended. `reason`: what the broker said, "" when the TCP connection just ended."""


class ClientConnection(TwistedProtocol):
    """See the module. `credit` 0 makes a sending link, more a receiving one; `settled`: all that goes over it is settled by whom
    it comes from, and nobody says what became of it."""

    def __init__(
        self,
        user: LinkUser,
        *,
        credit: int,
        browse: bool,
        idle_s: float,
        max_frame: int,
        settled: bool = False,
        selector: str = "",
    ) -> None:
        self.user = user
        self._credit = credit
        self._browse = browse
        self._settled = settled
        self._selector = selector
        self._idle_s = idle_s
        self._max_frame = max_frame
        self.alive = False
        self.opened = False
        self._reason = ""
        self._ticker: Any = None
        self._tag = 0
        self._came = self._granted = self._told = 0
        """Messages that came; credit given in all; as much of that as has been written to the socket."""
        self.link: Any = None
        self.unsettled: dict[Any, None] = {}

    # ---- Twisted

    def connectionMade(self) -> None:
        """Say everything at once, as pipelining clients do."""
        self.alive = True
        self._connection = lib.pn_connection()
        self._transport = lib.pn_transport()
        self._collector = lib.pn_collector()
        lib.pn_connection_set_container(self._connection, self.user.name.encode())
        lib.pn_connection_collect(self._connection, self._collector)
        lib.pn_transport_set_max_frame(self._transport, self._max_frame)
        lib.pn_transport_set_idle_timeout(self._transport, int(self._idle_s * 1000))
        lib.pn_sasl_allowed_mechs(lib.pn_sasl(self._transport), b"ANONYMOUS")
        lib.pn_transport_bind(self._transport, self._connection)
        lib.pn_connection_open(self._connection)
        self._session = lib.pn_session(self._connection)
        lib.pn_session_open(self._session)
        self._attach()
        self._tick()
        self.flush()

    def _attach(self) -> None:
        """Attach the link, and give credit."""
        name = self.user.name.encode()
        if self._credit:
            self.link = self._receiver(name, self.user.queue)
            if self._browse:
                lib.pn_terminus_set_distribution_mode(lib.pn_link_source(self.link), lib.PN_DIST_MODE_COPY)
            if self._selector:
                described = b"\0" + encode(Symbol(SELECTOR)) + encode(self._selector)
                put_value(lib.pn_terminus_filter(lib.pn_link_source(self.link)), encode({Symbol("selector"): Ready(described)}))
        else:
            self.link = self._sender(name, self.user.queue)
        if self._settled:
            lib.pn_link_set_snd_settle_mode(self.link, lib.PN_SND_SETTLED)
        lib.pn_link_open(self.link)
        if self._credit:
            self.grant(self._credit)

    def _receiver(self, name: bytes, address: str) -> Any:
        link = lib.pn_receiver(self._session, name)
        lib.pn_terminus_set_address(lib.pn_link_source(link), address.encode())
        return link

    def _sender(self, name: bytes, address: str) -> Any:
        link = lib.pn_sender(self._session, name)
        lib.pn_terminus_set_address(lib.pn_link_target(link), address.encode())
        return link

    def dataReceived(self, data: bytes) -> None:
        """Bytes from the broker."""
        position, size = 0, len(data)
        base = ffi.from_buffer(data)
        while self.alive and position < size:
            room = lib.pn_transport_capacity(self._transport)
            if room <= 0:
                break
            taken = lib.pn_transport_push(self._transport, base + position, min(room, size - position))
            if taken <= 0:
                break
            position += taken
            self._drain()
        self.flush()

    def connectionLost(self, reason: Failure = TwistedProtocol.connectionLost.__defaults__[0]) -> None:  # type: ignore[index]
        """TCP has ended."""
        self.release()
        if self._ticker is not None and self._ticker.active():
            self._ticker.cancel()
        self.user.over(opened=self.opened, reason=self._reason)

    def drop(self) -> None:
        """End it without a word."""
        if self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]

    def close(self) -> None:
        """End it in order."""
        if self.alive:
            lib.pn_connection_close(self._connection)
            self.flush()

    # ---- what the user does

    @property
    def credit_left(self) -> int:
        """How many messages the broker takes."""
        return int(lib.pn_link_credit(self.link)) if self.alive and self.link is not None else 0

    @property
    def peer(self) -> str:
        """The container id of the broker's Open: its store's identity."""
        return text_of(lib.pn_connection_remote_container(self._connection))

    def send(
        self,
        body: bytes,
        priority: int | None = None,
        held_back: int = 0,
        sequence: int = 0,
        properties: dict[str, int] | None = None,
        *,
        message_id: str = "",
        ttl_ms: int = 0,
        delay_ms: int = 0,
    ) -> Any:
        """Send a message with this body, a header and annotations with what else is said of it, an id if it has one, and
        application properties if it has some; returns its delivery. So many bytes of it are held back, for `go_on`. `sequence`:
        of a message of another store, whose tag that is."""
        size = len(body)
        head = b"\x00\x53\x75\xa0" + bytes((size,)) if size < 256 else b"\x00\x53\x75\xb0" + size.to_bytes(4, "big")
        fields = [b"\x40", b"\x40" if priority is None else b"\x50" + bytes((priority,))]
        fields += [b"\x70" + ttl_ms.to_bytes(4, "big")] if ttl_ms else []
        listed = b"".join(fields)
        plain = priority is None and not ttl_ms
        header = b"" if plain else b"\x00\x53\x70\xc0" + bytes((len(listed) + 1, len(fields))) + listed
        delay = _DELAY + delay_ms.to_bytes(4, "big")
        annotations = b"\x00\x53\x72\xc1" + bytes((len(delay) + 1, 2)) + delay if delay_ms else b""
        ids = b"\x00\x53\x73" + encode([message_id]) if message_id else b""
        section = b"\x00\x53\x74" + encode(properties) if properties else b""
        data = header + annotations + ids + section + head + body
        self._tag += 1
        delivery = lib.pn_delivery(self.link, self._tagged(sequence))
        lib.pn_link_send(self.link, ffi.from_buffer(data), len(data) - held_back)
        if not self._settled:
            self.unsettled[delivery] = None
        if not held_back:
            self.go_on(delivery, b"")
        return delivery

    def _tagged(self, sequence: int) -> Any:
        """The tag of the message that is sent next."""
        _tag_number[0] = self._tag
        _wide_bytes[0:8] = sequence.to_bytes(8, "big")
        return _wide_tag if sequence else _tag

    def go_on(self, delivery: Any, rest: bytes) -> None:
        """Send what was held back of the message that is being sent."""
        if rest:
            lib.pn_link_send(self.link, ffi.from_buffer(rest), len(rest))
        lib.pn_link_advance(self.link)
        if self._settled:
            lib.pn_delivery_settle(delivery)

    def give_up(self, delivery: Any) -> None:
        """Abort the message that is being sent."""
        self.unsettled.pop(delivery, None)
        lib.pn_delivery_abort(delivery)

    def dispose(
        self, delivery: Any, outcome: int, *, settle: bool, failed: bool = False, note: dict[Symbol, int] | None = None
    ) -> None:
        """Give a received message its outcome, with these annotations."""
        if self.alive:
            if note:
                put_value(lib.pn_disposition_annotations(lib.pn_delivery_local(delivery)), encode(note))
            if failed:
                lib.pn_disposition_set_failed(lib.pn_delivery_local(delivery), True)
            lib.pn_delivery_update(delivery, outcome)
            if settle:
                self.unsettled.pop(delivery, None)
                lib.pn_delivery_settle(delivery)

    def forget(self, delivery: Any) -> None:
        """A message that came settled has been looked at."""
        if self.alive:
            self.unsettled.pop(delivery, None)
            lib.pn_delivery_settle(delivery)

    def grant(self, count: int) -> None:
        """Give more credit."""
        if self.alive and self.link is not None:
            lib.pn_link_flow(self.link, count)
            self._granted += count

    def flush(self) -> None:
        """Write what the engine has."""
        while self.alive:
            waiting = lib.pn_transport_pending(self._transport)
            if waiting < 0:
                assert self.transport is not None
                self.transport.loseConnection()
                return
            if waiting == 0:
                self._told = self._granted
                return
            count = lib.pn_transport_peek(self._transport, _scratch, min(waiting, _SCRATCH_BYTES))
            data = ffi.buffer(_scratch, count)[:]
            lib.pn_transport_pop(self._transport, count)
            assert self.transport is not None
            self.transport.write(data)

    # ---- the engine

    def _tick(self) -> None:
        if self.alive:
            reactor = self.user.reactor  # type: ignore[attr-defined]
            lib.pn_transport_tick(self._transport, int(reactor.seconds() * 1000))
            self._drain()
            self.flush()
            self._ticker = reactor.callLater(self._idle_s / 4, self._tick)

    def _drain(self) -> None:
        collector = self._collector
        peek, pop, kind_of = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
        while self.alive and (event := peek(collector)) != NULL:
            kind = kind_of(event)
            if kind == _DELIVERY:
                self._delivery(lib.pn_event_delivery(event))
            elif kind == _FLOW:
                if not self._credit and self.link is not None:
                    self.user.credit()
            elif kind in _CONTROLS:
                self._control(kind, event)
            if self.alive:
                pop(collector)

    def _control(self, kind: int, event: Any) -> None:
        if kind == lib.PN_CONNECTION_REMOTE_OPEN:
            self.opened = True
        elif kind == lib.PN_LINK_REMOTE_OPEN:
            link = lib.pn_event_link(event)
            sends = lib.pn_link_is_sender(link)
            terminus = lib.pn_link_remote_target(link) if sends else lib.pn_link_remote_source(link)
            if lib.pn_terminus_get_type(terminus) != lib.PN_UNSPECIFIED:
                self.user.usable()
        elif kind in (lib.PN_LINK_REMOTE_CLOSE, lib.PN_LINK_REMOTE_DETACH):
            self._end(lib.pn_link_remote_condition(lib.pn_event_link(event)), "the broker detached the link")
        elif kind == lib.PN_SESSION_REMOTE_CLOSE:
            self._end(lib.pn_session_remote_condition(lib.pn_event_session(event)), "the broker ended the session")
        elif kind == lib.PN_CONNECTION_REMOTE_CLOSE:
            self._end(lib.pn_connection_remote_condition(self._connection), "the broker closed")
        elif kind == lib.PN_TRANSPORT_ERROR:
            self._reason = self._reason or condition_text(lib.pn_transport_condition(self._transport))
            self.drop()

    def _end(self, condition: Any, otherwise: str) -> None:
        self._reason = self._reason or condition_text(condition) or otherwise
        lib.pn_connection_close(self._connection)

    def _delivery(self, delivery: Any) -> None:
        link = lib.pn_delivery_link(delivery)
        if lib.pn_link_is_sender(link):
            if delivery in self.unsettled:
                outcome, settled = lib.pn_delivery_remote_state(delivery), lib.pn_delivery_settled(delivery)
                if outcome or settled:
                    del self.unsettled[delivery]
                    said = b"" if outcome <= MODIFIED else encoded_of(lib.pn_disposition_data(lib.pn_delivery_remote(delivery)))
                    lib.pn_delivery_settle(delivery)
                    self._outcome(delivery, outcome, said)
            return
        if lib.pn_link_current(link) == delivery:
            if lib.pn_delivery_aborted(delivery):
                lib.pn_delivery_settle(delivery)
                self._came += 1  # it has used credit as any other
                self.grant(1)
                return
            if lib.pn_delivery_partial(delivery):
                return
            size = lib.pn_delivery_pending(delivery)
            assert size <= _SCRATCH_BYTES, f"a message of {size} bytes"
            lib.pn_link_recv(link, _scratch, size)
            data = ffi.unpack(_scratch, size)
            lib.pn_link_advance(link)
            self.unsettled[delivery] = None
            self._came += 1
            if self._came > self._told:
                self.user.overdrawn(self._came - self._told)
            self.user.message(delivery, data)
        elif delivery in self.unsettled and lib.pn_delivery_settled(delivery):
            del self.unsettled[delivery]
            taken_back = lib.pn_delivery_remote_state(delivery) == RELEASED
            lib.pn_delivery_settle(delivery)
            if taken_back:
                self.user.taken_back(delivery)
            else:
                self.user.settled(delivery)

    def _outcome(self, delivery: Any, outcome: int, said: bytes) -> None:
        """The broker's word on a delivery of this side; `said`: the fields of a state that is none of the usual outcomes."""
        self.user.outcome(delivery, outcome)

    def release(self) -> None:
        """Give the engine's memory back."""
        if not self.alive:
            return
        self.alive = False
        self.unsettled.clear()
        lib.pn_transport_unbind(self._transport)
        lib.pn_collector_release(self._collector)
        lib.pn_connection_release(self._connection)
        lib.pn_decref(self._connection)
        lib.pn_decref(self._transport)
        lib.pn_collector_free(self._collector)


class StrangeConnection(ClientConnection):
    """One whose receiving link has a name that it had on no connection before."""

    def _receiver(self, name: bytes, address: str) -> Any:
        return super()._receiver(b"%s-%d" % (name, int(self.user.reactor.seconds() * 1e6)), address)  # type: ignore[attr-defined]


class NumberedConnection(ClientConnection):
    """One whose sending link is numbered (broker.sessions.numbered)."""

    def _sender(self, name: bytes, address: str) -> Any:
        link = super()._sender(name, address)
        put_value(lib.pn_terminus_capabilities(lib.pn_link_target(link)), encode(Symbol(NUMBERED)))
        return link

    def _tagged(self, sequence: int) -> Any:
        self._digits = ffi.new("char[]", b"%d" % sequence)
        return ffi.new("pn_delivery_tag_t *", {"size": len(self._digits) - 1, "start": self._digits})[0]

    @property
    def is_numbered(self) -> bool:
        """Whether the broker remembers what comes over its link."""
        return NUMBERED in names_of(lib.pn_terminus_capabilities(lib.pn_link_remote_target(self.link)))
