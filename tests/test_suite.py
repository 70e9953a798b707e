"""How the suite itself is run: groups of tests, the gate on coverage, ports."""

from __future__ import annotations

import gc
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


def pytest_in(folder: Path, files: dict[str, str], words: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest by itself, in a folder with these files, with no plugins but those that it is told."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "--import-mode", "importlib", *words.split(), "tests"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_files_and_folders_that_are_named_are_there() -> None:
    """Breaks when a file is renamed, and its tests silently run beside what they cannot bear, or uncovered."""
    named = [*(HERE / path for path in groups.WHOLE_MACHINE), *(ROOT / folder for folder in own_coverage.OWN)]
    named += [HERE / path for path in (*groups.THEN, *groups.ONE_BY_ONE, *groups.WITHOUT_SESSION, *groups.THEIR_CLIENTS)]
    named += [HERE / path for path in (*groups.OF_STREAMS, *groups.WAITING)]
    named += [HERE / group for group in groups.FIRST if group not in {groups.MACHINE, groups.CLIENTS, *groups.SESSIONS}]
    assert [str(path) for path in named if not path.exists()] == []


def test_what_breaks_networks_disks_and_processes_runs_one_after_the_other() -> None:
    """Breaks when a new file of faults is left out."""
    assert {str(path.relative_to(HERE)) for path in HERE.glob("system/test_faults_*.py")} <= groups.WHOLE_MACHINE
    assert {groups.group_of(f"tests/{path}::test_a[b]") for path in groups.WHOLE_MACHINE} == {groups.MACHINE}


def test_a_module_is_a_group_and_seeds_are_in_none() -> None:
    assert groups.group_of("tests/broker/test_host.py::test_a") == "broker/test_host.py"
    assert groups.group_of("tests/simulation/test_world.py::test_a[1]") == ""


def test_what_mostly_waits_runs_in_one_worker_while_others_have_much_to_do() -> None:
    """Breaks when all workers come to the tests of daemons at the same time, and the processors are idle."""
    waiting = {groups.group_of(f"tests/{path.relative_to(HERE)}::test_a") for path in HERE.glob("resource_manager/**/test_*.py")}
    assert len(waiting) == 1
    assert groups.rank(waiting.pop()) < groups.rank("broker/test_host.py") < groups.rank("")


def test_whoever_needs_a_session_of_spark_is_in_one_of_its_groups(request: pytest.FixtureRequest) -> None:
    needing = [item for item in request.session.items if "spark" in getattr(item, "fixturenames", ())]
    assert [item.nodeid for item in needing if groups.group_of(item.nodeid) not in groups.SESSIONS] == []


def test_reports_that_tests_share_are_made_in_one_session(request: pytest.FixtureRequest) -> None:
    """Breaks when a test of the other group asks for one, which would then be made twice."""
    needing = [item for item in request.session.items if {"story", "compared"} & {*getattr(item, "fixturenames", ())}]
    needing = [item for item in needing if "spark" in item.keywords]
    assert [item.nodeid for item in needing if groups.group_of(item.nodeid) != groups.SPARK] == []


def test_whoever_runs_the_clients_of_others_is_in_their_group(request: pytest.FixtureRequest) -> None:
    """Breaks when a module is left out, which then installs them once more."""
    needing = [item for item in request.session.items if "programs" in getattr(item, "fixturenames", ())]
    assert [item.nodeid for item in needing if groups.group_of(item.nodeid) != groups.CLIENTS] == []


WAITS = """
from pathlib import Path
import time

def test_waits():
    until = time.monotonic() + 60
    while not Path("streams have begun").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
"""
"""A test that ends when the second group with Spark has begun."""
GOES_ON = "from pathlib import Path\ndef test_goes_on(): Path('streams have begun').touch()\n"
THREE = "".join(f"def test_{number}(): assert True\n" for number in range(3))
"""A worker gets its next group when only two tests are left."""
WITH_SPARK = {"tests/spark_analytics/test_keep.py": THREE, "tests/spark_analytics/test_stream.py": GOES_ON}


def spread(folder: Path, files: dict[str, str], workers: int) -> list[tuple[str, str]]:
    """Which worker has run a test of which folder or module, for each test."""
    words = f"-v -p xdist -p tests.groups -n {workers} --dist loadgroup --no-loadscope-reorder"
    done = pytest_in(folder, files | {"pytest.ini": "[pytest]"}, words)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"^\[(gw\d)\].* PASSED tests/(\w+)", done.stdout, re.MULTILINE)


def test_a_group_stays_in_one_worker_and_groups_with_spark_do_if_there_is_anything_else(tmp_path: Path) -> None:
    """Breaks when a new xdist, or a new pytest, takes no notice of our groups any more. Who has no session of Spark waits here
    until the second group with Spark has begun, so only the worker that has one can take that group."""
    names = ("system/test_failover.py", "system/test_faults_disk.py", "test_docs.py")
    ran = spread(tmp_path, WITH_SPARK | {f"tests/{name}": WAITS + THREE for name in names}, 3)
    assert len({worker for worker, folder in ran if folder == "system"}) == 1, ran
    assert len({worker for worker, folder in ran if folder == "spark_analytics"}) == 1, ran
    assert len(ran) == 16


