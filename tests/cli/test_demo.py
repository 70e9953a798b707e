"""What the demo sends and shows. That its processes live through a kill is for the demo itself and for tests/system."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.demo.command import changes_missed, changes_shown, copy_telemetry
from cli.demo.screen import progress, wrapped
from cli.demo.text import MAX_LINE_BYTES, BadInput, Lines, choose_text, planned, read_text, split_lines, usual_texts

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


def test_messages_hold_the_lines_of_the_text_again_and_again_in_every_process(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"one\n\nthree")
    lines = pickle.loads(pickle.dumps(Lines(path)))
    assert [lines.body("stream", number) for number in range(5)] == [b"one", b"", b"three", b"one", b""]


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


# ---- what is shown


@given(st.integers(1, 100))
def test_progress_fits_the_window_and_cuts_no_figure(width: int) -> None:
    line = progress({"accepted": 54_321, "received": 43_210}, 100_000, 4_512.3, width)
    assert " 43 %  54,321 accepted  43,210 received  4,512/s"[: len(line)] == line
    assert len(line) <= width
    assert width < 6 or line.endswith(("%", "accepted", "received", "/s"))


def test_more_messages_than_planned_are_not_more_than_everything() -> None:
    assert progress({"accepted": 250, "received": 240}, 100, 1.0, 80).startswith("100 %")


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


def test_a_page_that_shows_no_failover_after_a_kill_is_a_fault() -> None:
    both = [{"kind": "failover", "gap_ms": 1240.0}, {"kind": "switchover", "gap_ms": 180.4}]
    assert changes_missed(both) == ""
    assert "shows no failover, though" in changes_missed(both[1:])
    assert "no failover and no switchover" in changes_missed([])
    assert changes_shown(both) == "a failover with 1,240 ms, a switchover with 180 ms"
