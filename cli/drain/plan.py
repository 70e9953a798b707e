"""What a drain must create on the target, and what does not fit there. Pure.

A queue fits if the target has no queue of this name, or one with the same definition and at least as many copies.
Copies are compared only if the source keeps copies: a standalone broker promises none, and its queues get the target's
default level. A queue of level `configuration` has no copies of its messages, so it fits on a standalone broker. A
binding fits if the target has none with its exchange, queue and key, or one with the same arguments. Objects that already
exist are not created. So a plan that was carried out partly can be made again, and continues.

With several targets, each queue goes completely to one of them. Queues that get messages from the same exchange or dead
letters from each other go to the same target, because a sender to that exchange reaches only one target. Such a group
goes to the target that already has most of its queues, or else to the one with the most free bytes. The largest group
is assigned first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Item = Mapping[str, Any]
LEVELS = ("none", "configuration", "all")
"""Levels of replication, ordered by how much of a queue other brokers have."""
_ALIKE = ("durable", "autoDelete", "exclusive", "alternateExchange")
_LEVEL = "qpid.replicate"


@dataclass(frozen=True, slots=True)
class Inventory:
    """The objects of a broker, as it reports them. `clustered`: other brokers have copies; `free_bytes`: the free space
    of its disk.
    """

    queues: Sequence[Item]
    exchanges: Sequence[Item]
    bindings: Sequence[Item]
    clustered: bool
    free_bytes: int = 0


@dataclass(slots=True)
class Plan:
    """`creates`: (type, name, body) of the objects to create, in order. `problems`: (object, why it does not fit); with
    a problem, nothing is moved. `stays`: (messages, why) what will be left when everything else has moved. `goes`:
    (queue, target) with several targets.
    """

    creates: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    stays: list[tuple[str, str]] = field(default_factory=list)
    goes: list[tuple[str, str]] = field(default_factory=list)


def compare(source: Inventory, target: Inventory) -> Plan:
    """See the module."""
    plan = Plan()
    _exchanges(plan, source, target)
    there = {str(item["name"]): item for item in target.queues}
    for queue in source.queues:
        name = str(queue["name"])
        if name in there:
            plan.problems += [(f"queue {name!r}", why) for why in _differences(queue, there[name], source, target)]
        elif why := _too_few_copies(queue, None, source, target):
            plan.problems.append((f"queue {name!r}", why))
        else:
            plan.creates.append(("queue", name, _queue_body(queue, source)))
    bound = {_identity(item): _arguments(item) for item in target.bindings}
    for binding in source.bindings:
        mine, theirs = _arguments(binding), bound.get(_identity(binding))
        if binding["exchange"] and theirs not in (None, mine):
            exchange, queue_name, key = _identity(binding)
            what = f"binding of queue {queue_name!r} to exchange {exchange!r} with key {key!r}"
            plan.problems.append((what, f"its arguments are {mine}, and the target's {theirs}"))
        elif binding["exchange"] and theirs is None:
            fields = ("exchange", "queue", "key", "arguments")
            plan.creates.append(("binding", "", {name: binding[name] for name in fields}))
    return plan


def share_out(source: Inventory, targets: Sequence[Inventory]) -> dict[str, int]:
    """The number of each queue's target, by the queue's uuid."""
    there = [{str(queue["name"]): queue for queue in target.queues} for target in targets]
    free = [target.free_bytes for target in targets]
    shares: dict[str, int] = {}
    for company in sorted(_companies(source), key=lambda company: (-_bytes(company), str(company[0]["name"]))):

        def fitness(at: int, company: Sequence[Item] = company) -> tuple[int, int, int]:
            has = misfits = 0
            for queue in company:
                other = there[at].get(str(queue["name"]))
                if other is None:
                    misfits += bool(_too_few_copies(queue, None, source, targets[at]))
                else:
                    alike = not any(_differences(queue, other, source, targets[at]))
                    has, misfits = has + alike, misfits + (not alike)
            return -misfits, has, free[at]

        best = max(range(len(targets)), key=fitness)
        free[best] -= _bytes(company)
        shares |= {str(queue["uuid"]): best for queue in company}
    return shares


def part(source: Inventory, shares: Mapping[str, int], at: int) -> Inventory:
    """The part of the source that goes to this target: its queues and their bindings, and every exchange."""
    queues = [queue for queue in source.queues if shares.get(str(queue["uuid"]), 0) == at]
    names = {str(queue["name"]) for queue in queues}
    bindings = [binding for binding in source.bindings if str(binding["queue"]) in names]
    return Inventory(queues, source.exchanges, bindings, source.clustered)


def stands_alone(source: Inventory, uuid: str) -> bool:
    """Whether no exchange and no dead letters connect this queue with others."""
    return any(len(company) == 1 and company[0]["uuid"] == uuid for company in _companies(source))


def _companies(source: Inventory) -> list[list[Item]]:
    """The groups of queues that must go to the same target."""
    leader: dict[str, str] = {}

    def leads(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    joined = [(f"queue {item['queue']}", str(item["exchange"])) for item in source.bindings]
    joined += [(f"queue {item['name']}", str(item["alternateExchange"])) for item in source.queues]
    joined += [(f"exchange {item['name']}", str(item["alternateExchange"])) for item in source.exchanges]
    for one, exchange in joined:
        if exchange:
            leader[leads(one)] = leads(f"exchange {exchange}")
    found: dict[str, list[Item]] = {}
    for queue in source.queues:
        found.setdefault(leads(f"queue {queue['name']}"), []).append(queue)
    return list(found.values())


def _bytes(queues: Iterable[Item]) -> int:
    return sum(int(queue["bytes"]) for queue in queues)


def _exchanges(plan: Plan, source: Inventory, target: Inventory) -> None:
    there = {str(item["name"]): item for item in target.exchanges}
    missing = {str(item["name"]): item for item in source.exchanges if str(item["name"]) not in there}
    for name, item in ((str(each["name"]), each) for each in source.exchanges):
        if name in there and there[name]["exchangeType"] != item["exchangeType"]:
            what = f"it is a {item['exchangeType']} exchange, and the target's of this name a {there[name]['exchangeType']} one"
            plan.problems.append((f"exchange {name!r}", what))
    while missing:  # an exchange is created after its alternate exchange
        name = next((each for each, item in missing.items() if item["alternateExchange"] not in missing), next(iter(missing)))
        item = missing.pop(name)
        body = {"exchangeType": item["exchangeType"], "durable": item["durable"], "arguments": _arguments(item)}
        plan.creates.append(("exchange", name, body | _alternate(item) | _replicate(item, source)))


def _queue_body(queue: Item, source: Inventory) -> dict[str, Any]:
    body = {name: queue[name] for name in ("durable", "autoDelete", "exclusive")} | {"arguments": _arguments(queue)}
    subscription = {"subscription": dict(queue["subscription"])} if queue.get("subscription") else {}
    return body | _alternate(queue) | _replicate(queue, source) | subscription


def _alternate(item: Item) -> dict[str, Any]:
    return {"alternateExchange": item["alternateExchange"]} if item["alternateExchange"] else {}


def _replicate(item: Item, source: Inventory) -> dict[str, Any]:
    return {"replicate": item["replicate"]} if source.clustered else {}


def _arguments(item: Item) -> dict[str, Any]:
    return {name: value for name, value in (item["arguments"] or {}).items() if name != _LEVEL}


def _level(queue: Item, side: Inventory) -> str:
    return str(queue["replicate"]) if side.clustered else "none"


def _differences(queue: Item, other: Item, source: Inventory, target: Inventory) -> Iterable[str]:
    mine, theirs = _arguments(queue), _arguments(other)
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            yield f"its argument {name} is {mine.get(name, 'missing')}, and the target's {theirs.get(name, 'missing')}"
    if (queue.get("subscription") or {}) != (other.get("subscription") or {}):
        yield "it does not stand for the same subscription as the target's"
    for name in _ALIKE:
        if (queue[name] or "") != (other[name] or ""):
            yield f"{name} is {queue[name]}, and the target's {other[name]}"
    if why := _too_few_copies(queue, other, source, target):
        yield why


def _too_few_copies(queue: Item, other: Item | None, source: Inventory, target: Inventory) -> str:
    """Why the target keeps less of this queue than the source does; "" if it does not. `other`: the target's queue of this
    name, None if it would be created.
    """
    level = _level(queue, source)
    if not target.clustered:
        return f"its level of replication is {level}, and the target is one broker by itself" if level == "all" else ""
    if other is None or LEVELS.index(_level(other, target)) >= LEVELS.index(level):
        return ""
    return f"its level of replication is {level}, and the target's {_level(other, target)}"


def _identity(binding: Item) -> tuple[str, str, str]:
    return str(binding["exchange"]), str(binding["queue"]), str(binding["key"])
