"""A broker that leaves for good: first it is closed, then emptied, and only then known to be empty.

Life of a departure: `begin` proposes the record for it (the setting `leaving`, broker.core.origins). From now on no messages of
clients are accepted: they are `released`. When the record is committed, and with it all earlier messages, the links of producers
end with `amqp:link:redirect`, which names the target. Then the clients' connections end, over a time that the caller chooses,
first those that have been silent for the longest time. Their other links get the redirect too, and then TCP ends without a Close,
so that a client tries its next address (docs/adr/0007). Consumers get no new messages from the beginning, and may settle the ones
that they have until their connection ends. New connections are refused as by a backup. Then a drain takes the messages, queue by
queue (`DrainSource`), and `status` reports what is left.

A departure can be cancelled (docs/adr/0044). `halt` ends the links of the drain, so that no more messages go to the target.
`settle` removes the messages that the target has. `reopen`, when the target has released the drain, removes the record: this
broker serves the rest again. `begin` ends a halt: the last request counts.

A primary that takes over meanwhile finds the record in its log, and accepts no client. It does not know of a halt: the halt must
be requested again.

Invariants: from the record until its removal, no batch enqueues a message of a client, and none creates a queue; so a broker that
is empty at an index after the record stays empty. The record is removed only in a term in which no drain has had a link since the
halt. If the messages of a queue are in the log of one broker of a cluster, a drain gets them, and removes them, only by a name
that has the store of this broker: the same sequences at another broker are other messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from math import ceil
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.amqp.data import Condition
from broker.amqp.sender import Sender
from broker.core.acl import questions
from broker.core.commands import ORIGINS_SINCE, Setting
from broker.core.nodes import LOCAL, QueueNode, Refused
from broker.core.origins import LEAVING, PLAIN, Leave, Traits, store_and_queue
from broker.core.parts import PARTS_QUEUE
from broker.sessions.admission import Admission
from broker.sessions.attach import Attach
from broker.sessions.ledger import Ledger
from broker.sessions.logs import Logs
from broker.sessions.origins import NODE, PACKS
from broker.sessions.queue_terminus import QueueTerminus
from broker.sessions.queues import Queues
from broker.sessions.turn import Turn

TRAITS = "traits"
"""The last part of a queue's address if its messages are sent with traits."""
STEPS = 10
"""Clients' connections end in so many steps."""
CALLED_OFF = "amqp:link:detach-forced"
"""Why a drain's links end when it is called off."""
NOT_HALTED = "the drain of this broker is running"


