"""The rule that limits the faults of a run to those under which the product keeps its promises.

The product promises that no accepted message is lost, whatever processes, power, clocks and the network do, and however
often a file system refuses. All of that may happen to any number of hosts at once, and is not limited here. Damage to
stores is limited (docs/adr/0004). A store is **hurt** from the moment when a part of its synced data is lost (a new
disk, a flipped bit, a lost file). It is hurt until its process, running again, has caught up with a primary and durably
says so (neither blank nor below a floor), and until no file of its log has a flipped bit. The process finds such a bit
when it reads the file, which may be late.

1. At any time fewer stores are hurt than a majority of the voters: every committed batch is on a majority, so at least
   one copy is on a store that knows that it has it. No store is damaged while members disagree on who votes. All stores
   but one may be lost at once if the remaining one is not hurt, has all committed batches on disk, and comes back: then
   no other member may begin a new cluster without it (docs/adr/0017).
2. While the store of a voter is hurt, the membership is not changed. While the membership is being changed, no store is
   damaged.
3. A bit flips, a page becomes unreadable, or a file is lost, only where the store can detect it: within the part that
   its newest mark covers, in an older segment, in a checkpoint, or in a small file. It never happens in the last group
   that was synced, because it would look like a group torn by a power cut. It never happens to the newest segment, the
   note of a floor, or the note of a reset, because they show what was lost before.
4. A store is damaged only on a host without power. A disk is replaced only on a host that has been off so long that
   none of its messages is still in transit.
5. A broker that refuses its store because of such damage gets a new disk. It already counts as hurt.
6. With a witness, which stores nothing, committed batches may be on one disk only (ha/core/witness.py). Then only a
   backup's store is damaged, while the primary has everything on disk that is committed or attested.

Outside of this rule messages can be lost, and the runs never go there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import Random
from typing import TYPE_CHECKING

from broker.disk import hard_state, segments
from broker.disk.durable import ASIDE
from broker.disk.recovery import FLOOR, RESET, WHOLE
from tests.simulation.disk import SimulatedDisk

if TYPE_CHECKING:
    from tests.simulation.hosts import BrokerHost

OFF_BEFORE_REPLACED_S = 1.0
_CLUSTER = "/store/cluster/"
_OF_THE_LOG = 0.6


class Promises:
    """Which stores are hurt now."""

    def __init__(self, hosts: list[BrokerHost]) -> None:
        self._hosts = hosts
        self._damaged: set[str] = set()

    def hurt(self, host: BrokerHost) -> None:
        """This host's store loses something now."""
        self._damaged.add(host.name)

    def is_damaged(self, host: BrokerHost) -> bool:
        """Whether this host's store has lost something and has not been seen whole since."""
        return host.name in self._damaged

    def is_hurt(self, host: BrokerHost) -> bool:
        """Whether this host's store is short of something, be it a body that nobody has read yet, or has never had everything."""
        if host.running:
            member = host.log.replica._member
            assert host.threads is not None
            if member.blank or member.floor is not None or host.threads.reactor_waits:
                return True
            if host.world.checks.rots(host.address, host.process.broker.lead) or _of_the_store(host.disk.decayed()):
                return True
            self._damaged.discard(host.name)
        paths = host.disk.paths()
        return host.name in self._damaged or f"{_CLUSTER}{WHOLE}" not in paths or f"{_CLUSTER}{FLOOR}" in paths

    def may_hurt(self, host: BrokerHost) -> bool:
        """Whether this store may be damaged now."""
        if self.is_hurt(host) or self.changing:
            return False
        logs = [each.log.replica.log for each in self._hosts if each.running]
        found = {log.members.named("") for log in logs if log.members_index}  # others know what they were started with alone
        if len(found) != 1:
            return False
        members = found.pop()
        hurt = sum(self.is_hurt(each) for each in self._hosts if each.address in members.voters)
        if members.witness and not host.is_witness and not self._is_elsewhere(host):
            return False
        return hurt + 1 <= (len(members.voters) - 1) // 2

    def _is_elsewhere(self, host: BrokerHost) -> bool:
        """Whether this host is a backup, and the primary's disk has all that is committed or attested. Of a primary's disk nobody
        can tell: it may have asked the witness just now for what nobody else has."""
        running = [each for each in self._hosts if each.running]
        attested = [0 if each.log.replica.attested is None else each.log.replica.attested.index for each in running]
        least = max([each.log.replica.commit_index for each in running] + attested)
        epoch = max(int(each.log.epoch) for each in running)
        primary = next((each for each in running if each.state == "active" and each.log.epoch == epoch), None)
        is_backup = host.running and host.state == "ready" and host.log.epoch == epoch
        return primary is not None and is_backup and primary.log.status().durable_index >= least

    def survivor(self) -> BrokerHost | None:
        """A host whose store has all that is committed, so that all the others may be lost; None when there is none."""
        running = [each for each in self._hosts if each.running and not each.is_witness]
        if self.changing or not all(each.running for each in self._hosts) or any(self.is_hurt(each) for each in self._hosts):
            return None
        committed = max(each.log.replica.commit_index for each in running)
        epoch = max(int(each.log.epoch) for each in running)
        voting = [each for each in running if each.address in each.log.replica.members.voters]
        level = [each for each in voting if each.log.status().durable_index >= committed and each.log.epoch == epoch]
        return next((each for each in level if each.state == "ready"), None)

    @property
    def changing(self) -> bool:
        """Whether a change of members may be under way anywhere."""
        return any(self._changes(each) for each in self._hosts if each.running)

    @staticmethod
    def _changes(host: BrokerHost) -> bool:
        """Each primary's first batch repeats the members, which changes nothing."""
        log, index = host.log.replica.log, host.log.replica.log.members_index
        return bool(index > host.log.replica.commit_index and log.members.named("") != log.members_at(index - 1).named(""))

    def may_change_members(self, voters: Collection[str]) -> bool:
        """Whether members may be added or removed now."""
        return not any(self.is_hurt(each) for each in self._hosts if each.address in voters)


