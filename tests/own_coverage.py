"""`pytest --cover-cores`: every branch of the cores is covered by their own tests alone, measured while all tests run.

Life: before anything of a core is loaded, each worker begins to measure and loads all modules of the packages that
`[tool.coverage.run]` names; from then on it measures only while a module of `OWN` is collected and while a test of it runs, so
that what other tests reach does not count, and costs nothing. A worker leaves its data in a folder of the controller's. The
controller combines them at the end; where `fail_under` is missed it says what is missing, and the run has failed.

While CPython 3.11 is traced, all that runs in the thread is several times as slow, whether it is measured or not. So it is traced
while the function of a test runs, and not while pytest prepares and reports the test, or Hypothesis makes an example. Of tests
that do the same again and again only the beginning is traced: the first examples of a property, and the first values of a
parameter `seed`. The steps of a state machine are chosen while it runs, so none of it is. Nor is a test marked `costs`: it does
what others show a thousand times, to see what that costs. What is not traced can only be missing: the gate is never easier for
that.

`coverage run -m pytest` with the folders of `OWN` measures the same in one process (tox -e core).
"""

from __future__ import annotations

import functools
import importlib
import io
import pkgutil
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

OWN = ("tests/broker/core", "tests/ha/core", "tests/resource_manager/core", "tests/cli/verify")
"""The cores' own tests."""
EXAMPLES = 25
"""So many examples of a property are measured."""
SEEDS = 6
"""So many seeds of a test are measured: the first ones that are listed."""
COSTS = "costs"
"""The marker of tests that do the same thousands of times."""
_FOLDER = "folder_of_coverage"


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is measured beside."""
    parser.addoption("--cover-cores", action="store_true", help="fail unless their own tests cover every branch of the cores")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to measure before any test is collected."""
    config.addinivalue_line("markers", f"{COSTS}: does again and again what other tests show, so coverage is not measured")
    if config.getoption("--cover-cores"):
        config.pluginmanager.register(OwnCoverage(config))


class OwnCoverage:
    """The measuring of one process: a worker's, the controller's, or that of both in one."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._distributes = bool(config.getoption("tx", None))
        told: str | None = getattr(config, "workerinput", {}).get(_FOLDER)
        self._kept = None if told else tempfile.TemporaryDirectory(prefix="coverage-")
        self._folder = told or self._kept.name  # type: ignore[union-attr]
        self._coverage = self._new(data_suffix=True)
        self._complaint = ""
        if not self._distributes:
            self._load()

    def _new(self, **more: Any) -> Coverage:
        return Coverage(data_file=str(Path(self._folder, "data")), config_file=str(self._root / "pyproject.toml"), **more)

    def _load(self) -> None:
        """Load the cores, measured."""
        packages: list[str] = self._coverage.get_option("run:source_pkgs")  # type: ignore[assignment]
        loaded = [name for name in sys.modules if any(name.startswith(f"{package}.") for package in packages)]
        assert not loaded, f"loaded before they could be measured: {', '.join(loaded)}"
        self._coverage.start()
        for package in packages:
            for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
                importlib.import_module(found.name)
        self._coverage.stop()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker where to leave its data."""
        node.workerinput[_FOLDER] = self._folder

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        """Importing a module of tests may call the core, too; to find the tests in it does not."""
        if isinstance(collector, pytest.Module) and self._is_own(collector.path):
            load = collector._getobj

            def measured() -> object:
                with self._coverage.collect():
                    return load()

            collector._getobj = measured  # type: ignore[method-assign]
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Measure a test of a core; of a property, what is done with the first examples."""
        is_own = self._is_own(item.path) and not _repeats(item)
        given = getattr(getattr(item, "obj", None), "hypothesis", None)
        if not is_own or given is None:
            return (yield from self._measured(is_own))
        inner = given.inner_test
        given.inner_test = self._measuring(inner)
        try:
            return (yield)
        finally:
            given.inner_test = inner

    def _measuring(self, test: Callable[..., object]) -> Callable[..., object]:
        """This function, measured the first times that it is called."""
        calls = count()

        @functools.wraps(test)
        def measured(*args: Any, **kwargs: Any) -> object:
            with self._coverage.collect() if next(calls) < EXAMPLES else nullcontext():
                return test(*args, **kwargs)

        return measured

    def _is_own(self, path: Path) -> bool:
        return any(path.is_relative_to(self._root / folder) for folder in OWN)

    def _measured(self, is_own: bool) -> Generator[None, Any, Any]:
        if not is_own:
            return (yield)
        with self._coverage.collect():
            return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Leave the data, or judge those of all."""
        if not self._distributes:
            self._coverage.save()
        if self._kept is not None:
            self._complaint = self._judge()
            self._kept.cleanup()
            if self._complaint and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _judge(self) -> str:
        """What is missing, as a report; empty when nothing is."""
        all_together, said = self._new(), io.StringIO()
        all_together.combine([self._folder])
        percent = all_together.report(file=said)
        least = float(all_together.get_option("report:fail_under"))  # type: ignore[arg-type]
        return "" if percent >= least else f"{said.getvalue()}the cores' own tests cover {percent:.2f} %, not {least:g} %"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what is missing."""
        if self._complaint:
            terminalreporter.section("the cores are not covered by their own tests", red=True)
            terminalreporter.line(self._complaint)


def _repeats(item: pytest.Item) -> bool:
    """Whether a test does what others do: those with an earlier seed, or those whose cost it measures; or is a state machine."""
    test = getattr(item, "obj", None)
    positions: dict[str, int] = getattr(getattr(item, "callspec", None), "indices", {})
    is_machine = getattr(test, "is_hypothesis_test", False) and not hasattr(test, "hypothesis")
    return is_machine or item.get_closest_marker(COSTS) is not None or positions.get("seed", 0) >= SEEDS
