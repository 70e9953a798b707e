"""Subscriptions that are known by a name: what they are asked for, their queues' names, and what comes onto those."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core import limits
from broker.core.commands import SUBSCRIPTIONS_SINCE, Bind, MachineVersion, QueueAdd, QueueDel, decode
from broker.core.filters import NO_LOCAL, SELECTOR, TOPIC_BINDING
from broker.core.nodes import CLUSTER, LOCAL, Nodes, Refused
from broker.core.planning import plan_queue, plan_subscription
from broker.core.state import State
from broker.core.subscriptions import NOWHERE, Terms, base64_of, named
from tests.broker.core.definitions import exchange
from tests.broker.core.test_nodes import Two

ANN = Terms("ann", "news", "amq.topic", shared=False, lasting=True)
TOPIC = Bind(exchange="amq.topic", queue="u", key="#")


def filters(**asked: str) -> str:
    """A source's filters, as terms hold them: names of descriptors by key."""
    data: Any = proton.Data()
    asked_for = {proton.symbol(key): (proton.symbol(name), "n > 1" if name == SELECTOR else "x") for key, name in asked.items()}
    data.put_dict({key: proton.Described(*each) for key, each in asked_for.items()})
    return base64_of(data.encode())


def message(n: int) -> bytes:
    return bytes(proton.Message(properties={"n": n}).encode())


NAMES = st.text(st.sampled_from("ab.|%$\n24E"), max_size=6)


@given(st.lists(st.builds(Terms, NAMES, NAMES, st.just(""), st.just(False), st.booleans()), max_size=8))
@settings(deadline=None)
def test_two_subscriptions_have_one_queue_only_if_they_are_the_same(some: list[Terms]) -> None:
    assert len({each.queue for each in some}) == len(set(some))
    for each in some:
        assert not each.queue.startswith("$")
        assert all(ord(letter) >= 32 for letter in each.queue)


def test_the_name_of_a_shared_subscription_ends_at_the_delimiter() -> None:
    assert [named(link, shared=True) for link in ("news", "news|2", "news|global-volatile1")] == ["news"] * 3
    assert named("a|b", shared=False) == "a|b"


def test_terms_are_written_down_with_the_queue_and_read_again() -> None:
    terms = replace(ANN, filters=filters(a=SELECTOR))
    command = QueueAdd(needs=SUBSCRIPTIONS_SINCE, uuid="u", name=terms.queue, level="all", subscription=terms.to_dict())
    found = decode(command.text)
    assert isinstance(found, QueueAdd)
    assert Terms.of(found.subscription) == terms
    assert "subscription" not in json.loads(QueueAdd(uuid="u", name="q", level="all").text), "a plain queue says nothing of it"


def test_the_same_filters_in_another_order_ask_for_the_same() -> None:
    both = {"a": SELECTOR, "b": TOPIC_BINDING}
    one, other = replace(ANN, filters=filters(**both)), replace(ANN, filters=filters(**dict(reversed(both.items()))))
    assert one.filters != other.filters
    assert one.means(other)
    assert not one.means(ANN)
    assert not ANN.means(replace(ANN, address="amq.topic/a"))


@pytest.mark.parametrize(
    "names,wanted",
    [
        ([], None),
        ([TOPIC_BINDING], None),
        ([SELECTOR], [False, True, True, True]),
        ([NO_LOCAL], [True, True, False, True]),
        ([NO_LOCAL, SELECTOR], [False, True, False, True]),
    ],
)
def test_a_gate_lets_through_what_the_filters_do(names: list[str], wanted: list[bool] | None) -> None:
    gate = replace(ANN, filters=filters(**{f"f{n}": name for n, name in enumerate(names)}) if names else "").gate()
    came = [(1, NOWHERE), (2, (7, "bob")), (2, (8, "ann")), (3, NOWHERE)]
    assert (None if gate is None else [gate(message(n), origin) for n, origin in came]) == wanted


