"""What a coordinator is asked, what a state says, and what a transaction may take on."""

from __future__ import annotations

from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core import limits, values
from broker.core.links import ACCEPTED, FAILED, MODIFIED, REJECTED, RELEASED, UNDELIVERABLE
from broker.core.transactions import (
    Account,
    BadRequest,
    Budget,
    Declare,
    Discharge,
    accepted_fields,
    id_fields,
    read_request,
    read_state,
)


def request(descriptor: Any, *fields: Any) -> bytes:
    return bytes(proton.Message(body=proton.Described(descriptor, list(fields))).encode())


@pytest.mark.parametrize(
    "data, found",
    [
        (request(proton.symbol("amqp:declare:list")), Declare()),
        (request(proton.ulong(0x31), None), Declare()),
        (request(proton.symbol("amqp:discharge:list"), b"x"), Discharge(b"x", False)),
        (request(proton.ulong(0x32), b"x", False), Discharge(b"x", False)),
        (request(proton.ulong(0x32), b"x", True), Discharge(b"x", True)),
    ],
)
def test_requests_are_read_by_either_descriptor(data: bytes, found: Declare | Discharge) -> None:
    assert read_request(data) == found


@pytest.mark.parametrize(
    "data, name",
    [
        (request(proton.ulong(0x31), b"global"), "amqp:not-implemented"),
        (request(proton.ulong(0x32)), "amqp:decode-error"),
        (request(proton.ulong(0x32), "text"), "amqp:decode-error"),
        (request(proton.ulong(0x131), None), "amqp:decode-error"),
        (request(proton.symbol("amqp:accepted:list")), "amqp:decode-error"),
        (proton.Message(body=proton.Described(proton.ulong(0x32), "no list")).encode(), "amqp:decode-error"),
        (proton.Message(body=proton.Described(b"binary", [])).encode(), "amqp:decode-error"),
        (proton.Message(body=[None]).encode(), "amqp:decode-error"),
        (proton.Message(body=b"data", inferred=True).encode(), "amqp:decode-error"),
    ],
)
def test_what_is_no_request_is_refused_with_a_condition(data: bytes, name: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_request(data)
    assert refused.value.name == name


def state(*fields: Any) -> bytes:
    data = proton.Data()
    data.put_object(list(fields))
    return bytes(data.encode())


@pytest.mark.parametrize(
    "fields, found",
    [
        (state(b"x"), (b"x", RELEASED)),
        (state(b"x", None), (b"x", RELEASED)),
        (state(b"x", proton.Described(proton.ulong(0x24), [])), (b"x", ACCEPTED)),
        (state(b"x", proton.Described(proton.symbol("amqp:accepted:list"), [])), (b"x", ACCEPTED)),
        (state(b"x", proton.Described(proton.ulong(0x25), [])), (b"x", REJECTED)),
        (state(b"x", proton.Described(proton.ulong(0x26), [])), (b"x", RELEASED)),
        (state(b"x", proton.Described(proton.ulong(0x27), [])), (b"x", MODIFIED)),
        (state(b"x", proton.Described(proton.ulong(0x27), [True])), (b"x", MODIFIED | FAILED)),
        (state(b"x", proton.Described(proton.ulong(0x27), [True, True])), (b"x", MODIFIED | FAILED | UNDELIVERABLE)),
        (state(b"x", proton.Described(proton.ulong(0x27), [None, True])), (b"x", MODIFIED | UNDELIVERABLE)),
        (state(b"x", proton.Described(proton.ulong(0x27), {})), (b"x", MODIFIED)),
        (state(b"x", proton.Described(proton.ulong(0x34), [b"x"])), (b"x", RELEASED)),
        (state(b"x", proton.Described(proton.symbol("other"), [])), (b"x", RELEASED)),
        (state("x", proton.Described(proton.ulong(0x24), [])), (b"", RELEASED)),
        (state(), (b"", RELEASED)),
        (b"\x40", (b"", RELEASED)),
        (b"", (b"", RELEASED)),
        (b"\xc0\x05\x01", (b"", RELEASED)),
    ],
)
def test_a_state_gives_the_transaction_and_the_outcome(fields: bytes, found: tuple[bytes, int]) -> None:
    assert read_state(fields) == found


@given(st.binary(max_size=64))
def test_what_is_written_is_read_back_by_proton_and_by_this_side(txn_id: bytes) -> None:
    assert read_state(accepted_fields(txn_id)) == (txn_id, ACCEPTED)
    data = proton.Data()
    data.decode(id_fields(txn_id))
    data.rewind()
    data.next()
    assert data.get_object() == [txn_id]


@given(st.binary(max_size=80))
def test_no_bytes_of_a_state_give_an_error(fields: bytes) -> None:
    txn_id, outcome = read_state(fields)
    assert isinstance(txn_id, bytes)
    assert outcome & 0xFF in (ACCEPTED, REJECTED, RELEASED, MODIFIED)


def test_a_long_list_is_read_as_a_short_one_is() -> None:
    items = b"\xb0\x00\x00\x00\x01x\x00\x53\x24\x45"
    assert read_state(b"\xd0" + (len(items) + 4).to_bytes(4, "big") + (2).to_bytes(4, "big") + items) == (b"x", ACCEPTED)
    assert values.described_items(b"\x45") == []


def test_an_account_refuses_what_is_above_its_bounds_and_says_which() -> None:
    held_bytes = limits.MAX_TRANSACTION_BYTES + limits.TRANSACTION_MESSAGE_BYTES
    budget = Budget(limit_bytes=2 * held_bytes - 1)
    one = Account(budget)
    assert one.takes(limits.MAX_TRANSACTION_OPERATIONS)
    assert not one.takes(1)
    assert one.fault == f"a transaction may have {limits.MAX_TRANSACTION_OPERATIONS} operations"
    two = Account(budget)
    assert two.takes_messages(1, limits.MAX_TRANSACTION_BYTES)
    assert not two.takes_messages(1, 1)
    assert two.fault == f"the messages of a transaction may have {limits.MAX_TRANSACTION_BYTES} bytes in all"
    three = Account(budget)
    assert not three.takes_messages(1, limits.MAX_TRANSACTION_BYTES)
    assert three.fault.startswith("the open transactions of all clients hold")
    assert (budget.nbytes, budget.n_open) == (held_bytes, 3)
    for each in (one, two, three, two):
        each.close()
    assert (budget.nbytes, budget.n_open) == (0, 0)


def test_small_messages_of_open_transactions_count_with_the_memory_that_each_of_them_takes() -> None:
    """Breaks when messages of a few bytes take 25 times the memory that is counted."""
    tiny = limits.TRANSACTION_MESSAGE_BYTES + 4
    budget = Budget(limit_bytes=3 * 1000 * tiny)
    accounts = [Account(budget) for _ in range(4)]
    assert [each.takes_messages(1000, 4000) for each in accounts] == [True, True, True, False]
    assert accounts[0].nbytes == 4000, "the limit for a batch of the log is one for its bytes"
    assert budget.nbytes == budget.limit_bytes
    assert accounts[1].takes(1), "an outcome"
    accounts[0].close()
    accounts[0].close()
    assert budget.nbytes == 2 * 1000 * tiny


def test_a_term_that_ends_closes_all_accounts_and_one_that_is_closed_later_counts_once() -> None:
    more = limits.TRANSACTION_MESSAGE_BYTES
    budget = Budget(limit_bytes=10 + 2 * more)
    under_way, last = Account(budget), Account(budget)
    assert under_way.takes_messages(1, 6)
    assert last.takes_messages(1, 4)
    opened = last.is_open
    budget.close_all()
    assert (opened, last.is_open) == (True, False)
    assert (budget.nbytes, budget.n_open) == (0, 0)
    anew = Account(budget)
    assert anew.takes_messages(2, 10)
    under_way.close()
    assert (budget.nbytes, budget.n_open) == (10 + 2 * more, 1)


def test_the_first_fault_of_an_account_stays() -> None:
    one = Account(Budget())
    one.fail("the first")
    one.fail("the second")
    assert one.fault == "the first"
