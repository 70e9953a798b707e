"""What a model does not show of lanes, plans and kinds of queues: cost, memory, errors, and what is read when."""

from __future__ import annotations

import struct
from typing import Any

import proton
import pytest

from broker.core.queues.blocks import BadColumns, Block, Move
from broker.core.queues.discipline import discipline_of
from broker.core.queues.fifo import Fifo
from broker.core.queues.lane import BLOCK_MESSAGES, LANE_SHIFT, Lane
from broker.core.queues.priority import Priority, level_for
from broker.core.queues.reading import ReadAhead
from broker.core.queues.residency import RUN_BYTES, Residency
from tests.broker.core.queues.files import Files, append, read_back, sequences

PLENTY = 1 << 40


def lane_of(*counts: int, files: Files | None = None, keep: bool = True, nbytes: int = 10) -> Lane:
    """A lane of runs with so many messages each, from sequence 1 on."""
    lane = Lane(1, {}, Residency(PLENTY))
    for count in counts:
        place = 0 if files is None else files.write(b"m" * nbytes * count)
        append(lane, lane.next_seq, [b"m" * nbytes] * count, place, keep=keep)
    return lane


def of_level(priority: int | None) -> bytes:
    message: Any = proton.Message(body="x")
    if priority is not None:
        message.priority = priority
    return bytes(message.encode())


# ---- lanes


def test_runs_are_given_out_whole_and_need_no_bitmap() -> None:
    """Per-message bookkeeping would show as more lots, or as a bitmap."""
    fifo = Fifo(lane_of(1000, 1000))
    lots = fifo.acquire(None, 1500, PLENTY)
    assert [(lot.first_seq, lot.n_messages) for lot in lots] == [(1, 1000), (1001, 500)]
    fifo.remove(1, 1200)
    assert lots[0].block.dead is None


def test_what_was_taken_out_of_a_run_by_itself_is_left_out_when_its_turn_comes() -> None:
    fifo = Fifo(lane_of(10))
    fifo.claim(1, 1)
    fifo.claim(4, 2)
    assert sequences(fifo.acquire(None, 10, PLENTY)) == [2, 3, 6, 7, 8, 9, 10]


