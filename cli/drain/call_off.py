"""Cancels a drain: the broker that leaves keeps the messages that have not moved, and serves again. (The code says: the
drain is called off.)

Life: the source ends the drain's links (`HALT`), so that no more messages move. The target is asked which messages it
holds, and these are removed from the source (`SETTLE`). If the target holds the same number of messages, it releases
the drain (`RELEASE`) and accepts no more of its messages. The source serves again (`REOPEN`), and the target forgets
the drain. Each step may be repeated. After a failure, the next attempt begins with the first step, and the target's
answers show what is already done. If the target has released a drain whose source still has messages, the drain was
being cancelled.

Invariant: the source serves again only when the target has answered that it accepts no more messages of this drain, and
all messages that it holds are settled. So no message is on both, and none on neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from broker.client import ManagementError
from broker.core.origins import Held
from broker.drains import HELD_RUNS, SETTLED
from cli import endings
from cli.drain.sides import Clock, Side

_PAUSE_S = 0.2
_TRIES = 50


@dataclass
class Back:
    """The result: `moved` messages are at the target for good, `back` messages are served again by the source. `moved` is None
    if a target does not know any more how many it has, because the drain was complete or an earlier attempt got this far.
    """

    drain: str = ""
    moved: int | None = 0
    back: int = 0


class CallOff:
    """See the module. `tell` is called for each event, with its name and its facts."""

    def __init__(self, clock: Clock, source: Side, targets: Sequence[Side], tell: Callable[[str, dict[str, Any]], None]) -> None:
        self._clock = clock
        self._source = source
        self._targets = targets
        self._tell = tell

    async def run(self) -> Back:
        """Cancel the drain. Refused if `targets` are not the targets of this drain, or if a step is refused again and again, for
        example because another drain keeps running."""
        found, held, why = Back(), dict[int, int | None](), ""
        for _ in range(_TRIES):
            status = dict((await self._source.ask("QUERY", "drain"))["items"][0])
            if not status["leaving"]:
                found.back = int(status["messages"])
                return found
            found.drain, body = str(status["drain"]), {"drain": status["drain"]}
            await self._must_be_targets(status)
            try:
                await self._source.ask("HALT", "drain", "", body)
                for at, target in enumerate(self._targets):
                    settled = await self._settle(target, found.drain)
                    held[at] = held.get(at) if settled is None else settled
                    await target.ask("RELEASE", "drain", "", body | {"held": settled or 0})
                complete = bool(status["released"])
                status = await self._source.ask("REOPEN", "drain", "", body)
            except ManagementError as error:
                if error.status != 409:
                    raise
                if error.text != why:
                    self._tell("again", {"why": error.text})
                why = error.text
                await self._clock.pause(_PAUSE_S)
                continue
            for target in self._targets:
                await target.ask("FORGET", "drain", "", body)
            found.back = int(status["messages"])
            known = [count for count in held.values() if count is not None]
            found.moved = None if complete or len(known) < len(held) else sum(known)
            moved = {} if found.moved is None else {"moved": found.moved}
            self._tell("reopened", {"drain": found.drain} | moved | {"back": found.back})
            return found
        raise endings.Refused(f"the drain cannot be cancelled: {why}; if another qpid-drain of this broker runs, stop that first")

    async def _must_be_targets(self, status: dict[str, Any]) -> None:
        identity = ",".join(sorted([await identity_of(target) for target in self._targets]))
        if status["target"] and identity != status["target"]:
            known = f"this broker leaves to {status['target']}, at {', '.join(status['to'])}"
            given = ", ".join(address for target in self._targets for address in target.addresses)
            raise endings.Refused(f"{known}, and {given} is {identity}: name the right one with --to")

    async def _settle(self, target: Side, drain: str) -> int | None:
        """Remove from the source the messages that a target holds. Returns their number; None if it has released the drain."""
        total, origins = 0, await origins_there(target, drain)
        if origins is None:
            return None
        for queue, store in origins.items():
            held = await held_there(target, drain, queue)
            total += held.count
            for runs in _portions(held.runs()):
                await self._source.ask("SETTLE", "drain", "", {"drain": drain, "queue": queue, "store": store, "runs": runs})
        return total


async def identity_of(side: Side) -> str:
    """The identity by which a broker that leaves knows its target: that of its cluster, or of its store."""
    (view,) = (await side.ask("QUERY", "ha"))["items"]
    return str(view.get("clusterId") or view["brokerId"])


async def origins_there(target: Side, drain: str) -> dict[str, str] | None:
    """The names of the queues that were announced to a target, and the store of each, "" if it does not say so. None if it
    has released the drain.
    """
    queues: dict[str, str] = {}
    body = {"drain": drain, "after": ""}
    while True:
        answer = await target.ask("ORIGINS", "drain", "", body)
        if answer["released"]:
            return None
        queues |= dict(zip(answer["queues"], answer.get("stores") or [""] * len(answer["queues"]), strict=True))
        if "next" not in answer:
            return queues
        body["after"] = answer["next"]


async def held_there(target: Side, drain: str, queue: str) -> Held:
    """The sequences that the target holds of a queue, which is given by its name in the drain."""
    held, body = Held(), {"drain": drain, "queue": queue, "after": 0}
    while True:
        answer = await target.ask("HELD", "drain", "", body)
        runs = answer["runs"]
        for first, count in zip(runs[::2], runs[1::2], strict=True):
            held.add(first, count)
        if "next" not in answer:
            return held
        body["after"] = answer["next"]


def _portions(runs: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """The runs in portions for one request each: first, count, first, count, ..."""
    portion: list[int] = []
    room = SETTLED
    for first, count in runs:
        at, end = first, first + count
        while at < end:
            part = min(end - at, room)
            portion += (at, part)
            at, room = at + part, room - part
            if not room or len(portion) == 2 * HELD_RUNS:
                yield portion
                portion, room = [], SETTLED
    if portion:
        yield portion
