"""How our commands print: tables in the layout of Apache Qpid's tools, or JSON.

A table has a title, a line of column names, a line of `=`, and rows, indented by two; texts are left-aligned, numbers
right-aligned. In a terminal window that is too narrow, each row becomes a block of `name: value` lines, and a value that is still
too wide is below its name. Output to a pipe or file is always a table of the needed width, so that scripts can rely on it.

Invariant: texts of others (names, clients' properties, brokers' errors) are printed through `shown`, so that none of them moves
the cursor, changes the terminal or begins a line. JSON needs no `shown`: its strings have escapes.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from broker.core.printable import printable

_KILO = 1000
_RULE = 80
"""The longest line of `=`, unless the headings or the terminal are wider."""
_NARROWEST = 30
"""No text is broken into shorter lines."""
_STDERR = 2
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, the item's field, and the function that formats the field. `most`: a longer text is cut to so many
    characters; 0: none is."""

    heading: str
    field: str
    write: Callable[[Any], str] = str
    number: bool = False
    most: int = 0

    def cell(self, item: dict[str, Any]) -> str:
        """The text of this column for an item."""
        found = shown(self.write(item.get(self.field)))
        return f"{found[: self.most - 3]}..." if 0 < self.most < len(found) else found


def text(value: Any) -> str:
    """A text; nothing for None."""
    return "" if value is None else str(value)


def shown(text: str) -> str:
    """The text with an escape for each character that is not printable."""
    return printable(text)


def flag(value: Any) -> str:
    """Y, or nothing."""
    return "Y" if value else ""


def count(value: Any) -> str:
    """A number in at most four digits; larger numbers get k, m or g (powers of 1000) at the end: 999, 1.00k, 12.3m, 123g."""
    amount = float(value or 0)
    if amount < _KILO:
        return str(int(amount))
    for unit in "kmg":
        amount /= _KILO
        if amount < _KILO or unit == "g":
            break
    return f"{amount:.{2 if amount < 10 else 1 if amount < 100 else 0}f}{unit}"


def duration(value: Any) -> str:
    """Seconds as `1d 2h 3m 4s`, from the largest unit that is not zero."""
    left = int(value or 0)
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        amount, left = divmod(left, size)
        if amount or parts or unit == "s":
            parts.append(f"{amount}{unit}")
    return " ".join(parts)


def counting(heading: str, field: str) -> Column:
    """A column of numbers."""
    return Column(heading, field, count, number=True)


def table(title: str, columns: Sequence[Column], items: Iterable[dict[str, Any]], width: int | None = None) -> str:
    """The items as a table; as blocks if the table is wider than `width` characters."""
    headings = [shown(column.heading) for column in columns]
    rows = [[column.cell(item) for column in columns] for item in items]
    widths = [max(len(heading), *(len(row[i]) for row in rows), 0) for i, heading in enumerate(headings)]
    total = sum(widths) + 2 * len(columns)
    if width is not None and total > width:
        return _blocks(title, headings, rows, width)

    def line(cells: Sequence[str], is_row: bool) -> str:
        padded = [
            cell.rjust(size) if column.number and is_row else cell.ljust(size)
            for cell, size, column in zip(cells, widths, columns, strict=True)
        ]
        return ("  " + "  ".join(padded)).rstrip()

    heading = line(headings, False)
    rule = min(total, max(_RULE, len(heading)) if width is None else width)
    lines = [title] if title else []
    lines += [heading, "  " + "=" * (rule - 2)]
    return "\n".join(lines + [line(row, True) for row in rows])


def _blocks(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    longest = max(map(len, headings)) + 1

    def line(name: str, cell: str) -> str:
        beside = f"  {name + ':':{longest}} {cell}".rstrip()
        fits = len(beside) <= width or width < _NARROWEST or " " not in cell
        return beside if fits else f"  {name}:\n{filled(cell, width, ' ' * 4, ' ' * 4)}"

    blocks = ["\n".join(line(name, cell) for name, cell in zip(headings, row, strict=True)) for row in rows]
    return "\n\n".join([title, *blocks] if title else blocks)


def figures(rows: Sequence[tuple[str, str]], width: int | None) -> str:
    """Names and values. A value that does not fit beside its name in `width` characters is below it; words are not split."""
    longest = max(len(name) for name, _ in rows)
    lines: list[str] = []
    for name, value in ((name, shown(value)) for name, value in rows):
        beside = f"  {name:{longest}}  {value}"
        fits = width is None or len(beside) <= width
        lines += [beside] if fits else [f"  {name}", filled(value, width or 0, " " * 4, " " * 4)]
    return "\n".join(lines)


def filled(text: str, width: int, first: str, others: str) -> str:
    """Lines of at most `width` characters if the words allow it, with `first` before the first line and `others` before the
    others."""
    return textwrap.fill(
        text,
        max(width, _NARROWEST),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def window() -> int | None:
    """The width of the terminal on stdout; None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def open_streams() -> None:
    """Open those of stdin, stdout and stderr that the caller has closed, as /dev/null. Otherwise printing fails, and a socket or
    file of this process gets the number of one of them. A character that is not in the character set of stdout becomes an escape,
    as Python does it on stderr.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(fd)
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115  for the life of the process
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def end_unwritten(name: str, error: OSError) -> NoReturn:
    """End with a line that the output could not be written, with 1; raise any error that is not about the output."""
    if error.filename is not None or error.errno not in _NOT_WRITTEN:
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter writes the rest at its end
    note(f"{name}: the output could not be written: {os.strerror(error.errno or 0)}")
    sys.exit(1)


def show_table(title: str, columns: Sequence[Column], items: Iterable[dict[str, Any]]) -> None:
    """Print the items as a table that fits the output."""
    click.echo(table(title, columns, items, window()))


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2, default=str))


def say(text: str) -> None:
    """Print one line."""
    click.echo(shown(text))


def note(text: str) -> None:
    """Print one line on stderr, so that no reader of the output takes it for a part of that."""
    click.echo(shown(text), err=True)


def warn(text: str) -> None:
    """Print one line on stderr about an action that was done, but is perhaps not what the user meant."""
    note(f"warning: {text}")
