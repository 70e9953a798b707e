"""Memory for the arguments and results of C functions."""

from __future__ import annotations

from cproton_ffi import ffi

SCRATCH_BYTES = 1 << 20
"""The size of the area: bytes pass through it this many at a time."""


class Scratch:
    """One for all engines of a thread, for nothing stays in it between calls. `tag` has the bytes of `tag_number`, and `wide_tag`
    those of `wide_bytes`."""

    __slots__ = ("area", "tag", "tag_number", "wide_bytes", "wide_tag")

    def __init__(self) -> None:
        self.area = ffi.new("char[]", SCRATCH_BYTES)
        self.tag_number = ffi.new("uint32_t *")
        self.tag = ffi.new("pn_delivery_tag_t *", {"size": 4, "start": ffi.cast("char *", self.tag_number)})[0]
        self.wide_bytes = ffi.new("char[32]")
        self.wide_tag = ffi.new("pn_delivery_tag_t *", {"size": 8, "start": self.wide_bytes})[0]
