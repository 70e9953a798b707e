"""CRC-32C of bytes that follow one another, from the checksums of the parts, without another look at the bytes.

A checksum is the rest of a division of polynomials with coefficients 0 and 1. Bytes that follow multiply it by a power of x: so
the checksum of "ab" is that of "a" times x to the power of the bits of "b", plus that of "b" (as zlib's `crc32_combine`). Bit 31
of a number here is the coefficient of x to the power 0.
"""

from __future__ import annotations

from functools import lru_cache

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31


def joined(first: int, second: int, second_bytes: int) -> int:
    """The checksum of bytes with the checksum `first`, and behind them `second_bytes` with the checksum `second`."""
    return _times(_shift(second_bytes), first) ^ second


def without_beginning(whole: int, beginning: int, rest_bytes: int) -> int:
    """The checksum of the last `rest_bytes` of bytes with the checksum `whole`; those before have the checksum `beginning`."""
    return joined(beginning, whole, rest_bytes)  # adding and subtracting are the same here


def _times(a: int, b: int) -> int:
    """The product of two polynomials, of which the first is not 0."""
    found, bit = 0, _ONE
    while True:
        if a & bit:
            found ^= b
            if not a & (bit - 1):
                return found
        bit >>= 1
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1


def _squares() -> list[int]:
    found = [_ONE >> 8]  # x to the power of the 8 bits of a byte
    while len(found) < 32:
        found.append(_times(found[-1], found[-1]))
    return found


_POWERS = _squares()
"""x to the power of the bits of 1, 2, 4, ... bytes."""


@lru_cache(256)
def _shift(nbytes: int) -> int:
    """x to the power of the bits of so many bytes."""
    found = _ONE
    for bit, power in enumerate(_POWERS):
        if nbytes >> bit & 1:
            found = _times(power, found)
    return found
