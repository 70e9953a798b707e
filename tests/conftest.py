"""What every test stands on: one reactor with a monotonic clock, Hypothesis profiles, markers by folder, groups and coverage.

The reactor must be chosen before anything imports `twisted.internet.reactor`; pytest loads this file first, and pytest-twisted
takes the reactor that it finds. With Twisted's own, timers would follow the wall clock, and tests would not run on what brokers
run on.
"""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from broker.net import reactor

_HERE = Path(__file__).parent
# Processes that tests spawn import `tests`, and find it behind what is installed; so does this file.
sys.path.append(str(_HERE.parent))

reactor.install()
# Whoever starts us in the background has us ignore interrupts, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("gate", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, max_examples=5_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

pytest_plugins = ("tests.groups", "tests.own_coverage")


def pytest_configure(config: pytest.Config) -> None:
    """What is compiled stays for the next run (tox.ini), but not what was compiled in temporary folders of former runs."""
    if sys.pycache_prefix and not hasattr(config, "workerinput"):
        for folder in Path(sys.pycache_prefix + tempfile.gettempdir()).glob("pytest-of-*"):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """What is loaded and collected stays until the end, so nobody looks through it for garbage again and again."""
    gc.disable()
    try:
        _load_own_share(session.config)
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def _load_own_share(config: pytest.Config) -> None:
    """Workers that begin together load all modules of tests, in the same order. In a new checkout, each would compile all of
    them, at the same time. So each one loads a share of its own first, and finds those of the others compiled. What fails here
    fails again when it is collected, and is told then.
    """
    from tests.own_coverage import OWN  # a plugin: pytest loads it after this file

    given: dict[str, Any] = getattr(config, "workerinput", {})
    if given:
        share = slice(int(given["workerid"].removeprefix("gw")), None, given["workercount"])
        for path in sorted(_HERE.rglob("test_*.py"))[share]:
            if not any(path.is_relative_to(_HERE.parent / folder) for folder in OWN):
                with suppress(Exception):
                    importlib.import_module(".".join(path.relative_to(_HERE.parent).with_suffix("").parts))


_MARKER_OF_FOLDER = {"system": pytest.mark.system, "spark_analytics": pytest.mark.spark}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder, so that nobody forgets to."""
    for item in items:
        marker = _MARKER_OF_FOLDER.get(item.path.relative_to(_HERE).parts[0])
        if marker is not None:
            item.add_marker(marker)
