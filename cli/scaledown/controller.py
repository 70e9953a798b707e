"""The controller: it looks at the stores, the wanted number and the brokers, has `steps` decide, does that, and looks again.

Life: it waits until it has the lock on the folder of the stores, which one controller has at a time. From then on each look reads
the wanted number, lists the stores, and asks the brokers that are wanted whether they leave. Drains, and what calls them off, are
processes of qpid-drain (`child`), which end with this one. A step that fails is tried again after a time that doubles, at most
`MOST_S`; when another number is wanted, at once.

A store counts as released when a drain has just said so, or has looked into its log and found it so, and neither the mark nor the
lock's file has changed since: a broker that ran on it meanwhile has written its id there.

Invariant: nothing is written into a store here but that a mark is taken away, before the drain of its broker is called off.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twisted.internet.defer import ensureDeferred, gatherResults
from twisted.internet.error import ProcessDone
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import deferLater

from broker.client import ClientError
from broker.disk.durable import remove_durably
from broker.disk.files import REAL_DISK
from cli import endings
from cli.drain.orphan import MARK
from cli.options import Target
from cli.scaledown.steps import Do, Store, decide, is_done

Tell = Callable[[str, dict[str, Any]], None]
LOCK = ".qpid-scaledown"
FIRST_S, MOST_S = 1.0, 60.0
STALE_S = 120.0
"""So long after the last look that succeeded it is not alive any more."""
_NAME = re.compile(r"(?P<name>.+)-(?P<ordinal>0|[1-9][0-9]{0,8})")
_PLACE = re.compile(r"\{(?:(?P<base>[0-9]{1,9})\+)?ordinal\}")


@dataclass(frozen=True, slots=True)
class Settings:
    """`target_of` makes what connects to an address; `to` and `words` are for each qpid-drain."""

    stores: Path
    name: str
    """Of the folders, before the ordinal; "" where there is but one."""
    replicas: Path
    brokers: str
    """The address of a broker, in which `{ordinal}` or `{5672+ordinal}` stands for its number."""
    to: tuple[str, ...]
    parallel: int
    poll_s: float
    delete_released: bool
    target_of: Callable[[str], Target]
    words: tuple[str, ...] = ()


def address_of(brokers: str, ordinal: int) -> str:
    """The address of this broker, by a text as in `Settings.brokers`."""
    return _PLACE.sub(lambda found: str(int(found["base"] or 0) + ordinal), brokers)


@dataclass(slots=True)
class _Known:
    """What is remembered of a store, besides what is under way: it could all be seen again."""

    path: Path
    released: tuple[int, int] | None = None
    """The times of its mark and of its lock's file when it was found released."""
    failures: int = 0
    not_before_s: float = 0.0
    work: _Work | None = None


