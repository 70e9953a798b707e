"""A client on python-qpid-proton's BlockingConnection that outlives its broker: blocking.py send|receive URL,... ADDRESS COUNT.

A blocking connection tells its program when it has failed, whatever list of URLs it has: this one goes on to the next URL itself.
A sender sends numbered messages one by one; one whose outcome was not heard is sent again over the next connection. A receiver
counts the different numbers that come. Both print their count whenever it has grown, and end when it is COUNT.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import cycle

from proton import Message, ProtonException
from proton.utils import BlockingConnection

RETRY_S = 0.02


def _send(connection: BlockingConnection, address: str, count: int, seen: set[int]) -> None:
    sender = connection.create_sender(address)
    while len(seen) < count:
        number = len(seen)
        sender.send(Message(body=number, durable=True))
        _note(number, seen)


def _receive(connection: BlockingConnection, address: str, count: int, seen: set[int]) -> None:
    receiver = connection.create_receiver(address, credit=50)
    while len(seen) < count:
        message = receiver.receive()
        receiver.accept()
        assert isinstance(message.body, int)
        _note(message.body, seen)


def _note(number: int, seen: set[int]) -> None:
    if number not in seen:
        seen.add(number)
        print(len(seen), flush=True)


def main(role: str, urls: str, address: str, count: int) -> None:
    """Do it over as many connections as it takes."""
    work: Callable[[BlockingConnection, str, int, set[int]], None] = _send if role == "send" else _receive
    seen: set[int] = set()
    for url in cycle(urls.split(",")):
        if len(seen) == count:
            return
        try:
            connection = BlockingConnection(url, timeout=30)
            work(connection, address, count, seen)
            connection.close()
        except ProtonException as error:
            print(f"client: {url}: {error}", file=sys.stderr)
            time.sleep(RETRY_S)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
