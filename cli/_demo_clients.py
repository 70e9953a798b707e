"""The demo's producer and consumer: two ordinary programs on python-qpid-proton, which know nothing of this cluster's inside.

Life of the producer: it connects to the first of its addresses that serves it, and sends line after line with at most WINDOW
messages unsettled. When the connection drops, proton goes on to the next address; there the producer makes a new link and
sends what was not settled once more, in its order, before anything new. That is all a careful application has to do.

Life of the consumer: it accepts what comes, and compares each line with the text.

Both tell on stdout several times a second, in a line of JSON, how far they are, and take words on stdin: `enough` lets the
producer end with what it planned, `stop` ends the consumer. The end of stdin ends either at once. At their end they write the
counts by number into the file `--out`, and a last line of JSON with everything else.

Invariants: a message that is not settled is never forgotten; each number is sent anew only over a connection that was opened
later, or when the broker has given it back.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

from cli._demo_accounts import Gaps, Tally, planned, split_lines

WINDOW = 400
REPORT_S = 0.1
RECONNECT = [0.05] * 1000
"""proton's own default waits longer after every failure, up to ten seconds: too long beside a failover of one."""


class Client(MessagingHandler):
    """What both have in common: the addresses, the new link on each connection, the reports and the words on stdin."""

    def __init__(self, options: argparse.Namespace, lines: list[bytes], **handler: Any) -> None:
        super().__init__(**handler)
        self.options = options
        self.lines = lines
        self.tally = Tally()
        self.gaps = Gaps()
        self.opened = 0
        self.here = 0
        """Messages that were settled or came over the present connection."""
        self.words: set[str] = set()
        self.done = False
        self.connection: Any = None
        self.link: Any = None

    def on_start(self, event: Any) -> None:
        """Connect to one of the addresses, now and whenever the connection drops."""
        urls = [f"amqp://{address}" for address in self.options.brokers.split(",")]
        self.connection = event.container.connect(urls=urls, reconnect=RECONNECT)
        event.container.schedule(REPORT_S, self)

    def on_connection_opened(self, event: Any) -> None:
        """A broker serves us."""
        self.opened += 1
        self.here = 0
        self.link = self.make_link(event)

    def on_disconnected(self, event: Any) -> None:
        """The connection has dropped: proton would attach the link again by itself, but its credit and deliveries are void.

        Events of the old link may still come, hence the comparisons below.
        """
        if self.link is not None:
            self.link.free()
            self.link = None

    def on_connection_error(self, event: Any) -> None:
        """The broker has ended the connection for a fault of ours."""
        self._give_up(event, event.connection)

    def on_link_error(self, event: Any) -> None:
        """The broker has ended the link for a fault of ours, or because the queue is gone."""
        self._give_up(event, event.link)

    def _give_up(self, event: Any, endpoint: Any) -> None:
        print(f"the broker says {endpoint.remote_condition}", file=sys.stderr, flush=True)
        event.container.stop()

    def make_link(self, event: Any) -> Any:
        """The link for a new connection."""
        raise AssertionError("each client makes its own")

    def on_timer_task(self, event: Any) -> None:
        """Report, and see what was said on stdin."""
        self.report()
        if self.may_end():
            self.done = True
            self.connection.close()
        elif "gone" in self.words:
            event.container.stop()
        else:
            event.container.schedule(REPORT_S, self)

    def may_end(self) -> bool:
        """Whether everything is done."""
        return "stop" in self.words

    def figures(self) -> dict[str, Any]:
        """How far it is."""
        return {"opened": self.opened, "here": self.here, "distinct": self.tally.distinct}

    def report(self, **more: Any) -> None:
        """A line on stdout. One that nobody reads any more means to end."""
        try:
            print(json.dumps(self.figures() | more), flush=True)
        except BrokenPipeError:
            self.words.add("gone")

    def listen(self) -> None:
        """Take the words on stdin, in a thread of its own."""
        for line in sys.stdin:
            self.words.add(line.strip())
        self.words.add("gone")


