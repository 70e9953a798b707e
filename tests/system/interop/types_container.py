"""Every type through python-qpid-proton's BlockingConnection: see `values`."""

from __future__ import annotations

import json
import sys
from typing import Any

from proton import Message
from proton.reactor import Selector
from proton.utils import BlockingConnection

from tests.system.interop.values import CHOSEN, HEADER, LARGE, VALUES


def main(address: str, exchange: str, queue: str, chosen: str) -> None:
    connection = BlockingConnection(address, timeout=60)
    sender = connection.create_sender(exchange)
    values = VALUES | {"large": LARGE}
    for name, value in values.items():
        sender.send(Message(body=value, properties={"name": name}, **HEADER))
    receiver = connection.create_receiver(queue, credit=10)
    same = []
    for name, value in values.items():
        message: Any = receiver.receive()
        receiver.accept()
        body = bytes(message.body) if isinstance(message.body, memoryview) else message.body
        header = {field: getattr(message, field) for field in HEADER}
        if (message.properties["name"], body, type(body), header) == (name, value, type(value), HEADER):
            same.append(name)
    selected = connection.create_receiver(chosen, credit=1, options=Selector(f"name = '{CHOSEN}'"))
    found: Any = selected.receive()
    selected.accept()
    print(json.dumps({"same": same, "chosen": [found.properties["name"]]}), flush=True)
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
