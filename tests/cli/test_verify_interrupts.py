"""An interrupt of qpid-verify is never lost in a call that proton's C library makes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.cli.running import ROOT, environment

PROGRAM = """
import signal
from cli.verify import interrupts

interrupts.take(signal.SIGTERM)
called = {"__name__": "NAME", "signal": signal}
exec("def from_c(): signal.raise_signal(NUMBER)", called)
try:
    called["from_c"]()
    print("went on", flush=True)
    while True:
        signal.pause()
except KeyboardInterrupt:
    print("interrupted")
"""


def said(name: str, number: int, *, ignored: bool = False) -> str:
    """What a process says that gets the signal in a function of this module, and waits for another one afterwards."""
    program = PROGRAM.replace("NAME", name).replace("NUMBER", str(int(number)))
    if ignored:
        program = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + program.replace("while True", "if False")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_a_call_from_c_comes_again_after_it(number: int) -> None:
    """Breaks when Ctrl-C does nothing but print a traceback, one time in ten."""
    assert said("cproton", number) == "went on\ninterrupted\n"


def test_elsewhere_an_interrupt_comes_at_once() -> None:
    assert said("cli.verify.queues", signal.SIGINT) == "interrupted\n"


def test_a_caller_that_ignores_interrupts_is_obeyed() -> None:
    assert said("cli.verify.queues", signal.SIGINT, ignored=True) == "went on\n"
