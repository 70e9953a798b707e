"""The table of a queue's arguments in the reference, held against the code and against what qpidd has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from broker.core import planning
from broker.core.commands import MACHINE_VERSION
from broker.core.nodes import CLUSTER, LOCAL, Nodes, Refused
from broker.core.passage import NAMES as OF_EXCHANGES
from broker.core.planning import KNOWN_ARGUMENTS, plan_queue
from broker.core.state import State
from tests.broker.clients import ADMIN, bench, request

ROOT = Path(__file__).parent.parent.parent
QPIDD = {
    *("qpid.max_count", "qpid.max_size", "qpid.file_count", "qpid.file_size", "qpid.policy_type", "no-local", "qpid.browse-only"),
    *("qpid.trace.id", "qpid.trace.exclude", "qpid.last_value_queue_key", "qpid.last_value_queue", "qpid.LVQ_key"),
    *("qpid.last_value_queue_no_browse", "qpid.auto_delete_timeout", "qpid.alert_repeat_gap", "qpid.alert_count"),
    *("qpid.alert_size", "qpid.alert_count_up", "qpid.alert_size_up", "qpid.alert_count_down", "qpid.alert_size_down"),
    *("qpid.priorities", "qpid.fairshare", "x-qpid-fairshare", "qpid.paging", "qpid.max_pages_loaded", "qpid.page_factor"),
    *("qpid.filter", "qpid.lifetime-policy", "qpid.queue_msg_sequence", "qpid.group_header_key", "qpid.shared_msg_group"),
    *("qpid.group_timestamp", "qpid.flow_stop_count", "qpid.flow_stop_size", "qpid.flow_resume_count", "qpid.flow_resume_size"),
    *("x-qpid-priorities", "x-qpid-minimum-alert-repeat-gap", "x-qpid-maximum-message-count", "x-qpid-maximum-message-size"),
}
"""What QueueSettings.cpp of qpid-cpp takes, with the aliases."""
ROWS = re.findall(
    r"^\| `([\w.-]+)` \| (.*?) \|(?:.*?\|)? `(test_\w+)` \|$", (ROOT / "docs/reference/queue-arguments.md").read_text(), re.M
)
ATTRIBUTES = {"autoDelete", "exclusive", "alternateExchange", "durable"}
REFUSED = {name: effect for name, effect, _ in ROWS if effect.startswith("refused")}


def nodes() -> Nodes:
    made = Nodes(clustered=False)
    made.rebuild({LOCAL: State()})
    return made


def test_the_table_has_every_argument_of_qpidd_and_every_one_that_the_code_knows_once() -> None:
    named = [name for name, _, _ in ROWS]
    assert len(set(named)) == len(named)
    assert set(named) == QPIDD | KNOWN_ARGUMENTS | ATTRIBUTES | OF_EXCHANGES
    assert set(named) - set(REFUSED) - ATTRIBUTES - OF_EXCHANGES == KNOWN_ARGUMENTS


def test_every_row_names_a_test_that_is_there() -> None:
    there = {name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert [test for _, _, test in ROWS if test not in there] == []


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_that_has_no_effect_is_refused(name: str) -> None:
    """With what the table names instead of it, and no list of all others."""
    with pytest.raises(Refused, match=re.escape(repr(name))) as caught:
        plan_queue(nodes(), "q", "u", {"arguments": {name: 1}})
    assert caught.value.status == 501
    text = str(caught.value)
    assert [word for word in re.findall(r"`(.*?)`", REFUSED[name]) if word not in text] == []
    assert len(text) < 200


@pytest.mark.parametrize(
    "name,hint",
    [
        ("qpid.max_cont", "did you mean 'qpid.max_count' or 'qpid.alert_count'? "),
        ("qpid.Max-Size", "did you mean 'qpid.max_size'? "),
        ("x-nothing-like-it", ""),
        ("qpid.LVQ_key", "use 'qpid.last_value_queue_key'; "),
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest_ones_and_the_page(name: str, hint: str) -> None:
    with pytest.raises(Refused) as caught:
        plan_queue(nodes(), "q", "u", {"arguments": {name: 1}})
    page = "docs/reference/queue-arguments.md"
    assert str(caught.value) == f"queue 'q': this broker does not have '{name}' ({hint}{page} has all arguments)"
    assert (ROOT / page).exists()


def test_for_a_very_long_argument_no_near_one_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a request of 1 MiB takes half a second, in which no client is served."""
    looked_for: list[str] = []

    def look(name: str, known: list[str], n: int, cutoff: float) -> list[str]:
        looked_for.append(name)
        return []

    monkeypatch.setattr(planning, "get_close_matches", look)
    for name in ("qpid.max_cont", "qpid." + "max" * 300_000):
        with pytest.raises(Refused, match="this broker does not have"):
            plan_queue(nodes(), "q", "u", {"arguments": {name: 1}})
    assert looked_for == ["qpid.max_cont"]


def test_an_attribute_that_has_no_effect_is_refused() -> None:
    with pytest.raises(Refused, match="'lifetimePolicy'") as caught:
        plan_queue(nodes(), "q", "u", {"lifetimePolicy": "delete-on-close"})
    assert caught.value.status == 400


def test_every_argument_of_a_newer_release_waits_for_the_clusters_version() -> None:
    """Breaks when a member that does not know an argument could become primary and pass it over."""
    made = Nodes(clustered=True)
    made.rebuild({LOCAL: State(), CLUSTER: State()})
    values: dict[str, Any] = {"qpid.policy_type": "ring", "qpid.flow_stop_count": 5, "qpid.flow_stop_size": 5}
    for name, value in (values | {"qpid.browse-only": 1, "x-consumer-timeout": 5}).items():
        version = 6 if name == "x-consumer-timeout" else 5
        with pytest.raises(Refused, match=f"needs machine version {version}") as caught:
            plan_queue(made, "q", "u", {"replicate": "all", "arguments": {name: value}})
        assert caught.value.status == 409


def test_a_rise_of_the_clusters_version_counts_for_what_is_asked_after_it_and_is_not_committed_yet() -> None:
    """Breaks when the first clients of a new cluster are refused what it has one commit later."""
    asked = {"replicate": "all", "arguments": {"qpid.priorities": 4}}
    with bench(clustered=True) as b:
        client = b.client(ADMIN)
        reply, link = client.receiver(None, dynamic=True), client.sender("$management")
        b.lead.automatic = False
        b.upgraded()
        client.send_encoded(link, request("CREATE", "queue", "q", reply.remote_source.address, body=asked))
        assert b.broker.logs.lead.version == MACHINE_VERSION
        assert b.broker.logs.lead.state.definitions.machine_version == 1
        b.commit_all()
        messages = b.broker.nodes.queues["q"].messages
        assert messages is not None
        assert len(messages.order.lanes) == 4


def test_a_rise_of_the_clusters_version_that_ends_with_its_term_does_not_count() -> None:
    """Breaks when a broker that serves again proposes what a member of an older release stops at."""
    asked = {"replicate": "all", "arguments": {"qpid.priorities": 4}}
    with bench(clustered=True) as b:
        b.lead.automatic = False
        b.upgraded()
        b.lead.become("ready")
        b.lead.automatic = True
        b.lead.become("active")
        status, text, _ = b.client(ADMIN).request("CREATE", "queue", "q", asked)
        assert (status, "the cluster has version 1 until" in text) == (
            409,
            True,
        )
