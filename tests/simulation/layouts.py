"""What some runs have besides queues that every broker has: exchanges, dead letters, and queues whose messages one
broker keeps.

Life of a layout: `laid_out` draws it. It adds to a plan the steps that create it, one after the other, and clients for
it. Producers that send through an exchange start late, when the bindings exist. From then on the queues of each message
are known in advance. `ClientPlan.arrives` lists them, so that each queue can be checked.

Invariant: a layout changes nothing that a plan had before, with few exceptions: which clients send through the hub,
which reject, which settle, and which give their messages a priority; and with a hoard, how large files and messages
are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from broker.core.duplicates import COUNT
from broker.core.nodes import DELIVERY_LIMIT, RETRY_MAX, RETRY_MIN
from tests.simulation.clients import ClientPlan

if TYPE_CHECKING:
    from tests.simulation.plan import Plan

LETTERS, LETTER_EXCHANGE = "dead", "dlx"
HUB, SPILL = "hub", "spill"
LEVELS = (2, 3, 10)
ALL_BROKERS = "all brokers"
"""In the place of a URL, where a step names one: that of the cluster."""
HOARD = "hoard"
ONCE = "once"
TILL, TARGETS = "till", ("books", "stock")
UNDRAINED = {HOARD, *TARGETS}
"""Queues that nobody need have emptied at the end."""
BRIEF = "brief"
RING = "ring"
VALUES = "values"
GROUPS = "groups"
SHARES = "shares"
BRIEF_S = 1
PICKED = "picked"
SELECTS = (((0, 1), (1, 2)), ((0,), (1,), (2,)), ((0, 1, 2), (1,)))
"""What the consumers of the picked queue select, together everything."""
PRIORITIES = (None, 0, 3, 4, 5, 6, 9)
KEPT, MINE = "kept", "mine"
MOVED = "moved"
FEED = "feed"
FETCHED, FROM = "fetched", "from"
"""Where a route ends, and where it begins."""
ASIDE, BESIDE = "aside", "beside"
"""Where an operator moves messages from, and to."""
LEFT = "left"
"""The alternate exchange of the first of them, if the operator deletes it instead."""
NUMBERED = "numbered"
TICKER, TICKS = "ticker", "ticks"
"""An exchange that numbers and keeps what goes through it, and the queue that has all of it."""
BIND_AGAIN = "BIND AGAIN"
"""In the place of an operation: new queues are bound to the exchange of that name, one after the other."""
KEPT_LONG, KEPT_MS = "kept-long", 150
ROUTES: dict[str, tuple[tuple[str, str, str], dict[str, str]]] = {
    "fanout": (("", "", ""), {"": "abc", "/x": "abc"}),
    "direct": (("x", "y", "x"), {"/x": "ac", "/y": "b", "/z": "s"}),
    "topic": (("a.*", "a.#", "*.b"), {"/a.b": "abc", "/a": "b", "/a.b.c": "b", "/d.b": "c", "/e": "s"}),
}
"""By type of exchange: the keys by which the first queue, the last one and the kept one are bound, and for each subject the
queues (a, b, c; s: the one behind the alternate exchange) that it goes to."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something to create: a management request's type, name ("" for what has none), body and operation."""

    kind: str
    name: str
    body: dict[str, Any]
    operation: str = "CREATE"


def arguments(most: int, levels: int) -> dict[str, Any]:
    """What a request to create a queue says of its `max_counts`, and of its levels of priority, by one of their three names."""
    found = {"qpid.max_count": most} if most else {}
    if levels:
        found |= {"x-max-priority": levels - 1} if levels > 9 else {("x-qpid-priorities", "qpid.priorities")[levels % 2]: levels}
    return {"arguments": found} if found else {}


def levels_of(body: dict[str, Any]) -> int:
    """How many levels of priority such a request asks for."""
    asked = body.get("arguments", {})
    return int(asked.get("x-qpid-priorities", asked.get("qpid.priorities", asked.get("x-max-priority", -1) + 1)))