def test_groups_with_spark_run_at_the_same_time_if_there_is_nothing_else(tmp_path: Path) -> None:
    """The first waits until the second has begun."""
    ran = spread(tmp_path, WITH_SPARK | {"tests/spark_analytics/test_keep.py": WAITS + THREE}, 2)
    assert len({worker for worker, _ in ran}) == 2, ran


def test_the_longest_groups_are_begun_first_and_single_tests_fill_what_is_left() -> None:
    modules = ["system/test_commands.py", "cli/test_demo.py", "broker/test_host.py"]
    wanted = [groups.MACHINE, groups.SPARK, groups.STREAMS, *modules, ""]
    backwards = wanted[::-1]
    assert sorted(backwards, key=groups.rank) == wanted


def test_what_was_collected_is_not_looked_through_for_garbage() -> None:
    """Breaks when each collection of garbage goes through all modules and tests: a third of a million objects."""
    assert gc.isenabled()
    assert gc.get_freeze_count() > 50_000


LITTLE = {
    "pyproject.toml": """
        [tool.pytest.ini_options]
        [tool.coverage.run]
        branch = true
        source_pkgs = ["little"]
        [tool.coverage.report]
        fail_under = 100
    """,
    "little/__init__.py": "",
    "little/halves.py": "def half(number):\n    if number % 2:\n        return None\n    return number // 2\n",
    f"{own_coverage.OWN[0]}/test_own.py": f"""
import pytest
from hypothesis import given, stateful, strategies as some
from little.halves import half

tried = []

def test_own(): assert half(4) == 2

@given(some.just(5).map(half))
def test_made(made): assert made is None

@given(some.integers())
def test_late(number):
    tried.append(number)
    assert half(5 if len(tried) > {own_coverage.EXAMPLES} else 4) in (None, 2)

def test_was_late(): assert len(tried) > {own_coverage.EXAMPLES}

@pytest.mark.costs
def test_costs(): assert half(5) is None

@pytest.mark.parametrize("seed", range({own_coverage.SEEDS} + 1))
def test_seeds(seed): assert half(5 if seed == {own_coverage.SEEDS} else 4) in (None, 2)

class Machine(stateful.RuleBasedStateMachine):
    @stateful.rule()
    def turn(self): assert half(5) is None

TestMachine = Machine.TestCase
""",
    "tests/test_other.py": "from little.halves import half\ndef test_other(): assert half(5) is None\n",
}
"""A project of one core, whose own tests leave out what is covered by another test, the making of an example, a late example, a
late seed, a test that shows a cost and a state machine."""


def test_the_run_fails_when_a_core_is_not_covered_by_its_own_tests(tmp_path: Path) -> None:
    """Breaks when nobody looks at what was measured, when what other tests reach counts, or when too much is traced."""
    done = pytest_in(tmp_path, LITTLE, "-q -p tests.own_coverage --cover-cores")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert re.search(r"the cores' own tests cover [\d.]+ %, not 100 %", done.stdout)
    assert re.search(rf"^{8 + own_coverage.SEEDS} passed in ", done.stdout.splitlines()[-1])
    missed = re.search(r"^little/halves\.py +4 +(\d)", done.stdout, re.MULTILINE)
    assert missed is not None, done.stdout
    assert missed[1] == "1"


def test_the_run_passes_when_every_branch_is_covered(tmp_path: Path) -> None:
    """By examples that are measured, and by what a module of tests calls while it is imported."""
    (own,) = (name for name in LITTLE if name.endswith("test_own.py"))
    whole = LITTLE | {
        own: LITTLE[own] + "@given(some.integers())\ndef test_any(number): assert half(number) in (None, number // 2)\n",
        "little/signs.py": "def sign(number):\n    return -1 if number < 0 else 1\n",
        own.replace("own", "import"): "from little.signs import sign\nSIGN = sign(-1)\ndef test_sign(): assert SIGN == -1\n",
    }
    done = pytest_in(tmp_path, whole, "-q -p tests.own_coverage --cover-cores")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_run_names_a_module_of_tests_that_cannot_be_imported(tmp_path: Path) -> None:
    """Breaks when the measuring hides the error, and the module seems to have no tests."""
    (own,) = (name for name in LITTLE if name.endswith("test_own.py"))
    broken = LITTLE | {own.replace("own", "broken"): "import nowhere\ndef test_a(): assert nowhere\n"}
    done = pytest_in(tmp_path, broken, "-q -p tests.own_coverage --cover-cores")
    assert (done.returncode, "No module named 'nowhere'" in done.stdout) == (pytest.ExitCode.INTERRUPTED, True), done.stdout


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


def test_no_port_is_given_twice_before_its_owner_listens() -> None:
    given = [port for _ in range(100) for port in free_ports(10)]
    assert len(set(given)) == len(given)
