"""Definitions and batches for tests of what a log says: with only what matters to a test, and a strategy for histories."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from broker.core.records import Batch, BatchBuilder
from broker.core.state import State
from tests.broker.core.queues.files import lots_of

Change = dict[str, Any]
"""A command as the object that its text says, so that these tests hold the form in which it stands in a log."""


def queue(name: str, level: str = "all", **more: Any) -> Change:
    """A queue-add whose uuid is "u-" and the name."""
    change = {"op": "queue-add", "uuid": f"u-{name}", "name": name, "level": level, "durable": False, "autoDelete": False}
    return change | {"exclusive": False, "arguments": {}, "alternate": ""} | more


def exchange(name: str, kind: str = "direct", level: str = "all", **more: Any) -> Change:
    """An exchange-add whose uuid is "x-" and the name."""
    change = {"op": "exchange-add", "uuid": f"x-{name}", "name": name, "kind": kind, "level": level, "durable": False}
    return change | {"arguments": {}, "alternate": ""} | more


def bind(exchange_uuid: str, queue_uuid: str, key: str = "", **arguments: Any) -> Change:
    return {"op": "bind", "exchange": exchange_uuid, "queue": queue_uuid, "key": key, "arguments": arguments}


def unbind(exchange_uuid: str, queue_uuid: str, key: str = "") -> Change:
    return {"op": "unbind", "exchange": exchange_uuid, "queue": queue_uuid, "key": key}


def alter(uuid: str, alternate: str = "", applies: int = 1, **arguments: Any) -> Change:
    change = {"op": "alter", "uuid": uuid, "arguments": arguments, "alternate": alternate}
    return change | {"applies": applies, "needs": 6}


def delete(kind: str, uuid: str) -> Change:
    """The end of a "queue", "store" or "exchange"."""
    return {"op": f"{kind}-del", "uuid": uuid}


def batch(index: int, *changes: Change, enqueue: Iterable[tuple[int, int, list[bytes]]] = ()) -> Batch:
    """A committed batch: definitions, and runs of messages (queue number, first sequence, messages)."""
    builder = BatchBuilder()
    for change in changes:
        builder.define(change)
    for number, first_seq, messages in enqueue:
        builder.enqueue_at(number, first_seq, messages)
    return Batch.parse(builder.seal(1, index, 0))


def state_of(*changes: Change) -> State:
    state = State()
    state.apply(batch(1, *changes))
    return state


def alive(state: State) -> dict[int, dict[int, tuple[bytes, int]]]:
    """Queue number -> sequence -> (message, delivery count)."""
    found: dict[int, dict[int, tuple[bytes, int]]] = {}
    for number, messages in state.messages.items():
        here = found[number] = {}
        for lot in lots_of(messages.order):
            for sequence, message in enumerate(lot.messages(), lot.first_seq):
                here[sequence] = (message, messages.order.lane_of(sequence).delivery_count(sequence))
    return found


def contents(state: State) -> dict[str, Any]:
    """Everything that a state says, and everything that decides what it will say next."""
    return {
        "queues": dict(state.definitions.queues),
        "stores": dict(state.definitions.stores),
        "exchanges": dict(state.definitions.exchanges),
        "bindings": dict(state.definitions.bindings),
        "settings": dict(state.definitions.settings),
        "terms": list(state.definitions.terms),
        "texts": [command.text for command in state.definitions.commands()],
        "messages": alive(state),
        "uuids": {uuid: messages.number for uuid, messages in state.by_uuid.items()},
        "next sequences": {number: messages.next_seqs() for number, messages in state.messages.items()},
        "live bytes": state.live_bytes,
        "next number": state_number(state),
    }


def state_number(state: State) -> int:
    """The number that the next queue would get."""
    last = list(state.snapshot())[-1]
    parsed = Batch.parse(last.seal(1, 1, 0))
    return int(parsed.json(parsed.runs[0])["next"])


NAMES = ("a", "b", "c")
KEYS = ("", "k", "k.#")
KINDS = ("queue", "exchange", "bind", "bind", "unbind", "del", "xdel", "store", "reign", "steps", "steps")


@st.composite
def histories(draw: st.DrawFn, *, messages: bool = True, level: st.SearchStrategy[str] | None = None) -> list[list[Change]]:
    """Batches of changes, and of steps that put, take and count messages, over few names, so that they meet.

    Uuids are never used twice.
    """
    levels = level if level is not None else st.sampled_from(["all", "none", "configuration"])
    made: list[str] = []
    exchanges: list[str] = ["amq.topic"]
    batches: list[list[Change]] = []
    for _ in range(draw(st.integers(1, 8))):
        one: list[Change] = []
        for _ in range(draw(st.integers(1, 5))):
            kind = draw(
                st.sampled_from(
                    ["queue", "exchange", "bind", "bind", "unbind", "del", "xdel", "store", "reign", "alter", "steps", "steps"]
                )
            )
            uuid = draw(st.sampled_from(made)) if made else "u-none"
            at = draw(st.sampled_from(exchanges))
            key = draw(st.sampled_from(KEYS))
            if kind == "queue":
                made.append(f"u-{len(made)}")
                one.append(queue(draw(st.sampled_from(NAMES)), draw(levels), uuid=made[-1]))
            elif kind == "exchange":
                exchanges.append(f"x-{len(exchanges)}")
                one.append(exchange(draw(st.sampled_from(NAMES)), "topic", draw(levels), uuid=exchanges[-1]))
            elif kind == "bind":
                one.append(bind(at, uuid, key, **draw(st.sampled_from([{}, {"x": 1}]))))
            elif kind == "unbind":
                one.append(unbind(at, uuid, key))
            elif kind == "del":
                one.append(delete(draw(st.sampled_from(["queue", "store"])), uuid))
            elif kind == "xdel":
                one.append(delete("exchange", at))
            elif kind == "store":
                one.append({"op": "store-add", "uuid": f"s-{draw(st.integers(0, 2))}"})
            elif kind == "alter":
                one.append(alter(draw(st.sampled_from([uuid, at])), alternate=key, **{"qpid.max_count": draw(st.integers(0, 9))}))
            elif kind == "reign":
                one.append({"op": "reign", "epoch": len(batches), "primary": "p:1", "reason": "", "ts": "", "gapMs": -1})
            elif messages:
                number, first, count = draw(st.integers(1, 4)), draw(st.integers(1, 30)), draw(st.integers(1, 6))
                step = draw(st.sampled_from(["put", "put", "take", "count"]))
                one.append({"op": step, "number": number, "first": first, "count": count})
        batches.append(one)
    return batches


def play(state: State, history: list[list[Change]]) -> list[Batch]:
    """Apply a history, with each queue's messages behind those that it has; returns the batches."""
    played = []
    for one in history:
        builder = BatchBuilder()
        for change in one:
            if change["op"] in ("put", "take", "count"):
                _step(state, builder, change)
            else:
                builder.define(change)
        data = Batch.parse(builder.seal(1, state.index + 1, 0))
        state.apply(data)
        played.append(data)
    return played


def _step(state: State, builder: BatchBuilder, step: Change) -> None:
    number, first, count = step["number"], step["first"], step["count"]
    messages = state.messages.get(number)
    if step["op"] == "put":
        next_seq = 1 if messages is None else messages.next_seqs()[0]
        builder.messages_for(number, next_seq).extend(b"m%d" % (first + i) for i in range(count))
    elif step["op"] == "take":
        builder.dequeues_for(number).extend(range(first, first + count))
    else:
        for sequence in range(first, first + count):
            builder.count(number, sequence, 200)
