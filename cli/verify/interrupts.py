"""An interrupt of the process that drives proton's own client.

Proton's C library calls Python for each object that it keeps. An exception cannot pass through C: a KeyboardInterrupt that is
raised in such a call is printed, with a traceback, and lost. So an interrupt that arrives in one comes again a moment later.

Invariant: each interrupt becomes one KeyboardInterrupt, and never within a call from C.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

AGAIN_S = 0.01
_CALLED_FROM_C = "cproton"
"""The module with the functions that the C library calls."""


def take(*also: int) -> None:
    """From now on SIGINT, unless the caller of the program ignores it, and `also` these signals raise KeyboardInterrupt."""
    interrupts = (signal.SIGINT,) if signal.getsignal(signal.SIGINT) is signal.default_int_handler else ()
    for number in (*interrupts, *also):
        signal.signal(number, _interrupted)


def _interrupted(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_globals.get("__name__") == _CALLED_FROM_C:
            again = threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, number))
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt
