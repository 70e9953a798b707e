"""Arguments of queues: which values are taken, which version each needs, and what an older queue's arguments mean."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core import duplicates
from broker.core.queues import arguments
from broker.core.queues.arguments import (
    Flow,
    Unknown,
    consumer_ms_of,
    fault_of,
    first_name,
    flow_of,
    in_force,
    policy_names,
    policy_of,
    repeated,
    version_of,
)


@pytest.mark.parametrize(
    "asked, word",
    [
        ({"qpid.max_count": -1}, "qpid.max_count must be a number of 0"),
        ({"qpid.flow_stop_count": True}, "qpid.flow_stop_count must be a number"),
        ({"qpid.browse-only": "yes"}, "qpid.browse-only must be 0 or 1"),
        ({"qpid.priorities": 0}, "qpid.priorities is 0"),
        ({"qpid.flow_resume_count": 3}, "qpid.flow_resume_count needs qpid.flow_stop_count"),
        ({"qpid.flow_stop_count": 3, "qpid.flow_resume_count": 4}, "qpid.flow_resume_count must not be more"),
        ({"qpid.flow_stop_size": 30, "qpid.max_size": 20}, "qpid.flow_stop_size must not be more than qpid.max_size"),
        ({"qpid.flow_stop_size": 3, "qpid.policy_type": "ring"}, "a ring never holds its producers back"),
        ({"qpid.fairshare": 2}, "qpid.fairshare needs levels of priority"),
        ({"qpid.fairshare-1": -2, "qpid.priorities": 2}, "qpid.fairshare-1 must be a number of 0"),
        ({"qpid.fairshare-2": 2, "qpid.priorities": 2}, "the highest of 2 is 1"),
        ({"qpid.shared_msg_group": 1}, "qpid.shared_msg_group needs qpid.group_header_key"),
        ({"qpid.group_header_key": "k", "qpid.last_value_queue_key": "k"}, "a queue cannot have"),
        ({"qpid.group_owner_timeout": 5}, "qpid.group_owner_timeout needs qpid.group_header_key"),
        ({"qpid.group_owner_timeout": 0, "qpid.group_header_key": "k"}, "must be a whole number of seconds from 1 to 86400"),
        ({"qpid.group_owner_timeout": 86_401, "qpid.group_header_key": "k"}, "must be a whole number of seconds"),
        ({"qpid.group_owner_timeout": 1.5, "qpid.group_header_key": "k"}, "must be a whole number of seconds"),
        ({"qpid.group_owner_timeout": True, "qpid.group_header_key": "k"}, "must be a whole number of seconds"),
        ({"qpid.group_owner_timeout": 5, "qpid.group_header_key": "k", "qpid.shared_msg_group": 1}, "does not keep them"),
        ({"qpid.group_owner_timeout": 5, "qpid.group_header_key": "k", "x-single-active-consumer": 1}, "exclude each other"),
        ({duplicates.COUNT: 0}, f"{duplicates.COUNT} is a number of ids"),
        ({duplicates.TIME_MS: 5}, f"{duplicates.TIME_MS} needs {duplicates.COUNT}"),
        ({"qpid.last_value_queue_key": ""}, "qpid.last_value_queue_key must be the name of a property"),
        ({"qpid.last_value_queue_key": "k", "qpid.priorities": 3}, "and levels of priority"),
        ({"x-consumer-timeout": 0}, "x-consumer-timeout must be a number of milliseconds from 1 to"),
        ({"x-consumer-timeout-ms": True}, "x-consumer-timeout-ms must be a number of milliseconds"),
        ({"x-consumer-timeout": 5, "x-consumer-timeout-ms": 5}, "two names of one argument"),
        ({"x-single-active-consumer": 2}, "x-single-active-consumer must be 0 or 1"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_what_would_do(asked: dict[str, Any], word: str) -> None:
    assert word in fault_of(asked)


@pytest.mark.parametrize(
    "names",
    [
        ("qpid.priorities", "x-qpid-priorities"),
        ("qpid.priorities", "x-max-priority"),
        ("x-qpid-fairshare", "qpid.fairshare"),
        ("x-qpid-fairshare-12", "qpid.fairshare-12"),
        ("x-consumer-timeout-ms", "x-consumer-timeout"),
        ("qpid.alert_size", "x-qpid-maximum-message-size"),
        ("x-qpid-minimum-alert-repeat-gap", "qpid.alert_repeat_gap"),
    ],
)
def test_two_names_of_one_argument_are_told(names: tuple[str, str]) -> None:
    one, other = names
    assert first_name(one) == first_name(other)
    assert repeated({one: 1, "our.note": 1, other: 1}) == f"{one} and {other} are names of one argument: say one of them"


def test_arguments_that_are_alike_are_not_the_same() -> None:
    assert repeated(dict.fromkeys(("qpid.fairshare", "qpid.fairshare-1", "x-qpid-fairshare-2", "qpid.fairshare-x"), 1)) == ""
    assert repeated(dict.fromkeys(("qpid.alert_size_up", "qpid.alert_count_up", "qpid.alert_count_down"), 1)) == ""


@pytest.mark.parametrize(
    "asked, word",
    [
        ({"no-local": 1}, "'no-local'"),
        ({"qpid.policy_type": "self-destruct"}, "'self-destruct'"),
        ({"qpid.policy_type": 3}, "policy 3"),
        ({"qpid.policy_type": "ring", "qpid.last_value_queue_key": "k"}, "last value queues that are rings"),
        ({"qpid.policy_type": "ring_strict", "x-max-priority": 3}, "ring_strict"),
    ],
)
def test_what_means_something_elsewhere_and_nothing_here_is_told_apart_from_what_cannot_be(
    asked: dict[str, Any], word: str
) -> None:
    with pytest.raises(Unknown, match=word):
        fault_of(asked)


@pytest.mark.parametrize(
    "asked, version",
    [
        ({}, 1),
        ({"qpid.max_count": 3, "qpid.policy_type": "reject", "our.note": "x"}, 1),
        ({"qpid.policy_type": "none"}, 1),
        ({"qpid.priorities": 1}, 1),
        ({"qpid.priorities": 2}, 2),
        ({"x-max-priority": 0}, 1),
        ({"qpid.policy_type": "ring"}, 5),
        ({"qpid.flow_stop_count": 3}, 5),
        ({"qpid.browse-only": 1}, 5),
        ({"x-qpid-fairshare-1": 3, "qpid.priorities": 2}, 5),
        ({"qpid.group_owner_timeout": 86_400, "qpid.group_header_key": "k", "qpid.shared_msg_group": 0}, 9),
    ],
)
def test_a_queue_needs_the_version_that_brought_the_last_of_its_arguments(asked: dict[str, Any], version: int) -> None:
    assert fault_of(asked) == ""
    assert version_of(asked) == version
    assert version_of(in_force(asked, version)) == version


def test_an_argument_that_an_older_release_wrote_without_meaning_it_is_not_in_force() -> None:
    """Breaks when a queue changes its kind because brokers are upgraded."""
    asked = {"qpid.policy_type": "ring", "qpid.priorities": 4, "qpid.max_count": 9, "our.note": 1}
    assert in_force(asked, 1) == {"qpid.max_count": 9}
    assert in_force(asked, 4) == {"qpid.priorities": 4, "qpid.max_count": 9}
    assert in_force(asked, 5) == {"qpid.policy_type": "ring", "qpid.priorities": 4, "qpid.max_count": 9}


@pytest.mark.parametrize(
    "asked, flow",
    [
        ({}, Flow(80, 800, 70, 700)),
        ({"qpid.flow_stop_count": 50}, Flow(50, 800, 50, 700)),
        ({"qpid.flow_stop_count": 50, "qpid.flow_resume_count": 20}, Flow(50, 800, 20, 700)),
        ({"qpid.flow_stop_size": 0}, Flow(80, 0, 70, 0)),
        ({"qpid.policy_type": "ring"}, Flow()),
    ],
)
def test_producers_wait_from_where_it_is_said_or_near_the_limits_and_a_rings_never(asked: dict[str, Any], flow: Flow) -> None:
    assert flow_of(asked, 100, 1000, 0.8, 0.7) == flow


@pytest.mark.parametrize("asked, ms", [({}, 0), ({"x-consumer-timeout": 5}, 5), ({"x-consumer-timeout-ms": 6}, 6)])
def test_consumers_have_the_time_that_either_name_says(asked: dict[str, Any], ms: int) -> None:
    assert fault_of(asked) == ""
    assert consumer_ms_of(asked) == ms


def test_none_asks_for_no_policy_in_particular_and_gets_the_default() -> None:
    assert [policy_of({"qpid.policy_type": name}) for name in ("none", "reject", "ring", "ring-strict", "ring_strict")] == [
        *(arguments.REJECT, arguments.REJECT, arguments.RING),
        *(arguments.RING_STRICT, arguments.RING_STRICT),
    ]
    assert policy_of({}) == arguments.REJECT


def test_a_policy_is_known_by_all_of_its_names() -> None:
    assert policy_names("none") == policy_names("reject") == ("none", "reject")
    assert policy_names("ring-strict") == policy_names("ring_strict") == ("ring_strict", "ring-strict")
    assert policy_names("ring") == ("ring",)
    assert policy_names("other") == ("other",)
