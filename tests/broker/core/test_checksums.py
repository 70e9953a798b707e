"""Checksums of bytes that follow one another."""

from __future__ import annotations

import random

import google_crc32c
import pytest

from broker.core import checksums


@pytest.mark.parametrize("nbytes", [0, 1, 2, 7, 8, 255, 256, 1000, 65_535, 65_536, 1_048_577, 3_000_001])
def test_the_checksum_of_two_parts_is_that_of_the_whole(nbytes: int) -> None:
    chance = random.Random(nbytes)
    second = chance.randbytes(nbytes)
    for first in (b"", b"\x00", b"first", chance.randbytes(100)):
        whole, beginning, rest = map(google_crc32c.value, (first + second, first, second))
        assert checksums.joined(beginning, rest, nbytes) == whole
        assert checksums.without_beginning(whole, beginning, nbytes) == rest
