"""The life of a drain, from the first check to the release.

1. Both sides are read and compared (`plan`). What does not fit is reported before anything changes. If a cancellation
   of this drain was interrupted, it is completed first (`call_off`).
2. The source begins to leave, and redirects its clients.
3. When the last client has left, missing exchanges, queues and bindings are created on the target. Subscriptions are
   paused there before they are bound.
4. The messages move, queue by queue (`move`). A subscription is resumed when its own messages have moved. If a link or
   a connection ends, it is made again, and the target is asked which messages it holds.
5. The source reports that it is empty, which is final. The target releases the drain, the source records that, and the
   target forgets the drain.

Each step first checks the present state. So a drain that is started again, by any process, continues where the last one
ended. With a deadline it ends in time, and reports what is left.

Invariant: it reports the source as empty only if the source has said so at an index after its record that it leaves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import CancelledError

from broker.client import ManagementError
from broker.core.origins import Held, named, store_and_queue
from broker.drains import DECLINED
from broker.sessions.departure import CALLED_OFF
from cli import endings
from cli.drain.call_off import CallOff, held_there, identity_of, origins_there
from cli.drain.move import Move
from cli.drain.plan import Inventory, Plan, compare, part, share_out, stands_alone
from cli.drain.sides import Clock, OutOfTime, Side

Tell = Callable[[str, dict[str, Any]], None]
"""Called for each event, with its name and its facts."""
_LOOK_S = 0.05
_TELL_S = 0.5
_BURST_S = 0.5
"""With a rate, messages that were not moved in time are made up for over at most this time."""
_RATE_OF_PACKS = 1000
"""Messages a second: below this, the 64 messages of a pack would be a burst, and then a long pause."""
PATIENCE_S = 10.0
"""A queue is given up after this time if the target accepts none of its messages, or, without a deadline, if the source
delivers none. While bytes of a large message arrive or leave, the time begins again.
"""


ELSEWHERE_S = 2.0
"""After this time, a queue none of whose messages has arrived may be given to another target."""

_NOT_FOUND = 404
_BEHIND_ALL = 1 << 62
"""No queue has a sequence above this."""
_GIVES_NOTHING = "{} messages cannot be delivered: they {}cannot be read"
_GIVES_NO_REST = "the source has sent a part of a message, and nothing more for {:g} s"
_NO_ANSWER = "no answer from the target for {:g} s"
_TAKES_NOTHING = "the target gives no credit: its queue, or its disk, is nearly full"
_NO_CREDIT = f"target: {_TAKES_NOTHING}"


@dataclass(frozen=True, slots=True)
class _Keeper:
    """The broker of a target that alone keeps the messages of a queue, and knows which have arrived. `store`: its store; ""
    if the log of the target's cluster does both, or if the target is one broker.
    """

    store: str = ""
    address: str = ""


@dataclass
class Result:
    """The result. `refused`: queue, sequence (0: all that is left of the queue) and reason."""

    drain: str = ""
    moved: int = 0
    left: int = 0
    refused: list[tuple[str, int, str]] = field(default_factory=list)
    queues: list[dict[str, Any]] = field(default_factory=list)
    """For each queue that had messages: name, uuid, moved, known (the target already had them, from earlier runs), bytes, and
    checksum: the sum of the CRC-32C of the moved messages.
    """
    empty: bool = False
    in_time: bool = True


class Drain:
    """See the module. `spread_s`: the time over which clients are disconnected; `now`: the start time that the source
    records; `rate`: the maximum number of messages a second, None for no limit.
    """

    def __init__(
        self,
        clock: Clock,
        source: Side,
        targets: Sequence[Side],
        tell: Tell,
        *,
        spread_s: float,
        now: str,
        patience_s: float = PATIENCE_S,
        rate: float | None = None,
    ) -> None:
        self._clock = clock
        self._source = source
        self._targets = list(targets)
        self._shares: dict[str, int] | None = None
        """The number of each queue's target, by the queue's uuid, without the queues of the first target (0). None
        before this is decided.
        """
        self._identity = ""
        self._traits = False
        """Whether all brokers support traits."""
        self._tell = tell
        self._spread_s = spread_s
        self._now = now
        self._patience_s = patience_s
        self._rate = rate
        self._result = Result()
        self._stays: set[str] = set()
        """The names in the drain of queues that keep their target in any case."""
        self._counted: defaultdict[str, Held] = defaultdict(Held)
        """The sequences of each queue, by its name in the drain, that the result counts."""
        self._expected = 0
        self._told_s = 0.0

    async def check(self) -> Plan:
        """What would be created, and what does not fit. Refused if the source cannot be drained to these targets."""
        whole, several = Plan(), len(self._targets) > 1
        if (await self._meet())["leaving"]:
            await self._leave()  # an earlier run has assigned queues to targets: keep that
        for side, found in zip(self._targets, await self._plans(), strict=True):
            whole.creates += found.creates
            whole.problems += [(f"{what} at {side.addresses[0]}" if several else what, why) for what, why in found.problems]
        for queue in await self._source.items("queue") if several else ():
            whole.goes.append((str(queue["name"]), self._side_of(str(queue["uuid"])).addresses[0]))
        return whole

    async def look(self) -> Plan:
        """`check`, and also the messages that are too large or too many for their target, as far as the brokers can
        tell. Brokers of an earlier release cannot.
        """
        plan, shares = await self.check(), self._shares or {}
        status = [await self._status(side) for side in self._targets]
        coming = [0] * len(status)
        for queue in await self._source.items("queue"):
            at = shares.get(str(queue["uuid"]), 0)
            limit = int(status[at].get("maxMessageBytes") or 0)
            coming[at] += int(queue["bytes"])
            if queue["messages"] and limit:
                count, first, largest = await self._larger(str(queue["name"]), limit)
                if count:
                    text = f"{count} messages, the first with sequence {first}, the largest of {largest} bytes"
                    plan.stays.append((f"queue {queue['name']!r}", f"{text}; the target takes {limit} (--max-message-size)"))
        for side, nbytes, each in zip(self._targets, coming, status, strict=True):
            if nbytes > int(each.get("freeBytes", nbytes)):
                why = f"{nbytes} bytes of messages go there, and its disk has room for {each['freeBytes']}"
                plan.stays.append((f"what has no room at {side.addresses[0]}", why))
        return plan

    async def _meet(self) -> dict[str, Any]:
        """Read the targets' identities, and put the targets in the order of the source's record. Returns the source's
        status.
        """
        source, found = await self._status(self._source), list[tuple[str, Side]]()
        self._traits = bool(source.get("traits"))
        for side in self._targets:
            target = await self._status(side)
            if source["store"] == target["store"]:
                raise endings.Refused("the source and the target are the same broker: name another one with --to")
            if target["leaving"]:
                raise endings.Refused(
                    f"the target is being drained itself, to {', '.join(target['to'])}: name another one with --to"
                )
            self._traits = self._traits and bool(target.get("traits"))
            found.append((await identity_of(side), side))
        found.sort(key=lambda each: each[0])
        identities = [identity for identity, _ in found]
        if len(set(identities)) < len(identities):
            raise endings.Refused("two targets are the same broker or cluster: name each once with --to")
        if len(found) > 1 and "freeBytes" not in source:
            raise endings.Refused("the source has an earlier release, which supports only one target")
        self._targets, self._identity = [side for _, side in found], ",".join(identities)
        return source

    async def _plans(self) -> list[Plan]:
        """For each target what would be created there, and what does not fit."""
        source, targets = await self._inventory(self._source), [await self._inventory(side) for side in self._targets]
        if self._shares is None and len(targets) > 1:
            self._shares = share_out(source, targets)
        return [compare(part(source, self._shares or {}, at), target) for at, target in enumerate(targets)]

    def _side_of(self, queue: str) -> Side:
        return self._targets[(self._shares or {}).get(store_and_queue(queue)[1], 0)]

    async def _larger(self, name: str, than: int) -> tuple[int, int, int]:
        """The number of larger messages of a queue, the sequence of the first one, and the bytes of the largest."""
        count = first = largest = 0
        body = {"queue": name, "than": than, "after": 0}
        while True:
            try:
                answer = await self._source.ask("LARGER", "drain", "", body)
            except ManagementError as error:
                if error.status not in (404, 501):
                    raise
                return 0, 0, 0
            count, largest = count + int(answer["count"]), max(largest, int(answer["largest"]))
            first = first or int(answer["first"])
            if "next" not in answer:
                return count, first, largest
            body["after"] = answer["next"]

    async def run(self) -> Result:
        """Drain. If this is cancelled, it ends as at its deadline. After an error it may be called again: the result counts
        the messages of all calls.
        """
        result = self._result
        result.refused.clear()
        try:
            status = await self._status(self._source)
            result.left = int(status["messages"])
            if status["released"]:
                return await self._finish(status)
            if status["leaving"] and await self._has_ended(status):
                if not status["messages"]:
                    return await self._verify()  # an earlier drainer was stopped before the source's log said so
                await CallOff(self._clock, self._source, self._targets, self._tell).run()
            plan = await self.check()
            if plan.problems:
                told = "; ".join(f"{what}: {why}" for what, why in plan.problems)
                raise endings.Refused(f"nothing was moved, because this does not fit on the target: {told}")
            status = await self._leave()
            self._tell("leaving", {"drain": status["drain"], "to": status["to"]})
            await self._clients_gone()
            await self._define()
            await self._move_all(status)
            return await self._verify()
        except (OutOfTime, CancelledError):
            result.in_time = False
            return result

    # ---- the steps

    async def _has_ended(self, status: dict[str, Any]) -> bool:
        """Whether any target has released this drain: the source was empty, or, if it has messages, a cancellation has
        begun that can no longer be undone.
        """
        await self._meet()
        body = {"drain": status["drain"]}
        return status["target"] == self._identity and any(
            [(await side.ask("ORIGINS", "drain", "", body))["released"] for side in self._targets]
        )

    async def _leave(self) -> dict[str, Any]:
        """Make the source leave, if it does not leave yet. Its log then has the target of each queue."""
        addresses = [address for side in self._targets for address in side.addresses]
        body: dict[str, Any] = {"to": addresses, "target": self._identity, "spread": self._spread_s, "since": self._now}
        if len(self._targets) > 1:
            body["sizes"] = [len(side.addresses) for side in self._targets]
            body["queues"] = {uuid: at for uuid, at in (self._shares or {}).items() if at}
        status = await self._source.ask("LEAVE", "drain", "", body)
        self._shares = {str(uuid): int(at) for uuid, at in (status.get("queues") or {}).items()}
        return status

    async def _status(self, side: Side) -> dict[str, Any]:
        return dict((await side.ask("QUERY", "drain"))["items"][0])

    async def _inventory(self, side: Side) -> Inventory:
        clustered = bool((await side.items("broker"))[0]["cluster"])
        queues, exchanges, bindings = [await side.items(kind) for kind in ("queue", "exchange", "binding")]
        return Inventory(queues, exchanges, bindings, clustered, int((await self._status(side)).get("freeBytes") or 0))

    async def _clients_gone(self) -> None:
        while (status := await self._status(self._source))["clients"] or status["unsettled"]:
            self._say("waiting", {"clients": status["clients"], "unsettled": status["unsettled"]})
            await self._clock.pause(_LOOK_S)
        self._result.left = int(status["messages"])
        self._expected = self._result.moved + self._result.left

    async def _define(self) -> None:
        """The consumers of the source have left, and their exclusive queues with them: read the queues again."""
        for at, (side, plan) in enumerate(zip(self._targets, await self._plans(), strict=True)):
            binds = [each for each in plan.creates if each[0] == "binding"]
            await self._make(side, [each for each in plan.creates if each[0] != "binding"])
            await self._pause(at)
            await self._make(side, binds)
        problems = (await self.check()).problems
        if problems:
            raise endings.Refused(
                f"the target has changed during the drain: {'; '.join(f'{what}: {why}' for what, why in problems)}"
            )

    async def _make(self, side: Side, creates: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
        as_is = {"asIs": True} if (await self._status(side)).get("asIs") else {}  # a broker of an earlier release has no policies
        for type, name, body in creates:
            try:
                await side.ask("CREATE", type, name, body if type == "binding" else body | as_is)
            except ManagementError as error:
                if error.status != 409 or await self._lacks(side, (type, name, body)):
                    raise

    async def _lacks(self, side: Side, wanted: tuple[str, str, dict[str, Any]]) -> bool:
        """Whether a target that refuses to create this does not have it: then it has another reason than that it exists."""
        return wanted in (await self._plans())[self._targets.index(side)].creates

    async def _pause(self, at: int) -> None:
        """Make the subscriptions of this target deliver nothing until their messages have arrived. A new one has no
        binding yet, so no message can have reached it.
        """
        side, status = self._targets[at], await self._status(self._source)
        for queue in await self._source.items("queue"):
            if queue.get("subscription") and self._side_of(str(queue["uuid"])) is side:
                await self._take(side, str(status["drain"]), str(status["store"]), str(queue["name"]), _named(queue, status))

    async def _take(self, side: Side, drain: str, store: str, name: str, key: str) -> str:
        """Announce a queue to its target. Returns the address for its messages."""
        body = {"drain": drain, "store": store, "queue": key, "into": name, "pause": True}
        return str((await side.ask("TAKE", "drain", "", body))["address"])

    async def _move_all(self, status: Mapping[str, Any]) -> None:
        drain, store = str(status["drain"]), str(status["store"])
        for queue in await self._source.items("queue"):
            name, key = str(queue["name"]), _named(queue, status)
            if queue["messages"]:
                refused = len(self._result.refused)
                await self._move_queue(drain, store, name, key)
                await self._report(drain, name, key, self._result.refused[refused:])
            if queue.get("subscription"):
                await self._resume(drain, key)

    async def _report(self, drain: str, name: str, key: str, refused: Sequence[tuple[str, int, str]]) -> None:
        """Report the result of a queue to both sides, for their telemetry."""
        tally = next(each for each in reversed(self._result.queues) if each["uuid"] == store_and_queue(key)[1])
        body: dict[str, Any] = {"drain": drain, "queue": name, "moved": tally["moved"] + tally["known"]}
        if refused:
            body |= {"stays": await self._left(name), "why": refused[0][2][:255]}
        for side in (self._source, self._side_of(key)):
            try:
                await side.ask("REPORT", "drain", "", body)
            except ManagementError as error:
                if error.status not in (403, 501):  # an earlier release, or its ACL, does not have reports
                    raise

    async def _resume(self, drain: str, key: str) -> None:
        """All messages of this subscription that can move have arrived."""
        try:
            await self._side_of(key).ask("RESUME", "drain", "", {"drain": drain, "queue": key})
        except ManagementError as error:
            if error.status not in (
                403,
                404,
                501,
            ):  # the queue is gone, or an earlier release or its ACL does not have pauses: both need no end of a pause
                raise

    async def _move_queue(self, drain: str, store: str, name: str, key: str) -> None:
        target = self._side_of(key)
        keeper = await self._keeper(target, name)  # it is asked for first: then any other one is noticed
        try:
            address = await self._take(target, drain, store, name, key)
        except ManagementError as error:
            if error.status == _NOT_FOUND:
                await self._define()  # it has gone since it was made there: nobody has used it for its time, for example
            elif DECLINED not in error.text or not await self._elsewhere(drain, store, name, key):
                raise
            target = self._side_of(key)  # an earlier drainer may have been killed after this step
            keeper = await self._keeper(target, name)
            address = await self._take(target, drain, store, name, key)
        moved_s, began_s = self._clock.now_s, self._clock.now_s
        tally: dict[str, Any] = {"name": name, "uuid": store_and_queue(key)[1]}
        tally |= {"moved": 0, "known": 0, "bytes": 0, "checksum": 0}
        self._result.queues.append(tally)
        while True:
            move = await self._attempt(drain, name, key, address, keeper)
            found = {"moved": move.moved, "known": move.known, "bytes": move.nbytes, "checksum": move.checksum}
            tally |= {what: tally[what] + count for what, count in found.items()}
            if not move.ended:
                move.close()
                self._result.refused += [(name, sequence, why) for sequence, why in sorted(move.refused.items())]
                return
            move.close()
            if move.moved or move.known:
                moved_s = self._clock.now_s
            elif self._may_go_elsewhere(key, tally, move.ended) and self._clock.now_s - began_s >= ELSEWHERE_S:
                if await self._elsewhere(drain, store, name, key):
                    target = self._side_of(key)
                    keeper = await self._keeper(target, name)
                    address = await self._take(target, drain, store, name, key)
                    moved_s = began_s = self._clock.now_s
                    continue
                self._stays.add(key)
            if CALLED_OFF in move.ended:
                raise endings.Refused(f"queue {name!r}: this drain is cancelled ({move.ended})")
            if move.ended.startswith("source: amqp:not-found"):
                return  # another broker has become the source's primary, and has other messages of this queue
            if "link:stolen" in move.ended:
                raise endings.Refused(f"queue {name!r}: another drain of this broker is running ({move.ended})")
            if "connection lost" not in move.ended and self._clock.now_s - moved_s >= self._patience_s:
                self._result.refused.append((name, 0, move.ended))
                return
            for side, what in ((self._source, "source"), (target, "target")):
                if move.ended.startswith(f"{what}: amqp:not-allowed"):
                    side.abort()  # it has become a backup, and the connection stayed open
            self._tell("again", {"queue": name, "why": move.ended})
            await self._clock.pause(0.2)
            if move.ended.startswith(("target: amqp:not-found", "target: amqp:resource-deleted")):
                # somebody may have deleted the queue there; if the drain has ended, the target refuses the request
                await self._define()
                address = await self._take(target, drain, store, name, key)

    async def _keeper(self, target: Side, name: str) -> _Keeper:
        """The broker that keeps the messages of this queue at the target."""
        store = str((await self._status(target)).get("local") or "")
        if not store:
            return _Keeper()
        try:
            (item,) = (await target.ask("QUERY", "queue", "", {"name": name}))["items"]
        except ManagementError as error:
            if error.status != 404:
                raise
            return _Keeper()
        return _Keeper() if item["replicate"] == "all" else _Keeper(store, (await target.client()).name)

    async def _must_keep(self, target: Side, name: str, keeper: _Keeper) -> None:
        """Refused if another broker is the target's primary than the one that keeps the messages of this queue."""
        if not keeper.store or (await self._status(target)).get("local") == keeper.store:
            return
        raise endings.Refused(
            f"queue {name!r}: its messages have gone to {keeper.address}, which alone has them and knows which have arrived, "
            f"because the queue's level of replication is not all; now {(await target.client()).name} is the target's primary. "
            f"What has not moved is at the source: make {keeper.address} the primary again, and run the command again"
        )

    async def _attempt(self, drain: str, name: str, key: str, address: str, keeper: _Keeper) -> Move:
        """Move messages until the queue is empty, except for refused messages, or until the move cannot continue."""
        bounded, target = self._rate is not None, self._side_of(key)
        try:
            held = await held_there(target, drain, key)
        except ManagementError:
            await self._must_keep(target, name, keeper)
            raise
        await self._must_keep(target, name, keeper)
        packed = self._traits and (self._rate is None or self._rate >= _RATE_OF_PACKS)
        packed = packed and all([(await self._status(side)).get("packs") for side in (self._source, target)])
        clients = await self._source.client(), await target.client()
        move = Move(*clients, key, address, held, self._counted[key], bounded=bounded, traits=self._traits, packed=packed)
        before = self._result.moved
        whole, moved_s = False, self._clock.now_s
        allowed_s = moved_s
        try:
            while not move.ended:
                await self._clock.pause(_LOOK_S)
                if self._rate is not None:
                    since_s, allowed_s = self._clock.now_s - allowed_s, self._clock.now_s
                    move.allow(self._rate * min(since_s, _BURST_S))
                self._result.moved = before + move.moved + move.known
                self._result.left = max(0, self._expected - self._result.moved)
                self._say("moving", {"queue": name, "moved": self._result.moved, "left": self._result.left})
                silent_s = self._clock.now_s - moved_s
                under_way = move.in_flight or move.arriving
                if move.has_advanced():
                    moved_s = self._clock.now_s
                elif not under_way and (left := await self._left(name) - len(move.refused)) <= 0:
                    break
                elif (
                    silent_s >= ELSEWHERE_S
                    and move.lacks_credit
                    and not move.settled
                    and self._may_go_elsewhere(key, self._result.queues[-1], _NO_CREDIT)
                ):
                    move.ended = _NO_CREDIT
                elif silent_s >= self._patience_s and (under_way or not self._clock.limited):
                    why = self._why_silent(move) or _GIVES_NOTHING.format(left, "" if self._traits else "are delayed or ")
                    self._result.refused.append((name, 0, why))
                    break
            whole = True
        finally:
            self._result.moved = before + move.moved + move.known
            if not whole:
                move.close()
        return move

    def _why_silent(self, move: Move) -> str:
        """Why messages that are under way do not arrive; "" if none are."""
        if move.lacks_credit:
            return _TAKES_NOTHING
        if move.in_flight:
            return _NO_ANSWER.format(self._patience_s)
        return _GIVES_NO_REST.format(self._patience_s) if move.arriving else ""

    def _may_go_elsewhere(self, key: str, tally: Mapping[str, Any], why: str) -> bool:
        """Whether another target should be tried: the queue's target accepts nothing, none of its messages has moved,
        and there are other targets.
        """
        store, _ = store_and_queue(key)  # other brokers may have messages of the same queue, which have moved
        if len(self._targets) < 2 or store or key in self._stays or tally["moved"] or tally["known"]:
            return False
        return why == _NO_CREDIT or "resource-limit-exceeded" in why

    async def _elsewhere(self, drain: str, store: str, name: str, uuid: str) -> bool:
        """Give a queue to another target, if none of its messages has arrived. The new target is told first. Then the
        old target declines the queue. Then the source's log records the new target. If a process fails before that, the
        old target declines the queue, or another target has an empty queue.
        """
        was = (self._shares or {}).get(uuid, 0)
        at = await self._other_target(drain, store, name, uuid, was)
        if at is None:
            return False
        body: dict[str, Any] = {"drain": drain, "store": store, "queue": uuid}
        try:
            await self._targets[was].ask("DECLINE", "drain", "", body)
        except ManagementError as error:
            if error.status in (403, 409, 501):  # some messages are at this target already, or an earlier release must take them
                return False
            raise
        try:
            status = await self._source.ask("ASSIGN", "drain", "", {"drain": drain, "queue": uuid, "was": was, "at": at})
        except ManagementError as error:
            raise endings.Refused(f"queue {name!r}: another drain of this broker is running ({error.text})") from None
        self._shares = {str(each): int(to) for each, to in (status.get("queues") or {}).items()}
        self._tell("elsewhere", {"queue": name, "to": list(self._targets[at].addresses)})
        return True

    async def _other_target(self, drain: str, store: str, name: str, uuid: str, was: int) -> int | None:
        """The target that accepts this queue and has the most free space. The queue is created there."""
        source = await self._inventory(self._source)
        if not stands_alone(source, uuid):
            return None
        nbytes = sum(int(queue["bytes"]) for queue in source.queues if queue["uuid"] == uuid)
        found: list[tuple[int, int, Plan]] = []
        for at, side in enumerate(self._targets):
            there = await self._inventory(side)
            plan = compare(part(source, {**(self._shares or {}), uuid: at}, at), there)
            if at != was and there.free_bytes > nbytes and not plan.problems:
                found.append((there.free_bytes, at, plan))
        for _, at, plan in sorted(found, key=lambda each: each[:2], reverse=True):
            await self._make(self._targets[at], plan.creates)
            try:
                await self._take(self._targets[at], drain, store, name, uuid)
            except ManagementError as error:
                if DECLINED not in error.text:
                    raise
            else:
                return at
        return None

    async def _left(self, name: str) -> int:
        try:
            (item,) = (await self._source.ask("QUERY", "queue", "", {"name": name}))["items"]
        except ManagementError as error:
            if error.status != 404:
                raise
            return 0
        return int(item["messages"])

    async def _verify(self) -> Result:
        result = self._result
        while True:
            status = await self._status(self._source)
            result.drain, result.left = str(status["drain"]), int(status["messages"])
            if status["empty"]:
                return await self._finish(status)
            if result.refused:
                return result
            if status["messages"]:
                await self._move_all(status)
            else:  # a broker that is not the primary any more is never empty, and refuses this, so that the new one is found
                await self._source.ask("ORIGINS", "drain", "", {"drain": status["drain"]})
            await self._clock.pause(_LOOK_S)

    async def _finish(self, status: dict[str, Any]) -> Result:
        """The source is empty for good: do the three last steps. Each may have been done before."""
        body = {"drain": status["drain"]}
        if not status["released"]:
            for side in self._targets:
                await self._count_held(side, str(status["drain"]))
                await side.ask("RELEASE", "drain", "", body)
            await self._source.ask("RELEASED", "drain")
        for side in self._targets:
            await side.ask("FORGET", "drain", "", body)
        self._result.drain, self._result.left, self._result.empty = str(status["drain"]), 0, True
        self._tell("empty", {"drain": status["drain"], "index": status["index"], "moved": self._result.moved})
        return self._result

    async def _count_held(self, side: Side, drain: str) -> None:
        """Before a target forgets it, add to the result what earlier drainers have moved there."""
        held = Counter[str]()
        for queue in await origins_there(side, drain) or ():
            answer = await side.ask("HELD", "drain", "", {"drain": drain, "queue": queue, "after": _BEHIND_ALL})
            held[store_and_queue(queue)[1]] += int(answer["count"])
        names = {str(queue["uuid"]): str(queue["name"]) for queue in await self._source.items("queue")}
        for uuid, count in held.items():
            found = [tally for tally in self._result.queues if tally["uuid"] == uuid]
            if count and not found:
                found = [{"name": names.get(uuid, uuid), "uuid": uuid, "moved": 0, "known": 0, "bytes": 0, "checksum": 0}]
                self._result.queues += found
            earlier = max(0, count - sum(tally["moved"] for tally in found))
            for tally in found:
                tally["known"], earlier = earlier, 0

    def _say(self, event: str, facts: dict[str, Any]) -> None:
        """Report an event if some time has passed since the last report."""
        if self._clock.now_s - self._told_s >= _TELL_S:
            self._told_s = self._clock.now_s
            self._tell(event, facts)


def _named(queue: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """The name of a source's queue in the drain. In a cluster, only one broker has the messages of a queue that is not of level
    `all`; a source of an earlier release does not say so (`local`).
    """
    return named("" if queue["replicate"] == "all" else str(status.get("local") or ""), str(queue["uuid"]))