def test_a_subscription_s_queue_is_in_the_log_of_its_exchange_if_it_is_to_stay() -> None:
    two = Two()
    two.apply(CLUSTER, json.loads(MachineVersion(needs=SUBSCRIPTIONS_SINCE).text))
    two.apply(LOCAL, exchange("here", level="none"))
    for terms, bound, log in (
        (ANN, TOPIC, CLUSTER),
        (replace(ANN, lasting=False, shared=True), TOPIC, LOCAL),
        (replace(ANN, name="other"), Bind(exchange="x-here", queue="v", key=""), LOCAL),
    ):
        planned, commands = plan_subscription(two.nodes, terms, bound.queue, bound, keep_s=60, owner="ann")
        assert planned == log
        two.apply(log, *(json.loads(each.text) for each in commands))
        node = two.nodes.queues[terms.queue]
        assert (node.terms, node.auto_delete_s, two.nodes.is_bound(node, bound)) == (terms, 60, True)
        assert node.definition.exclusive is not terms.shared
        two.apply(log, json.loads(QueueDel(uuid=node.uuid).text))
        assert not two.nodes.is_bound(node, bound)


def refusal(nodes: Nodes, terms: Terms = ANN, bound: Bind = TOPIC, *, keep_s: int = 0, **options: Any) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        plan_subscription(nodes, terms, "u", bound, keep_s=keep_s, owner="", **options)
    return caught.value.status, caught.value.text


def test_a_subscription_that_cannot_be_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two()
    status, text = refusal(two.nodes)
    assert (status, "until all its brokers are connected and support a newer one" in text) == (501, True)
    two.apply(CLUSTER, json.loads(MachineVersion(needs=SUBSCRIPTIONS_SINCE).text))
    assert refusal(two.nodes, replace(ANN, name="n" * limits.MAX_NAME_BYTES))[0] == 400
    assert refusal(two.nodes, keep_s=limits.MAX_AUTO_DELETE_S + 1)[0] == 400
    _, commands = plan_subscription(two.nodes, ANN, "u", TOPIC, keep_s=0, owner="")
    two.apply(CLUSTER, *(json.loads(each.text) for each in commands))
    old = two.nodes.queues[ANN.queue]
    log, commands = plan_subscription(two.nodes, ANN, "v", TOPIC, keep_s=0, owner="", instead_of=old)
    assert (log, commands[0]) == (CLUSTER, QueueDel(uuid="u"))
    two.apply(LOCAL, exchange("here", level="none"))
    here = Bind(exchange="x-here", queue="v", key="")
    assert "unsubscribe first" in refusal(two.nodes, bound=here, instead_of=old)[1]
    monkeypatch.setattr(limits, "MAX_BINDINGS_PER_EXCHANGE", 1)
    assert "bindings, its limit" in refusal(two.nodes, replace(ANN, name="b"))[1]
    monkeypatch.setattr(limits, "MAX_QUEUES", 1)
    assert "queues, its limit" in refusal(two.nodes, replace(ANN, name="b"))[1]


def test_an_older_broker_stops_at_the_queue_of_a_subscription() -> None:
    command = QueueAdd(needs=SUBSCRIPTIONS_SINCE, uuid="u", name="q", level="all", subscription=ANN.to_dict())
    assert "needs machine version 6" in getattr(decode(command.text, SUBSCRIPTIONS_SINCE - 1), "why", "")
    assert State().version >= SUBSCRIPTIONS_SINCE


def test_a_queue_that_stood_for_a_subscription_elsewhere_stands_for_it_here() -> None:
    two = Two()
    terms = replace(ANN, filters=filters(s=SELECTOR))
    log, command = plan_queue(two.nodes, "ann.news", "u", {"subscription": terms.to_dict(), "replicate": "none"})
    assert (log, command) == (LOCAL, QueueAdd(uuid="u", name="ann.news", level="none", subscription=terms.to_dict(), needs=6))
    two.plan((log, command))
    assert two.nodes.queues["ann.news"].terms == terms
    with pytest.raises(Refused, match="machine version 6"):
        plan_queue(two.nodes, "ann.news2", "u", {"subscription": replace(ANN, name="news2").to_dict(), "replicate": "all"})


@pytest.mark.parametrize(
    "wrong",
    [{"name": "m"}, {"lasting": False}, {"shared": 1}, {"address": 5}, {"filters": "A"}, {"filters": "!"}, {"x": 1}, {"name": 5}],
)
def test_what_means_another_subscription_or_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="cannot be the queue of") as refused:
        plan_queue(Two().nodes, "ann.news", "u", {"subscription": ANN.to_dict() | wrong})
    assert refused.value.status == 400