@pytest.mark.costs
def test_a_message_of_its_own_costs_at_most_24_bytes_and_one_of_a_large_run_five() -> None:
    for count, most in ((1, 24), (1000, 5)):
        lane = lane_of(*[count] * (40_000 // count), files=Files(), keep=False)
        columns = [each for block in lane.blocks for each in (block.offsets, block.run_starts, block.places, block.crcs)]
        nbytes = sum(len(column) * column.itemsize for column in columns)
        assert nbytes / 40_000 <= most


@pytest.mark.costs
def test_one_message_left_of_each_block_holds_no_columns_of_the_others() -> None:
    """A stuck message would otherwise keep the columns of all that were around it."""
    lane = lane_of(*[1] * (3 * BLOCK_MESSAGES))
    append(lane, lane.next_seq + 1, [b"a new block"])
    for first in range(1, 3 * BLOCK_MESSAGES, BLOCK_MESSAGES):
        lane.remove(first, first + 2000)
        lane.remove(first + 2001, first + BLOCK_MESSAGES)
    assert lane.depth == 4
    assert sum(block.count for block in lane.blocks) < 3 * 300


def test_a_queue_that_is_empty_again_holds_next_to_nothing() -> None:
    lane = lane_of(*[1] * 500)
    lane.remove(1, 501)
    assert lane.blocks == []
    append(lane, 501, [b"a"])
    lane.remove(501, 502)
    assert [block.count for block in lane.blocks] == [1]
    append(lane, 600, [b"b"])
    assert [block.first_seq for block in lane.blocks] == [600]


def test_nothing_is_alive_between_sequences_before_all_blocks_whatever_those_have_lost() -> None:
    """Breaks when the end of a block that has a bitmap is counted backwards: then messages behind the end are told."""
    lane = lane_of(1)
    lane.remove(1, 2)
    lane.skip_to(10)
    append(lane, 10, [b"m"] * 6, 0)
    lane.remove(12, 13)
    lane.remove(14, 15)
    assert [block.first_seq for block in lane.blocks] == [10]
    for first, end in ((1, 2), (5, 6), (8, 9), (1, 10)):
        assert list(lane.alive_between(first, end)) == []
    assert list(lane.alive_between(1, 12)) == [(10, 2)]
    assert list(lane.alive_between(1, 99)) == [(10, 2), (13, 1), (15, 1)]


def test_a_sequence_is_never_given_twice() -> None:
    """Applying a batch a second time must fail loudly, and not put its messages on the queue again."""
    lane = lane_of(3)
    text = "sequence 2 was given already: the next one is 4"
    with pytest.raises(ValueError, match=text):
        append(lane, 2, [b"again"])
    with pytest.raises(ValueError, match=text):
        lane.skip_to(2)
    with pytest.raises(ValueError, match=text):
        lane.put_block(2, 1, b"")
    assert (lane.depth, lane.next_seq) == (3, 4)


def test_a_small_part_of_a_large_batch_does_not_hold_the_batch() -> None:
    """A slow queue that shares batches with a busy one would otherwise hold the busy one's messages."""
    lane, files = Lane(1, {}, Residency(PLENTY)), Files()
    before = b"another's" * 1000
    for sequence in range(1, 11):
        append(lane, sequence, [b"mine"], files.write(before + b"mine"), before=before)
    assert lane.residency.held_bytes == 10 * (4 + RUN_BYTES)


def test_a_queue_that_is_gone_counts_no_more() -> None:
    files = Files()
    lane = lane_of(5, 5, files=files)
    lane.raise_count(2, 1, 3)
    lane.clear()
    assert (lane.depth, lane.residency.held_bytes, lane.has_counts) == (0, 0, False)
    assert set(lane.live_by_file.values()) == {0}


def test_what_is_dropped_comes_back_and_what_is_gone_does_not() -> None:
    files = Files()
    lane = lane_of(5, 5, files=files)
    place = lane.blocks[0].places[0]
    lane.drop_bodies()
    lane.drop_bodies()
    assert (lane.residency.held_bytes, lane.spilled) == (0, True)
    read_back(lane, files, 2)
    assert [message for lot in [lane.lot_of(2)] if lot for message in lot.messages()] == [b"m" * 10]
    lane.restore(99, place, b"", 0)
    assert not lane.lies_at(99, place)
    assert lane.lies_at(3, place)
    assert not lane.lies_at(3, place + 1)
    lane.remove(1, 6)
    assert not lane.lies_at(3, place)
    assert lane.give_up(99, place) == 0
    assert lane.lot_of(3) is None


def test_a_copy_of_what_is_no_longer_here_changes_nothing() -> None:
    """A compaction ends after its queue was emptied and filled again."""
    files = Files()
    lane = lane_of(5, files=files)
    place = lane.blocks[0].places[0]
    lane.moved([Move(0, 5, place, 1 << 40, 1), Move(7, 1, place, 1 << 40, 1), Move(2, 1, place + 11, 1 << 40, 1)])
    assert list(lane.blocks[0].places) == [place]


@pytest.mark.parametrize("columns", [b"", b"\0" * 16, b"\1" * 200])
def test_columns_that_cannot_be_are_refused(columns: bytes) -> None:
    with pytest.raises(BadColumns, match="bytes are"):
        Block.from_columns(1, 3, columns)


# ---- what is read ahead


def wanted(ahead: ReadAhead, window: int, *stops: int, singles: tuple[int, ...] = ()) -> list[int]:
    return [body.sequence for body in ahead.plan(stops, singles, window)]


def test_a_window_is_read_where_somebody_stopped_and_the_next_when_half_of_it_is_gone() -> None:
    files = Files()
    fifo = Fifo(lane_of(*[1] * 100, files=files, keep=False))
    ahead = ReadAhead(fifo)
    assert fifo.acquire(None, 10, PLENTY) == []
    assert wanted(ahead, 200, fifo.absent) == list(range(1, 21))
    for sequence in range(1, 21):
        read_back(fifo.lane, files, sequence)
    fifo.acquire(None, 9, PLENTY)
    assert wanted(ahead, 200) == []
    fifo.acquire(None, 2, PLENTY)
    assert wanted(ahead, 200) == list(range(21, 32))


def test_a_message_larger_than_the_window_is_read_and_what_is_dead_or_here_is_not() -> None:
    files = Files()
    fifo = Fifo(lane_of(1, 1, 1, 1, 1, files=files, keep=False, nbytes=100))
    fifo.remove(2, 1)
    read_back(fifo.lane, files, 3)
    ahead = ReadAhead(fifo)
    assert wanted(ahead, 1, 1) == [1]
    assert wanted(ahead, PLENTY, 1) == [1, 4, 5]
    fifo.lane.give_up(4, fifo.lane.blocks[0].places[3])
    assert wanted(ahead, PLENTY, 1, singles=(5,)) == [5, 1]


def test_messages_that_are_needed_alone_make_a_window_and_the_first_of_them_is_always_read() -> None:
    files = Files()
    fifo = Fifo(lane_of(*[1] * 10, files=files, keep=False, nbytes=100))
    read_back(fifo.lane, files, 2)
    ahead, singles = ReadAhead(fifo), tuple(range(1, 11))
    assert wanted(ahead, 1, singles=singles) == [1]
    assert wanted(ahead, 250, singles=singles) == [1, 3, 4]
    assert wanted(ahead, 1, 9, singles=singles) == [1, 9]
    assert [body.sequence for body in ahead.alone(singles)] == [1, *range(3, 11)]


def test_what_arrives_stays_in_memory_again_once_all_before_it_is_being_read() -> None:
    """A consumer that keeps pace with a producer would else read each message back that was in memory a moment ago."""
    files = Files()
    lane = lane_of(1, 1, files=files, keep=False)
    append(lane, 3, [b"x"], files.write(b"x"))
    assert lane.lot_of(3) is None
    assert wanted(ReadAhead(Fifo(lane)), PLENTY) == [1, 2, 3]
    append(lane, 4, [b"x"], files.write(b"x"))
    assert lane.lot_of(4) is not None


def test_levels_are_read_ahead_in_the_order_in_which_they_go_out() -> None:
    files = Files()
    order = Priority(3, {}, Residency(PLENTY))
    for level, lane in enumerate(order.lanes):
        for n in range(1, 4):
            append(lane, (level << LANE_SHIFT) + n, [b"m" * 10], files.write(b"m" * 10), keep=False)
    found = wanted(ReadAhead(order), 50)
    assert [(sequence >> LANE_SHIFT, sequence & 0xFF) for sequence in found] == [(2, 1), (2, 2), (2, 3), (1, 1), (1, 2)]


# ---- priority


@pytest.mark.parametrize(
    "n_levels, levels",
    [(10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]), (5, [0, 0, 0, 1, 2, 3, 4, 4, 4, 4, 4]), (2, [0] * 5 + [1] * 6)],
)
def test_priorities_are_mapped_to_fewer_levels_as_qpidd_does(n_levels: int, levels: list[int]) -> None:
    assert [level_for(priority, n_levels) for priority in range(11)] == levels


def test_priorities_up_to_rabbitmqs_highest_have_a_level_each() -> None:
    assert [level_for(priority, 4, from_zero=True) for priority in range(7)] == [0, 1, 2, 3, 3, 3, 3]
    for arguments in ({"x-max-priority": 3}, {"x-max-priority": 3, "qpid.fairshare": 2}):
        order = discipline_of(arguments, {}, Residency(PLENTY))
        assert [order.lane_for(of_level(priority)) for priority in (0, 1, 3, 9)] == [0, 1, 3, 3]
        assert order.lane_for(of_level(None)) == order.lane_for(b"no AMQP message") == 0
    for highest, level in ((4, 0), (5, 4), (255, 4)):
        order = discipline_of({"x-max-priority": highest}, {}, Residency(PLENTY))
        assert order.lane_for(of_level(None)) == order.lane_for(b"no AMQP message") == level
    both = discipline_of({"x-max-priority": 3, "qpid.priorities": 4}, {}, Residency(PLENTY))
    assert both.lane_for(of_level(None)) == 1, "a queue of an earlier release may have both"


def test_the_level_of_a_message_is_that_of_its_header_and_of_others_the_middle() -> None:
    order = Priority(10, {}, Residency(PLENTY))
    assert [order.lane_for(of_level(priority)) for priority in (0, 4, 9, 200)] == [0, 4, 9, 9]
    assert order.lane_for(of_level(None)) == order.lane_for(b"no AMQP message") == 4
    assert Fifo(lane_of()).lane_for(of_level(9)) == 0


@pytest.mark.parametrize(
    "arguments, n_levels",
    [
        ({}, 1),
        ({"qpid.priorities": 10}, 10),
        ({"x-qpid-priorities": 3}, 3),
        ({"x-max-priority": 4}, 5),
        ({"qpid.priorities": "many"}, 1),
        ({"qpid.priorities": 1}, 1),
    ],
)
def test_the_arguments_of_a_queue_say_its_kind(arguments: dict[str, Any], n_levels: int) -> None:
    """What an earlier version took and did not mean is a FIFO queue still."""
    assert len(discipline_of(arguments, {}, Residency(0)).lanes) == n_levels


def test_a_lane_that_a_queue_has_not_is_an_error() -> None:
    with pytest.raises(ValueError, match="belongs to a lane that this queue does not have"):
        Fifo(lane_of()).lane_of(1 << LANE_SHIFT)
    with pytest.raises(ValueError, match="is of level 3: this queue has 3"):
        Priority(3, {}, Residency(0)).lane_of(3 << LANE_SHIFT)


def test_a_released_message_of_a_high_level_goes_before_younger_ones_and_before_lower_levels() -> None:
    order = Priority(2, {}, Residency(PLENTY))
    high = 1 << LANE_SHIFT
    append(order.lanes[0], 1, [b"low"])
    append(order.lanes[1], high + 1, [b"one", b"two"])
    assert sequences(order.acquire(None, 2, PLENTY)) == [high + 1, high + 2]
    order.release([high + 2])
    append(order.lanes[1], high + 3, [b"three"])
    assert sequences(order.acquire(None, 9, PLENTY)) == [high + 2, high + 3, 1]


def test_a_message_of_a_high_level_that_is_not_in_memory_holds_back_lower_ones() -> None:
    files, order = Files(), Priority(2, {}, Residency(PLENTY))
    high = 1 << LANE_SHIFT
    append(order.lanes[0], 1, [b"low"])
    append(order.lanes[1], high + 1, [b"high"], files.write(b"high"), keep=False)
    assert order.acquire(None, 9, PLENTY) == []
    assert order.absent == high + 1
    assert order.browse([0], 9, PLENTY) == []
    assert order.absent == high + 1


def test_what_cannot_be_read_is_passed_over_by_takers_and_lookers_and_stays_when_all_is_released() -> None:
    files = Files()
    fifo = Fifo(lane_of(1, 2, 1, files=files, keep=False))
    lane = fifo.lane
    for sequence in (1, 4):
        read_back(lane, files, sequence)
    assert lane.give_up(2, lane.blocks[0].places[1]) == 2
    assert lane.unreadable(99) == lane.unreadable(1) == (0, 0)
    cursors = [0]
    assert sequences(fifo.browse(cursors, 9, PLENTY)) == [1]
    assert sequences(fifo.browse(cursors, 9, PLENTY)) == [4]
    assert sequences(fifo.browse([2], 9, PLENTY)) == [4]
    assert sequences(fifo.acquire(None, 9, PLENTY)) == [1]
    fifo.release([2])
    assert sequences(fifo.acquire(None, 9, PLENTY)) == [4]
    assert (fifo.depth, fifo.available) == (4, 0)
    fifo.release_all()
    fifo.remove(1, 1)
    assert sequences(fifo.acquire(None, 9, PLENTY)) == [4]
    assert (fifo.depth, fifo.available) == (3, 0)


def test_released_messages_that_are_removed_are_forgotten() -> None:
    """An expiring queue whose consumers release everything would otherwise collect sequences without end."""
    fifo = Fifo(lane_of(1000))
    fifo.acquire(None, 1000, PLENTY)
    fifo.release(range(1, 1001))
    fifo.remove(1, 10)
    assert sequences(fifo.acquire(None, 1, PLENTY)) == [11]
    fifo.remove(11, 900)
    assert len(fifo._heap) < 300
    assert sequences(fifo.acquire(None, 1000, PLENTY)) == list(range(911, 1001))
    assert (fifo.acquired, fifo.available) == (90, 0)


def test_no_message_overtakes_a_released_one_that_is_too_large_for_now() -> None:
    """Filling the room that is left with younger messages would break the order of the queue."""
    fifo = Fifo(Lane(1, {}, Residency(PLENTY)))
    append(fifo.lane, 1, [b"a", b"bbbbbbbb", b"c"])
    fifo.acquire(None, 2, PLENTY)
    fifo.release([2, 1])
    assert sequences(fifo.acquire(None, 10, 4)) == [1]
    assert sequences(fifo.acquire(None, 10, 8)) == [2]
    assert sequences(fifo.acquire(None, 10, 8)) == [3]


def test_a_message_of_no_bytes_is_in_memory_wherever_it_lies() -> None:
    """There is nothing to read, and its file may be gone: no byte of it was alive."""
    files = Files()
    fifo = Fifo(lane_of(1, files=files, keep=False, nbytes=0))
    assert wanted(ReadAhead(fifo), PLENTY, 1) == []
    assert [lot.messages() for lot in fifo.acquire(None, 9, PLENTY)] == [[b""]]


def test_who_has_no_room_gets_nothing_and_stays_where_it_was() -> None:
    fifo = Fifo(lane_of(3))
    cursors = [2]
    assert fifo.browse(cursors, 0, PLENTY) == fifo.acquire(None, 0, PLENTY) == []
    assert cursors == [2]
    assert sequences(fifo.browse(cursors, 9, PLENTY)) == [2, 3]


def test_a_run_of_nothing_and_a_block_of_dead_messages_only_move_the_sequence() -> None:
    files = Files()
    lane, other = lane_of(4, files=files), Lane(1, {}, Residency(0))
    append(lane, 9, [])
    assert (lane.next_seq, lane.depth) == (9, 4)
    all_dead = struct.pack("<IIII II I Q I".replace(" ", ""), 1, 0, 0, 0, 0, 5, 0, 1 << 32, 0)
    assert other.put_block(5, 1, all_dead) == (0, 0)
    assert (other.next_seq, other.blocks) == (6, [])


def test_two_runs_of_a_block_may_be_unreadable() -> None:
    files = Files()
    fifo = Fifo(lane_of(1, 1, 1, files=files, keep=False))
    lane = fifo.lane
    places = list(lane.blocks[0].places)
    assert [lane.give_up(1, places[0]), lane.give_up(3, places[2])] == [1, 1]
    read_back(lane, files, 2)
    assert sequences(fifo.acquire(None, 9, PLENTY)) == [2]
    assert fifo.available == 0


def test_dead_runs_between_live_ones_are_passed_over_at_once() -> None:
    fifo = Fifo(lane_of(*[1] * 10))
    for sequence in (3, 4, 5, 8):
        fifo.remove(sequence, 1)
    assert sequences(fifo.acquire(None, 99, PLENTY)) == [1, 2, 6, 7, 9, 10]


def test_a_released_message_of_another_run_that_does_not_fit_waits() -> None:
    fifo = Fifo(lane_of(1, 1))
    fifo.acquire(None, 2, PLENTY)
    fifo.release([1, 2])
    assert sequences(fifo.acquire(None, 9, 10)) == [1]
    assert sequences(fifo.acquire(None, 9, 10)) == [2]


def test_nothing_is_read_for_a_queue_that_is_in_memory() -> None:
    assert wanted(ReadAhead(Fifo(lane_of(1, 1, files=Files()))), PLENTY) == []
