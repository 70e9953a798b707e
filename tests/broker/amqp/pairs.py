"""Engines joined in memory: two of ours, or one of ours and proton's own."""

from __future__ import annotations

from typing import Any

import proton

from broker.amqp.data import Condition
from broker.amqp.engine import Engine
from broker.amqp.links import Link
from broker.amqp.receiver import Receiver
from broker.amqp.sender import Sender


class Listener:
    """An EngineListener that takes no notice of what it is told."""

    def on_open(self, engine: Engine) -> None: ...
    def on_link(self, engine: Engine, link: Link) -> None: ...
    def on_link_open(self, engine: Engine, link: Link) -> None: ...
    def on_messages(self, engine: Engine, link: Receiver) -> None: ...
    def on_lost_post(self, engine: Engine, txn_id: bytes) -> None: ...
    def on_outcomes(self, engine: Engine, link: Sender) -> None: ...
    def on_credit(self, engine: Engine, link: Sender) -> None: ...
    def on_link_closed(self, engine: Engine, link: Link) -> None: ...
    def on_close(self, engine: Engine, reason: str) -> None: ...


class Side(Listener):
    """A listener that keeps what it is told; `server` attaches every link and grants credit."""

    def __init__(self, *, server: bool, credit: int = 100, **options: Any) -> None:
        self.engine = Engine(self, server=server, container="server" if server else "client", **options)
        self.credit = credit
        self.open_at_once = True
        self.refusal: Condition | None = None
        self.attaches_later = False
        self.links: list[Link] = []
        self.batches: list[tuple[str, list[bytes], int]] = []
        self.outcomes: list[list[tuple[Any, int, bool]]] = []
        self.credits: list[int] = []
        self.gone: list[str] = []
        self.closed: list[str] = []
        self.free_on_messages = False

    @property
    def messages(self) -> list[bytes]:
        return [data for _, batch, _ in self.batches for data in batch]

    def on_open(self, engine: Engine) -> None:
        if self.open_at_once:
            engine.open()

    def on_link(self, engine: Engine, link: Link) -> None:
        self.links.append(link)
        if self.refusal is not None:
            link.refuse(self.refusal)
            return
        if self.attaches_later:
            return
        link.accept(max_message_size=engine.max_message_bytes)
        if isinstance(link, Receiver):
            link.flow(self.credit)

    def on_link_open(self, engine: Engine, link: Link) -> None:
        self.links.append(link)

    def on_messages(self, engine: Engine, link: Receiver) -> None:
        first, batch = link.take()
        self.batches.append((link.name, batch, first))
        if self.free_on_messages:
            engine.free()

    def on_outcomes(self, engine: Engine, link: Sender) -> None:
        came = []
        for first, count, outcome, settled in link.take_outcomes():
            keys = [key for keys in link.account.take(first, count) for key in keys]
            came += [(key, outcome, settled) for key in keys]
            link.settle(first, count)
        self.outcomes.append(came)

    def on_credit(self, engine: Engine, link: Sender) -> None:
        self.credits.append(link.credit)

    def on_link_closed(self, engine: Engine, link: Link) -> None:
        assert link.open, "the listener may still look at what is on the link"
        self.gone.append(link.name)

    def on_close(self, engine: Engine, reason: str) -> None:
        self.closed.append(reason)


class Pair:
    """Two engines joined in memory."""

    def __init__(self, **options: Any) -> None:
        self.server = Side(server=True, **options)
        self.client = Side(server=False)
        self.client.open_at_once = False
        self.client.engine.open(hostname="here")
        self.session = self.client.engine.new_session()
        self.settle()

    def settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for one, other in ((self.client, self.server), (self.server, self.client)):
                for piece in one.engine.take_output():
                    moved = True
                    other.engine.push(piece)
                    other.engine.drain()

    def sender(self, name: str = "link", target: str = "q") -> Sender:
        link = self.client.engine.attach_sender(self.session, name, target)
        self.settle()
        return link


class Proton:
    """proton's own Connection and Transport, joined to a server engine."""

    def __init__(self, *, frame: int = 1 << 16, **options: Any) -> None:
        self.server = Side(server=True, **options)
        self.connection: Any = proton.Connection()
        self.connection.container = "python"
        self.transport: Any = proton.Transport()
        self.transport.max_frame_size = frame
        self.transport.sasl().allowed_mechs("ANONYMOUS")
        self.transport.bind(self.connection)
        self.session: Any = self.connection.session()
        self.tag = 0

    def open(self) -> Proton:
        self.connection.open()
        self.session.open()
        self.settle()
        return self

    def settle(self) -> None:
        while self.to_server(self.output()) | self.from_server():
            pass

    def output(self) -> bytes:
        found = b""
        while (waiting := self.transport.pending()) > 0:
            found += self.transport.peek(waiting)
            self.transport.pop(waiting)
        return found

    def to_server(self, data: bytes) -> bool:
        """All of it in one push."""
        self.server.engine.push(data)
        self.server.engine.drain()
        return bool(data)

    def from_server(self) -> bool:
        pieces = self.server.engine.take_output() if self.server.engine.alive else []
        data = b"".join(pieces)
        while data and (room := self.transport.capacity()) > 0:
            self.transport.push(data[:room])
            data = data[room:]
        return bool(pieces) and not data

    def sender(self, name: str = "s", *, presettled: bool = False, session: Any = None) -> Any:
        link = (session or self.session).sender(name)
        link.target.address = "q"
        link.snd_settle_mode = proton.Link.SND_SETTLED if presettled else proton.Link.SND_UNSETTLED
        link.open()
        self.settle()
        return link

    def receiver(self, name: str = "r", credit: int = 0) -> Any:
        link = self.session.receiver(name)
        link.source.address = "q"
        link.open()
        if credit:
            link.flow(credit)
        self.settle()
        return link

    def send(self, link: Any, data: bytes, tag: str = "") -> Any:
        self.tag += 1
        delivery = link.delivery(tag or f"t{self.tag}")
        link.stream(data)
        link.advance()
        return delivery

    def out(self, name: str) -> Sender:
        """The server's end of one of our receivers."""
        return next(link for link in self.server.links if isinstance(link, Sender) and link.name == name)

    def into(self, name: str) -> Receiver:
        """The server's end of one of our senders."""
        return next(link for link in self.server.links if isinstance(link, Receiver) and link.name == name)
