"""Planted bugs of takeovers by force. `takeovers.run` catches them (see mutations.py)."""

from __future__ import annotations

from tests.simulation.bugs import Bug

OF_TAKEOVERS = {
    "takes-over-beside-a-voter": Bug(
        "begins a new lineage by force although a voter is connected",
        "ha.core.lineage",
        "obstacle",
        "if there:",
        "if False:",
    ),
    "begins-in-the-old-epoch": Bug(
        "begins a new lineage in the epoch of its old primary",
        "ha.core.candidacy",
        "Candidacy.take_over",
        "member.save(member.epoch + 1, member.me)",
        "member.save(member.epoch, member.me)",
    ),
    "takes-over-under-the-old-id": Bug(
        "does not put the new cluster's id on its disk before the first batch of the new lineage",
        "ha.cluster_member",
        "ClusterMember._take_over",
        "self._store.change_cluster(new_id, left)",
        "pass",
    ),
    "tells-what-it-was-told": Bug(
        "reports the known commit index instead of its last batch as the starting point of a takeover",
        "ha.takeover",
        "begun_with",
        'f"after batch {status.last_index} of',
        'f"after batch {status.told_commit} of',
    ),
    "forgets-what-it-gave-up": Bug(
        "does not report what a takeover gave up, if the takeover was interrupted and another promotion completes it",
        "ha.cluster_member",
        "ClusterMember._write_term",
        "self._not_told_yet() or asked.because",
        "asked.because",
    ),
}