class Departure:
    """See the module."""

    def __init__(self, clock: IReactorTime, logs: Logs, queues: Queues, admission: Admission, turn: Turn) -> None:
        self._clock = clock
        self._logs = logs
        self._queues = queues
        self._admission = admission
        self._turn = turn
        self._call: IDelayedCall | None = None
        self._assigning = False
        """Whether a queue is being given to another target."""

    def begin(self, leave: Leave, spread_s: float, answer: Callable[[str], None]) -> None:
        """Leave; `answer` gets "" when that is committed, or why it is not so. Refused, when it cannot be."""
        logs = self._logs
        if not logs.serving:
            raise Refused(409, f"this broker is {logs.state}: only a broker that serves can be drained")
        if logs.closing:
            raise Refused(409, "a drain of this broker is already starting")
        if lacks := logs.nodes.lacks(logs.lead.name, ORIGINS_SINCE):
            raise Refused(409, f"a drain {lacks}")
        logs.closing, logs.halted = True, False

        def committed(reason: str) -> None:
            logs.closing = False
            if reason:
                self._queues.give_out_again()
            else:
                for terminus in self._queues.termini:
                    terminus.leaves_or_stays()
                logs.ledgers[LOCAL].pending.when_committed(lambda: self._close(spread_s))
            answer(reason)

        logs.lead.change(_setting(leave), committed)

    def mark_released(self, answer: Callable[[str], None]) -> None:
        """The target knows that nothing is left here. Refused, when that is not so."""
        leave, status = self._logs.leave, self.status()
        if leave is None or not status["empty"]:
            raise Refused(409, f"this broker is not empty: it has {status['messages']} messages, {status['clients']} clients")
        if leave.released:
            answer("")
        else:
            self._logs.lead.change(_setting(replace(leave, released=True)), answer)

    def halt(self, drain: str) -> None:
        """Give nothing more to this drain, and end its links. Refused, when it is not this broker's."""
        self._must_be(drain)
        self._logs.halted = True
        for terminus in self._queues.termini:
            for subscription in [each for each in terminus.subscriptions if each.drains]:
                subscription.end_link(Condition(CALLED_OFF, "the drain of this broker is cancelled"))
        self._turn.flush()

    def settle(
        self, drain: str, queue: str, runs: Sequence[tuple[int, int]], answer: Callable[[str], None], *, store: str = ""
    ) -> None:
        """Take these messages of a queue, by its name in the drain, off for good, as runs of (first sequence, count): the target
        has them. `answer` gets "" when that is committed. `store`: the store for which an earlier release announced the queue.
        Refused, unless the drain is halted, or if another broker of this cluster has these messages."""
        self._must_be_halted(drain)
        if not _is_here(self._logs, queue, store):
            text = f"the target has messages of queue {queue} that another broker of this cluster has, and this one does not"
            raise Refused(421, f"{text}: make the broker with the store {store_and_queue(queue)[0] or store} the primary first")
        node = self._logs.nodes.queue_by_uuid(store_and_queue(queue)[1])
        if node is None or node.messages is None:
            answer("")  # the queue is deleted, and so are its messages
            return
        ledger: Ledger = self._logs.ledger_of(node)
        for first, count in runs:
            try:
                lane = node.messages.order.lane_of(first)
            except ValueError:
                raise Refused(400, f"queue {node.name!r} has no sequence {first}") from None
            alive = takewhile(range(first, first + count).__contains__, (sequence for sequence, _ in lane.alive_from(first)))
            ledger.dequeue(node.messages.number, alive)
        ledger.pending.when_committed(lambda: answer(""))

    def reopen(self, drain: str, answer: Callable[[str], None]) -> None:
        """Serve again: the target has released the drain, and the messages that it has are removed here. `answer` gets "" when
        this is committed. Refused if the drain is not halted."""
        self._must_be_halted(drain)
        self.stop_ending()

        def committed(reason: str) -> None:
            self._logs.halted = False
            self._queues.unused.begin()
            self._queues.removals.begin()
            for terminus in self._queues.termini:
                terminus.leaves_or_stays()
            answer(reason)

        self._logs.lead.change(Setting(key=LEAVING, value={}, needs=ORIGINS_SINCE), committed)

    def assign(self, drain: str, queue: str, was: int, at: int, answer: Callable[[str], None]) -> None:
        """Send the messages of a queue, given by its uuid, to the target `at` instead of `was`, which has confirmed that it has
        none of them and accepts none. `answer` gets "" when this is committed. Refused if they already go to a third target."""
        self._must_be(drain)
        leave = self._logs.leave
        assert leave is not None, "it leaves"
        now = leave.queues.get(queue, 0)
        if at == now:
            answer("")
            return
        if now != was or self._assigning or at >= len(leave.sizes):
            raise Refused(
                409,
                f"queue {queue} is assigned to target {now} of drain {drain}, or is being assigned to another one: read the "
                f"drain's state again",
            )
        queues = {uuid: to for uuid, to in {**leave.queues, queue: at}.items() if to}
        self._assigning = True

        def committed(reason: str) -> None:
            self._assigning = False
            answer(reason)

        self._logs.lead.change(_setting(replace(leave, queues=queues)), committed)

    def _must_be(self, drain: str) -> None:
        leave = self._logs.leave
        if leave is None or leave.drain != drain or self._logs.closing:
            raise Refused(409, f"drain {drain} is not the drain of this broker")

    def _must_be_halted(self, drain: str) -> None:
        self._must_be(drain)
        if not self._logs.halted:
            raise Refused(409, f"{NOT_HALTED}: ask for HALT first")

    def status(self) -> dict[str, Any]:
        """The messages that are left. `empty` is final: no message can be added. A backup does not know that."""
        logs, leave = self._logs, self._logs.leave
        found = [each for one in logs.ledgers.values() for number, each in one.state.messages.items() if number != PARTS_QUEUE]
        messages, clients = sum(each.depth for each in found), len(self._admission.clients())
        idle = all(ledger.pending.idle for ledger in logs.ledgers.values())
        return {
            "leaving": logs.closed,
            "halted": logs.halted,
            "drain": "" if leave is None else leave.drain,
            "to": [] if leave is None else list(leave.to),
            "sizes": [] if leave is None else list(leave.sizes),
            "since": "" if leave is None else leave.since,
            "target": "" if leave is None else leave.target,
            "released": leave is not None and leave.released,
            "index": logs.lead.state.index,
            "messages": messages,
            "bytes": sum(each.live_bytes for each in found),
            "unsettled": self._queues.unsettled(),
            "clients": clients,
            "empty": logs.serving and leave is not None and idle and not (messages or clients or logs.closing),
        }

    def over(self) -> None:
        """This broker stops serving, or ends."""
        self._logs.closing = self._logs.halted = self._assigning = False
        self.stop_ending()

    def stop_ending(self) -> None:
        """End no more connections."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    # ---- the clients

    def _close(self, spread_s: float) -> None:
        for connection in self._admission.administrators():
            connection.session.end_service(self._logs.redirect())
        clients = self._admission.clients()
        self._admission.end_producers()
        self._end_some(max(1, ceil(len(clients) / STEPS)) if spread_s else len(clients), spread_s / STEPS)
        self._turn.flush()

    def _end_some(self, count: int, pause_s: float) -> None:
        """End so many clients' connections, and the next ones after a pause."""
        self._call = None
        clients = self._admission.clients()
        for connection in clients[:count]:
            connection.session.end_service(self._logs.redirect())
            connection.cut_off()
        if len(clients) > count:
            self._call = self._clock.callLater(pause_s, self._end_some, count, pause_s)
        self._turn.flush()


