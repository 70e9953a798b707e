"""The text that the demo sends: which file it is, how it is read, and which message has which line.

Message `n` carries line `n % len(lines)`, so the text is sent again and again until there are enough messages. Nothing here
starts a process or looks at a clock."""

from __future__ import annotations

import functools
import pydoc_data
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

AT_LEAST = 100_000
MAX_TEXT_BYTES = 64 << 20
MAX_LINE_BYTES = 1 << 20


class BadInput(Exception):
    """The text cannot be sent. The message of the exception is one line for people."""


def usual_texts() -> Iterable[Path]:
    """Texts on a Debian machine, the more interesting ones first; the last one comes with Python itself."""
    share = Path("/usr/share")
    yield share / "dict/words"
    yield from sorted(share.glob("perl/5.*/pod/perldiag.pod"))
    yield from sorted(share.glob("perl/5.*/Unicode/Collate/allkeys.txt"))
    yield share / "common-licenses/GPL-3"
    yield from (Path(folder) / "topics.py" for folder in pydoc_data.__path__)


def choose_text(wanted: str, candidates: Iterable[Path]) -> Path:
    """The file that INPUT names, else the first existing candidate. BadInput if there is none."""
    if wanted:
        return Path(wanted)
    for path in candidates:
        if path.is_file():
            return path
    raise BadInput("none of the usual texts is on this machine: name one, as in make demo INPUT=some.txt")


def read_text(path: Path) -> bytes:
    """The file's bytes. BadInput if it cannot be read, is empty, or is too large for the demo to hold in memory."""
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
    """Each line without its newline; other bytes are unchanged, whatever the encoding."""
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def planned(lines: int, at_least: int = AT_LEAST) -> int:
    """The number of messages for a text of so many lines: the whole text, repeated until there are at least `at_least`
    messages."""
    return lines * -(-at_least // lines)


@dataclass(frozen=True)
class Lines:
    """Messages that contain the lines of a text. Each process that needs them reads the file once."""

    path: Path

    def body(self, stream: str, number: int) -> bytes:
        """The body of a message."""
        return self._lines[number % len(self._lines)]

    @functools.cached_property
    def _lines(self) -> list[bytes]:
        return split_lines(self.path.read_bytes())
