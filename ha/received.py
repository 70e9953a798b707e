"""Batches in the form for the core: from the journal at the start, and from messages that arrive.

A message with batches is checked completely before any part of it counts: each batch against its checksum, then their indexes
and epochs against the message's header. Only then does the core step it.
"""

from __future__ import annotations

from broker.core.records import BadBatch, Batch, Kind, split
from broker.disk.journal import Journal, Recovered
from ha.core.log import Log
from ha.core.membership import BadMembership, Membership
from ha.core.messages import Append, Entry, SnapshotChunk, fault_of
from ha.core.witness import attested_from


class BadMessage(ValueError):
    """A member has sent an invalid message; the text says what is wrong."""


def stored_log(journal: Journal, members: Membership, found: Recovered) -> Log:
    """The log that a journal's recovery has found; for a witness, the end of the log that it attests. `members` are used if
    the store has none. BadBatch.
    """
    checkpoint = found.checkpoint
    log = Log(members)
    if found.attested is not None:
        attested = attested_from(found.attested)
        log = Log(attested.members, attested.index, attested.epoch, attested.members_index)
    elif checkpoint is not None:
        log = Log(Membership.from_dict(checkpoint.members), checkpoint.index, checkpoint.epoch)
    for stored in found.entries:
        changed = members_in(journal.read(stored.index, stored.index, 1)[0]) if stored.flags else None
        log.append(Entry(stored.index, stored.epoch, stored.nbytes, changed, stored.n_records))
    return log


def members_in(batch: bytes) -> Membership | None:
    """The membership in a verified batch; None if it has none. BadBatch, BadMembership."""
    parsed = Batch.parse(batch, verified=True)
    return next((Membership.from_dict(parsed.json(run)) for run in parsed.runs if run.kind is Kind.MEMBERS), None)


def checked_append(append: Append, payload: bytes | memoryview) -> tuple[Append, list[bytes]]:
    """The message with its entries filled in, and its batches. BadMessage."""
    try:
        batches, entries = [], []
        for header, batch in split(payload):
            members = members_in(batch) if header.holds_members else None
            batches.append(batch)
            entries.append(Entry(header.index, header.epoch, header.length, members, header.n_records))
    except (BadBatch, BadMembership) as error:
        raise BadMessage(str(error)) from None
    filled = Append(
        append.epoch,
        append.round,
        append.prev_index,
        append.prev_epoch,
        append.first,
        append.last,
        append.commit_index,
        tuple(entries),
        append.cluster_id,
    )
    fault = fault_of(filled)
    if fault:
        raise BadMessage(fault)
    return filled, batches


def check_chunk(chunk: SnapshotChunk, payload: bytes | memoryview) -> None:
    """Check that the bytes fit the message; BadMessage if not."""
    fault = fault_of(chunk)
    if len(payload) != chunk.nbytes:
        fault = f"a snapshot chunk of {len(payload)} bytes came where {chunk.nbytes} were announced"
    if fault:
        raise BadMessage(fault)