def ring_of(body: dict[str, Any]) -> int:
    """How many messages such a request asks a ring to keep; 0 when it asks for none."""
    asked = body.get("arguments", {})
    return int(asked["qpid.max_count"]) if asked.get("qpid.policy_type") == "ring" else 0


def laid_out(plan: Plan, rng: Random) -> Plan:
    """The plan with a layout, or with none."""
    ranks = Random(f"levels of {plan.seed}")
    kept = rng.random() < 0.2
    if ranks.random() < 0.35:
        plan = with_levels(plan, [ranks.choice((0, *LEVELS)) for _ in plan.queues[:-1]] + [ranks.choice(LEVELS)])
    if kept:
        levels = (
            ranks.choice((0, *LEVELS)) if not plan.puts_back else 0
        )  # an older release refuses a log of its own that needs more
        plan = with_kept(plan, KEPT, "configuration", _taker(plan, rng), levels=levels)
    limits = Random(f"delivery limit of {plan.seed}")
    limit = limits.choice((0, 1, 2, 5))
    if rng.random() < 0.12:
        plan = with_kept(plan, MINE, "none", _taker(plan, rng))
    if rng.random() < 0.3:
        level = rng.choice(("all", "configuration"))
        plan = with_letters(plan, level, reject=rng.choice((0.05, 0.3)), limit=limit, fail=limits.choice((0.1, 0.4)))
    if rng.random() < 0.3:
        kind = rng.choice(list(ROUTES))
        level = rng.choice(("all", "all", "configuration", "none"))
        plan = with_hub(plan, kind, level, rng.choice(list(ROUTES[kind][1])), kept=kept)
    if rng.random() < 0.15:
        plan = settling(plan, rng.choice(("producer", "consumer")))
    plan = _with_kinds(plan)
    if Random(f"hoard of {plan.seed}").random() < 0.15:
        plan = with_hoard(plan)
    if Random(f"duplicates of {plan.seed}").random() < 0.15:
        plan = with_duplicates(plan)
    times = Random(f"times of {plan.seed}")
    if times.random() < 0.3 and "jump" not in plan.kinds:
        ttls_ms = times.choice(((0,), (0, 0, 300, 1000), (0, 40, 200)))
        plan = with_times(plan, ttls_ms, times.choice(((0,), (0, 0, 0, 200, 900), (0, 30))))
    works = Random(f"transactions of {plan.seed}")
    if works.random() < 0.2:
        stay_s = works.choice((0.0, 0.5))
        plan = with_transactions(plan, settle_delay_s=works.choice((0.0, 0.0, 0.3)), stay_s=stay_s, away_s=stay_s / 2)
    brief = Random(f"brief of {plan.seed}")
    if brief.random() < 0.25:
        made_at_s = sorted(brief.uniform(0.3, plan.duration_s) for _ in range(3))
        level = "all" if plan.puts_back else brief.choice(("all", "all", "configuration", "none"))
        away_s, sends_s = brief.choice((0.5, 0.8, 1.5)), brief.choice((0.3, 0.3, 2.5))
        plan = with_brief(plan, level, away_s=away_s, made_at_s=made_at_s, sends_s=sends_s)
    picks = Random(f"what is picked of {plan.seed}")
    if picks.random() < 0.15:
        back = picks.choice((0.0, 0.1))
        fields: dict[str, Any] = {
            "window": picks.choice((1, 10, 50)),
            "release": back,
            "modify": back,
            "settle_delay_s": picks.choice((0.0, 0.4)),
        }
        levels = picks.choice((0, 3)) if not plan.puts_back else 0
        plan = with_selectors(plan, picks.choice(SELECTS), levels=levels, **fields)
    return _with_newest(plan)


