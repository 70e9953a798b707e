"""Reads bodies of messages from the journal's files and verifies them. It blocks, so it is called in threads."""

from __future__ import annotations

import google_crc32c

from broker.core.queues.reading import Body
from broker.disk.bodies import Unreadable, file_of, offset_of
from broker.disk.journal import Journal


def read_verified(journal: Journal, bodies: list[Body]) -> list[bytes | str]:
    """The bytes of each body, or the text why it cannot be read: there is nothing, the disk fails, or the checksum is wrong."""
    try:
        found = journal.read_spans([(body.place, body.nbytes) for body in bodies])
    except Unreadable as error:
        if len(bodies) == 1:
            return [str(error)]
        return [one for body in bodies for one in read_verified(journal, [body])]
    return [_verified(data, body) for data, body in zip(found, bodies, strict=True)]


def _verified(data: bytes, body: Body) -> bytes | str:
    crc = google_crc32c.value(data)
    if crc == body.crc:
        return data
    where = f"file {file_of(body.place)}, byte {offset_of(body.place)}"
    return f"{body.nbytes} bytes of messages at {where} are damaged: their checksum is {crc:08x}, not the stored {body.crc:08x}"
