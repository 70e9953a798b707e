"""What a log keeps on its disk: when a checkpoint is due, what is compacted, and when producers wait because the disk is
full.

Life: after batches were applied, and when an operation has ended, `look` compares the size of the log with the size of the
live data. It starts at most one operation: a checkpoint (the log has grown, files have no live data any more, or what was
applied must not be forgotten), or the compaction of the files with the least live data. When that is done it looks again, until
there is nothing to gain. It also looks again at intervals while the log is near its bound and files are kept for another reason:
a snapshot in transfer, or a backup that is behind. So disk space is freed without a request, in small steps, and no commit waits.

The bound: a log takes at most twice the size of its live data, and two segments (`journal.SEGMENT_BYTES`). Two files always
exist: the one being written, and the one prepared. The rest of the two segments is for the log after the last checkpoint, and
for the output of a compaction or a checkpoint before it frees anything. Compaction begins well below the bound, at a limited
rate; near the bound the rate is not limited. There is one exception, unless the disk is nearly full: the log that a connected
backup still needs stays, up to the size of the live data, which the backup would get instead.

What must not be forgotten: a broker that starts has applied its checkpoint only, until a primary tells it what is committed.
`cover` says that the last batches have changed something that matters before that. A checkpoint is then due at once, but two such
checkpoints begin at least `COVER_S` apart. They delete no log: a backup that is away needs no snapshot because of them.

Room: producers get no credit below a reserve, which is large enough for a checkpoint, consumers' outcomes and a compaction.
Consumers continue, and the next checkpoint gives back the space that they free. Producers continue when there is half as much
again, so that they do not start and stop all the time. While they wait, the free space of the file system is read again and
again, because it may grow without any write here.

Invariants: one checkpoint and one compaction at a time. `look` starts neither while the other is in progress; only a
checkpoint that a backup needs may begin beside a compaction. The files of a compaction stay until it has ended, and live bodies
in them until a checkpoint that began after they had moved. Bodies are damaged only if messages are still alive there. The
listener is told that messages have moved only in the reactor's thread, after the new file is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.commit_log import LogListener
from broker.core.queues.blocks import LiveRun
from broker.disk.bodies import Unreadable, file_of
from broker.disk.compaction import Compacted
from broker.disk.journal import Journal
from broker.disk.recovery import Body
from broker.disk.segments import FIRST_BATCH
from ha.core.log import Log
from ha.core.settings import MIB
from ha.core.status import ReplicaStatus
from ha.snapshots import Snapshots

_log = Logger(namespace="ha")
CHECKPOINT_BYTES = 32 * MIB
"""With less log than this since the last checkpoint, no checkpoint is due for growth."""
GROWTH = 4
"""No checkpoint is due for growth either before the log has grown by so many times the size of the last checkpoint."""
LOOK_S = 0.1
COVER_S = 1.0
"""Least time between the beginnings of two checkpoints that are due only because of `cover`."""
RETRY_S = 5.0
"""Time before the next attempt after a checkpoint or a compaction has failed."""
ROOM_S = 1.0
"""Time between two readings of the free space while producers wait."""
SLICE_S = 0.005
"""The reactor lists live runs for at most this time at once."""
RATE = 64 * MIB
"""Bytes in a second that a compaction reads and writes, unless the bound is near."""
FILES_IN_TWO_SEGMENTS = 8
FILES_IN_RESERVE = 4
"""The reserve is so many full-sized files, and twice a checkpoint, but at most a quarter of the file system."""
SPARE = 8
"""One part in so many of the reserve is for messages for which producers still have credit when the reserve is reached."""
WORTH_ITS_HEADS = 4
"""Files whose compaction saves only heads are joined if the heads are more than one part in so many of them."""
MANY_SMALL = 8
"""So many files are joined, if each is smaller than one part in so many of a full one."""
SPARSE = 0.5
"""A file with a smaller live part than this is worth compacting."""
WORTH_IT = 0.75
"""The same limit when the bound is near or the disk is nearly full."""


class Facts(Protocol):
    """The facts about the log itself: `ReplicatedLog` fulfils it."""

    @property
    def applied(self) -> int:
        """The index up to which the listener has applied."""

    @property
    def serving(self) -> bool:
        """Whether producers may write to it here."""

    @property
    def log(self) -> Log:
        """The log as the core sees it."""

    def status(self) -> ReplicaStatus:
        """The replica's own figures."""

    def compacted(self, first_index: int) -> None:
        """The log before this index may be deleted."""

    def rotten(self, place: int, text: str) -> None:
        """Bodies are damaged on disk."""