def _with_newest(plan: Plan) -> Plan:
    """The plan with what needs the newest machine version, or without: an older member keeps the cluster below it."""
    if plan.releases:
        return plan
    moves = Random(f"moves of {plan.seed}")
    if moves.random() < 0.15:
        window, size = moves.choice((1, 10, 50)), moves.choice(((24, 60), (40, 3_000)))
        plan = with_moves(plan, window=window, size=size)
    numbers = Random(f"numbers of {plan.seed}")
    if numbers.random() < 0.15:
        window, size = numbers.choice((1, 10, 50)), numbers.choice(((24, 60), (40, 3_000)))
        plan = with_numbers(plan, window=window, size=size)
    subscribed = Random(f"subscriptions of {plan.seed}")
    if subscribed.random() < 0.15:
        back = subscribed.choice((0.0, 0.1))
        plan = with_subscriptions(plan, subscribed.choice(((0, 1, 2), (0, 1))), release=back, modify=back)
    keeps = Random(f"consumers' time of {plan.seed}")
    if keeps.random() < 0.15:
        plan = with_overdue(plan, alone=keeps.random() < 0.5)
    routed = Random(f"routes of {plan.seed}")
    if routed.random() < 0.15:
        plan = with_route(plan, window=routed.choice((1, 10, 50)), size=routed.choice(((24, 60), (40, 3_000))))
    ticks = Random(f"ticks of {plan.seed}")
    if ticks.random() < 0.15:
        plan = with_ticker(plan, window=ticks.choice((1, 10, 50)))
    return plan


def with_times(plan: Plan, ttls_ms: Sequence[int], delays_ms: Sequence[int]) -> Plan:
    """The producers choose a time to live and a delay for each message."""
    return _changed(
        plan, lambda item: item.kind == "producer" and not item.selects, ttls_ms=tuple(ttls_ms), delays_ms=tuple(delays_ms)
    )


def with_selectors(plan: Plan, selects: Sequence[tuple[int, ...]], *, levels: int = 0, **fields: Any) -> Plan:
    """A queue whose consumers each take what their selectors name."""
    sends: dict[str, Any] = {"count": 80, "gap_s": 0.06, "selects": (0, 1, 2), "priorities": PRIORITIES if levels else (None,)}
    producer = ClientPlan("producer", f"p-{PICKED}", PICKED, **sends)
    consumers = [
        ClientPlan("consumer", f"c{number}-{PICKED}", PICKED, selects=each, **fields) for number, each in enumerate(selects)
    ]
    return _with(plan, [Step("queue", PICKED, {"replicate": "all", **arguments(0, levels)})], [producer, *consumers])


def _with_kinds(plan: Plan) -> Plan:
    """The plan with queues of some kinds, or with none: each is drawn for itself."""
    ring = Random(f"ring of {plan.seed}")
    if ring.random() < 0.2:
        plan = with_ring(plan, ring.choice((1, 5, 20)))
    values = Random(f"values of {plan.seed}")
    if values.random() < 0.2:
        plan = with_values(plan, values.choice((1, 4, 12)))
    grouped = Random(f"groups of {plan.seed}")
    if grouped.random() < 0.2:
        keys, shared = grouped.choice((1, 3, 10)), grouped.random() < 0.5
        plan = with_groups(plan, keys, shared=shared, owned=not shared and grouped.random() < 0.5)
    shares = Random(f"shares of {plan.seed}")
    if shares.random() < 0.15:
        plan = with_shares(plan, shares.choice((1, 4)))
    return plan


def with_levels(plan: Plan, levels: Sequence[int]) -> Plan:
    """The queues have so many levels of priority (0: none), and the producers choose a priority for each message."""
    plan = replace(plan, levels=tuple(levels))
    return _changed(plan, lambda item: item.kind == "producer", priorities=PRIORITIES)


def with_transactions(plan: Plan, **fields: Any) -> Plan:
    """A client consumes from one queue, and sends two messages for each to two others, in transactions."""
    steps = [Step("queue", name, {"replicate": "all"}) for name in (TILL, *TARGETS)]
    clients = [
        ClientPlan("producer", f"p-{TILL}", TILL, needed=False, count=60, burst=4, gap_s=0.05, start_s=0.5),
        ClientPlan("transactor", "t", TILL, start_s=0.6, size=(24, 200), **fields),
    ]
    return _with(plan, steps, clients)


