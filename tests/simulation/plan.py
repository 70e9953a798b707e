"""The plan of a seed: a cluster, a load and a list of timed actions. All are chosen before anything runs.

Swarm testing (Groce et al., ISSTA '12): a seed first picks which kinds of faults and operations it uses, few or many,
and how hard, and then their times. So some runs have one kind again and again, and others all of them at once.

Life of a plan: `make` draws it from the seed. The shrinker keeps some of its items, by their numbers; the rest of the
plan stays the same. Actions name hosts by number, or by their role at that time ("primary", "backup"). When an action
is due, it is decided whether it is possible and within the product's promises (see `promises.py`).

Invariant: the same seed gives the same plan, on any machine.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

from broker.core import limits
from broker.core.commands import MACHINE_VERSION
from tests.simulation.clients import ClientPlan
from tests.simulation.layouts import Step, laid_out

PROCESS = ("kill", "power", "blackout", "freeze", "stop", "rolling")
NETWORK = ("isolate", "split", "one-way", "partial", "slow", "cut")
CLOCK = ("jump",)
DISK = ("full", "sync-error", "slow-disk", "wipe", "rot", "lose-file")
OPERATIONS = (
    "promote",
    "promote-two",
    "switchover",
    "storm",
    "add",
    "remove",
    "change-two",
    "recreate",
    "new-queue",
    "new-exchange",
    "client-drop",
    "manager-kill",
    "manager-freeze",
)
KINDS = (*PROCESS, *NETWORK, *CLOCK, *DISK, *OPERATIONS)
ROLE = "role"
"""One more, which is drawn by itself."""
PASSING = {"scratch": "recreate", "extra1": "new-queue", "news": "new-exchange", "amq.topic": ""}
"""Queues and exchanges that come and go, and the operation that makes them."""
EXCHANGES = ("news", "amq.topic")
_MOST_ACTIONS = 24


@dataclass(frozen=True, slots=True)
class Action:
    """Something that happens to the cluster. `who`: a host's number, "primary", "backup", or ""; `seconds`: for how long."""

    at_s: float
    kind: str
    who: int | str = ""
    other: int | str = ""
    seconds: float = 0.0
    choice: float = 0.0

    def __str__(self) -> str:
        target = "" if self.who == "" else f" {self.who}"
        other = "" if self.other == "" else f" {self.other}"
        return f"{self.at_s:.3f} {self.kind}{target}{other}" + (f" for {self.seconds:.2f} s" if self.seconds else "")


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module. Sizes in bytes, times in seconds; `items` are clients and actions, by number; a queue of `max_counts`
    0 takes what comes, others only so many messages; `steps` are made one after the other, the other queues by themselves;
    `stray`: how likely a message between members is to come much later; `repeats`: see stretches.py."""

    seed: int
    brokers: int
    spares: int
    managers: int
    queues: tuple[str, ...]
    duration_s: float
    message_links: bool
    drop: float
    double: float
    reorder_s: float
    latency_s: tuple[float, float]
    chunking: float
    heartbeat_s: float
    election_s: float
    silence_s: int
    probe_s: float
    detection_s: float
    segment_bytes: int
    message_memory: int
    """Bytes of message bodies that a broker may keep in memory."""
    checkpoint_bytes: int
    chunk_bytes: int
    append_bytes: int
    rates: tuple[float, ...]
    disk_s: float
    disk_call_s: float | None
    short_writes: float
    max_counts: tuple[int, ...]
    levels: tuple[int, ...]
    """Of each queue the levels of priority, 0 for none."""
    kinds: tuple[str, ...]
    items: dict[int, ClientPlan | Action]
    steps: tuple[Step, ...] = ()
    brief: str = ""
    """The level of the queue that goes after a time without a user, "" when there is none, and when it is asked for."""
    brief_at_s: tuple[float, ...] = ()
    stray: float = 0.0
    repeats: bool = False
    once: bool = False
    """Whether nothing fails, so that no message may come again once a consumer has let its accept go out."""
    releases: tuple[tuple[int, ...], ...] = ()
    """For each host the machine versions of its processes, in order; the last one stays, and once all is healed the newest."""
    witness: bool = False
    """Whether the last of the first brokers is a witness."""
    part_bytes: int = limits.PART_BYTES
    """The size of a part of a large message: one of more than `limits.LARGE_PARTS` parts is large."""
    recovers_s: float = 45.0
    """So long after all is healed, at the latest, the cluster is well."""

    @property
    def clients(self) -> list[ClientPlan]:
        """Those of the items that are clients."""
        return [item for item in self.items.values() if isinstance(item, ClientPlan)]

    @property
    def actions(self) -> list[tuple[int, Action]]:
        """Those that are actions, with their numbers."""
        return [(number, item) for number, item in self.items.items() if isinstance(item, Action)]

    @property
    def puts_back(self) -> bool:
        """Whether an older release comes after a newer one on some host."""
        return any(before > after for versions in self.releases for before, after in pairwise(versions))

    def keeping(self, numbers: Collection[int]) -> Plan:
        """The same with only these of the items."""
        return replace(self, items={number: item for number, item in self.items.items() if number in numbers})

    def lines(self) -> list[str]:
        """For people."""
        return [f"{number:3d} {_describe(item)}" for number, item in self.items.items()]


def _describe(item: ClientPlan | Action) -> str:
    if isinstance(item, Action):
        return str(item)
    what = f"{item.count} messages, window {item.window}" if item.kind == "producer" else f"window {item.window}"
    return f"{item.kind} {item.name} of {item.queue}: {what}"


def make(seed: int) -> Plan:
    """The plan of this seed."""
    rng = Random(f"plan {seed}")
    brokers = rng.choices((3, 4, 5, 6, 7), (72, 6, 16, 3, 3))[0]
    kinds = _kinds(rng)
    spares = rng.choice((1, 2)) if {"add", "change-two"} & set(kinds) else 0
    duration_s = rng.uniform(2.0, 4.5)
    heartbeat_s = rng.choice((0.2, 0.3, 0.4))
    queues = tuple(f"q{number}" for number in range(rng.choices((1, 2, 3), (5, 3, 2))[0]))
    message_links = rng.random() < 0.5
    bad = message_links and rng.random() < 0.7
    segment_bytes = rng.choice((8192, 16384, 32768, 65536))
    clients = _clients(rng, queues, duration_s) + _passing(rng, kinds, duration_s)
    hosts = brokers + spares
    actions = _actions(rng, kinds, hosts, duration_s)
    uneven = rng.random() < 0.3
    plan = Plan(
        seed=seed,
        brokers=brokers,
        spares=spares,
        managers=rng.choice((1, 1, 1, 1, 2)),
        queues=queues,
        duration_s=duration_s,
        message_links=message_links,
        drop=rng.choice((0.0, 0.01, 0.05, 0.2)) if bad else 0.0,
        double=rng.choice((0.0, 0.02, 0.2)) if bad else 0.0,
        reorder_s=rng.choice((0.0, 0.005, 0.05)) if bad else 0.0,
        latency_s=rng.choice(((0.0001, 0.0005), (0.0005, 0.003), (0.002, 0.03))),
        chunking=rng.choice((0.0, 0.02, 0.2)),
        heartbeat_s=heartbeat_s,
        election_s=heartbeat_s * rng.choice((3.0, 3.0, 5.0)),
        silence_s=rng.choice((1, 2)),
        probe_s=rng.choice((0.6, 0.9)),
        detection_s=rng.choice((1.0, 1.4)),
        segment_bytes=segment_bytes,
        message_memory=Random(f"memory of {seed}").choice((0, 2_000, 20_000, 1 << 30)),
        checkpoint_bytes=rng.choice((4096, 16384, 65536)),
        chunk_bytes=rng.choice((1024, 8192, 1 << 20)),
        append_bytes=rng.choice((4096, 65536, 1 << 20)),
        rates=tuple(rng.uniform(0.95, 1.05) if uneven else 1.0 for _ in range(hosts)),
        disk_s=rng.choice((0.0, 0.0005, 0.004)),
        disk_call_s=rng.choice((None, None, None, 0.001)),
        short_writes=rng.choice((0.0, 0.0, 0.1)),
        max_counts=tuple(rng.choice((0, 0, 0, 30)) for _ in queues),
        levels=(0,) * len(queues),
        kinds=kinds,
        items=dict(enumerate([*clients, *actions])),
    )
    if plan.latency_s[1] >= _FAR_S:
        plan = replace(plan, chunk_bytes=max(plan.chunk_bytes, 8192))
    plan = replace(plan, releases=_releases(Random(f"releases {seed}"), hosts))
    plan = _with_witness(plan, Random(f"witness of {seed}"))
    plan = laid_out(plan, Random(f"layout {seed}"))
    late = Random(f"late {seed}")
    plan = replace(plan, stray=late.choice((0.0, 0.1, 0.2, 0.3)) if message_links else 0.0, repeats=late.random() < 0.5)
    plan = _with_large(plan, Random(f"large messages of {seed}"))
    return _with_roles(plan, Random(f"roles of {seed}"))


_FAR_S = 0.03
"""From here on a snapshot by the KiB, with an answer to each, would take a minute."""


def _releases(rng: Random, hosts: int) -> tuple[tuple[int, ...], ...]:
    """Mostly all of this release; else some are upgraded when they are started again, or put back once."""
    kind = rng.choices(("one", "upgraded", "put back"), (7, 2, 1))[0]
    if kind == "one":
        return ()
    new, old = MACHINE_VERSION, rng.choice(range(1, MACHINE_VERSION))
    other = ((old, new),) if kind == "upgraded" else ((new, old, new), (new, old))
    return tuple(rng.choice((*other, (new,))) for _ in range(hosts))


def _with_witness(plan: Plan, rng: Random) -> Plan:
    """In a part of the runs with an odd number of brokers one of them is a witness; releases before this one know none."""
    if rng.random() < 0.8 or plan.brokers % 2 == 0:
        return plan
    return replace(plan, witness=True, releases=())


def _with_roles(plan: Plan, rng: Random) -> Plan:
    """In some runs voters become learners that stay ones, and voters again."""
    if rng.random() < 0.85 or plan.releases:
        return plan
    times = sorted(rng.uniform(0.3, plan.duration_s) for _ in range(rng.randint(2, 8)))
    hosts = plan.brokers + plan.spares
    actions = [Action(round(at_s, 4), ROLE, rng.randrange(hosts), choice=rng.random()) for at_s in times]
    return replace(plan, items=plan.items | dict(enumerate(actions, 1 + max(plan.items))), kinds=(*plan.kinds, ROLE))


def _with_large(plan: Plan, rng: Random) -> Plan:
    """In a third of the runs messages are stored by the part that others have whole, and some producers send larger ones."""
    if rng.random() < 0.65:
        return plan
    items: dict[int, ClientPlan | Action] = {}
    for number, item in plan.items.items():
        items[number] = item
        if isinstance(item, ClientPlan) and item.kind == "producer" and rng.random() < 0.6:
            size = (24, rng.choice((3_000, 12_000, 30_000)))
            pause_s = rng.choice((0.0, 0.0, 0.05, 0.3))
            items[number] = replace(item, size=size, count=min(item.count, 40), burst=min(item.burst, 4), pause_s=pause_s)
    return replace(plan, items=items, part_bytes=rng.choice((128, 512, 2048)))


def _kinds(rng: Random) -> tuple[str, ...]:
    """Which kinds of trouble this run has."""
    part = rng.choice((0.1, 0.25, 0.5, 0.9))
    chosen = tuple(kind for kind in KINDS if rng.random() < part)
    return chosen or (rng.choice(KINDS),)


def _clients(rng: Random, queues: tuple[str, ...], duration_s: float) -> list[ClientPlan]:
    clients: list[ClientPlan] = []
    large = rng.random() < 0.25
    for number, queue in enumerate(queues):
        for each in range(rng.choices((1, 2), (7, 3))[0]):
            gap_s = rng.choice((0.02, 0.05, 0.1))
            burst = rng.choice((2, 8, 20))
            count = min(rng.choice((40, 120, 300)), round(duration_s / gap_s * burst / 2))
            clients.append(
                ClientPlan(
                    "producer",
                    f"p{number}{'ab'[each]}",
                    queue,
                    start_s=rng.uniform(0.0, 0.5),
                    window=rng.choice((1, 10, 50)),
                    burst=burst,
                    gap_s=gap_s,
                    count=count,
                    size=rng.choice(((600, 6000), (24, 40))) if large else rng.choice(((24, 40), (40, 300))),
                    resend=rng.random() < 0.8,
                    max_frame=rng.choice((512, 4096, 65536)),
                )
            )
        late = rng.random() < 0.3
        for each in range(rng.choices((1, 2), (6, 4))[0]):
            clients.append(
                ClientPlan(
                    "consumer",
                    f"c{number}{'ab'[each]}",
                    queue,
                    start_s=duration_s if late else rng.uniform(0.0, 1.0),
                    window=rng.choice((1, 10, 100)),
                    settle_delay_s=rng.choice((0.0, 0.0, 0.05, 0.5)),
                    confirm=rng.random() < 0.8,
                    release=rng.choice((0.0, 0.0, 0.05)),
                    modify=rng.choice((0.0, 0.0, 0.05)),
                    stall_s=rng.choice((0.0, 0.0, 0.4)),
                    max_frame=rng.choice((512, 65536)),
                )
            )
        if rng.random() < 0.15:
            clients.append(ClientPlan("browser", f"b{number}", queue, start_s=rng.uniform(0.2, duration_s), window=20))
    return clients


def _passing(rng: Random, kinds: tuple[str, ...], duration_s: float) -> list[ClientPlan]:
    """Clients of what comes and goes. `news` may be bound to `scratch`; what comes by an exchange is a consumer's own copy."""
    nodes = [node for node, needs in PASSING.items() if needs in kinds or (not needs and rng.random() < 0.1)]
    clients = []
    for node in nodes:
        if rng.random() < 0.5:
            name, copied = node.replace(".", "-"), node in EXCHANGES
            start_s = rng.uniform(0.3, duration_s / 2)
            arrives = {"news": ("news", "scratch"), "amq.topic": ("amq.topic",)}.get(node)
            back = 0.0 if copied else 0.05
            producer = ClientPlan("producer", f"p-{name}", node, start_s=start_s, count=40, gap_s=0.1, resend=False)
            clients.append(replace(producer, arrives=arrives, sure=not copied, needed=False))
            clients.append(ClientPlan("consumer", f"c-{name}", node, start_s=start_s, window=5, release=back, modify=back))
    return clients


