"""The stores in a folder of one machine, and the wanted number of brokers in a file.

Life: the controller with the lock on the folder acts. Each reading reads the number, lists the stores, and asks the
wanted brokers whether they leave. Drains, and cancellations, are processes of qpid-drain, which end with this process.

A store counts as released if a drain has reported it released, or has checked its log and found it released, and
neither the mark nor the lock's file has changed since. A broker that ran on it in the meantime has written its id into
the lock's file.

Invariant: nothing is written into a store here, with one exception: a mark is removed before the drain of its broker is
cancelled.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.disk.durable import remove_durably
from broker.disk.files import REAL_DISK
from cli import endings
from cli.drain.orphan import MARK
from cli.options import Target
from cli.scaledown.place import Answer, Site, Tell, Tries, Unseen, Work, address_of, which_leave
from cli.scaledown.steps import Do, Store

LOCK = ".qpid-scaledown"
_NAME = re.compile(r"(?P<name>.+)-(?P<ordinal>0|[1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Settings:
    """`target_of` makes the connection settings for an address; `to` and `words` are passed to each qpid-drain, and those in
    `of_step` to that of a drain or of a cancellation.
    """

    stores: Path
    name: str
    """The part of the folders' names before the ordinal; "" if there is only one name."""
    replicas: Path
    brokers: str
    """The address of a broker, as `address_of` takes it."""
    to: tuple[str, ...]
    delete_released: bool
    target_of: Callable[[str], Target]
    words: tuple[str, ...] = ()
    of_step: Mapping[Do, tuple[str, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Known:
    """What is remembered of a store, besides its running process. All of it could be read again."""

    path: Path
    tries: Tries
    released: tuple[int, int] | None = None
    """The times of its mark and of its lock's file when the store was found released."""
    work: Work | None = None
    denied: str = ""
    """Why its broker does not say whether it leaves, as last reported."""


class Folder:
    """Fulfils `place.Place`."""

    def __init__(self, reactor: Any, settings: Settings, tell: Tell, *, once: bool) -> None:
        self._reactor = reactor
        self._settings = settings
        self._tell = tell
        self._once = once
        self.what = str(settings.stores)
        self.on_news: Callable[[], None] = lambda: None
        self.seen_s: float | None = None
        self._known: dict[int, _Known] = {}
        self._lock = -1

    @property
    def is_at_work(self) -> bool:
        """Whether a process of qpid-drain runs."""
        return any(known.work for known in self._known.values())

    def start(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Kill the running processes, and release the lock."""
        for known in self._known.values():
            if known.work is not None:
                known.work.kill()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # ---- what is seen

    async def take(self) -> str:
        """Take the lock on the folder."""
        if self._lock >= 0:
            return ""
        try:
            lock = os.open(self._settings.stores / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise endings.Refused(f"the folder {self._settings.stores} cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            self.seen_s = self._reactor.seconds()
            return f"another controller acts on {self._settings.stores}"
        self._lock = lock
        return ""

    async def look(self) -> list[Site]:
        """Read the stores of the folder."""
        wanted = self._wanted()
        try:
            self._list()
        except OSError as error:
            raise Unseen(f"the stores cannot be seen: {error}") from None
        asked = [ordinal for ordinal, known in self._known.items() if ordinal in wanted and known.work is None]
        addresses = [address_of(self._settings.brokers, ordinal) for ordinal in asked]
        answers = await which_leave(self._reactor, self._settings.target_of, addresses)
        self.seen_s = self._reactor.seconds()
        leave = dict(zip(asked, answers, strict=True))
        # Brokers may take seconds to answer. Meanwhile a drain may have ended, or others may be wanted: use the state of now.
        wanted = self._wanted()
        return [Site("", wanted, tuple(self._store(ordinal, leave.get(ordinal, Answer())) for ordinal in self._known))]

    def _wanted(self) -> range:
        """The wanted ordinals. Unseen."""
        try:
            return range(self._count())
        except (OSError, ValueError) as error:
            raise Unseen(f"the wanted number cannot be read: {error}") from None

    def _count(self) -> int:
        """The wanted number. OSError, ValueError."""
        try:
            text = self._settings.replicas.read_text().strip()
        except FileNotFoundError:
            raise ValueError(
                f"there is no file {self._settings.replicas}; write the number of brokers that are wanted into it"
            ) from None
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise ValueError(f"{self._settings.replicas} has {text[:40]!r}, and not the number of brokers that are wanted")
        return int(text)

    def _list(self) -> None:
        """The folders that have a store, by ordinal. Unseen, OSError."""
        found: dict[int, Path] = {}
        names: set[str] = set()
        for path in self._settings.stores.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is None or self._settings.name not in ("", match["name"]) or not (path / "store.json").is_file():
                continue
            names.add(match["name"])
            found[int(match["ordinal"])] = path
        if len(names) > 1:
            raise Unseen(f"{self._settings.stores} has stores of {', '.join(sorted(names))}: choose one with --name")
        for ordinal in [each for each, known in self._known.items() if each not in found and known.work is None]:
            del self._known[ordinal]
        for ordinal, path in found.items():
            self._known.setdefault(ordinal, _Known(path, Tries(self._once)))

    def _store(self, ordinal: int, answer: Answer) -> Store:
        known = self._known[ordinal]
        if answer.denied and answer.denied != known.denied:
            self._tell("denied", {"store": known.path.name, "why": answer.denied})
        known.denied = answer.denied
        work = None if known.work is None else known.work.step
        if known.released is not None and known.released != _times(known.path):
            known.released = None
        waits = known.tries.waits(self._reactor.seconds())
        released, denies = known.released is not None, bool(answer.denied)
        return Store(ordinal, released=released, leaves=answer.leaves, denies=denies, work=work, waits=waits)

    # ---- what is done

    def changed(self, site: str) -> None:
        """The wanted number has changed."""
        for known in self._known.values():
            known.tries.anew()

    async def do(self, step: Do, site: str, ordinal: int) -> None:
        """Start or kill a process of qpid-drain."""
        known = self._known[ordinal]
        self._tell(step.value, {"store": known.path.name})
        if step is Do.STOP:
            assert known.work is not None
            known.work.kill()
            return
        if step is Do.CALL_OFF:
            remove_durably(REAL_DISK, known.path / MARK)
            words = ["--from", address_of(self._settings.brokers, ordinal), "--cancel"]
        else:
            words = ["--store", str(known.path), *(word for to in self._settings.to for word in ("--to", to))]
            words += ["--delete-released"] if self._settings.delete_released else []
        facts = {"store": known.path.name}
        known.work = Work(step, facts, self._tell, lambda status, why: self._ended(ordinal, status, why))
        words += [*self._settings.words, *self._settings.of_step.get(step, ())]
        known.work.start(self._reactor, [*words, "--format", "json"])

    def _ended(self, ordinal: int, status: int, why: str) -> None:
        """A process of qpid-drain has ended."""
        known = self._known[ordinal]
        work, known.work = known.work, None
        assert work is not None
        if work.killed:
            self._tell("stopped", {"store": known.path.name})
            return
        facts = {"store": known.path.name, "status": status} | ({"why": why} if why else {})
        self._tell("failed" if status else "done", facts)
        if status:
            known.tries.failed(self._reactor.seconds())
        elif work.step is Do.DRAIN:
            known.tries.anew()
            known.released = _times(known.path)
            if not known.path.exists():  # the drain has deleted the store
                del self._known[ordinal]


def _times(path: Path) -> tuple[int, int] | None:
    """The modification times of the mark and the lock's file; None if one of them does not exist."""
    try:
        return (path / MARK).stat().st_mtime_ns, (path / "lock").stat().st_mtime_ns
    except OSError:
        return None