def with_duplicates(plan: Plan, **fields: Any) -> Plan:
    """A queue that detects duplicates; its producer gives ids, and sends again what it does not know the outcome of."""
    sends = {"start_s": 0.6, "count": 150, "burst": 6, "gap_s": 0.03, "window": 20}
    clients = [
        ClientPlan("repeater", f"p-{ONCE}", ONCE, **sends | fields),
        ClientPlan("consumer", f"c-{ONCE}", ONCE, start_s=0.5, window=20),
    ]
    return _with(plan, [Step("queue", ONCE, {"replicate": "all", "arguments": {COUNT: 60}})], clients)


def with_brief(plan: Plan, level: str, *, away_s: float, made_at_s: Sequence[float], sends_s: float = 0.3) -> Plan:
    """A queue of this level that goes after a time without a user, asked for again and again; its users come and go, and its
    producer stays for about `sends_s`."""
    fields: dict[str, Any] = {"start_s": made_at_s[0] + 0.2, "needed": False, "away_s": away_s}
    clients = [
        ClientPlan("producer", f"p-{BRIEF}", BRIEF, stay_s=sends_s, count=40, gap_s=0.05, **fields),
        ClientPlan("consumer", f"c-{BRIEF}", BRIEF, stay_s=0.3, window=5, **fields),
    ]
    return _with(replace(plan, brief=level, brief_at_s=tuple(made_at_s)), [], clients)


def with_moves(plan: Plan, **fields: Any) -> Plan:
    """Another store's queue is moved to this cluster, to consumers that take the messages as they come."""
    steps = [
        Step("queue", MOVED, {"replicate": "all"}),
        Step("drain", "", {"drain": "d", "store": "s", "queue": "there", "into": MOVED}, "TAKE"),
    ]
    sends: dict[str, Any] = {"arrives": (MOVED,), "late": True, "count": 120, "burst": 8, "gap_s": 0.03}
    mover = ClientPlan("mover", f"m-{MOVED}", "$drain/d/there", **sends | fields)
    return _with(plan, steps, [mover, ClientPlan("consumer", f"c-{MOVED}", MOVED, start_s=0.5, window=20)])


def with_numbers(plan: Plan, **fields: Any) -> Plan:
    """A producer numbers what it sends, and sends again what it does not know the outcome of."""
    sends: dict[str, Any] = {"start_s": 0.6, "count": 120, "burst": 8, "gap_s": 0.03, "window": 20}
    clients = [
        ClientPlan("numbered", f"m-{NUMBERED}", NUMBERED, **sends | fields),
        ClientPlan("consumer", f"c-{NUMBERED}", NUMBERED, start_s=0.5, window=20),
    ]
    return _with(plan, [Step("queue", NUMBERED, {"replicate": "all"})], clients)


def with_subscriptions(plan: Plan, selects: tuple[int, ...], **fields: Any) -> Plan:
    """An exchange with a durable subscription, whose client comes and goes, and with another one that is made and ended again and
    again. Who publishes comes when the first one stands: it is bound then."""
    taken, ended = f"s-{FEED}", f"e-{FEED}"
    queue = f"{taken}.{taken}"
    steps = [Step("exchange", FEED, {"exchangeType": "fanout", "replicate": "all"}), _binding(FEED, queue, "")]
    stays: dict[str, Any] = {"start_s": 0.5, "needed": False, "stay_s": 0.4}
    clients = [
        ClientPlan("publisher", f"p-{FEED}", FEED, (queue,), late=True, count=120, gap_s=0.03, selects=selects),
        ClientPlan("subscriber", taken, FEED, (queue,), away_s=0.3, selects=selects, **stays | fields),
        ClientPlan("leaver", ended, FEED, (f"{ended}.{ended}",), away_s=0.1, **stays),
    ]
    return _with(plan, steps, clients)


