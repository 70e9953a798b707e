"""The story to files, chunk by chunk, by one process or several: each sender's part of a chunk is a file.

A process holds the lines of one backup in one slot at a time, whatever the story's size. A file appears whole: it is written
under a hidden name, and renamed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from typing import BinaryIO, Final

from spark_analytics.demo_data import incidents
from spark_analytics.demo_data.incidents import REPEATED
from spark_analytics.demo_data.plan import Shape
from spark_analytics.demo_data.queues import Queues
from spark_analytics.demo_data.story import Chunk, Story
from spark_analytics.demo_data.words import Words

BYTES_PER_LINE: Final = 640
"""About, of a sample."""
_WAITING: Final = 4
"""So many chunks a process are handed out at a time."""


# ---- one chunk


class _Parts:
    """The files of a chunk, each made when its sender has something to say."""

    def __init__(self, directory: Path, senders: tuple[str, ...], start_ms: int, stack: ExitStack) -> None:
        self._names = [directory / f"{sender.replace(':', '_')}.{start_ms:015d}.jsonl" for sender in senders]
        self._files: dict[int, BinaryIO] = {}
        self._stack = stack

    def write(self, sender: int, content: str) -> None:
        """Append it."""
        file = self._files.get(sender)
        if file is None:
            name = self._names[sender]
            file = self._files[sender] = self._stack.enter_context(name.with_name(f".{name.stem}.part").open("wb"))
        file.write(content.encode("ascii"))

    def appear(self) -> int:
        """Under their names; returns how many."""
        for sender, file in self._files.items():
            file.close()
            self._names[sender].with_name(f".{self._names[sender].stem}.part").rename(self._names[sender])
        return len(self._files)


class ChunkWriter:
    """Writes chunks of a story; one a process."""

    def __init__(self, story: Story, directory: Path) -> None:
        self._story, self._plan, self._directory = story, story.plan, directory
        self._queues = Queues(story.plan)
        self._names = story.senders

    def write(self, chunk: Chunk) -> int:
        """Write its files; returns how many."""
        story, seqs = self._story, list(chunk.seqs)
        start_ms = story.shape.start_ms + chunk.begin * story.shape.interval_ms
        with ExitStack() as stack:
            parts = _Parts(self._directory, story.senders, start_ms, stack)
            for slot in range(chunk.begin, chunk.end):
                story.restart(slot, seqs)
                self._write_slot(slot, parts, seqs)
            return parts.appear()

    def _write_slot(self, slot: int, parts: _Parts, seqs: list[int]) -> None:
        words = Words(self._story, self._queues, slot)
        spoils, said = self._story.spoils.get(slot, []), list[str]()
        for piece in self._story.pieces(slot):
            seq = seqs[piece.sender]
            seqs[piece.sender] += piece.lines
            if piece.lost >= piece.lines:
                continue
            lines = words.of(piece, seq)
            parts.write(piece.sender, lines)
            if spoils and piece.kind in ("whole", "queues"):
                said += lines.splitlines(keepends=True)
        for problem in spoils:
            again = reversed(said[:REPEATED])
            bad = f"{incidents.spoiled(problem, said[0], said[1])}\n" if problem else "".join(again)
            parts.write(0, bad)


# ---- all of them

_writer: list[ChunkWriter] = []


def _begin(shape: Shape, directory: Path) -> None:
    signal(SIGINT, SIG_IGN)  # the process that everybody waits for ends all of them
    _writer[:] = [ChunkWriter(Story(shape), directory)]


def _write_one(chunk: Chunk) -> int:
    return _writer[0].write(chunk)


def write_all(story: Story, directory: Path, *, processes: int, progress: Callable[[str, float], None]) -> int:
    """Write every chunk; returns how many files there are. `progress` is told what is done, and its share. OSError."""
    total, files = story.chunk_count, 0
    doing = f"writing about {story.shape.about_lines:,} lines"
    if processes == 1 or total == 1:
        writer = ChunkWriter(story, directory)
        for done, chunk in enumerate(story.chunks(), 1):
            files += writer.write(chunk)
            progress(doing, done / total)
        return files
    with ProcessPoolExecutor(processes, initializer=_begin, initargs=(story.shape, directory)) as pool:
        chunks, number = story.chunks(), count(1)
        waiting: deque[Future[int]] = deque(pool.submit(_write_one, each) for each in islice(chunks, _WAITING * processes))
        try:
            while waiting:
                files += waiting.popleft().result()
                waiting.extend(pool.submit(_write_one, each) for each in islice(chunks, 1))
                progress(doing, next(number) / total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return files
