"""How the suite itself is run: groups of tests, the gate on coverage, ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import groups, own_coverage
from tests.system.harness import free_ports

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent


def pytest_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest by itself."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", *words]
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_files_and_folders_that_are_named_are_there() -> None:
    """Breaks when a file is renamed, and its tests silently run beside what they cannot bear, or uncovered."""
    named = [*(HERE / path for path in groups.WHOLE_MACHINE), *(ROOT / folder for folder in own_coverage.OWN)]
    named += [HERE / path for path in (*groups.THEN, *groups.ONE_BY_ONE, *groups.WITHOUT_SESSION)]
    named += [HERE / group for group in groups.FIRST if group not in (groups.MACHINE, groups.SPARK)]
    assert [str(path) for path in named if not path.exists()] == []


def test_what_breaks_networks_disks_and_processes_runs_one_after_the_other() -> None:
    """Breaks when a new file of faults is left out."""
    assert {str(path.relative_to(HERE)) for path in HERE.glob("system/test_faults_*.py")} <= groups.WHOLE_MACHINE
    assert {groups.group_of(f"tests/{path}::test_a[b]") for path in groups.WHOLE_MACHINE} == {groups.MACHINE}


def test_a_module_is_a_group_and_seeds_are_in_none() -> None:
    assert groups.group_of("tests/broker/test_host.py::test_a") == "broker/test_host.py"
    assert groups.group_of("tests/simulation/test_world.py::test_a[1]") == ""


def test_whoever_needs_the_session_of_spark_is_in_its_group(request: pytest.FixtureRequest) -> None:
    needing = [item for item in request.session.items if "spark" in getattr(item, "fixturenames", ())]
    assert [item.nodeid for item in needing if groups.group_of(item.nodeid) != groups.SPARK] == []


def test_a_group_stays_in_one_worker(tmp_path: Path) -> None:
    """Breaks when a new xdist, or a new pytest, takes no notice of our groups any more."""
    for name in ("system/test_failover.py", "system/test_faults_disk.py", "test_docs.py"):
        file = tmp_path / "tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"def test_{number}(): assert True\n" for number in range(4)))
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler\n")
    words = [
        "-v",
        "-p",
        "no:cacheprovider",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "--no-loadscope-reorder",
        "--rootdir",
        str(tmp_path),
    ]
    done = pytest_in(tmp_path, *words, "--import-mode", "importlib", "tests")
    ran = re.findall(r"^\[(gw\d)\].* PASSED tests/(\w+)", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({worker for worker, folder in ran if folder == "system"}) == 1, ran
    assert len(ran) == 12


def test_the_longest_groups_are_begun_first_and_single_tests_fill_what_is_left() -> None:
    wanted = [groups.MACHINE, groups.SPARK, "system/test_commands.py", "cli/test_demo.py", "broker/test_host.py", ""]
    backwards = wanted[::-1]
    assert sorted(backwards, key=groups.rank) == wanted


def test_the_run_fails_when_a_core_is_not_covered_by_its_own_tests() -> None:
    """Breaks when coverage is measured and nobody looks, or when what other tests reach counts."""
    words = ["-q", "-p", "no:cacheprovider", "--cover-cores", "tests/cli/verify/test_tally.py", "tests/broker/test_settings.py"]
    done = pytest_in(ROOT, *words)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert re.search(r"the cores' own tests cover [\d.]+ %, not 100 %", done.stdout)
    assert re.search(r" passed in ", done.stdout.splitlines()[-1])
    reported = re.search(r"^broker/core/urls\.py +\d+ +(\d+)", done.stdout, re.MULTILINE)
    assert reported is not None, done.stdout
    assert int(reported[1]) > 0, "test_settings parses URLs, and is none of the core's own tests"


def test_the_gate_of_tox_is_on_the_same_tests() -> None:
    commands = (ROOT / "tox.ini").read_text()
    assert f"coverage run -m pytest -q {' '.join(own_coverage.OWN)} " in commands


def test_two_workers_take_no_port_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    taken = []
    for worker in ("gw0", "gw1", "gw2"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        taken.append({port % 3 for port in free_ports(20)})
    assert sorted(map(len, taken)) == [1, 1, 1]
    assert len(set.union(*taken)) == 3
