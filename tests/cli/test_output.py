"""Tables and numbers as Apache Qpid's tools write them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from cli import commands
from cli.output import Column, count, counting, duration, figures, flag, shown, table

COLUMNS = (Column("queue", "name"), Column("dur", "durable", flag), counting("msg", "messages"))
ITEMS = [{"name": "a.long.queue", "durable": True, "messages": 7}, {"name": "b", "durable": False, "messages": 12_345}]


def test_a_table_has_title_headings_a_rule_and_rows() -> None:
    assert table("Queues", COLUMNS, ITEMS).splitlines() == [
        "Queues",
        "  queue         dur  msg",
        "  " + "=" * 24,
        "  a.long.queue  Y        7",
        "  b                  12.3k",
    ]


@pytest.mark.parametrize(
    "before,width,rule",
    [(10, None, 80), (120, None, 130), (10, 100, 72), (10, 71, None)],
    ids=["a pipe", "long headings", "a terminal", "a narrow terminal"],
)
def test_the_rule_of_a_table_goes_on_behind_the_headings_for_one_screen_only(
    before: int, width: int | None, rule: int | None
) -> None:
    """Breaks when one long reason makes a line of `=` of hundreds of characters. A terminal has a table only if it fits."""
    reason = "r" * (340 if width is None else 58)
    lines = table(
        "", (Column("h" * before, "x", str), Column("reason", "reason")), [{"x": 1, "reason": reason}], width
    ).splitlines()
    assert (len(lines[1]) if lines[1].endswith("=") else None) == rule
    assert lines[-1].endswith(reason)


def test_a_table_without_rows_still_shows_its_columns() -> None:
    assert table("Queues", COLUMNS, []).splitlines()[1] == "  queue  dur  msg"


def test_in_a_narrow_window_each_row_is_a_block() -> None:
    """Breaks when lines wrap and columns cannot be told apart."""
    assert table("Queues", COLUMNS, ITEMS, width=20).splitlines() == [
        "Queues",
        "",
        "  queue: a.long.queue",
        "  dur:   Y",
        "  msg:   7",
        "",
        "  queue: b",
        "  dur:",
        "  msg:   12.3k",
    ]


def test_a_value_that_is_wider_than_the_window_is_below_its_name_in_whole_words() -> None:
    """Breaks when the terminal breaks it in the middle of a word, at its left edge."""
    item = {"name": "q", "durable": True, "messages": 7}
    columns = [*COLUMNS[:2], Column("about", "about")]
    told = "three words of ten-letters and-some-more"
    assert table("Queues", columns, [item | {"about": told}], width=32).splitlines()[2:] == [
        "  queue: q",
        "  dur:   Y",
        "  about:",
        "    three words of ten-letters",
        "    and-some-more",
    ]
    assert table("", columns, [item | {"about": told}]).splitlines()[-1].endswith(told), "a script gets one line"


def test_a_table_that_fits_stays_a_table() -> None:
    assert table("Queues", COLUMNS, ITEMS, width=26) == table("Queues", COLUMNS, ITEMS)


@pytest.mark.parametrize(
    "number, written",
    [
        (None, "0"),
        (0, "0"),
        (999, "999"),
        (1_000, "1.00k"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (7_180_000, "7.18m"),
        (2_500_000_000, "2.50g"),
        (4_000_000_000_000, "4000g"),
    ],
)
def test_large_numbers_are_short(number: int | None, written: str) -> None:
    assert count(number) == written


@pytest.mark.parametrize(
    "seconds, written", [(None, "0s"), (3.7, "3s"), (63, "1m 3s"), (3600, "1h 0m 0s"), (8_382_461, "97d 0h 27m 41s")]
)
def test_durations_begin_with_their_largest_unit(seconds: float | None, written: str) -> None:
    assert duration(seconds) == written


def test_figures_put_below_their_name_what_has_no_room_beside_it() -> None:
    rows = [("lost", "0"), ("page", "/a/path/that/is/long.html")]
    assert figures(rows, 80) == "  lost  0\n  page  /a/path/that/is/long.html"
    assert figures(rows, 30) == "  lost  0\n  page\n    /a/path/that/is/long.html"
    assert figures([("gap", "12 ms without an accept, 9 ms without a message")], 34).splitlines() == [
        "  gap",
        "    12 ms without an accept, 9 ms",
        "    without a message",
    ]


EVIL = "a\x1b]0;x\x07\n127.0.0.1:1  forged"
HARMLESS = "a\\x1b]0;x\\x07\\n127.0.0.1:1  forged"


@pytest.mark.parametrize(
    "text, escaped",
    [
        (EVIL, HARMLESS),
        ("\x7f\x9b2J", "\\x7f\\x9b2J"),
        ("a\u2028b\u2029c\u202ed\u2066e", "a\\u2028b\\u2029c\\u202ed\\u2066e"),
        ("\U000e0041\udc80\t", "\\U000e0041\\udc80\\t"),
        ("Aufträge 注文 a\\b", "Aufträge 注文 a\\b"),
    ],
)
def test_characters_that_are_not_printable_are_shown_as_escapes(text: str, escaped: str) -> None:
    assert shown(text) == escaped


def test_the_text_of_a_cell_cannot_begin_a_row_or_write_to_the_terminal() -> None:
    """Breaks when a client's name is printed as it is: it would set the window's title and forge a connection."""
    evil = [{"name": EVIL, "durable": True, "messages": 7}]
    assert table("Queues", COLUMNS, evil).splitlines()[3:] == [f"  {HARMLESS}  Y      7"]
    assert f"  queue: {HARMLESS}" in table("Queues", COLUMNS, evil, width=20).splitlines()
    assert table("", [Column(EVIL, "name")], []).splitlines()[0] == f"  {HARMLESS}"
    assert figures([("page", EVIL)], None) == f"  page  {HARMLESS}"


def test_commands_print_what_they_format_through_this_module() -> None:
    """Breaks when a command prints a name with click.echo, which writes control characters as they are."""
    for file in sorted(Path(commands.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "click.echo":
                formatted = any(isinstance(part, ast.FormattedValue) for word in node.args for part in ast.walk(word))
                assert not formatted or "shown(" in ast.unparse(node), f"{file.name}:{node.lineno}"