@dataclass
class Controller:
    """See the module. `look` once, or `run` for ever."""

    reactor: Any
    settings: Settings
    tell: Tell
    once: bool = False
    wanted: int | None = None
    looked_s: float = 0.0
    _known: dict[int, _Known] = field(default_factory=dict)
    _lock: int = -1
    _waits_for_lock: bool = False

    def __post_init__(self) -> None:
        self.looked_s = self.reactor.seconds()

    @property
    def alive(self) -> bool:
        """Whether a look has succeeded lately."""
        return bool(self.reactor.seconds() - self.looked_s < STALE_S)

    async def run(self) -> bool:
        """Look and act, again and again; once: until nothing is left to be done now. Returns whether all is done."""
        while not self._is_the_one():
            self.looked_s = self.reactor.seconds()
            if self.once:
                raise endings.Refused(f"another controller acts on {self.settings.stores}")
            await self._pause()
        while True:
            stores = await self._look()
            if self.once and stores is None:
                raise endings.Refused(f"what is wanted cannot be seen in {self.settings.replicas} and {self.settings.stores}")
            for step, ordinal in decide(self.wanted, stores or (), self.settings.parallel):
                self._do(step, ordinal)
            if self.once and not any(known.work for known in self._known.values()):
                return is_done(self.wanted, stores or ())
            await self._pause()

    def close(self) -> None:
        """End what is under way, as it stands, and give the lock back."""
        for known in self._known.values():
            if known.work is not None:
                known.work.kill()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _pause(self) -> Any:
        return deferLater(self.reactor, 0.1 if self.once else self.settings.poll_s, lambda: None)

    # ---- what is seen

    def _is_the_one(self) -> bool:
        """Take the lock on the folder; False while another controller has it."""
        try:
            lock = os.open(self.settings.stores / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise endings.Refused(f"the folder {self.settings.stores} cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            if not self._waits_for_lock:
                self.tell("waiting", {"why": f"another controller acts on {self.settings.stores}"})
            self._waits_for_lock = True
            return False
        self._lock = lock
        return True

    async def _look(self) -> list[Store] | None:
        """All stores; None when something cannot be seen."""
        try:
            wanted = int(self.settings.replicas.read_text())
            self._list()
        except (OSError, ValueError, endings.Refused) as error:
            self.tell("unseen", {"why": str(error)})
            self.wanted = None  # what is under way goes on
            return None
        if wanted != self.wanted:
            self.tell("wanted", {"replicas": wanted, "stores": sorted(self._known)})
            self.wanted = wanted
            for known in self._known.values():
                known.failures, known.not_before_s = 0, 0.0
        asked = [ordinal for ordinal, known in self._known.items() if ordinal < wanted and known.work is None]
        answers = await gatherResults([self._leaves(ordinal) for ordinal in asked])
        self.looked_s = self.reactor.seconds()
        leave = dict(zip(asked, answers, strict=True))
        # Brokers may take seconds to answer, and a drain may have ended meanwhile: what is known now counts.
        return [self._store(ordinal, leave.get(ordinal, False)) for ordinal in self._known]

    def _list(self) -> None:
        """The folders that have a store, by ordinal. Refused, ValueError for a negative number, OSError."""
        found: dict[int, Path] = {}
        names: set[str] = set()
        for path in self.settings.stores.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is None or self.settings.name not in ("", match["name"]) or not (path / "store.json").is_file():
                continue
            names.add(match["name"])
            found[int(match["ordinal"])] = path
        if len(names) > 1:
            raise endings.Refused(f"{self.settings.stores} has stores of {', '.join(sorted(names))}: say which with --name")
        for ordinal in [each for each, known in self._known.items() if each not in found and known.work is None]:
            del self._known[ordinal]
        for ordinal, path in found.items():
            self._known.setdefault(ordinal, _Known(path))

    def _leaves(self, ordinal: int) -> Any:
        return ensureDeferred(self._ask(ordinal))

    async def _ask(self, ordinal: int) -> bool:
        """Whether this broker answers, and leaves."""
        target = self.settings.target_of(address_of(self.settings.brokers, ordinal))
        client = None
        try:
            client = await target.connect(self.reactor)
            (item,) = await client.query("drain", None, target.timeout_s)
        except ClientError:
            return False  # it is down: restarted, or upgraded
        finally:
            if client is not None:
                client.abort()
        return bool(item["leaving"])

    def _store(self, ordinal: int, leaves: bool) -> Store:
        known = self._known[ordinal]
        work = None if known.work is None else known.work.step
        if known.released is not None and known.released != _times(known.path):
            known.released = None
        waits = self.reactor.seconds() < known.not_before_s
        return Store(ordinal, released=known.released is not None, leaves=leaves, work=work, waits=waits)

    # ---- what is done

    def _do(self, step: Do, ordinal: int) -> None:
        known = self._known[ordinal]
        self.tell(step.value, {"store": known.path.name})
        if step is Do.STOP:
            assert known.work is not None
            known.work.kill()
            return
        if step is Do.CALL_OFF:
            remove_durably(REAL_DISK, known.path / MARK)
            words = ["--from", address_of(self.settings.brokers, ordinal), "--cancel"]
        else:
            words = ["--store", str(known.path), *(word for to in self.settings.to for word in ("--to", to))]
            words += ["--delete-released"] if self.settings.delete_released else []
        work = known.work = _Work(step, known.path.name, self.tell, lambda status, why: self._ended(ordinal, status, why))
        words += ["--format", "json", *self.settings.words]
        command = [sys.executable, "-m", "cli.scaledown.child", str(os.getpid()), *words]
        self.reactor.spawnProcess(work, command[0], command, env=dict(os.environ))

    def _ended(self, ordinal: int, status: int, why: str) -> None:
        """A process of qpid-drain has."""
        known = self._known[ordinal]
        work, known.work = known.work, None
        assert work is not None
        if work.killed:
            self.tell("stopped", {"store": known.path.name})
            return
        self.tell(
            "done" if not status else "failed", {"store": known.path.name, "status": status} | ({"why": why} if why else {})
        )
        if status:
            known.failures += 1
            wait_s = float("inf") if self.once else min(MOST_S, FIRST_S * 2 ** (known.failures - 1))
            known.not_before_s = self.reactor.seconds() + wait_s
        elif work.step is Do.DRAIN:
            known.failures, known.released = 0, _times(known.path)
            if not known.path.exists():  # the drain has deleted it
                del self._known[ordinal]


def _times(path: Path) -> tuple[int, int] | None:
    """When the mark and the lock's file of a store were written last; None when one of them is not there."""
    try:
        return (path / MARK).stat().st_mtime_ns, (path / "lock").stat().st_mtime_ns
    except OSError:
        return None


class _Work(ProcessProtocol):
    """A process of qpid-drain. What it prints is told, with the name of the store."""

    def __init__(self, step: Do, store: str, tell: Tell, ended: Callable[[int, str], None]) -> None:
        self.step = step
        self.killed = False
        self._store = store
        self._tell = tell
        self._ended = ended
        self._out = self._err = b""

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
            self._tell(str(facts.pop("event")), {"store": self._store} | facts)

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
