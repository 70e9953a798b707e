"""The transfer of a checkpoint to another broker, with the files that it lists.

A transfer is one stream of bytes: the checkpoint, then the used part of each file that it lists, in the order of the list. Life
at the sender: a `Source` is made from the newest checkpoint, whose files are kept from then on; chunks are read in any order and
as often as needed; `close` releases the files. Life at the receiver: a `Receiver` gets the chunks in order and writes them to
temporary files, one after the other: each is synced and closed when it is complete; `finish` verifies all files and renames the
body files, and the checkpoint last. Then the log begins again after the checkpoint (`Journal.reset`).

Both keep at most one chunk and the checkpoint's head in memory. A receiver has at most one file open.

Invariant: until the received checkpoint is complete and durable, the files of the older one are not changed. If the transfer ends
before that, no checkpoint lists the received files, and the next start deletes them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from broker.core.records import BadBatch
from broker.disk import bodies, checkpoint
from broker.disk.bodies import FileInUse
from broker.disk.checkpoint import Checkpoint
from broker.disk.durable import ASIDE, NO_DESCRIPTORS, opened, refused, write_all
from broker.disk.files import Disk
from broker.disk.segments import FIRST_BATCH


class RottenBodies(Exception):
    """A file that the newest checkpoint lists is damaged. `place` is its beginning."""

    def __init__(self, place: int, text: str) -> None:
        super().__init__(text)
        self.place = place


class Source:
    """A checkpoint and its files, to be read in chunks. Any thread may call `read`, but not after `close`."""

    def __init__(self, found: Checkpoint, paths: Sequence[Path], release: Callable[[], None], *, disk: Disk) -> None:
        """For `Journal.source`. `paths` are those of the files that the checkpoint lists. OSError, also when a newer checkpoint
        of the same index, which lists other files, has just replaced this one and the journal does not know it yet."""
        self.checkpoint = found
        self.nbytes = found.bytes_with_files
        self._disk = disk
        self._release = release
        self._fd = disk.open(found.path, os.O_RDONLY)  # stays open, so that a newer one of the same index may replace the name
        try:
            if checkpoint.read_head(disk, self._fd, found.path).files != found.files:
                raise OSError(errno.ESTALE, "it was replaced by one of the same index just now", str(found.path))
            self.identity = checkpoint.identity(disk, self._fd, found)
            """Distinguishes this checkpoint from another one of the same index."""
        except BaseException:
            disk.close(self._fd)
            raise
        self._parts = list(zip(paths, (file.used for file in found.files.in_use), strict=True))

    def check(self, offset: int, nbytes: int) -> None:
        """Verify the whole of each file that begins in this chunk of the stream, so that the sender finds its own damage.

        BadBatch when the checkpoint is damaged; RottenBodies when a file that it lists is damaged or lost. OSError when too many
        files are open: this is not damage.
        """
        if offset == 0:
            checkpoint.load(self.checkpoint.path, disk=self._disk)
        start = self.checkpoint.nbytes
        for (path, length), file in zip(self._parts, self.checkpoint.files.in_use, strict=True):
            if offset <= start < offset + nbytes:
                try:
                    with opened(self._disk, path) as fd:
                        bodies.verify_batches(self._disk, fd, file, path)
                except (BadBatch, OSError) as error:
                    if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
                        raise
                    raise RottenBodies(bodies.place_of(file.number, FIRST_BATCH), str(error)) from error
            start += length

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read `nbytes` of the stream; fewer only at its end. BadBatch when a file is too short."""
        pieces = []
        start = 0
        for path, length in [(self.checkpoint.path, self.checkpoint.nbytes), *self._parts]:
            first, stop = max(offset, start), min(offset + nbytes, start + length)
            if first < stop:
                pieces.append(self._piece(path, first - start, stop - first, own=start == 0))
            start += length
        return b"".join(pieces)

    def _piece(self, path: Path, offset: int, nbytes: int, *, own: bool) -> bytes:
        if own:
            data = self._disk.read(self._fd, nbytes, offset)
        else:
            with opened(self._disk, path) as fd:
                data = self._disk.read(fd, nbytes, offset)
        if len(data) < nbytes:
            raise BadBatch(f"{path} ends after {offset + len(data)} bytes, before byte {offset + nbytes}, which is in use")
        return data

    def close(self) -> None:
        """Release the files. A second call does nothing."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
            self._release()


class _Part:
    """One file of a stream, under its temporary name. `fd` is -1 when it is complete, durable and closed."""

    __slots__ = ("aside", "fd", "left", "written")

    def __init__(self, aside: Path, fd: int, nbytes: int) -> None:
        self.aside = aside
        self.fd = fd
        self.left = nbytes
        self.written = 0


class Receiver:
    """Receives a checkpoint from a peer in chunks. Blocks: call it in a thread, one at a time for each folder.

    The checkpoint does not count before `finish` has verified every byte of it and made it durable.
    """

    def __init__(self, folder: Path, nbytes: int, *, disk: Disk) -> None:
        """Begin to receive a stream of `nbytes`. Files that an earlier Receiver has left are overwritten. StorageError."""
        self.nbytes = nbytes
        self._received = 0
        self._disk = disk
        self._folder = folder
        self._aside = folder / f"received{ASIDE}"
        self._parts: list[_Part] = []
        self._in_use: tuple[FileInUse, ...] = ()
        self._head = b""
        self._known = False
        self._begin(self._aside, nbytes)

    @property
    def received(self) -> int:
        """The offset that the next chunk must have."""
        return self._received

    def keeps(self, offset: int) -> bool:
        """Whether it has everything before this offset, and a chunk at this offset can follow, perhaps without its beginning."""
        return bool(self._parts) and offset <= self._received

    def write(self, offset: int, data: bytes) -> None:
        """Add a chunk. ValueError when it is not the next one or exceeds the end. BadBatch when the stream does not begin like a
        checkpoint; NewerFormat. StorageError when the disk refuses: to open or write, and then the rest of the chunk, from
        `received` on, may come again; or to sync, and then nothing is kept, and another Receiver must begin.
        """
        if not self._parts or offset != self._received or offset + len(data) > self.nbytes:
            raise ValueError(
                f"{len(data)} bytes at {offset} of a checkpoint do not fit {self._received} received of {self.nbytes}"
            )
        self._received += len(data)
        if not self._known:
            self._head += data
            if not self._look_at_head():
                return
            data, self._head = self._head, b""
        self._received -= len(data)  # counted again as it is written: after a refusal the rest may come again
        while data:
            part = self._parts[-1]
            if not part.left:
                file = self._in_use[len(self._parts) - 1]
                self._begin(self._aside_of(file), file.used)
                continue
            piece = data[: part.left]
            try:
                write_all(self._disk, part.fd, piece, part.written)
            except OSError as error:
                raise refused(error, "receive a checkpoint into", part.aside) from error
            part.written += len(piece)
            part.left -= len(piece)
            self._received += len(piece)
            data = data[len(piece) :]
            if not part.left:
                self._complete(part)

    def _complete(self, part: _Part) -> None:
        try:
            self._disk.sync(part.fd)
        except OSError as error:
            self.abort()  # what the disk has of it is unknown
            raise refused(error, "receive a checkpoint into", part.aside) from error
        self._close(part)

    def _look_at_head(self) -> bool:
        """Read the head of the checkpoint, which lists the files and their lengths. Returns whether it is complete."""
        if len(self._head) < min(self.nbytes, checkpoint.FIXED_BYTES):
            return False
        length = checkpoint.head_bytes(self._head, self._aside) + checkpoint.FIXED_BYTES
        if length > self.nbytes or length > checkpoint.MAX_HEAD_BYTES:
            raise BadBatch(f"what a peer sends does not begin like a checkpoint: it says that its head has {length} bytes")
        if len(self._head) < length:
            return False
        head = checkpoint.parse_head(self._head, self._aside)
        if head.version == checkpoint.WITH_BODIES:
            raise BadBatch("a peer sends a checkpoint of an older version of the program")
        self._in_use = head.files.in_use
        self._parts[0].left = self.nbytes - sum(file.used for file in self._in_use)
        if self._parts[0].left < length:
            raise BadBatch(f"a checkpoint that lists files cannot fit into the {self.nbytes} bytes that a peer sends")
        self._known = True
        return True

    def finish(self) -> Checkpoint:
        """Verify all files and rename them, the checkpoint last. Then call `Journal.reset(index, epoch)`.

        BadBatch: the checkpoint must be fetched again. NewerFormat: the peer's version is newer. StorageError.
        """
        try:
            if self._received < self.nbytes or not self._known:
                raise BadBatch(f"a checkpoint was cut off after {self._received} of {self.nbytes} bytes")
            found = self._verified()
            for part, file in zip(self._parts[1:], self._in_use, strict=True):
                self._disk.replace(part.aside, self._folder / file.name)
            self._disk.sync_folder(self._folder)
            path = checkpoint.path_of(self._folder, found.index)
            self._disk.replace(self._aside, path)
            self._disk.sync_folder(self._folder)
        except OSError as error:
            raise refused(error, "keep the received checkpoint", self._aside) from error
        finally:
            self.abort()
        return Checkpoint(path, found.index, found.epoch, found.members, found.nbytes, found.files)

    def _verified(self) -> Checkpoint:
        found = checkpoint.load(self._aside, disk=self._disk)
        for _ in Checkpoint.read(self._aside, disk=self._disk):
            pass
        for part, file in zip(self._parts[1:], self._in_use, strict=True):
            with opened(self._disk, part.aside) as fd:
                bodies.verify_batches(self._disk, fd, file, part.aside)
        return found

    def abort(self) -> None:
        """Delete what was received. Does nothing after `finish`."""
        parts, self._parts = self._parts, []
        for part in parts:
            self._close(part)
            with contextlib.suppress(OSError):
                self._disk.unlink(part.aside)

    def _close(self, part: _Part) -> None:
        if part.fd >= 0:
            self._disk.close(part.fd)
            part.fd = -1

    def _begin(self, aside: Path, nbytes: int) -> None:
        try:
            fd = self._disk.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise refused(error, "receive a checkpoint into", aside) from error
        self._parts.append(_Part(aside, fd, nbytes))

    def _aside_of(self, file: FileInUse) -> Path:
        return self._folder / (file.name + ASIDE)