def with_ticker(plan: Plan, **fields: Any) -> Plan:
    """An exchange that numbers what goes through it and keeps the last of it; queues are bound to it all the while."""
    asked = {"arguments": {"qpid.msg_sequence": 1, "qpid.ive": 1}}
    steps = [
        Step("exchange", TICKER, {"exchangeType": "fanout", "replicate": "all", **asked}),
        Step("queue", TICKS, {"replicate": "all"}),
        _binding(TICKER, TICKS, ""),
        Step("binding", TICKER, {}, BIND_AGAIN),
    ]
    sends: dict[str, Any] = {"arrives": (TICKS,), "late": True, "count": 150, "burst": 6, "gap_s": 0.03}
    clients = [
        ClientPlan("producer", f"p-{TICKS}", TICKER, **sends | fields),
        ClientPlan("consumer", f"c-{TICKS}", TICKS, start_s=0.5, window=20, release=0.05, modify=0.05),
    ]
    return _with(plan, steps, clients)


def with_overdue(plan: Plan, *, alone: bool) -> Plan:
    """A queue whose consumers have a time for each message, and keep some for longer; `alone`: one at a time gets any."""
    body = {"replicate": "all", "arguments": {"x-consumer-timeout": KEPT_MS, "x-single-active-consumer": alone}}
    fields: dict[str, Any] = {"start_s": 0.6, "window": 5, "settle_delay_s": 2.5 * KEPT_MS / 1000}
    clients = [
        ClientPlan("producer", f"p-{KEPT_LONG}", KEPT_LONG, count=80, burst=4, gap_s=0.05, window=20),
        *(ClientPlan("consumer", f"c-{KEPT_LONG}-{each}", KEPT_LONG, **fields) for each in "ab"),
    ]
    return _with(plan, [Step("queue", KEPT_LONG, body)], clients)


def with_route(plan: Plan, **fields: Any) -> Plan:
    """A route within the cluster: what is sent to one queue comes to another one, where consumers take it."""
    steps = [
        Step("queue", FROM, {"replicate": "all"}),
        Step("queue", FETCHED, {"replicate": "all"}),
        Step("route", "", {"kind": "queue", "source": ALL_BROKERS, "exchange": FETCHED, "key": FROM}),
    ]
    sends: dict[str, Any] = {"arrives": (FETCHED,), "late": True, "count": 120, "burst": 8, "gap_s": 0.03, "resend": False}
    clients = [
        ClientPlan("fetched", f"f-{FETCHED}", FROM, **sends | fields),
        ClientPlan("consumer", f"c-{FETCHED}", FETCHED, start_s=0.5, window=20),
    ]
    return _with(plan, steps, clients)


def with_operator(plan: Plan, *, deletes: bool = False, arguments: Mapping[str, Any] | None = None, **fields: Any) -> Plan:
    """What is sent to one queue is moved to another one by an operator (action `move`), where consumers take it. `deletes`: the
    operator deletes the queue again and again, and what is left on it goes there through its alternate exchange. `arguments`:
    those of the queue."""
    steps = [
        Step("queue", ASIDE, {"replicate": "all", "arguments": dict(arguments or {})}),
        Step("queue", BESIDE, {"replicate": "all"}),
    ]
    if deletes:
        steps = [
            steps[1],
            Step("exchange", LEFT, {"exchangeType": "fanout", "replicate": "all"}),
            _binding(LEFT, BESIDE, ""),
            Step("queue", ASIDE, {"replicate": "all", "alternateExchange": LEFT}),
        ]
    sends: dict[str, Any] = {"arrives": (BESIDE,), "late": True, "count": 150, "burst": 8, "gap_s": 0.02, "resend": False}
    clients = [
        ClientPlan("fetched", f"o-{BESIDE}", ASIDE, **sends | fields),
        ClientPlan("consumer", f"c-{BESIDE}", BESIDE, start_s=0.5, window=20),
    ]
    return _with(plan, steps, clients)


