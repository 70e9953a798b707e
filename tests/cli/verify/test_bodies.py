"""What messages are called and hold."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.verify.core.bodies import Numbered, read_id, write_id


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 1 << 40), st.floats(0, 1e7))
def test_an_id_says_what_was_written_into_it(producer: int, queue: int, number: int, sent_s: float) -> None:
    name = read_id(write_id(f"0123abcd.{producer}.{queue}", number, sent_s))
    assert name is not None
    assert name[:4] == ("0123abcd", producer, queue, number)
    assert name.sent_s == pytest.approx(sent_s, abs=2e-6)


@pytest.mark.parametrize(
    "text", [7, None, b"a.1.2.3.4", "a", "a.1.2.3", "a.1.2.3.4.5", "a.1.2.-3.4", "a.1.2.x.4", "a.1.2.²3.4", "0" * 200]
)
def test_what_only_looks_like_an_id_is_none_of_ours(text: object) -> None:
    assert read_id(text) is None


@given(st.integers(0, 70_000), st.integers(0, 1 << 40))
def test_a_body_has_the_size_that_was_asked_for_and_room_for_its_name(nbytes: int, number: int) -> None:
    name = f"run.1.2.{number}:"
    body = Numbered(nbytes).body("run.1.2", number)
    assert len(body) == max(nbytes, len(name))
    assert body.startswith(name.encode())


def test_no_two_messages_hold_the_same() -> None:
    bodies = Numbered(60)
    held = {bodies.body(stream, number) for stream in ("r.0.0", "r.0.1", "r.1.0") for number in range(1000)}
    assert len(held) == 3000


def test_two_bodies_differ_to_their_ends_so_that_one_that_is_put_together_of_both_is_neither() -> None:
    bodies = Numbered(1000)
    five, six = bodies.body("r.0.0", 5), bodies.body("r.0.0", 6)
    assert all(one != other for one, other in zip(five[10:], six[10:], strict=True))


def test_bodies_are_the_same_in_another_process() -> None:
    bodies = Numbered(1000)
    assert pickle.loads(pickle.dumps(bodies)).body("r.0.0", 5) == bodies.body("r.0.0", 5)
