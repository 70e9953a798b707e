"""What the demo counts and shows. That its processes live through a kill is for the demo itself and for tests/system."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli._demo_accounts import (
    MAX_GAPS,
    MAX_LINE_BYTES,
    BadInput,
    Gaps,
    Tally,
    choose_text,
    longest_gap_ms,
    planned,
    read_text,
    settle_accounts,
    split_lines,
    usual_texts,
)
from cli._demo_screen import progress, table, wrapped
from cli.demo import copy_telemetry


def tallied(numbers: list[int]) -> Tally:
    tally = Tally()
    for number in numbers:
        tally.add(number)
    return tally


# ---- the text


@given(st.lists(st.binary(max_size=8).filter(lambda line: b"\n" not in line), min_size=1))
def test_every_line_is_sent_with_the_bytes_it_has_and_empty_ones_too(lines: list[bytes]) -> None:
    assert split_lines(b"\n".join(lines) + b"\n") == lines


def test_a_last_line_without_a_newline_is_a_line() -> None:
    assert split_lines(b"one\n\ntwo") == [b"one", b"", b"two"]


def test_a_text_is_sent_whole_and_so_often_that_there_are_enough_messages() -> None:
    assert planned(7, 100_000) == 100_002
    assert planned(100_000, 100_000) == 100_000
    assert planned(100_001, 100_000) == 100_001


@pytest.mark.parametrize(
    "content, complaint",
    [(b"", "is empty"), (b"x" * (MAX_LINE_BYTES + 1), "a line of 1,048,577 bytes")],
    ids=["empty", "long line"],
)
def test_a_text_that_cannot_be_sent_is_refused_before_anything_starts(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=complaint):
        read_text(path)


def test_a_missing_file_and_a_folder_are_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"missing: No such file or directory"):
        read_text(tmp_path / "missing")
    with pytest.raises(BadInput, match=r"Is a directory"):
        read_text(tmp_path)


def test_the_text_that_is_asked_for_wins_and_else_the_first_that_is_there(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("text")
    assert choose_text("asked", [there]) == Path("asked")
    assert choose_text("", [tmp_path / "not", there, tmp_path / "later"]) == there
    with pytest.raises(BadInput, match="INPUT="):
        choose_text("", [tmp_path / "not"])


def test_python_itself_brings_the_last_resort() -> None:
    *_, last = usual_texts()
    assert len(split_lines(read_text(last))) > 1000


# ---- counts


def test_an_accepted_message_that_never_came_is_lost() -> None:
    accounts = settle_accounts(tallied([0, 1, 2, 3]).counts, tallied([0, 3]).counts)
    assert (accounts.accepted, accounts.received, accounts.lost, accounts.first_lost) == (4, 2, 2, 1)


def test_losses_at_the_end_are_seen_though_the_consumer_counted_no_further() -> None:
    accepted, received = tallied(list(range(10_000))).counts, tallied(list(range(10))).counts
    assert len(received) < len(accepted)
    assert settle_accounts(accepted, received).lost == 9_990


def test_a_message_that_came_but_was_not_accepted_is_neither_lost_nor_a_duplicate() -> None:
    accounts = settle_accounts(tallied([0]).counts, tallied([0, 1]).counts)
    assert (accounts.lost, accounts.duplicated, accounts.received) == (0, 0, 2)


@given(st.lists(st.integers(0, 40)), st.lists(st.integers(0, 40)))
def test_accounts_are_those_of_two_sets_and_a_list(accepted: list[int], received: list[int]) -> None:
    accounts = settle_accounts(bytes(tallied(accepted).counts), bytes(tallied(received).counts))
    assert accounts.accepted == len(set(accepted))
    assert accounts.received == len(set(received))
    assert accounts.lost == len(set(accepted) - set(received))
    assert accounts.first_lost == min(set(accepted) - set(received), default=None)
    assert accounts.duplicated == len(received) - len(set(received))


def test_a_duplicate_is_not_out_of_order_but_a_first_arrival_behind_a_later_one_is() -> None:
    assert tallied([0, 1, 2, 1, 2, 3]).disordered == 0
    assert tallied([0, 2, 1, 3]).disordered == 1


def test_a_number_that_no_message_has_is_refused_instead_of_filling_the_memory() -> None:
    tally = Tally(most=100)
    for number in (-1, 100):
        with pytest.raises(ValueError, match="is no number of a message"):
            tally.add(number)
    assert not tally.counts


# ---- gaps


def test_the_longest_gap_that_touches_the_span_counts_whole() -> None:
    gaps = Gaps()
    for now_s in (0.0, 5.0, 5.001, 6.0, 6.5):
        gaps.event(now_s)
    assert gaps.all() == [(0.0, 5.0), (5.001, 6.0), (6.0, 6.5)], "and the millisecond is forgotten"
    assert longest_gap_ms(gaps.all(), 5.5, 7.0) == pytest.approx(999.0)
    assert longest_gap_ms(gaps.all(), 4.9, 7.0) == pytest.approx(5000.0)
    assert longest_gap_ms(gaps.all(), 7.0, 8.0) == 0.0


def test_of_too_many_gaps_the_longest_are_kept_and_not_the_latest() -> None:
    gaps, now_s = Gaps(), 0.0
    gaps.event(now_s)
    for length_s in (1.0,) * MAX_GAPS + (9.0, 0.1):
        now_s += length_s
        gaps.event(now_s)
    lengths = sorted(end - begin for begin, end in gaps.all())
    assert lengths == pytest.approx([1.0] * (MAX_GAPS - 1) + [9.0])


# ---- what is shown


@given(st.integers(1, 100))
def test_progress_fits_the_window_and_cuts_no_figure(width: int) -> None:
    line = progress({"accepted": 54_321, "received": 43_210}, 100_000, 4_512.3, width)
    assert " 43 %  54,321 accepted  43,210 received  4,512/s"[: len(line)] == line
    assert len(line) <= width
    assert width < 6 or line.endswith(("%", "accepted", "received", "/s"))


def test_more_messages_than_planned_are_not_more_than_everything() -> None:
    assert progress({"accepted": 250, "received": 240}, 100, 1.0, 80).startswith("100 %")


def test_a_table_puts_below_its_name_what_has_no_room_beside_it() -> None:
    rows = [("lost", "0"), ("page", "/a/path/that/is/long.html")]
    assert table(rows, 80) == "  lost  0\n  page  /a/path/that/is/long.html"
    assert table(rows, 30) == "  lost  0\n  page\n    /a/path/that/is/long.html"
    assert table([("gap", "12 ms without an accept, 9 ms without a message")], 34).splitlines() == [
        "  gap",
        "    12 ms without an accept, 9 ms",
        "    without a message",
    ]


def test_a_line_of_the_story_is_wrapped_and_a_path_in_it_stays_whole() -> None:
    text = wrapped(1.23, "stores in /tmp/understudy-demo-12345678 and so on", 40)
    assert text == "   1.2 s  stores in\n          /tmp/understudy-demo-12345678\n          and so on"


# ---- telemetry of brokers that go on running


def test_telemetry_that_is_still_written_is_copied_up_to_its_last_whole_line(tmp_path: Path) -> None:
    source = tmp_path / "telemetry"
    source.mkdir()
    (source / "one.jsonl").write_text("a\n")
    (source / ".two.part").write_text('b\nc\n{"torn')
    target = copy_telemetry(source, tmp_path / "copy")
    assert {path.name: path.read_text() for path in target.iterdir()} == {"one.jsonl": "a\n", "two.jsonl": "b\nc\n"}
