"""Roles of pods: what a daemon changes, and what it leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resource_manager.core.pod_roles import BACKUP, NO_EPOCH, PRIMARY, Pod, changes, pod_of

FRESH = [Pod(f"broker-{number}", "", NO_EPOCH, str(number)) for number in range(3)]
NAMES = [pod.name for pod in FRESH]


def test_the_new_primary_is_labelled_first_and_the_others_are_backups() -> None:
    assert changes("broker-1", 3, FRESH) == [
        Pod("broker-1", PRIMARY, 3, "1"),
        Pod("broker-0", BACKUP, 3, "0"),
        Pod("broker-2", BACKUP, 3, "2"),
    ]


def test_what_is_right_already_is_left_alone() -> None:
    done = changes("broker-1", 3, FRESH)
    assert changes("broker-1", 3, done) == []
    assert changes("broker-1", 3, [*done[:2], FRESH[2]]) == [Pod("broker-2", BACKUP, 3, "2")]


def test_a_primary_whose_pod_is_not_known_changes_nothing() -> None:
    """Breaks when a wrong mapping, or a pod that is deleted, takes the label from the one that has it."""
    assert changes("elsewhere", 4, changes("broker-1", 3, FRESH)) == []


@given(
    st.lists(st.tuples(st.sampled_from(["", PRIMARY, BACKUP]), st.integers(NO_EPOCH, 5)), min_size=3, max_size=3),
    st.sampled_from(NAMES),
    st.integers(0, 5),
)
def test_an_epoch_never_replaces_a_higher_one_and_else_there_is_one_primary(
    there: list[tuple[str, int]], primary: str, epoch: int
) -> None:
    pods = [Pod(name, role, known, "7") for name, (role, known) in zip(NAMES, there, strict=True)]
    made = {pod.name: pod for pod in changes(primary, epoch, pods)}
    after = [made.get(pod.name, pod) for pod in pods]
    if max(pod.epoch for pod in pods) > epoch:
        assert after == pods
    else:
        assert [pod.name for pod in after if pod.role == PRIMARY] == [primary]
        assert {pod.epoch for pod in after} == {epoch}


@pytest.mark.parametrize(
    "address, name",
    [
        ("broker-0.brokers.default.svc.cluster.local:5672", "broker-0"),
        ("broker-0:5671", "broker-0"),
        ("10.2.0.7:5672", ""),
        ("[fd00::1]:5672", ""),
    ],
)
def test_the_pod_is_the_first_label_of_the_brokers_host(address: str, name: str) -> None:
    assert pod_of(address) == name
