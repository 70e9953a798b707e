"""The beginning of a message that arrives in several frames, in the pieces in which it was taken out of proton.

A piece is received into memory of its own, and the pieces are joined once, when the message or a part of it is complete. A
`bytearray` that grows would copy each byte three times: into it, again when it must move to grow, and out of it.

Invariant: no piece is a view of memory that is larger than it, because that would be kept, and nobody counts it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from cproton_ffi import ffi, lib

_allocate = ffi.new_allocator(should_clear_after_alloc=False)


class Partial:
    """See the module. Its length is the number of its bytes."""

    __slots__ = ("_nbytes", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self._nbytes = 0

    def __len__(self) -> int:
        return self._nbytes

    def receive(self, handle: Any, most: int) -> int:
        """Take up to `most` bytes of the link's current delivery, and add them. Returns how many there were."""
        area = _allocate("char[]", most)
        count = int(lib.pn_link_recv(handle, area, most))
        if count > 0:
            self._pieces.append(memoryview(ffi.buffer(area, count)))
            self._nbytes += count
        return count

    def take(self, nbytes: int) -> bytes:
        """Remove the first `nbytes`, which are here."""
        found: list[memoryview] = []
        self._nbytes -= nbytes
        while nbytes:
            piece = self._pieces.popleft()
            if len(piece) > nbytes:
                self._pieces.appendleft(memoryview(bytes(piece[nbytes:])))
                piece = piece[:nbytes]
            found.append(piece)
            nbytes -= len(piece)
        return b"".join(found)

    def joined(self) -> memoryview:
        """All bytes, which stay here, as one piece: they are copied only if there is more than one."""
        if len(self._pieces) != 1:
            self._pieces = deque([memoryview(b"".join(self._pieces))])
        return self._pieces[0]