def with_hoard(plan: Plan) -> Plan:
    """A queue that nobody empties gets a message now and then, among many large ones elsewhere that come and go; files are small.
    So what is alive lies scattered in files that are mostly dead."""
    plan = replace(plan, segment_bytes=8192)
    plan = _changed(plan, lambda item: item.kind == "producer" and item.queue == plan.queues[0], size=(600, 3000), count=200)
    producer = ClientPlan("producer", f"p-{HOARD}", HOARD, needed=False, count=80, burst=2, gap_s=0.05, size=(40, 300))
    return _with(plan, [Step("queue", HOARD, {"replicate": "all"})], [producer])


def with_ring(plan: Plan, most: int) -> Plan:
    """A queue that keeps its newest messages, so many, and a consumer that is slower than what comes."""
    body = {"replicate": "all", "arguments": {"qpid.policy_type": "ring", "qpid.max_count": most}}
    clients = [
        ClientPlan("producer", f"p-{RING}", RING, count=150, burst=6, gap_s=0.02, window=30),
        ClientPlan("consumer", f"c-{RING}", RING, start_s=0.6, window=3, settle_delay_s=0.1, release=0.1),
    ]
    return _with(plan, [Step("queue", RING, body)], clients)


def with_values(plan: Plan, keys: int) -> Plan:
    """A queue that keeps the newest message of each of so many keys, and a consumer that is slower than what comes."""
    body = {"replicate": "all", "arguments": {"qpid.last_value_queue_key": "k"}}
    clients = [
        ClientPlan("producer", f"p-{VALUES}", VALUES, count=150, burst=6, gap_s=0.03, window=30, keys=keys),
        ClientPlan("consumer", f"c-{VALUES}", VALUES, start_s=0.6, window=3, settle_delay_s=0.1, release=0.1),
    ]
    return _with(plan, [Step("queue", VALUES, body)], clients)


def with_groups(plan: Plan, keys: int, *, shared: bool = False, owned: bool = False) -> Plan:
    """A queue whose messages are of so many groups, and consumers that compete for them and give some back. `owned`: its groups
    have owners in the log; one more consumer comes and goes in order, and another one has a new name each time."""
    asked = {"qpid.group_header_key": "k", "qpid.shared_msg_group": int(shared)}
    body = {"replicate": "all", "arguments": asked | ({"qpid.group_owner_timeout": 1} if owned else {})}
    fields: dict[str, Any] = {"start_s": 0.6, "window": 5, "settle_delay_s": 0.05, "release": 0.1, "modify": 0.05}
    clients = [
        ClientPlan("producer", f"p-{GROUPS}", GROUPS, count=120, burst=6, gap_s=0.03, window=30, keys=keys),
        *(ClientPlan("consumer", f"c-{GROUPS}-{each}", GROUPS, **fields) for each in "ab"),
    ]
    if owned:
        clients.append(ClientPlan("consumer", f"c-{GROUPS}-c", GROUPS, stay_s=0.4, away_s=0.2, **fields))
        clients.append(ClientPlan("stranger", f"c-{GROUPS}-d", GROUPS, **fields))
    return _with(plan, [Step("queue", GROUPS, body)], clients)


def with_shares(plan: Plan, share: int) -> Plan:
    """A queue with three levels of priority, each of which gives out so many messages in a row, and a slow consumer."""
    body = {"replicate": "all", "arguments": {"qpid.priorities": 3, "qpid.fairshare": share}}
    clients = [
        ClientPlan("producer", f"p-{SHARES}", SHARES, count=120, burst=6, gap_s=0.03, window=30, priorities=PRIORITIES),
        ClientPlan("consumer", f"c-{SHARES}", SHARES, start_s=0.6, window=5, settle_delay_s=0.05, release=0.1),
    ]
    return _with(plan, [Step("queue", SHARES, body)], clients)


def settling(plan: Plan, kind: str) -> Plan:
    """The last queue's producers, or its consumers, settle what is sent when it is sent, and take their chance."""
    return _changed(plan, lambda item: item.kind == kind and item.queue == plan.queues[-1], settled=True)