class Retention:
    """See the module. Everything is called in the reactor thread."""

    def __init__(
        self,
        name: str,
        journal: Journal,
        facts: Facts,
        listener: LogListener,
        clock: IReactorTime,
        wall: Callable[[], float],
        checkpoint_bytes: int,
    ) -> None:
        """`wall` gives seconds since 1970. `snapshots` must be set before any call."""
        self.checkpoint_bytes = checkpoint_bytes
        self.snapshots: Snapshots
        self.low = False
        """Whether the disk is nearly full, so that producers must wait."""
        self._waits = False
        self._name = name
        self._journal = journal
        self._facts = facts
        self._listener = listener
        self._clock = clock
        self._wall = wall
        self._looked_s = float("-inf")
        self._looked_index = self._looked_live = 0
        self._asked_index = self._reserve = 0
        """The index that was applied when the file system was last asked for its room, and the reserve at that time."""
        self._look_call: IDelayedCall | None = None
        self._list_call: IDelayedCall | None = None
        self._later_call: IDelayedCall | None = None
        self._room_call: IDelayedCall | None = None
        self._compacting = False
        self._moved = False
        self._to_cover = 0
        self._covering_s = float("-inf")
        """The index that a checkpoint must have reached, and when the last checkpoint began that was due only for this."""
        self._fruitless: dict[int, int] = {}
        """Files that a compaction could not make smaller, and the size of their live data at that time."""
        self._stopped = False

    def stop(self) -> None:
        """Stop: begin nothing more."""
        self._stopped = True
        for call in (self._look_call, self._later_call, self._list_call, self._room_call):
            if call is not None and call.active():
                call.cancel()

    # ---- what is due

    def applied(self) -> None:
        """Batches were applied: look, but not too often; if little has changed, only after the next batches. Room is asked for
        more often: a fast disk can lose all of it between two looks."""
        if self._stopped:
            return
        log, applied = self._facts.log, self._facts.applied
        if log.bytes_between(self._asked_index, applied) > self._reserve // SPARE:
            self._watch_room()
        if self._look_call is not None:
            return
        wait_s = self._looked_s + LOOK_S - self._clock.seconds()
        if wait_s <= 0:
            self.look()
        elif self._is_uncovered() or self._changed_bytes(log, applied) > min(self._file, self.checkpoint_bytes) // 4:
            self._look_call = self._clock.callLater(wait_s, self.look)

    def cover(self) -> None:
        """The batches that are being applied have changed something that must not be forgotten: they must soon be in a
        checkpoint."""
        self._to_cover = self._facts.applied

    def _is_uncovered(self) -> bool:
        covered = self._journal.checkpoint
        return (0 if covered is None else covered.index) < self._to_cover

    def _changed_bytes(self, log: Log, applied: int) -> int:
        """The bytes added or removed since the last look."""
        came = log.bytes_between(self._looked_index, applied)
        return max(came, abs(self._listener.live_bytes() - self._looked_live))

    def _retry(self) -> None:
        """An operation has failed: look again after some time, and not earlier, with or without new batches."""
        if self._look_call is None:
            self._look_call = self._clock.callLater(RETRY_S, self.look)

    def look(self) -> None:
        """Begin the operation that is due, if there is one."""
        for call in (self._look_call, self._later_call):
            if call is not None and call.active():
                call.cancel()
        self._look_call = self._later_call = None
        if self._stopped:
            return
        self._looked_s = self._clock.seconds()
        self._looked_index, self._looked_live = self._facts.applied, self._listener.live_bytes()
        self._watch_room()
        if self.snapshots.writing or self._compacting:
            return
        if self._journal.resetting:
            self._retry()
            return
        if self._moved or self._has_grown():
            self.checkpoint()
            return
        if self._is_uncovered():
            wait_s = self._covering_s + COVER_S - self._looked_s
            if wait_s <= 0:
                self._covering_s = self._looked_s
                self.checkpoint(keeps_log=True)
                return
            self._later_call = self._clock.callLater(wait_s, self.look)
        excess = self._excess()
        pressed = excess > 0 or self.low
        if excess > -2 * self._file or self.low:
            full = self._journal.full_segments(self._keep_from(self._facts.applied, self._spared(pressed)) - 1)
            if self._freeable(full):
                self.checkpoint(spared=self._spared(pressed))
            elif victims := self._victims(WORTH_IT, 2) if pressed else self._victims(SPARSE, 1):
                self._compact(victims, 0 if pressed else RATE)
            elif pressed and full:
                self.checkpoint(spared=self._spared(pressed))
            elif pressed and self._later_call is None:
                self._later_call = self._clock.callLater(RETRY_S, self.look)
        elif small := self._many_small():
            self._compact(small, RATE)

    @property
    def _file(self) -> int:
        return self._journal.file_bytes

    def _has_grown(self) -> bool:
        covered = self._journal.checkpoint
        grown = self._facts.log.bytes_between(0 if covered is None else covered.index, self._facts.applied)
        return grown > self.checkpoint_bytes and grown > GROWTH * (0 if covered is None else covered.nbytes)

    def _excess(self) -> int:
        """How many bytes the log is above the point that counts as near the bound, three files and two checkpoints below it."""
        covered = self._journal.checkpoint
        margin = 3 * self._file + 2 * (0 if covered is None else covered.nbytes)
        return self._journal.disk_bytes - self._bound + margin

    @property
    def _bound(self) -> int:
        return 2 * self._listener.live_bytes() + FILES_IN_TWO_SEGMENTS * self._file

    def _spared(self, pressed: bool) -> int:
        """How many bytes of the log before a checkpoint may stay for a backup that is behind. Unless the disk is nearly full,
        they may be as many as the live data has: while a snapshot is sent, the log after it grows, and without that log the
        snapshot would be of no use."""
        usual = self.checkpoint_bytes * (1 if pressed else 2)
        return usual if self.low else max(usual, self._listener.live_bytes())

    def _freeable(self, full: list[int]) -> bool:
        """Whether a checkpoint would free whole files; `full` are the segments that it would remove from the log."""
        alive = self._listener.live_by_file()
        numbers = [body.file.number for body in self._journal.body_files()] + full
        return any(not alive.get(number) and not self._journal.is_pinned(number) for number in numbers)

    # ---- checkpoints

    def checkpoint(self, *, spared: int | None = None, keeps_log: bool = False) -> None:
        """Write a checkpoint of the state that is applied now. Of the log before it, `spared` bytes (None: the usual number)
        may stay for a backup that still needs them; `keeps_log`: all of it stays.
        """
        index, log = self._facts.applied, self._facts.log
        epoch = log.epoch_at(index)
        if self.snapshots.writing or self._journal.resetting or epoch is None or index == 0 or self._stopped:
            return
        stamp = round(self._wall() * 1000)
        alive = [number for number, nbytes in self._listener.live_by_file().items() if nbytes and number]
        builders = self._listener.snapshot()
        batches = (builder.seal(epoch, index, stamp) for builder in builders)
        members = log.members_at(index).to_dict()
        spared = self._spared(pressed=False) if spared is None else spared
        keep_from = log.first_index if keeps_log else self._keep_from(index, spared)
        self._moved = False
        self.snapshots.write(index, epoch, members, batches, alive, keep_from, self._written)

    def _keep_from(self, index: int, spared: int) -> int:
        """The first index to keep: a connected backup that is not too far behind keeps its log, so that it needs no snapshot. One
        that is receiving a snapshot needs the log after that."""
        log = self._facts.log
        peers = [peer for peer in self._facts.status().peers if peer.connected and peer.stores]
        behind = [max(each.match_index, each.snapshot_index or self.snapshots.sent_index(each.address)) + 1 for each in peers]
        return min([index + 1, *(keep for keep in behind if log.bytes_between(keep - 1, index) <= spared)])

    def _written(self, keep_from: int | None) -> None:
        if self._stopped:
            return
        if keep_from is None:
            self._moved = bool(self._journal.fresh)
            self._retry()
            return
        self._facts.compacted(max(keep_from, self._facts.log.first_index))
        self.look()

    # ---- compaction

    def _victims(self, worth: float, at_least: int) -> list[Body]:
        """The files with the least live data, cheapest first: as many as fit in one new file, and at least `at_least` of any
        size (a batch may be larger than a file). Files that gain nothing alone may gain together, because each has a head."""
        alive = self._listener.live_by_file()
        found: list[Body] = []
        room = self._file
        bodies = self._journal.body_files()
        self._fruitless = {body.file.number: self._fruitless.get(body.file.number, -1) for body in bodies}
        for body in sorted(bodies, key=lambda body: alive.get(body.file.number, 0) / body.nbytes):
            live = alive.get(body.file.number, 0)
            if live >= worth * body.nbytes or (len(found) >= at_least and live > room):
                break
            if live:
                found.append(body)
                room -= live
        if any(alive.get(each.file.number) != self._fruitless[each.file.number] for each in found):
            return found
        heads = (len(found) - 1) * FIRST_BATCH
        return found if heads * WORTH_ITS_HEADS > sum(each.nbytes for each in found) else []

    def _many_small(self) -> list[Body]:
        """The small files, if there are many: compactions of little data create them, and one compaction joins them."""
        small = [body for body in self._journal.body_files() if body.nbytes < self._file // MANY_SMALL]
        if len(small) < MANY_SMALL:
            return []
        alive = self._listener.live_by_file()
        return [body for body in small if alive.get(body.file.number)]

    def _compact(self, victims: list[Body], bytes_per_s: int) -> None:
        """List the live runs, one slice in each turn, then have them copied."""
        self._compacting = True
        begun = self._journal.begin_compaction([body.file.number for body in victims])
        runs: list[tuple[int, LiveRun]] = []

        def walk() -> Iterator[tuple[int, LiveRun]]:
            for body in victims:
                yield from self._listener.live_runs_in(body.file.number)

        walking = walk()

        def step() -> None:
            self._list_call = None
            until_s = self._clock.seconds() + SLICE_S
            for run in walking:
                runs.append(run)
                if self._clock.seconds() > until_s:
                    self._list_call = self._clock.callLater(0, step)
                    return
            self._journal.compact(begun, iter(runs), bytes_per_s, copied)

        def copied(found: Compacted | None, why_not: Unreadable | str) -> None:
            self._compacting = False
            if self._stopped:
                return
            if found is None:
                self._failed(victims, why_not)
                return
            for queue, moves in found.moves:
                self._listener.moved(queue, moves)
            freed = sum(body.nbytes for body in victims) - found.file.used
            if freed <= 0:
                self._fruitless[found.file.number] = self._listener.live_by_file().get(found.file.number, 0)
            _log.info(
                "{n} files of the {name} log were compacted to {nbytes} bytes, {freed} fewer",
                n=len(victims),
                name=self._name,
                nbytes=found.file.used,
                freed=freed,
            )
            self._moved = True
            self.look()

        step()

    def _failed(self, victims: list[Body], why_not: Unreadable | str) -> None:
        alive = self._listener.live_by_file()
        self._retry()
        self._fruitless |= {body.file.number: alive.get(body.file.number, 0) for body in victims}
        if isinstance(why_not, Unreadable) and self._is_alive(why_not.place):
            self._facts.rotten(why_not.place, str(why_not))
        else:
            _log.error("files of the {name} log could not be compacted: {why}", name=self._name, why=why_not)

    def _is_alive(self, place: int) -> bool:
        """Whether a message is still alive in the run at this place: they may have been removed since it was listed."""
        return any(run.place == place for _, run in self._listener.live_runs_in(file_of(place)))

    # ---- room

    @property
    def reserve_bytes(self) -> int:
        """The space that must stay free so that consuming can continue, unless the file system is tiny."""
        covered = self._journal.checkpoint
        return FILES_IN_RESERVE * self._file + 2 * (0 if covered is None else covered.nbytes)

    def _watch_room(self) -> None:
        """Stop producers, or let them continue."""
        if self._room_call is not None and self._room_call.active():
            self._room_call.cancel()
        self._room_call = None
        self._ask_for_room()
        if self._waits:
            self._room_call = self._clock.callLater(ROOM_S, self._watch_room)

    def _ask_for_room(self) -> None:
        try:
            free, total = self._journal.free()
        except OSError:
            return  # the next write reports the error
        self._asked_index = self._facts.applied
        reserve = self._reserve = min(self.reserve_bytes, total // 4)
        self.low = free < (reserve + reserve // 2 if self.low else reserve)
        waits = self.low and self._facts.serving
        if waits == self._waits:
            if waits and free >= reserve // 2:
                self._listener.on_storage_spare(reserve // SPARE, free - reserve // 2)
            return
        self._waits = waits
        if waits:
            text = (
                f"only {free // 1024} KiB are free where the {self._name} log lies, and {reserve // 1024} KiB of them are kept "
                f"for what consuming writes; make room on that disk, or consume"
            )
            self._listener.on_storage_low(text, reserve // SPARE)
        else:
            _log.info("there is room on the disk again ({name} log)", name=self._name)
            self._listener.on_storage_low("")