def _setting(leave: Leave) -> Setting:
    return Setting(key=LEAVING, value=leave.value(), needs=ORIGINS_SINCE)


def _is_here(logs: Logs, name: str, store: str = "") -> bool:
    """Whether sequences of a queue, by its name in a drain, are those of its messages here. `store`: the store for which an
    earlier release has announced the queue, by its uuid alone."""
    named, uuid = store_and_queue(name)
    node = logs.nodes.queue_by_uuid(uuid)
    if node is not None and node.messages_log != logs.lead.name:
        return (named or store) == logs.store_id
    return not named or (node is None and named == logs.store_id)


class DrainSource:
    """A queue of a broker that leaves, as the one link sees it that takes its messages: `$drain/QUEUE`, by the queue's name in
    the drain (`broker.core.origins.named`). The tag of each delivery is the message's sequence, in 8 bytes.
    `$drain/QUEUE/traits`: with traits behind it (`broker.core.origins.Traits`). Then messages come as they were sent, and those
    that are delayed, too. `$drain/QUEUE/packs`: with traits, and several messages in one delivery (`broker.core.packs`)."""

    def __init__(self, logs: Logs, node: QueueNode, queue: QueueTerminus, *, traits: bool, packed: bool) -> None:
        self._traits = traits
        self._packed = packed
        self._logs = logs
        self._node = node
        self._queue = queue

    def knows_filter(self, name: str) -> bool:
        """None: all messages are moved."""
        return False

    def subscribe(self, attach: Attach, link: Sender) -> None:
        """Let the link take the queue's messages when no other link holds any of them. An earlier link of the drain ends, because
        its drainer may be frozen: the target knows what has come from it."""
        needs = questions.take_from_queue(self._node)
        attach.demand(needs)
        _must_leave(self._logs)
        if self._logs.halted:
            raise Condition(CALLED_OFF, "the drain of this broker is cancelled")
        if attach.link.presettled:
            raise Condition("amqp:invalid-field", "the messages of a drain are settled when the target has them")
        for earlier in [each for each in self._queue.subscriptions if each.drains]:
            earlier.end_slow(Condition("amqp:link:stolen", "another link of this drain has attached"))
        if self._queue.subscriptions:
            raise Condition("amqp:resource-locked", f"queue {self._node.name!r} has consumers still: try again")
        link.packed = self._packed
        if self._traits:
            link.traits_of = self._traits_of
            self._queue.due.let_all_go()
        self._queue.add(attach, link, needs, browse=False, drains=True)

    def _traits_of(self, first: int, count: int) -> list[bytes]:
        messages = self._node.messages
        assert messages is not None, "they are being sent"
        if not (messages.has_times or messages.order.has_counts):
            return [PLAIN.to_bytes()] * count
        lane, times = messages.order.lane_of(first), (messages.expiries, messages.delays)
        found: list[bytes] = []
        for sequence in range(first, first + count):
            expires_ms, available_ms = [0 if each is None else each.at(sequence) for each in times]
            found.append(Traits(expires_ms, available_ms, lane.delivery_count(sequence)).to_bytes())
        return found


class NotHere:
    """A queue that does not exist here, or whose messages of this name another broker has: a drain gets nothing."""

    def __init__(self, logs: Logs, queue: str) -> None:
        self._logs = logs
        self._queue = queue

    def knows_filter(self, name: str) -> bool:
        """None."""
        return False

    def subscribe(self, attach: Attach, link: Sender) -> None:
        """Refuse the link."""
        attach.demand_either(questions.unknown(attach.asked.address))
        _must_leave(self._logs)
        raise Condition("amqp:not-found", f"this broker has no messages of queue {self._queue}")


def _must_leave(logs: Logs) -> None:
    if logs.leave is None or not logs.serving:
        raise Condition("amqp:not-allowed", "this broker is not being drained")


def drain_source(logs: Logs, queues: Queues) -> Callable[[str], DrainSource | NotHere | None]:
    """Finds such a source by its address."""

    def named(address: str) -> DrainSource | NotHere | None:
        node, _, rest = address.partition("/")
        queue, _, how = rest.partition("/")
        if node != NODE or how not in ("", TRAITS, PACKS):
            return None
        found = logs.nodes.queue_by_uuid(store_and_queue(queue)[1])
        if found is None or not _is_here(logs, queue):
            return NotHere(logs, queue)
        return DrainSource(logs, found, queues.at(found), traits=how != "", packed=how == PACKS)

    return named
