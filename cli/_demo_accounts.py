"""What the demo reads and what it finds out: the text that is sent, what became of each message, the gaps in time.

Life of a message's number: number `n` carries line `n % len(lines)`. The producer counts for each number how often the cluster
accepted it, the consumer how often it arrived; `settle_accounts` lays the two columns of counts side by side.

Invariants: nothing here starts a process or looks at a clock. A message is lost when it was accepted and never arrived, and
duplicated as often as it arrived once too often; what arrived without having been accepted is neither, because a producer
that was cut off from its broker cannot know of it."""

from __future__ import annotations

import heapq
import pydoc_data
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

AT_LEAST = 100_000
MAX_TEXT_BYTES = 64 << 20
MAX_LINE_BYTES = 1 << 20
MAX_GAPS = 1000
SHORTEST_GAP_S = 0.02
"""A pause between two accepts that is shorter is the ordinary course of things."""

Gap = tuple[float, float]
"""When it began and when it ended, in seconds of the machine's monotonic clock, which all its processes share."""


class BadInput(Exception):
    """The text cannot be sent. The text of this is one line for people."""


# ---- the text


def usual_texts() -> Iterable[Path]:
    """Texts that a Debian machine has, the more telling ones first; the last comes with Python itself."""
    share = Path("/usr/share")
    yield share / "dict/words"
    yield from sorted(share.glob("perl/5.*/pod/perldiag.pod"))
    yield from sorted(share.glob("perl/5.*/Unicode/Collate/allkeys.txt"))
    yield share / "common-licenses/GPL-3"
    yield from (Path(folder) / "topics.py" for folder in pydoc_data.__path__)


def choose_text(wanted: str, candidates: Iterable[Path]) -> Path:
    """The file that INPUT names, else the first of the candidates that is there. BadInput when there is none."""
    if wanted:
        return Path(wanted)
    for path in candidates:
        if path.is_file():
            return path
    raise BadInput("none of the usual texts is on this machine: name one, as in make demo INPUT=some.txt")


def read_text(path: Path) -> bytes:
    """The file's bytes. BadInput when it cannot be read, is empty or is more than the demo should hold in memory."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise BadInput(f"INPUT={path}: {error.strerror}") from None
    if not content:
        raise BadInput(f"INPUT={path}: the file is empty, so there is nothing to send")
    if len(content) > MAX_TEXT_BYTES:
        raise BadInput(f"INPUT={path}: more than {MAX_TEXT_BYTES >> 20} MiB; send a part of it")
    longest = max(map(len, split_lines(content)))
    if longest > MAX_LINE_BYTES:
        raise BadInput(f"INPUT={path}: a line of {longest:,} bytes; a message here may have {MAX_LINE_BYTES:,}")
    return content


def split_lines(content: bytes) -> list[bytes]:
    """Each line without its newline; other bytes stay what they are, whatever the encoding."""
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def planned(lines: int, at_least: int = AT_LEAST) -> int:
    """How many messages a text of so many lines makes: all of it, so often that there are at least that many."""
    return lines * -(-at_least // lines)


# ---- counts and gaps


class Tally:
    """How often each number was seen; grows with the numbers, up to `most`, and counts to 255."""

    def __init__(self, most: int = 50_000_000) -> None:
        self.counts = bytearray()
        self.distinct = 0
        self.disordered = 0
        self._most = most
        self._highest = -1

    def add(self, number: int) -> None:
        """Count a number. One that comes for the first time, but after a higher one, is out of order."""
        if not 0 <= number < self._most:
            raise ValueError(f"{number} is no number of a message")
        if number >= len(self.counts):
            self.counts.extend(bytes(max(4096, number + 1 - len(self.counts))))
        seen = self.counts[number]
        if seen == 0:
            self.distinct += 1
            self.disordered += number < self._highest
            self._highest = max(self._highest, number)
        if seen < 255:
            self.counts[number] = seen + 1


@dataclass(frozen=True, slots=True)
class Accounts:
    """What became of the messages, each counted once; duplicates by arrival."""

    accepted: int
    received: int
    lost: int
    duplicated: int
    first_lost: int | None
    """The lowest number that was lost."""


def settle_accounts(accepted: bytes | bytearray, received: bytes | bytearray) -> Accounts:
    """Compare how often each number was accepted with how often it arrived; a column that ends early goes on with zeros."""
    size = max(len(accepted), len(received))
    accepted, received = accepted.ljust(size, b"\0"), received.ljust(size, b"\0")
    lost = [number for number, (out, came) in enumerate(zip(accepted, received, strict=True)) if out and not came]
    arrived = size - received.count(0)
    return Accounts(size - accepted.count(0), arrived, len(lost), sum(received) - arrived, lost[0] if lost else None)


class Gaps:
    """The longest pauses between events; the shorter ones are forgotten when they are too many."""

    def __init__(self) -> None:
        self._longest: list[tuple[float, Gap]] = []
        self._last_s: float | None = None

    def event(self, now_s: float) -> None:
        """Something has happened."""
        last_s, self._last_s = self._last_s, now_s
        if last_s is None or now_s - last_s < SHORTEST_GAP_S:
            return
        keep = heapq.heappush if len(self._longest) < MAX_GAPS else heapq.heappushpop
        keep(self._longest, (now_s - last_s, (last_s, now_s)))

    def all(self) -> list[Gap]:
        """The gaps, in order of time."""
        return sorted(gap for _, gap in self._longest)


def longest_gap_ms(gaps: Iterable[Gap], from_s: float, until_s: float) -> float:
    """The longest gap that has a part in that span, in ms, all of it counted; 0 when there is none worth the name."""
    return max((1000 * (end - begin) for begin, end in gaps if end >= from_s and begin <= until_s), default=0.0)
