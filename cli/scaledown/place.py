"""Where stores are, and what the controller needs of such a place: to see all that there is, and to do one step.

`folder` is one: stores of one machine in a folder. `namespace` is another: claims of StatefulSets in a namespace of Kubernetes.
What they share is here, too: when a step that has failed may be tried again, and processes of qpid-drain.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from twisted.internet.error import ProcessDone
from twisted.internet.protocol import ProcessProtocol

from broker.client import ClientError
from cli.options import Target
from cli.scaledown.steps import Do, Store

Tell = Callable[[str, dict[str, Any]], None]
FIRST_S, MOST_S = 1.0, 60.0
"""After this time a step that has failed is tried again, at first and at most."""
_PLACE = re.compile(r"\{(?:(?P<base>[0-9]{1,9})\+)?ordinal\}")


class Unseen(Exception):
    """What is wanted, or which stores there are, cannot be seen. The text says why."""


@dataclass(frozen=True, slots=True)
class Site:
    """Brokers that are scaled together. `name` is "" where there is but one; `wanted` None: it is not known."""

    name: str
    wanted: range | None
    stores: tuple[Store, ...]


class Place(Protocol):
    """See the module."""

    what: str
    """What it is called in texts."""
    on_news: Callable[[], None]
    """Called when it is worth looking again."""

    @property
    def seen_s(self) -> float | None:
        """When all of it has been seen last; None: never."""

    @property
    def is_at_work(self) -> bool:
        """Whether anything is under way."""

    def start(self) -> None:
        """Begin."""

    async def take(self) -> str:
        """Become the controller that acts here. Why another one does; "" when this one does. Refused when it can never."""

    async def look(self) -> list[Site]:
        """All that there is. Unseen."""

    def changed(self, site: str) -> None:
        """Others are wanted there: what has failed is tried again at once."""

    async def do(self, step: Do, site: str, ordinal: int) -> None:
        """Begin this step."""

    def close(self) -> Any:
        """End what ends with the controller. Perhaps a Deferred."""


def address_of(brokers: str, ordinal: int, **names: str) -> str:
    """The address of this broker, by a text in which `{ordinal}` or `{5672+ordinal}` stands for its number, and `{name}` for
    each of the names."""
    for name, value in names.items():
        brokers = brokers.replace(f"{{{name}}}", value)
    return _PLACE.sub(lambda found: str(int(found["base"] or 0) + ordinal), brokers)


async def leaves(reactor: Any, target: Target) -> bool:
    """Whether this broker answers, and leaves."""
    client = None
    try:
        client = await target.connect(reactor)
        (item,) = await client.query("drain", None, target.timeout_s)
    except ClientError:
        return False  # it is down: restarted, or upgraded
    finally:
        if client is not None:
            client.abort()
    return bool(item["leaving"])


@dataclass(slots=True)
class Tries:
    """When the next step may be tried. `once`: what has failed is not tried again."""

    once: bool
    failures: int = 0
    not_before_s: float = 0.0

    def failed(self, now_s: float) -> None:
        """The last step has."""
        self.failures += 1
        self.not_before_s = now_s + (float("inf") if self.once else min(MOST_S, FIRST_S * 2 ** (self.failures - 1)))

    def anew(self) -> None:
        """At once."""
        self.failures, self.not_before_s = 0, 0.0

    def waits(self, now_s: float) -> bool:
        """Whether it is not time yet."""
        return now_s < self.not_before_s


class Work(ProcessProtocol):
    """A process of qpid-drain, which ends with this one (`child`). What it prints is told, with `facts`."""

    def __init__(self, step: Do, facts: dict[str, Any], tell: Tell, ended: Callable[[int, str], None]) -> None:
        self.step = step
        self.killed = False
        self._facts = facts
        self._tell = tell
        self._ended = ended
        self._out = self._err = b""

    def start(self, reactor: Any, words: Sequence[str]) -> None:
        """With these words of a command line."""
        command = [sys.executable, "-m", "cli.scaledown.child", str(os.getpid()), *words]
        reactor.spawnProcess(self, command[0], command, env=dict(os.environ))

    def kill(self) -> None:
        """SIGKILL: a drain may end at any time."""
        if not self.killed and self.transport is not None and self.transport.pid:
            self.killed = True
            self.transport.signalProcess("KILL")

    def outReceived(self, data: bytes) -> None:
        """Events, one in a line."""
        *lines, self._out = (self._out + data).split(b"\n")
        for line in lines:
            facts = json.loads(line)
            self._tell(str(facts.pop("event")), self._facts | facts)

    def errReceived(self, data: bytes) -> None:
        """Why it ends, in one line."""
        self._err = (self._err + data)[-4096:]

    def processEnded(self, reason: Any) -> None:
        """It has."""
        status = 0 if reason.check(ProcessDone) else reason.value.exitCode or -1
        self._ended(status, self._err.decode(errors="replace").strip())


def words_of(options: Sequence[tuple[str, str | None]]) -> tuple[str, ...]:
    """Options that were given, as words of a command line."""
    return tuple(word for flag, value in options if value is not None for word in (flag, value))