def _taker(plan: Plan, rng: Random) -> dict[str, Any]:
    """How clients of a kept queue go about it."""
    back = rng.choice((0.0, 0.1))
    start_s = rng.uniform(0.2, plan.duration_s / 2)
    return {"start_s": start_s, "window": rng.choice((1, 10, 50)), "release": back, "modify": back}


def with_kept(plan: Plan, name: str, level: str, fields: dict[str, Any], *, levels: int = 0) -> Plan:
    """A queue whose messages stay with the broker that took them, with so many levels of priority."""
    needed = level != "none"  # another primary has no such queue
    sends = {"count": 60, "gap_s": 0.1, "priorities": PRIORITIES if levels else (None,)}
    producer = ClientPlan("producer", f"p-{name}", name, needed=needed, **sends | fields)
    consumer = ClientPlan("consumer", f"c-{name}", name, **fields)
    return _with(plan, [Step("queue", name, {"replicate": level, **arguments(0, levels)})], [producer, consumer])


def with_letters(plan: Plan, level: str, *, reject: float, limit: int = 0, fail: float = 0.0) -> Plan:
    """The first queue's consumers reject, and what they reject goes by an exchange of this level to a queue of its own; with a
    `limit`, so does what they `fail` to take so often."""
    queue = plan.queues[0]
    asked = arguments(plan.max_counts[0], plan.levels[0])
    if limit:
        asked = {
            "arguments": asked.get("arguments", {})
            | {DELIVERY_LIMIT: limit}
            | ({RETRY_MIN: 30, RETRY_MAX: 50} if limit > 1 and "jump" not in plan.kinds else {})
        }
    steps = [
        Step("exchange", LETTER_EXCHANGE, {"exchangeType": "fanout", "replicate": level}),
        Step("queue", LETTERS, {"replicate": "all"}),
        _binding(LETTER_EXCHANGE, LETTERS, ""),
        Step(
            "queue",
            queue,
            {"replicate": "all", "alternateExchange": LETTER_EXCHANGE, **asked},
        ),
    ]
    how = {"reject": reject, "modify": fail} if limit else {"reject": reject}
    plan = _changed(plan, lambda item: item.kind == "consumer" and item.queue == queue, **how)
    return _with(plan, steps, [ClientPlan("consumer", f"c-{LETTERS}", LETTERS, start_s=1.0, window=10)])


def with_hub(plan: Plan, kind: str, level: str, subject: str, *, kept: bool) -> Plan:
    """The first producer sends through an exchange, to several queues or to another one by the alternate exchange."""
    keys, subjects = ROUTES[kind]
    queues = {"a": plan.queues[0], "b": plan.queues[-1], "s": plan.queues[-1]} | ({"c": KEPT} if kept else {})
    steps = [
        Step("exchange", SPILL, {"exchangeType": "fanout", "replicate": "all"}),
        _binding(SPILL, queues["s"], ""),
        Step("exchange", HUB, {"exchangeType": kind, "replicate": level, "alternateExchange": SPILL}),
        *(_binding(HUB, queues[each], key) for each, key in zip("abc", keys, strict=True) if each in queues),
    ]
    arrives = tuple(dict.fromkeys(queues[each] for each in subjects[subject] if each in queues)) or (queues["s"],)
    first = next(item.name for item in plan.clients if item.kind == "producer")
    fields = {"queue": HUB + subject, "arrives": arrives, "late": True, "needed": level != "none"}
    return _with(_changed(plan, lambda item: item.name == first, **fields), steps, [])


def _binding(exchange: str, queue: str, key: str) -> Step:
    return Step("binding", "", {"exchange": exchange, "queue": queue, "key": key})


def _changed(plan: Plan, which: Callable[[ClientPlan], bool], **fields: Any) -> Plan:
    items = {
        number: replace(item, **fields) if isinstance(item, ClientPlan) and which(item) else item
        for number, item in plan.items.items()
    }
    return replace(plan, items=items)


def _with(plan: Plan, steps: list[Step], clients: list[ClientPlan]) -> Plan:
    items = plan.items | dict(enumerate(clients, len(plan.items)))
    return replace(plan, items=items, steps=(*plan.steps, *steps))
