"""A drain that is called off: the broker that leaves keeps what has not moved, and serves again.

Life: the source ends the drain's links (`HALT`), so that nothing more goes; the target is asked what it holds, and that is taken
off at the source (`SETTLE`); the target releases the drain, if it holds just as much (`RELEASE`), and takes nothing of it from
then on; the source serves again (`REOPEN`), and the target forgets the drain. Each step may be done again. Whoever goes on after
a failure begins with the first, and finds by the target's answers what is done already: a drain that the target has released, and
whose source still has messages, is one that was being called off.

Invariant: the source serves again only when the target has said that it takes no more of this drain, and all that it holds is
settled; so no message is on both, and none on neither.
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
    """What has become of it: `moved` messages are at the target for good, `back` are served again where they were."""

    drain: str = ""
    moved: int = 0
    back: int = 0


class CallOff:
    """See the module. `tell` hears of each event: what it is, and its facts."""

    def __init__(self, clock: Clock, source: Side, targets: Sequence[Side], tell: Callable[[str, dict[str, Any]], None]) -> None:
        self._clock = clock
        self._source = source
        self._targets = targets
        self._tell = tell

    async def run(self) -> Back:
        """All of it. Refused, when the target is not the one that this broker leaves to, or another drain goes on and on."""
        found = Back()
        for _ in range(_TRIES):
            status = dict((await self._source.ask("QUERY", "drain"))["items"][0])
            if not status["leaving"]:
                found.back = int(status["messages"])
                return found
            found.drain, body = str(status["drain"]), {"drain": status["drain"]}
            await self._must_be_targets(status)
            try:
                await self._source.ask("HALT", "drain", "", body)
                for target in self._targets:
                    held = await self._settle(target, found.drain)
                    await target.ask("RELEASE", "drain", "", body | {"held": held})
                    found.moved += held
                status = await self._source.ask("REOPEN", "drain", "", body)
            except ManagementError as error:
                if error.status != 409:
                    raise
                self._tell("again", {"why": error.text})
                await self._clock.pause(_PAUSE_S)
                continue
            for target in self._targets:
                await target.ask("FORGET", "drain", "", body)
            found.back = int(status["messages"])
            self._tell("reopened", {"drain": found.drain, "moved": found.moved, "back": found.back})
            return found
        raise endings.Refused("the drain cannot be cancelled while another qpid-drain runs: stop that first")

    async def _must_be_targets(self, status: dict[str, Any]) -> None:
        identity = ",".join(sorted([await identity_of(target) for target in self._targets]))
        if status["target"] and identity != status["target"]:
            known = f"this broker leaves to {status['target']}, at {', '.join(status['to'])}"
            given = ", ".join(address for target in self._targets for address in target.addresses)
            raise endings.Refused(f"{known}, and {given} is {identity}: name the right one with --to")

    async def _settle(self, target: Side, drain: str) -> int:
        """Take off at the source what a target holds. Returns how much that is."""
        queues: list[str] = []
        body = {"drain": drain, "after": ""}
        while True:
            answer = await target.ask("ORIGINS", "drain", "", body)
            if answer["released"]:
                return 0  # it was settled before
            queues += answer["queues"]
            if "next" not in answer:
                break
            body["after"] = answer["next"]
        total = 0
        for queue in queues:
            held = await held_there(target, drain, queue)
            total += held.count
            for runs in _portions(held.runs()):
                await self._source.ask("SETTLE", "drain", "", {"drain": drain, "queue": queue, "runs": runs})
        return total


async def identity_of(side: Side) -> str:
    """What a broker that leaves remembers of its target: the identity of its cluster, or of its store."""
    (view,) = (await side.ask("QUERY", "ha"))["items"]
    return str(view.get("clusterId") or view["brokerId"])


async def held_there(target: Side, drain: str, queue: str) -> Held:
    """What the target holds of a queue, by its uuid at the source."""
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
    """Runs as one request takes them: first, count, first, count, ..."""
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
