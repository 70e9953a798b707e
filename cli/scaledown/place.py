"""The interface of a place with stores, as the controller needs it: read the whole state, and do one step.

`folder` is such a place: stores of one machine in a folder. `namespace` is another one: claims of StatefulSets in a
namespace of Kubernetes. Their common parts are here too: when a failed step may be tried again, and processes of
qpid-drain.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from twisted.internet.defer import FirstError, ensureDeferred, gatherResults
from twisted.internet.error import ProcessDone
from twisted.internet.protocol import ProcessProtocol

from broker.client import ClientError, Denied, ManagementError, NoPrimary
from broker.options import SettingsError
from cli.options import Target
from cli.scaledown.steps import Do, Store

Tell = Callable[[str, dict[str, Any]], None]
_NO_DRAINS = (404, 501)
"""The answers of a broker of an earlier release, which cannot leave."""
FIRST_S, MOST_S = 1.0, 60.0
"""The first and the longest time until a failed step is tried again."""
_PLACE = re.compile(r"\{(?:(?P<base>[0-9]{1,9})\+)?ordinal\}")


class Unseen(Exception):
    """The wanted number, or the stores, cannot be read. The text says why."""


@dataclass(frozen=True, slots=True)
class Site:
    """Brokers that are scaled together. `name` is "" if there is only one site; `wanted` is None if it is not known."""

    name: str
    wanted: range | None
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a broker answers, and leaves. `denied`: why a broker that is there does not say; "" if it says, or is down."""

    leaves: bool = False
    denied: str = ""


class Place(Protocol):
    """See the module."""

    what: str
    """Its name in texts."""
    on_news: Callable[[], None]
    """Called when the state should be read again."""

    @property
    def seen_s(self) -> float | None:
        """When the whole state was last read; None: never."""

    @property
    def is_at_work(self) -> bool:
        """Whether any step is running."""

    def start(self) -> None:
        """Begin."""

    async def take(self) -> str:
        """Become the controller that acts here. Returns why another one acts; "" if this one does. Refused if it can
        never act here.
        """

    async def look(self) -> list[Site]:
        """The whole state. Unseen."""

    def changed(self, site: str) -> None:
        """The wanted number there has changed: failed steps are tried again at once."""

    async def do(self, step: Do, site: str, ordinal: int) -> None:
        """Begin this step."""

    def close(self) -> Any:
        """End the processes that end with the controller. May return a Deferred."""


def address_of(brokers: str, ordinal: int, **names: str) -> str:
    """The address of this broker, from a text in which `{ordinal}` or `{5672+ordinal}` is replaced by its number, and
    `{name}` by each of the names.
    """
    for name, value in names.items():
        brokers = brokers.replace(f"{{{name}}}", value)
    return _PLACE.sub(lambda found: str(int(found["base"] or 0) + ordinal), brokers)


async def which_leave(reactor: Any, target_of: Callable[[str], Target], addresses: Sequence[str]) -> list[Answer]:
    """What the broker at each address answers. Unseen: one cannot be asked, because of our own files or of its answer."""
    try:
        return await gatherResults(
            [ensureDeferred(_leaves(reactor, target_of, address)) for address in addresses], consumeErrors=True
        )
    except FirstError as error:
        error.subFailure.raiseException()
        raise


async def _leaves(reactor: Any, target_of: Callable[[str], Target], address: str) -> Answer:
    try:
        return await _asked(reactor, target_of(address))
    except SettingsError as error:
        raise Unseen(f"{address} cannot be asked: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise Unseen(f"{address} does not answer as a broker of this package does: {error!r}") from None


async def _asked(reactor: Any, target: Target) -> Answer:
    client = None
    try:
        client = await target.connect(reactor)
        (item,) = await client.query("drain", None, target.timeout_s)
    except Denied as error:
        return Answer(denied=str(error))
    except ManagementError as error:
        return Answer() if error.status in _NO_DRAINS else Answer(denied=f"{', '.join(target.url.names)}: {error}")
    except ClientError as error:  # it is down for a restart or an upgrade, unless one of its addresses refuses us
        return Answer(denied=str(error) if isinstance(error, NoPrimary) and error.refused else "")
    finally:
        if client is not None:
            client.abort()
    return Answer(leaves=bool(item["leaving"]))


@dataclass(slots=True)
class Tries:
    """When the next step may be tried. `once`: a failed step is not tried again."""

    once: bool
    failures: int = 0
    not_before_s: float = 0.0

    def failed(self, now_s: float) -> None:
        """The last step has failed."""
        self.failures += 1
        self.not_before_s = now_s + (float("inf") if self.once else min(MOST_S, FIRST_S * 2 ** (self.failures - 1)))

    def anew(self) -> None:
        """The next step may be tried at once."""
        self.failures, self.not_before_s = 0, 0.0

    def waits(self, now_s: float) -> bool:
        """Whether it is too early for the next step."""
        return now_s < self.not_before_s


class Work(ProcessProtocol):
    """A process of qpid-drain, which ends with this one (`child`). Its output is reported, with `facts`."""

    def __init__(self, step: Do, facts: dict[str, Any], tell: Tell, ended: Callable[[int, str], None]) -> None:
        self.step = step
        self.killed = False
        self._facts = facts
        self._tell = tell
        self._ended = ended
        self._out = self._err = b""

    def start(self, reactor: Any, words: Sequence[str]) -> None:
        """Start it with these words of a command line."""
        command = [sys.executable, "-m", "cli.scaledown.child", str(os.getpid()), *words]
        reactor.spawnProcess(self, command[0], command, env=dict(os.environ))

    def kill(self) -> None:
        """SIGKILL: a drain may end at any time."""
        if not self.killed and self.transport is not None and self.transport.pid:
            self.killed = True
            self.transport.signalProcess("KILL")

    def outReceived(self, data: bytes) -> None:
        """Events, one on each line."""
        *lines, self._out = (self._out + data).split(b"\n")
        for line in lines:
            facts = json.loads(line)
            self._tell(str(facts.pop("event")), self._facts | facts)

    def errReceived(self, data: bytes) -> None:
        """Why it ends, in one line."""
        self._err = (self._err + data)[-4096:]

    def processEnded(self, reason: Any) -> None:
        """It has ended."""
        status = 0 if reason.check(ProcessDone) else reason.value.exitCode or -1
        self._ended(status, self._err.decode(errors="replace").strip())


def words_of(options: Sequence[tuple[str, str | None]]) -> tuple[str, ...]:
    """The given options as words of a command line."""
    return tuple(word for flag, value in options if value is not None for word in (flag, value))
