"""A small AMQP management responder, independent of our broker: proton's own reactor in a process of its own.

`running_peer(ha={...}, items={"queue": [...]}, ...)` forks one from the zygote (`tests.cli.zygote`). It listens on a free port of
loopback, prints it, and answers the requests of docs/reference/management.md from what it was given. A test can freeze it
(SIGSTOP), kill it (SIGKILL), and talk to it through the protocol: `SET peer` changes what it was given, `QUERY requests` returns
every request that it has had.

Keys of what it is given; in their texts `@me` is its own address:
    ha           the item that QUERY ha answers with; PROMOTE makes its status "active" and its epoch one higher
    items        entity type -> items of QUERY
    then         "OPERATION type" -> what changes in `ha` with such a request
    answers      "OPERATION type" -> [status, description, body], before anything else
    once         "OPERATION type" -> the answer to the first such request, before `answers`
    silent_on    list of "OPERATION type" that are never answered
    lost_once    "OPERATION type" -> what changes in what it is given with the first such request, which it carries out; then it
                 ends the connection without an answer
    dies_after   "OPERATION type": its process ends with the first request after such a one
    stray        whether an answer to a request that nobody made goes out before each true one
    refuse       whether a connection without qpid.ha-admin is dropped without an Open
    close        [condition, description] to close each new connection with
    record       file to which each request is added as a line of JSON
    logins       the only SASL mechanisms that it offers, as in "PLAIN EXTERNAL"
    reject       text with which to reject the delivery of each request
    certificate  files of a certificate and its key: TLS is spoken
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proton import Condition, Delivery, Message, SSLDomain
from proton.handlers import MessagingHandler
from proton.reactor import Container

from tests import shared_tls
from tests.cli.running import Forked

shared_tls.share()

STDERR = 2


class Responder(MessagingHandler):
    """The peer's side of the protocol."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(prefetch=100, auto_accept=False)
        self.given = given
        self.requests: list[dict[str, Any]] = []
        self.had: set[str] = set()
        self.reply_links: dict[str, Any] = {}

    def on_start(self, event: Any) -> None:
        acceptor = event.container.acceptor("127.0.0.1", 0)
        if "certificate" in self.given:
            domain = SSLDomain(SSLDomain.MODE_SERVER)
            certificate, key = self.given["certificate"]
            domain.set_credentials(certificate, key, None)
            acceptor.set_ssl_domain(domain)
        port = acceptor._selectable._delegate.getsockname()[1]
        self.given = json.loads(json.dumps(self.given).replace("@me", f"127.0.0.1:{port}"))
        print(port, flush=True)

    def on_connection_bound(self, event: Any) -> None:
        if "logins" in self.given:
            event.transport.sasl().allowed_mechs(self.given["logins"])

    def on_connection_opening(self, event: Any) -> None:
        properties = event.connection.remote_properties or {}
        if self.given.get("refuse") and not properties.get("qpid.ha-admin"):
            event.transport._selectable._delegate.shutdown(socket.SHUT_RDWR)
            return
        event.connection.properties = {"product": "peer", "heard": {str(key): value for key, value in properties.items()}}

    def on_connection_opened(self, event: Any) -> None:
        if "close" in self.given:
            event.connection.condition = Condition(*self.given["close"])
            event.connection.close()

    def on_link_opening(self, event: Any) -> None:
        link = event.link
        if link.is_sender:
            address = f"reply.{len(self.reply_links)}"
            link.source.copy(link.remote_source)
            link.source.address = address
            self.reply_links[address] = link
        else:
            link.target.copy(link.remote_target)

    def on_message(self, event: Any) -> None:
        message, answers = event.message, self.given.get("answers", {})
        properties = message.properties
        what = f"{properties['operation']} {properties['type']}"
        if "reject" in self.given and what != "SET peer":
            event.delivery.local.condition = Condition("amqp:not-allowed", self.given["reject"])
            event.delivery.update(Delivery.REJECTED)
            event.delivery.settle()
            return
        if self.given.get("dies_after") in self.had:
            os._exit(0)
        self.had.add(what)
        event.delivery.update(Delivery.ACCEPTED)
        event.delivery.settle()
        if what not in ("QUERY requests", "SET peer", "QUERY ha"):
            self.requests.append({"what": what, "name": properties.get("name"), "body": message.body})
            if "record" in self.given:
                with Path(self.given["record"]).open("a") as file:
                    print(json.dumps(self.requests[-1]), file=file)
        self.given.get("ha", {}).update(self.given.get("then", {}).get(what, {}))
        if what in self.given.get("silent_on", ()):
            return
        if what in self.given.get("lost_once", {}):
            self.given.update(self.given["lost_once"].pop(what))
            event.transport._selectable._delegate.shutdown(socket.SHUT_RDWR)
            return
        status, text, body = self.given.get("once", {}).pop(what, None) or answers.get(what) or self.answer(what, message.body)
        if self.given.get("stray"):
            self.reply(message, 999_999, 200, "OK", {"whose": "nobody's"})
        self.reply(message, message.correlation_id, status, text, body)

    def answer(self, what: str, body: Any) -> tuple[int, str, Any]:
        operation, _, type_ = what.partition(" ")
        match operation, type_:
            case "SET", "peer":
                self.given.update(body)
                return 200, "OK", {}
            case "QUERY", "requests":
                return 200, "OK", {"items": self.requests}
            case "QUERY", "ha" if "ha" in self.given:
                return 200, "OK", {"items": [self.given["ha"]]}
            case "QUERY", _ if type_ in self.given.get("items", {}):
                wanted = (body or {}).get("name")
                found = [i for i in self.given["items"][type_] if not wanted or i["name"] == wanted]
                first, count = ((body or {}).get("after") or [0])[0], self.given.get("page", len(found) or 1)
                more = {"next": [first + count]} if first + count < len(found) else {}
                return 200, "OK", {"items": found[first : first + count]} | more
            case "PROMOTE", "ha":
                ha = self.given["ha"]
                ha["status"], ha["epoch"] = "active", ha.get("epoch", 0) + 1
                return 200, "OK", {"status": "active", "epoch": ha["epoch"], "duration_ms": 3}
            case "CREATE", _:
                return 201, "Created", {}
            case "DELETE" | "UPDATE", _:
                return 204, "No content", {}
            case (("ADD-BROKER" | "REMOVE-BROKER" | "SET-ROLE" | "SET" | "STOP"), "ha"):
                return 200, "OK", {}
        return 400, f"no operation {what}", None

    def reply(self, request: Message, number: Any, status: int, text: str, body: Any) -> None:
        properties = {"statusCode": status, "statusDescription": text}
        self.reply_links[str(request.reply_to)].send(Message(correlation_id=number, properties=properties, body=body))


@dataclass
class Peer:
    """A responder that runs: where, and its process."""

    process: Forked
    host: str
    port: int
    transport: str = "tcp"

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()


@contextmanager
def running_peer(**given: Any) -> Iterator[Peer]:
    """A responder in a process of its own, gone when the block is left."""
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as said:
        process = Forked(__name__, "peer", [json.dumps(given)], theirs, STDERR)
        os.close(theirs)
        try:
            yield Peer(process, "127.0.0.1", int(said.readline()), "ssl" if "certificate" in given else "tcp")
        finally:
            process.kill()


def main() -> None:
    """Print a port, and answer on it as the first word says, until killed."""
    Container(Responder(json.loads(sys.argv[1]))).run()