class Producer(Client):
    """Sends the lines, and again whatever was not settled when a connection dropped."""

    def __init__(self, options: argparse.Namespace, lines: list[bytes]) -> None:
        super().__init__(options, lines)
        self.planned = planned(len(lines), options.at_least)
        self.sent = 0
        self.resent = 0
        self.refused = 0
        self.unsettled: dict[int, None] = {}
        """Numbers in the order of sending."""
        self.again: deque[int] = deque()

    def make_link(self, event: Any) -> Any:
        """A sender; everything unsettled is to be sent over it first."""
        self.again = deque(self.unsettled)
        self.unsettled.clear()
        return event.container.create_sender(event.connection, self.options.queue)

    def on_sendable(self, event: Any) -> None:
        """There is credit."""
        if event.link == self.link:
            self._send()

    def _send(self) -> None:
        while self.link.credit > 0 and len(self.unsettled) < WINDOW:
            if self.again:
                number = self.again.popleft()
                self.resent += 1
            elif self.sent < self.planned or "enough" not in self.words:
                number = self.sent
                self.sent += 1
            else:
                return
            self.unsettled[number] = None
            line = self.lines[number % len(self.lines)]
            self.link.send(Message(id=number, body=line, inferred=True, durable=True), tag=str(number))

    def on_accepted(self, event: Any) -> None:
        """The cluster has it, on the disks of a majority."""
        if event.link == self.link:
            number = int(event.delivery.tag)
            self.unsettled.pop(number, None)
            self.tally.add(number)
            self.gaps.event(time.monotonic())
            self.here += 1
            self._send()

    def on_rejected(self, event: Any) -> None:
        """The broker does not want it: it is not accepted, and sending it again would not help."""
        self.unsettled.pop(int(event.delivery.tag), None)
        self.refused += 1
        print(f"rejected: {event.delivery.remote.condition}", file=sys.stderr, flush=True)

    def on_released(self, event: Any) -> None:
        """The broker gives it back."""
        number = int(event.delivery.tag)
        if event.link == self.link and number in self.unsettled:
            del self.unsettled[number]
            self.again.append(number)

    def may_end(self) -> bool:
        """Every line was sent as often as planned, and nothing waits for an answer."""
        return "enough" in self.words and self.sent >= self.planned and not self.unsettled and not self.again

    def figures(self) -> dict[str, Any]:
        """How far it is."""
        return super().figures() | {"sent": self.sent, "resent": self.resent, "refused": self.refused}


class Consumer(Client):
    """Accepts what comes, and compares it with the text."""

    def __init__(self, options: argparse.Namespace, lines: list[bytes]) -> None:
        super().__init__(options, lines, prefetch=WINDOW)
        self.altered = 0

    def make_link(self, event: Any) -> Any:
        """A receiver."""
        return event.container.create_receiver(event.connection, self.options.queue)

    def on_message(self, event: Any) -> None:
        """A message: proton accepts it when this returns."""
        self.gaps.event(time.monotonic())
        number, body = event.message.id, event.message.body
        try:
            self.tally.add(number)
            self.altered += bytes(body) != self.lines[number % len(self.lines)]
        except (TypeError, ValueError):
            self.altered += 1
        self.here += 1

    def figures(self) -> dict[str, Any]:
        """How far it is."""
        return super().figures() | {"altered": self.altered, "disordered": self.tally.disordered}


def main() -> int:
    """Run one of the two until it has done its work (0) or cannot (1)."""
    parser = argparse.ArgumentParser(prog="python -m cli._demo_clients")
    parser.add_argument("role", choices=["producer", "consumer"])
    for name in ("--brokers", "--queue", "--text", "--out"):
        parser.add_argument(name, required=True)
    parser.add_argument("--at-least", type=int, default=1)
    options = parser.parse_args()
    lines = split_lines(Path(options.text).read_bytes())
    client = Producer(options, lines) if options.role == "producer" else Consumer(options, lines)
    threading.Thread(target=client.listen, daemon=True).start()
    Container(client).run()
    if not client.done:
        print("ended before its work was done", file=sys.stderr)
        return 1
    Path(options.out).write_bytes(client.tally.counts)
    client.report(gaps=client.gaps.all())
    return 0


if __name__ == "__main__":
    sys.exit(main())
