"""Management requests of type `drain`: a broker leaves, and another one takes over its messages. Each side answers its part.

To the broker that leaves: `QUERY` returns what is left, `LARGER` the messages that are larger than a target accepts. `LEAVE`
makes it leave, and `RELEASED` records that the target knows that it is empty. To cancel the drain, `HALT` ends the drain's links,
`SETTLE` removes the messages that the target has, and `REOPEN` lets the broker serve again. `ASSIGN` gives a queue to another one
of several targets.

To the target: `TAKE` announces a queue whose messages will arrive; if it is the queue of a subscription, and `pause` is set, it
delivers nothing until `RESUME` or the end of the drain. `DECLINE` ends one queue of a drain from which nothing has arrived.
`ORIGINS` returns the queues from which messages have arrived, `HELD` their sequences. `RELEASE` ends a drain, and `FORGET`
removes what is known of it.

Each request can be repeated without harm, and returns the current state.

To either: `REPORT` reports the state of a queue. When a drain begins, ends, is cancelled or is refused, `tell` is called. On the
primary of a cluster it writes telemetry.

Invariant: a `RELEASE` with a number of messages ends a drain only if exactly this number is held. Then nothing was added since
the caller has checked, and nothing will be. It first stops the drain's links, waits until their messages are committed, and
counts then. Its record follows all of theirs in the log, so any primary that applies it has the same count.

Reference: docs/reference/management.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from twisted.internet.defer import Deferred, succeed

from broker.core.commands import ORIGINS_SINCE, Command, OriginAdd, OriginForget, OriginRelease
from broker.core.nodes import Refused
from broker.core.origins import MOVING, RESUMED, TRAITS_SINCE, Leave
from broker.core.queues.sizes import larger
from broker.sessions.departure import Departure
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.origins import Origins, origin_address
from broker.sessions.principal import Principal

DECLINED = "for another target"
"""A part of the text that refuses a declined queue."""
Answer = tuple[int, str, dict[str, Any]]
MAX_SPREAD_S = 3600.0
MAX_TARGETS = 64
MAX_SHARED = 5000
"""Queues that may go to another than the first of several targets: they stand in one record."""
HELD_RUNS = 5000
"""Runs in one answer to `HELD`, or one request to `SETTLE`."""
SETTLED = 50_000
"""Sequences in one request to `SETTLE`."""
ORIGINS = 1000
"""Queues in one answer to `ORIGINS`."""
LOOKED_AT = 50_000
"""Messages whose size is examined for one answer to `LARGER`."""


_CHANGES = frozenset({"LEAVE", "RELEASED", "REOPEN", "TAKE", "RELEASE"})
"""Operations whose refusals are passed to `tell`."""


class Drains:
    """Fulfils `broker.administration.Extension`. `new_id` makes the identities of drains. `store_id` and `max_message_bytes` are
    this broker's; `free_bytes` returns the free space of its disk."""

    def __init__(
        self,
        logs: Logs,
        origins: Origins,
        departure: Departure,
        store_id: str,
        new_id: Callable[[], str],
        max_message_bytes: int,
        free_bytes: Callable[[], int],
    ) -> None:
        self._logs = logs
        self._origins = origins
        self._departure = departure
        self._store_id = store_id
        self._new_id = new_id
        self._max_message_bytes = max_message_bytes
        self._free_bytes = free_bytes
        self._waiting: dict[Deferred[Answer], None] = {}
        self.tell: Callable[[str], None] = lambda detail: None
        """Hears of each event of a drain."""

    def items(self) -> list[dict[str, Any]]:
        """The one item of `QUERY drain`."""
        own = {"store": self._store_id, "maxMessageBytes": self._max_message_bytes, "freeBytes": self._free_bytes(), "asIs": True}
        own |= {"packs": True}
        own["local"] = self._store_id if len(self._logs.ledgers) > 1 else ""
        versions = map(self._logs.nodes.version_of, self._logs.ledgers)
        return [own | {"traits": all(each >= TRAITS_SINCE for each in versions)} | self._departure.status()]

    def act(self, operation: str, body: dict[str, Any], principal: Principal) -> Deferred[Answer]:
        """See the module. Refused, KeyError, TypeError, ValueError."""
        if not self._logs.serving:
            raise Refused(409, f"this broker is {self._logs.state}: ask the primary, {self._logs.primary or 'unknown'}")
        try:
            return self._act(operation, body)
        except Refused as refusal:
            if operation in _CHANGES:
                self.tell(f"{operation} is refused: {refusal.text}")
            raise

    def _act(self, operation: str, body: dict[str, Any]) -> Deferred[Answer]:
        match operation:
            case "LEAVE":
                return self._leave(body)
            case "RELEASED":
                leave = self._logs.leave
                told = "" if leave is None or leave.released else f"drain {leave.drain} has ended: this broker is empty"
                return self._answered(self._departure.mark_released, told=told)
            case "HALT":
                self._departure.halt(_text(body, "drain"))
                return succeed((200, "it is halted", self.items()[0]))
            case "SETTLE":
                store = str(body.get("store") or "")
                settle = partial(self._departure.settle, _text(body, "drain"), _text(body, "queue"), _runs(body), store=store)
                return self._answered(settle)
            case "REOPEN":
                return self._reopen(_text(body, "drain"))
            case "ASSIGN":
                was, at = _number(body, "was"), _number(body, "at")
                assign = partial(self._departure.assign, _text(body, "drain"), _text(body, "queue"), was, at)
                return self._answered(assign, self._left)
            case "DECLINE":
                return self._decline(_text(body, "drain"), _text(body, "store"), self._queue(body))
            case "ORIGINS":
                return succeed((200, "OK", self._origins_of(body)))
            case "TAKE":
                return self._take(body)
            case "RESUME":
                return self._resume(_text(body, "drain"), self._queue(body))
            case "LARGER":
                return succeed((200, "OK", self._larger(body)))
            case "REPORT":
                return self._report(body)
            case "HELD":
                return succeed((200, "OK", self._held(body)))
            case "RELEASE":
                return self._release(_text(body, "drain"), body.get("held"))
            case "FORGET":
                return self._everywhere(OriginForget(drain=_text(body, "drain")), "not released")
        raise Refused(501, f"this broker does not have the operation {operation!r} on a drain")

    def void(self) -> None:
        """This broker stops serving: proposals get no other answer."""
        waiting, self._waiting = self._waiting, {}
        self._origins.stopped.clear()
        self._origins.declining.clear()
        for answered in waiting:
            answered.callback((503, "this broker is no longer the primary: ask the next primary for the result", {}))

    def _answered(
        self,
        propose: Callable[[Callable[[str], None]], None],
        body: Callable[[], dict[str, Any]] | None = None,
        *,
        told: str = "",
    ) -> Deferred[Answer]:
        """The answer to a proposal when it is committed: with this body, or the single item of a query. Telemetry then gets
        `told`."""
        answered: Deferred[Answer] = Deferred()

        def committed(reason: str) -> None:
            if told:
                self.tell(f"{told}: it is not committed: {reason}" if reason else told)
            if self._waiting.pop(answered, answered) is None:
                answered.callback((409, reason, {}) if reason else (200, "done", body() if body is not None else self.items()[0]))

        self._waiting[answered] = None
        try:
            propose(committed)
        except Refused:
            del self._waiting[answered]
            raise
        return answered

    def _leave(self, body: Mapping[str, Any]) -> Deferred[Answer]:
        known = self._logs.leave
        to, spread_s = body.get("to"), body.get("spread", 0)
        if not isinstance(to, list) or not 0 < len(to) <= MAX_TARGETS or not all(map(_is_address, to)):
            raise Refused(400, f"`to` must have the addresses for redirected clients, 1 to {MAX_TARGETS} of host:port")
        if isinstance(spread_s, bool) or not isinstance(spread_s, int | float) or not 0 <= spread_s <= MAX_SPREAD_S:
            raise Refused(400, f"`spread` must be a number of seconds from 0 to {MAX_SPREAD_S:g}")
        target = str(body.get("target") or "")
        if known is not None and known.target != target:
            text = f"this broker is already being drained to {', '.join(known.to)}: finish or cancel that drain first"
            raise Refused(409, text)
        if known is not None:
            self._logs.halted = False
            return succeed((200, "it leaves already", self._left()))
        sizes, queues = _shares(body, len(to))
        leave = Leave(self._new_id(), tuple(to), str(body.get("since") or ""), target=target, sizes=sizes, queues=queues)
        told = f"drain {leave.drain} of this broker begins, to {', '.join(leave.to)}"
        return self._answered(lambda committed: self._departure.begin(leave, float(spread_s), committed), self._left, told=told)

    def _left(self) -> dict[str, Any]:
        """The state of a broker that leaves, and the target of each queue if there are several."""
        leave = self._logs.leave
        return self.items()[0] | {"queues": {} if leave is None else dict(leave.queues)}

    def _reopen(self, drain: str) -> Deferred[Answer]:
        if not self._logs.closed:
            return succeed((200, "it does not leave", self.items()[0]))
        return self._answered(lambda committed: self._departure.reopen(drain, committed), told=f"drain {drain} is cancelled")

    def _take(self, body: Mapping[str, Any]) -> Deferred[Answer]:
        drain, queue, into = _text(body, "drain"), self._queue(body), _text(body, "into")
        if self._logs.closed:
            raise Refused(409, "this broker is being drained itself: it accepts no messages")
        node = self._logs.nodes.queues.get(into)
        if node is None or node.messages is None:
            raise Refused(404, f"there is no queue named {into!r} for the messages")
        leave = self._logs.leave
        if _text(body, "store") == self._store_id or (leave is not None and leave.drain == drain):
            raise Refused(409, "this broker is the source of the drain: its messages must go to another broker")
        if drain in self._origins.stopped:
            raise Refused(409, f"drain {drain} is cancelled")
        if self._origins.has_declined(drain, queue):
            raise Refused(409, f"queue {queue} is {DECLINED} of drain {drain}")
        ledger = self._logs.ledger_of(node)
        self._check_version(ledger)
        pauses = node.terms is not None and body.get("pause") is True
        epoch = MOVING if pauses or node.terms is None else RESUMED
        command = OriginAdd(drain=drain, store=_text(body, "store"), queue=queue, into=node.uuid, source_epoch=epoch)
        known = ledger.state.definitions.origins.get(command.identity)
        answer = {"address": origin_address(drain, queue), "limit": node.max_bytes}
        if known is not None and known.into == node.uuid:
            return succeed((200, "known already", answer))
        told = f"drain {drain} brings queue {into!r}"
        return self._answered(lambda committed: ledger.change(command, committed), lambda: answer, told=told)

    def _resume(self, drain: str, queue: str) -> Deferred[Answer]:
        found = self._origins.find(drain, queue)
        if found is None:
            raise Refused(404, f"no messages of queue {queue} are expected of drain {drain} here")
        ledger, origin, _ = found
        if origin.source_epoch >= RESUMED:
            return succeed((200, "it is so already", {}))
        resumed = msgspec.structs.replace(origin, source_epoch=RESUMED, number=None)
        return self._answered(lambda committed: ledger.change(resumed, committed), dict)

    def _held(self, body: Mapping[str, Any]) -> dict[str, Any]:
        drain, queue, after = _text(body, "drain"), self._queue(body), body.get("after", 0)
        if type(after) is not int or after < 0:
            raise Refused(400, f"`after` must be a sequence, not {after!r}")
        held = self._origins.held(drain, queue)
        if held is None:
            raise Refused(404, f"no messages of queue {queue} are expected of drain {drain} here")
        runs = held.runs(after, HELD_RUNS)
        more = {"next": sum(runs[-1])} if len(runs) == HELD_RUNS else {}
        return {"count": held.count, "runs": [number for run in runs for number in run]} | more

    def _origins_of(self, body: Mapping[str, Any]) -> dict[str, Any]:
        drain, after = _text(body, "drain"), str(body.get("after") or "")
        held = self._origins.of(drain)
        found = [queue for queue in held if queue > after][:ORIGINS]
        more = {"next": found[-1]} if len(found) == ORIGINS else {}
        stores = self._origins.stores(drain)
        told = {"queues": found, "stores": [stores[queue] for queue in found]}
        return {"released": self._is_released(drain), "held": sum(held.values())} | told | more

    def _queue(self, body: Mapping[str, Any]) -> str:
        """The queue that a request to a target is about, by the name under which it is known here."""
        return self._origins.known_as(_text(body, "drain"), _text(body, "queue"))

    def _is_released(self, drain: str) -> bool:
        return all(drain in ledger.state.definitions.released for ledger in self._logs.ledgers.values())

    def _release(self, drain: str, expected: Any) -> Deferred[Answer]:
        """See the module's invariant."""
        release = self._proposed_everywhere(OriginRelease(drain=drain), "released already")
        told = "" if self._is_released(drain) else f"drain {drain} is released"
        if expected is None or self._is_released(drain):
            return self._answered(release, told=told)
        if type(expected) is not int or expected < 0:
            raise Refused(400, f"`held` must be a number of messages, not {expected!r:.80}")
        origins, ledgers = self._origins, list(self._logs.ledgers.values())

        def propose(committed: Callable[[str], None]) -> None:
            left = len(ledgers)

            def over(reason: str) -> None:
                origins.go_on(drain)
                committed(reason)

            def counted() -> None:
                nonlocal left
                left -= 1
                if not left:
                    held = sum(origins.of(drain).values())
                    if held == expected:
                        release(over)
                    else:
                        over(f"{held} messages of drain {drain} are held here, and not {expected}: ask again which")

            origins.stop(drain)
            for ledger in ledgers:
                ledger.pending.when_committed(counted)

        return self._answered(propose, told=told)

    def _decline(self, drain: str, store: str, queue: str) -> Deferred[Answer]:
        """Accept no more messages of a queue, if none of it are here. As with `RELEASE`, the record follows all messages of its
        link."""
        declined = self._proposed_everywhere(OriginAdd(drain=drain, store=store, queue=queue, into=""), "known already")
        origins, ledgers = self._origins, list(self._logs.ledgers.values())

        def propose(committed: Callable[[str], None]) -> None:
            left = len(ledgers)

            def over(reason: str) -> None:
                origins.declining.discard((drain, queue))
                committed(reason)

            def counted() -> None:
                nonlocal left
                left -= 1
                if not left:
                    held = origins.held(drain, queue)
                    if held is None or not held.count:
                        declined(over)
                    else:
                        over(f"{held.count} messages of queue {queue} have come: the others have to come here too")

            origins.decline(drain, queue)
            for ledger in ledgers:
                ledger.pending.when_committed(counted)

        return self._answered(propose)

    def _report(self, body: Mapping[str, Any]) -> Deferred[Answer]:
        """A queue is finished: the moved messages, and those that stay, with the reason."""
        moved, stays = body.get("moved"), body.get("stays", 0)
        if type(moved) is not int or type(stays) is not int or min(moved, stays) < 0:
            raise Refused(400, f"`moved` and `stays` must be numbers of messages, not {moved!r:.80} and {stays!r:.80}")
        told = f"drain {_text(body, 'drain')}: queue {_text(body, 'queue')!r} is done, {moved} messages have moved"
        self.tell(f"{told}; {stays} stay: {_text(body, 'why')}" if stays else told)
        return succeed((200, "told", {}))

    def _larger(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name, than, after = _text(body, "queue"), body.get("than"), body.get("after", 0)
        if type(than) is not int or than < 0 or type(after) is not int or after < 0:
            raise Refused(400, f"`than` must be a number of bytes and `after` a sequence, not {than!r} and {after!r}")
        node = self._logs.nodes.queues.get(name)
        if node is None or node.messages is None:
            raise Refused(404, f"there is no queue named {name!r} with messages")
        found, last = larger(node.messages.order.lanes, node.messages.large, than, after, LOOKED_AT)
        first, most = (found[0][0], max(size for _, size in found)) if found else (0, 0)
        return {"count": len(found), "first": first, "largest": most} | ({} if last is None else {"next": last})

    def _everywhere(self, command: Command, is_so: str) -> Deferred[Answer]:
        """Propose it to each log; a log that has it already counts as success."""
        return self._answered(self._proposed_everywhere(command, is_so))

    def _proposed_everywhere(self, command: Command, is_so: str) -> Callable[[Callable[[str], None]], None]:
        """A function that proposes it to each log, and answers when this is committed."""
        ledgers = list(self._logs.ledgers.values())
        for ledger in ledgers:
            self._check_version(ledger)

        def propose(committed: Callable[[str], None]) -> None:
            reasons: list[str] = []

            def one(reason: str) -> None:
                reasons.append("" if is_so in reason else reason)
                if len(reasons) == len(ledgers):
                    committed(next(filter(None, reasons), ""))

            for ledger in ledgers:
                ledger.change(command, one)

        return propose

    def _check_version(self, ledger: Ledger) -> None:
        if lacks := self._logs.nodes.lacks(ledger.name, ORIGINS_SINCE):
            raise Refused(409, f"a drain {lacks}")


def _shares(body: Mapping[str, Any], n_addresses: int) -> tuple[tuple[int, ...], dict[str, int]]:
    """How many addresses each of several targets has, and which of them each queue goes to; empty where there is one."""
    sizes, queues = body.get("sizes") or [], body.get("queues") or {}
    if not isinstance(sizes, list) or not all(type(each) is int and each > 0 for each in sizes):
        raise Refused(400, "`sizes` must have the number of addresses of each target")
    if sizes and sum(sizes) != n_addresses:
        raise Refused(400, f"`sizes` has {sum(sizes)} addresses in total, but `to` has {n_addresses}")
    if not isinstance(queues, dict) or len(queues) > MAX_SHARED:
        raise Refused(
            400, f"`queues` must have the target of each queue that does not go to the first target, at most {MAX_SHARED}"
        )
    if not all(isinstance(uuid, str) and type(at) is int and 0 <= at < len(sizes) for uuid, at in queues.items()):
        raise Refused(400, f"`queues` must have the uuid of each queue and the number of its target, from 0 to {len(sizes) - 1}")
    return tuple(sizes), dict(queues)


def _number(body: Mapping[str, Any], field: str) -> int:
    found = body[field]
    if type(found) is not int or found < 0:
        raise Refused(400, f"`{field}` must be the number of a target, 0 or more, not {found!r:.80}")
    return int(found)


def _text(body: Mapping[str, Any], field: str) -> str:
    found = body[field]
    if not isinstance(found, str) or not found or len(found) > 255:
        raise Refused(400, f"`{field}` must be a text of 1 to 255 characters, not {found!r:.80}")
    return found


def _runs(body: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The runs of a request, as (first sequence, count). Refused, KeyError."""
    found = body["runs"]
    if not isinstance(found, list) or len(found) % 2 or not all(type(each) is int and each >= 0 for each in found):
        raise Refused(400, "`runs` must be a list of first sequence, count, first sequence, count, ...")
    runs = list(zip(found[::2], found[1::2], strict=True))
    if len(runs) > HELD_RUNS or sum(count for _, count in runs) > SETTLED:
        raise Refused(400, f"`runs` has at most {HELD_RUNS} runs, and {SETTLED} sequences")
    return runs


def _is_address(text: Any) -> bool:
    host, colon, port = str(text).rpartition(":")
    return isinstance(text, str) and bool(host and colon) and port.isdecimal() and 0 < int(port) < 65536
