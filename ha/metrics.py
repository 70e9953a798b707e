"""The metrics for Prometheus of a broker's part in its cluster: its state, its log, and the lag of the other members.

The figures are those of `qpid-ha status`, which are the item of `QUERY ha`. Only the primary reports the lag of the members.
A broker that is in no cluster reports only its state.

Reference: docs/reference/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from telemetry.exposition import COUNTER, Family, Sample, labels

STATES: Final = ("standalone", "joining", "catchup", "ready", "recovering", "active", "removed")
_MS: Final = 1000


def families(item: dict[str, Any]) -> Iterator[Family]:
    """The metric families of an item of `QUERY ha`."""
    samples: list[Sample] = [(labels({"state": state}), int(item["status"] == state)) for state in STATES]
    yield Family("understudy_state", "1 for the broker's state, 0 for the others.", samples)
    if not item.get("clusterId"):
        return
    about = labels({"cluster": item["clusterId"], "address": item["address"]})
    yield Family("understudy_cluster_info", "1, with the cluster's id and the broker's address in it.", [(about, 1)])
    for name, meaning, value in (
        ("in_sync", "1 while the broker has all that is committed, or is the primary.", _in_sync(item)),
        ("epoch", "The term of a primary that the broker knows of. It rises with each election.", item["epoch"]),
        (
            "stopped",
            "1 if the broker stopped applying the log, because it met a command that it does not know.",
            int(bool(item["stopped"])),
        ),
        ("store_bytes", "What the log takes of the disk.", item["store"]["bytes"]),
        ("store_segments", "Files of the log.", item["store"]["segments"]),
    ):
        yield Family(f"understudy_{name}", meaning, [("", value)])
    for name, meaning, value in (
        ("committed", "Batches that a majority has on disk, as far as the broker knows.", item["commitIndex"]),
        ("applied", "Batches that the broker has applied.", item["appliedIndex"]),
    ):
        yield Family(f"understudy_log_{name}_batches_total", meaning, [("", value)], COUNTER)
    if item["status"] != "active":
        return
    members = [(labels({"member": member["address"]}), member) for member in item["members"]]
    others = [(at, member) for at, member in members if member["address"] != item["address"]]
    yield Family(
        "understudy_member_connected",
        "1 while the primary has a link with the member.",
        [(at, int(member["connected"])) for at, member in others],
    )
    for name, field, meaning, scale in (
        ("records", "lagRecords", "Records that the member has not acknowledged.", 1),
        ("bytes", "lagBytes", "Size of what the member has not acknowledged.", 1),
        ("seconds", "lagMs", "Age of the oldest batch that the member has not acknowledged.", _MS),
    ):
        yield Family(
            f"understudy_member_lag_{name}",
            meaning,
            [(at, member[field] if scale == 1 else member[field] / scale) for at, member in others if member[field] >= 0],
        )


def _in_sync(item: dict[str, Any]) -> int | None:
    """Whether a member is in sync. A witness stores nothing that could be in sync, so it has no sample."""
    return None if item["witness"] else int(item["inSync"])