def _of_the_store(paths: Iterable[str]) -> list[str]:
    """The files of the cluster's log, but for what was put aside because it is damaged."""
    return [path for path in paths if path.startswith(_CLUSTER) and "damaged-" not in path]


def files_to_lose(paths: Iterable[str]) -> list[str]:
    """Which of a host's files may be lost: rule 3."""
    found = _of_the_store(paths)
    logs = sorted(path for path in found if path.endswith(segments.SUFFIX))
    others = [path for path in found if path.endswith((".checkpoint", f"/{WHOLE}", f"/{hard_state.NAME}"))]
    return logs[:-1] + others


def file_to_rot(paths: Iterable[str], rng: Random) -> str:
    """One of a host's files in which a bit may flip, rather one of the log's newest; "" when there is none."""
    found = [path for path in _of_the_store(paths) if not path.endswith((ASIDE, f"/{FLOOR}", f"/{RESET}"))]
    logs = sorted(path for path in found if path.endswith(segments.SUFFIX))
    if logs and rng.random() < _OF_THE_LOG:
        return rng.choice(logs[-2:])
    return rng.choice(found) if found else ""


def bytes_to_flip(path: str, disk: SimulatedDisk) -> range:
    """Where in this file a bit may flip: rule 3."""
    content = disk.content(path)
    if not path.endswith(segments.SUFFIX):
        return range(len(content))
    newest = max(each for each in _of_the_store(disk.paths()) if each.endswith(segments.SUFFIX))
    end = newest_mark(content).end
    return range(end if path == newest else max(end, len(content.rstrip(b"\0"))))


def newest_mark(content: bytes) -> segments.Mark:
    """A segment's newest mark, whole or not."""
    found = segments.Mark(0, 0, segments.Position(0, 0))
    for offset in segments._MARK_OFFSETS:
        data = content[offset : offset + segments._MARK.size]
        if len(data) == segments._MARK.size:
            magic, number, end, index, epoch = segments._MARK.unpack(data)
            if magic == segments._MARK_MAGIC and number > found.number:
                found = segments.Mark(number, end, segments.Position(epoch, index))
    return found
