"""The table of a queue's arguments in the reference, held against the code and against what qpidd has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from broker.core.nodes import CLUSTER, LOCAL, Nodes, Refused
from broker.core.passage import NAMES as OF_EXCHANGES
from broker.core.planning import KNOWN_ARGUMENTS, plan_queue
from broker.core.state import State

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
