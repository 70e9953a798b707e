"""The queues of a run: they are created before it, checked, and deleted after it, by management requests over proton's
blocking connection.

Life of a `Queues`: `prepare` creates missing queues, and accepts existing ones if they have the right arguments and are
empty and unused. `depth` counts the messages that are left. `delete` deletes only the queues that `prepare` created, or
may have created: they were missing, and a broker failed before it answered the request. Requests use one connection. If it
fails, they use the first of the addresses that serves them, so that a change of the primary does no harm.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from proton import ConnectionException, Message, ProtonException, Timeout
from proton.utils import BlockingConnection, SyncRequestResponse

from broker.core.sasl_client import NO_AMQP, Login
from broker.tls_files import NO_TLS, TlsFiles
from cli.verify.channel import REFUSED, Gate, Gated

ATTEMPT_S = 3.0
"""Time for a broker's answer; then the next broker is asked."""
PAUSE_S = 0.1
ABSENT = 404
EXISTS = 409


class NotServed(Exception):
    """None of the brokers serves this client. The text says what each one did. `denied`: all have refused its login."""

    def __init__(self, text: str, *, denied: bool = False) -> None:
        super().__init__(text)
        self.denied = denied


class NotSo(Exception):
    """A broker has refused, or a queue is not as required. The text is one line for people."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Queues:
    """The queues of one run; see the module."""

    def __init__(
        self,
        addresses: Sequence[str],
        names: Sequence[str],
        level: str,
        *,
        login: Login,
        timeout_s: float,
        tls: TlsFiles = NO_TLS,
    ) -> None:
        self.names = list(names)
        self._addresses = list(addresses)
        self._level = level
        self._login = login
        self._tls = tls
        self._timeout_s = timeout_s
        self._made: list[str] = []
        self._address = ""
        self._connection: Any = None
        self._client: Any = None
        self._gate: Gate | None = None
        self._unanswered = False
        """Whether the last request was also sent to a broker that did not answer it."""

    def prepare(self) -> None:
        """Make sure that all queues exist, are empty and have the right arguments. NotServed, or NotSo with what to do."""
        for name in self.names:
            item = self._found(name)
            if item:
                self._check(name, item)
            else:
                self._create(name, missing=item is not None)

    def _found(self, name: str) -> dict[str, Any] | None:
        """An existing queue; {} if it is missing, and None if this user may not know."""
        try:
            return self._item(name)
        except NotSo as refusal:
            return {} if refusal.status == ABSENT else None

    def _create(self, name: str, *, missing: bool) -> None:
        """Create a queue. If it exists now, it is ours only if it was missing and an earlier answer may have been lost."""
        self._made.append(name)
        try:
            self._ask("CREATE", name, {"durable": True, "replicate": self._level})
        except (NotSo, NotServed) as error:
            if not (missing and self._unanswered):
                self._made.remove(name)
            if not isinstance(error, NotSo) or error.status != EXISTS:
                raise
            self._check(name, self._item(name))

    def _check(self, name: str, item: dict[str, Any]) -> None:
        """Check whether an existing queue can be used. NotSo if it cannot."""
        wanted = {"replicate": self._level, "autoDelete": False, "exclusive": False, "arguments": {}}
        other = [f"{field}={item.get(field)}" for field, value in wanted.items() if (item.get(field) or value) != value]
        if other:
            raise NotSo(
                f"queue {name!r} exists with other arguments ({', '.join(other)}): delete it, or choose another --queue-prefix"
            )
        for field, state in (("messages", "holds messages"), ("consumers", "has consumers")):
            if item.get(field):
                raise NotSo(f"queue {name!r} exists and {state} ({item[field]}): choose another --queue-prefix")

    def depth(self) -> int:
        """The number of messages on all queues. NotServed or NotSo if it cannot be found out now."""
        return sum(int(self._item(name)["messages"]) for name in self.names)

    def delete(self) -> list[str]:
        """Delete the created queues, if they are empty. Returns the remaining ones, with the reasons."""
        left = []
        for name in self._made:
            try:
                self._ask("DELETE", name, {"ifEmpty": True})
            except NotSo as refusal:
                if refusal.status != ABSENT:
                    left.append(f"queue {name!r} was left: {refusal}")
        self._made = []
        return left

    def _item(self, name: str) -> dict[str, Any]:
        items = self._ask("QUERY", name, {})["items"]
        if not items:
            raise NotSo(f"there is no queue named {name!r}", ABSENT)
        return dict(items[0])

    def close(self) -> None:
        """Disconnect from the broker."""
        if self._connection is not None:
            with contextlib.suppress(ProtonException, OSError):
                self._connection.close()
        self._connection = self._client = None

    def _ask(self, operation: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send one request about a queue to the broker that serves. A broker that fails before it answers may have
        carried it out.
        """
        deadline, self._unanswered = time.monotonic() + self._timeout_s, False
        if self._client is not None:
            with contextlib.suppress(ProtonException, OSError):
                return self._request(operation, name, body)
        while True:
            said: dict[str, list[str]] = {}
            denied = 0
            for address in self._addresses:
                try:
                    self._connect(address)
                    return self._request(operation, name, body)
                except (ProtonException, OSError) as error:
                    said.setdefault(_why(error, self._gate), []).append(address)
                    denied += self._gate is not None and self._gate.denied
            none = denied == len(self._addresses)
            if time.monotonic() >= deadline or none:
                told = (f"{first} {why}{', like ' * bool(more)}{', '.join(more)}" for why, (first, *more) in said.items())
                raise NotServed(f"no broker serves us: {'; '.join(told)}", denied=none)
            time.sleep(PAUSE_S)

    def _connect(self, address: str) -> None:
        self.close()
        timeout_s = min(ATTEMPT_S, self._timeout_s)
        self._address = address
        self._gate = gate = Gate([address], self._login, self._tls)
        container = Gated(gate)
        self._connection = BlockingConnection(gate.urls[0], timeout=timeout_s, container=container, sasl_enabled=False)
        self._client = SyncRequestResponse(self._connection, "$management")

    def _request(self, operation: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send it over the open connection. After an exception of proton's, the connection must be closed, because its
        answer may still arrive.
        """
        request = Message(body=body, properties={"operation": operation, "type": "queue", "name": name})
        try:
            reply: Any = self._client.call(request)
        except (ProtonException, OSError):
            self._unanswered = True
            raise
        status = int(reply.properties["statusCode"])
        if not 200 <= status < 300:
            raise NotSo(f"{self._address}: {reply.properties.get('statusDescription') or f'status {status}'}", status)
        return dict(reply.body or {})


def _why(error: Exception, gate: Gate | None) -> str:
    """What a broker did, in a few words."""
    text, reason = str(error), gate.reason if gate is not None else ""
    match error:
        case Timeout():
            return "does not answer"
        case ConnectionException() if reason == REFUSED:
            return "refuses the connection"
        case ConnectionException() if reason == NO_AMQP:
            return "does not speak AMQP"
        case ConnectionException() if reason:
            return f"does not let us in ({reason})"
        case ConnectionException() if "no protocol header found" in text or "connection aborted" in text:
            return "closed the connection, as a backup does"
        case OSError():
            return f"cannot be reached ({error.strerror or text})"
        case _:
            return f"failed ({text})"
