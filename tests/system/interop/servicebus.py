"""Azure's `ServiceBusClient` for Python, as its users have it: servicebus.py HOST TOKEN AUTHORITY QUEUE

It connects to port 5671, for there is no way to tell it another for TLS. It puts its token to `$cbs`, sends one message, a list
of them and a batch, and receives them: all are completed but one that is abandoned and comes again, and one that becomes a dead
letter. Then it tries what needs the management of Service Bus. It prints what came of each as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.core.credentials import AccessToken
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
)
from azure.servicebus.exceptions import ServiceBusError

WAIT_S = 20.0


class Credential:
    """A token that somebody else has made."""

    def __init__(self, token: str) -> None:
        self._token = AccessToken(token, int(time.time()) + 600)

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return self._token


def refusal(act: Callable[[], object]) -> str:
    """The kind of error that this raises."""
    try:
        act()
    except (ServiceBusError, ValueError) as error:
        print(f"refused: {error!r}", file=sys.stderr)
        return type(error).__name__
    return ""


def received(receiver: Any, count: int) -> list[ServiceBusReceivedMessage]:
    found: list[ServiceBusReceivedMessage] = []
    until = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < until:
        found += receiver.receive_messages(count - len(found), max_wait_time=1)
    return found


def main(host: str, token: str, authority: str, queue: str) -> None:
    client = ServiceBusClient(host, Credential(token), connection_verify=authority, retry_total=0, retry_backoff_factor=0.1)
    said: dict[str, Any] = {}
    with client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("single", message_id="1"))
            sender.send_messages([ServiceBusMessage(f"listed {number}", subject=str(number)) for number in range(3)])
            batch = sender.create_message_batch()
            for number in range(500):
                text = f"in a batch {number} " + "x" * 300
                batch.add_message(ServiceBusMessage(text, application_properties={"number": number}))
            sender.send_messages(batch)
            said["batch bytes"] = batch.size_in_bytes
        with client.get_queue_receiver(queue) as receiver:
            came = received(receiver, 504)
            said["came"] = [str(each).split(" x")[0] for each in came]
            said["kept"] = [came[0].message_id, came[3].subject, came[-1].application_properties == {b"number": 499}]
            abandoned, dead = came[1], came[2]
            receiver.abandon_message(abandoned)
            receiver.dead_letter_message(dead, reason="no good", error_description="of no use to anybody")
            for each in came:
                if each not in (abandoned, dead):
                    receiver.complete_message(each)
            again = received(receiver, 1)
            said["again"] = [(str(each), each.delivery_count) for each in again]
            said["renewal"] = refusal(lambda: receiver.renew_message_lock(again[0], timeout=5))
            for each in again:
                receiver.complete_message(each)
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("to be deleted"))
            soon = datetime.now(UTC) + timedelta(seconds=1)
            said["schedule"] = refusal(lambda: sender.schedule_messages(ServiceBusMessage("later"), soon, timeout=5))
        with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
            said["deleted"] = list(map(str, received(receiver, 1)))
        said["session"] = refusal(lambda: client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION).receive_messages())
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
