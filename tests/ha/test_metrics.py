"""What Prometheus is told of a broker in its cluster."""

from __future__ import annotations

from ha.metrics import STATES, families
from telemetry.exposition import lines
from tests.broker.scraped import read

MEMBER = {"connected": True, "ackedIndex": 9, "state": "ready", "role": "voter"}
ACTIVE = {
    "status": "active",
    "address": "a:1",
    "clusterId": "c-1",
    "inSync": True,
    "witness": False,
    "epoch": 4,
    "stopped": "",
    "store": {"bytes": 4096, "segments": 2, "checkpointIndex": 3},
    "commitIndex": 12,
    "appliedIndex": 11,
    "members": [
        MEMBER | {"address": "a:1", "lagRecords": 0, "lagBytes": 0, "lagMs": 0.0},
        MEMBER | {"address": "b:1", "lagRecords": 3, "lagBytes": 70, "lagMs": 250.0},
        MEMBER | {"address": "w:1", "lagRecords": -1, "lagBytes": -1, "lagMs": -1.0, "connected": False},
    ],
}


def said(item: dict[str, object]) -> dict[str, dict[str, float]]:
    return read("".join(f"{line}\n" for family in families(item) for line in lines(family)))


def test_the_primary_tells_how_far_the_others_are_behind_and_not_itself() -> None:
    found = said(ACTIVE)
    assert found["understudy_member_connected"] == {'member="b:1"': 1, 'member="w:1"': 0}
    assert found["understudy_member_lag_records"] == {'member="b:1"': 3}, "a witness has nothing that could be late"
    assert found["understudy_member_lag_bytes"] == {'member="b:1"': 70}
    assert found["understudy_member_lag_seconds"] == {'member="b:1"': 0.25}
    assert found["understudy_epoch"] == {"": 4}
    assert found["understudy_log_committed_batches_total"] == {"": 12}
    assert found["understudy_log_applied_batches_total"] == {"": 11}
    assert found["understudy_cluster_info"] == {'cluster="c-1",address="a:1"': 1}
    assert found["understudy_store_bytes"] == {"": 4096}
    assert found["understudy_stopped"] == {"": 0}


def test_of_all_states_one_is_the_brokers() -> None:
    for state in STATES:
        found = said(ACTIVE | {"status": state})["understudy_state"]
        assert found == {f'state="{each}"': float(each == state) for each in STATES}


def test_a_backup_tells_of_itself_alone() -> None:
    found = said(ACTIVE | {"status": "ready", "stopped": "version 9 is not known here"})
    assert not any(name.startswith("understudy_member_") for name in found)
    assert found["understudy_stopped"] == {"": 1}
    assert found["understudy_in_sync"] == {"": 1}


def test_a_witness_is_neither_in_sync_nor_not() -> None:
    """Breaks when an alert rings for it for ever."""
    assert said(ACTIVE | {"status": "ready", "inSync": False, "witness": True})["understudy_in_sync"] == {}


def test_a_broker_in_no_cluster_tells_its_state() -> None:
    found = said({"status": "standalone", "brokerId": "x", "address": "", "brokersUrl": "", "publicUrl": "", "members": []})
    assert found.keys() == {"understudy_state"}