def _actions(rng: Random, kinds: tuple[str, ...], hosts: int, duration_s: float) -> list[Action]:
    count = rng.randint(1, min(_MOST_ACTIONS, 4 + 3 * len(kinds)))
    begin_s = rng.choices((0.1, min(1.0, duration_s / 2)), (3, 7))[0]
    actions = [_action(rng, rng.choice(kinds), hosts, rng.uniform(begin_s, duration_s)) for _ in range(count)]
    return sorted(actions, key=lambda action: action.at_s)


def _action(rng: Random, kind: str, hosts: int, at_s: float) -> Action:
    at_s = round(at_s, 4)
    who: Any = rng.choices((rng.randrange(hosts), "primary", "backup"), (5, 3, 2))[0]
    other: Any = rng.choices((rng.randrange(hosts), "primary", "backup"), (5, 3, 2))[0]
    short, long = round(rng.uniform(0.01, 0.6), 4), round(rng.uniform(0.1, 2.5), 4)
    choice = rng.random()
    match kind:
        case "kill" | "power" | "wipe" | "rot" | "lose-file" | "stop" | "blackout":
            return Action(at_s, kind, who, seconds=rng.choice((short, long)), choice=choice)
        case "freeze" | "isolate" | "slow-disk" | "full":
            return Action(at_s, kind, who, seconds=rng.choice((short, long)), choice=choice)
        case "one-way" | "partial" | "slow":
            return Action(at_s, kind, who, other, seconds=rng.choice((short, long)), choice=choice)
        case "storm":
            return Action(at_s, kind, choice=choice)
        case "promote-two" | "switchover":
            return Action(at_s, kind, who, other, choice=choice)
        case _:
            return Action(at_s, kind, who, seconds=long if kind in ("split", "manager-freeze") else short, choice=choice)
