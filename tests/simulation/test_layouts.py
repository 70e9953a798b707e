"""Layouts: what must be created before which client, and which queues get a message."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import chain
from random import Random

import pytest

from broker.core.exchange import Exchange
from broker.core.queues import priority
from tests.simulation import plan as plans
from tests.simulation.clients import ClientPlan
from tests.simulation.layouts import (
    FEED,
    GROUPS,
    HOARD,
    HUB,
    KEPT,
    LETTERS,
    LEVELS,
    MINE,
    ONCE,
    RING,
    ROUTES,
    SHARES,
    SPILL,
    TICKER,
    TILL,
    VALUES,
    Step,
    arguments,
    laid_out,
    levels_of,
    ring_of,
    with_hub,
)
from tests.simulation.plan import Plan
from tests.simulation.regressions import quiet
from tests.simulation.test_world import FIXED


@pytest.mark.parametrize("kind, subject", [(kind, subject) for kind in ROUTES for subject in ROUTES[kind][1]])
def test_where_a_message_arrives_is_where_an_exchange_sends_it(kind: str, subject: str) -> None:
    plan = with_hub(quiet(queues=("q0", "q1"), max_counts=(0, 0)), kind, "all", subject, kept=True)
    exchanges = {step.name: Exchange[str](step.name, step.body["exchangeType"]) for step in plan.steps if step.kind == "exchange"}
    for step in plan.steps:
        if step.kind == "binding":
            exchanges[step.body["exchange"]].bind(step.body["queue"], step.body["key"], {})
    found = exchanges[HUB].route(subject.removeprefix("/"), dict) or exchanges[SPILL].route("", dict)
    (sender,) = [client for client in plan.clients if client.queue == HUB + subject]
    assert sender.arrives is not None
    assert sorted(sender.arrives) == sorted(found)


def test_what_is_bound_is_made_before() -> None:
    """Queues that every broker has are made by themselves, whenever that is, and those of subscriptions by who subscribes."""
    for seed in FIXED:
        subscriptions = [client.arrives for client in plans.make(seed).clients if client.kind == "subscriber"]
        made = {*plans.make(seed).queues, *chain.from_iterable(each or () for each in subscriptions)}
        for step in plans.make(seed).steps:
            needs = {
                step.body.get("alternateExchange"),
                step.body.get("exchange"),
                step.body.get("into", step.body.get("queue")),
            } - {None}
            assert needs <= made, f"{step} of seed {seed}"
            made.add(step.name)


def test_the_fixed_seeds_have_every_part_of_a_layout() -> None:
    seen = {step.name for seed in FIXED for step in plans.make(seed).steps}
    assert {FEED, LETTERS, KEPT, MINE, HUB, SPILL, HOARD, ONCE, TICKER, TILL} <= seen
    hubs = {(step.body["exchangeType"], step.body["replicate"]) for seed in FIXED for step in _hubs(plans.make(seed))}
    assert {kind for kind, _ in hubs} == set(ROUTES)
    assert {level for _, level in hubs} == {"all", "configuration", "none"}
    settling = {client.kind for seed in FIXED for client in plans.make(seed).clients if client.settled}
    assert settling == {"producer", "consumer"}


def test_the_fixed_seeds_have_queues_with_levels_of_priority_on_every_broker_and_on_one() -> None:
    plans_made = [plans.make(seed) for seed in FIXED]
    assert {0, *LEVELS} <= {levels for plan in plans_made for levels in plan.levels}
    kept = [step for plan in plans_made for step in plan.steps if step.name == KEPT]
    assert {0, *LEVELS} == {levels_of(step.body) for step in kept}
    for plan in plans_made:
        ranks = any(plan.levels)
        assert all((len(each.priorities) > 1) == ranks for each in plan.clients if each.name in {"p0a", "p1a", "p2a"})


def test_the_fixed_seeds_have_queues_with_and_without_a_limit_of_failed_deliveries() -> None:
    asked = [
        step.body.get("arguments", {}) for seed in FIXED for step in plans.make(seed).steps if "alternateExchange" in step.body
    ]
    limits = {each.get("x-delivery-limit", 0) for each in asked}
    assert 0 in limits
    assert max(limits) > 1


@pytest.mark.parametrize("levels", [0, *LEVELS])
def test_a_request_to_create_a_queue_says_how_many_levels_it_has(levels: int) -> None:
    found = arguments(30, levels)
    assert levels_of(found) == priority.levels_of(found["arguments"]) == levels
    assert found["arguments"]["qpid.max_count"] == 30
    assert arguments(0, 0) == {}


def test_the_fixed_seeds_have_queues_that_go_after_a_time_of_every_level() -> None:
    assert {plans.make(seed).brief for seed in FIXED} == {"", "all", "configuration", "none"}


def test_the_fixed_seeds_have_levels_with_small_shares_and_with_larger_ones() -> None:
    steps = [step for seed in FIXED for step in plans.make(seed).steps if step.name == SHARES]
    assert {step.body["arguments"]["qpid.fairshare"] for step in steps} == {1, 4}


def test_the_fixed_seeds_have_rings_of_every_size() -> None:
    assert {ring_of(step.body) for seed in FIXED for step in plans.make(seed).steps if step.name == RING} == {1, 5, 20}


def test_the_fixed_seeds_have_last_value_queues_with_one_key_and_with_more() -> None:
    found = {client.keys for seed in FIXED for client in plans.make(seed).clients if client.queue == VALUES}
    assert found == {0, 1, 4, 12}


def test_the_fixed_seeds_have_queues_of_groups_of_all_kinds() -> None:
    found = [(step, plan) for plan in map(plans.make, FIXED) for step in plan.steps if step.name == GROUPS]
    asked = [step.body["arguments"] for step, _ in found]
    kinds = {(each["qpid.shared_msg_group"], "qpid.group_owner_timeout" in each) for each in asked}
    assert kinds == {(0, False), (0, True), (1, False)}
    assert {client.keys for _, plan in found for client in plan.clients if client.queue == GROUPS} == {0, 1, 3, 10}


def _hubs(plan: Plan) -> list[Step]:
    return [step for step in plan.steps if step.name == HUB]


def test_a_layout_changes_nothing_of_the_plan_but_who_sends_by_the_hub_who_rejects_who_settles_and_who_gives_priorities() -> None:
    for seed in range(50):
        before = quiet(seed=seed)
        after = laid_out(before, Random(seed))
        assert list(after.items)[: len(before.items)] == list(before.items)
        rest = replace(after, items=before.items, steps=(), levels=before.levels, brief="", brief_at_s=())
        hoards = any(step.name == HOARD for step in after.steps)
        assert replace(rest, segment_bytes=before.segment_bytes if hoards else rest.segment_bytes) == before
        changed = {"queue", "arrives", "late", "needed", "reject", "settled", "priorities"}
        changed |= {"size", "count"} if hoards else set()
        changed |= {"ttls_ms", "delays_ms"}
        changed |= {"modify"} if any("x-delivery-limit" in str(step.body) for step in after.steps) else set()
        for number, item in before.items.items():
            assert isinstance(item, ClientPlan)
            now = after.items[number]
            assert isinstance(now, ClientPlan)
            assert {each.name for each in fields(item) if getattr(item, each.name) != getattr(now, each.name)} <= changed
