"""What a broker knows of its machine comes through its reactor and its Host, so that both can be others in a simulation."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BANNED = {"fcntl", "glob", "random", "secrets", "shutil", "socket", "tempfile", "threading", "time", "uuid"}
EDGES = {
    "broker/client.py": {"time"},  # runs in commands, not in a broker
    "broker/core/message.py": {"uuid"},  # AMQP has a type of this name
    "broker/core/duplicates.py": {"uuid"},
    "broker/core/selector/fields.py": {"uuid"},  # AMQP has a type of this name
    "broker/core/selector/properties.py": {"uuid"},  # AMQP has a type of this name
    "broker/core/values.py": {"uuid"},
    "broker/disk/files.py": {"fcntl"},
    "broker/disk/threads.py": {"threading", "time"},
    "broker/host.py": {"time", "uuid"},
    "broker/metrics.py": {"time"},  # the processor time of the process, for who asks
    "broker/net/reactor.py": {"time"},
    "broker/net/output.py": {"socket"},  # a constant, for the end of what goes out
    "broker/telemetry.py": {"threading", "time"},  # has a thread and files of its own; a broker runs without it too
    "broker/telemetry_files.py": {"glob"},
    "broker/users_file.py": {"fcntl"},  # qpid-passwd alone locks it
    "ha/net/names.py": {"socket"},  # asks the system's resolver for names; a simulation has numbers
    "ha/virtual_ip.py": {"socket"},  # netlink and packet sockets, which no simulation has
    "ha/settings.py": {"shutil", "socket"},  # whether there is the program that it names; and when --ha-address is not given
}
OF_PATHS = {
    "exists", "glob", "is_dir", "is_file", "iterdir", "mkdir", "open", "read_bytes", "read_text", "rename", "replace", "rglob",
    "rmdir", "stat", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
NO_PATHS = {"disk", "self.disk", "self._disk", "self.host.disk", "self", "Journal"}
CONSTANTS = re.compile(r"os\.(O_[A-Z]+|sysconf)\b")


def modules() -> list[str]:
    return [str(path.relative_to(ROOT)) for folder in ("broker", "ha") for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(name: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("name", modules())
def test_no_clock_no_randomness_no_thread_and_no_lock_is_used_behind_the_hosts_back(name: str) -> None:
    assert imports(name) & BANNED == EDGES.get(name, set())


@pytest.mark.parametrize(
    "name", [name for name in modules() if name.startswith("broker/disk/") and name != "broker/disk/files.py"]
)
def test_the_store_calls_the_file_system_only_through_its_disk(name: str) -> None:
    code = (ROOT / name).read_text()
    assert [call for call in re.findall(r"\bos\.\w+", code) if not CONSTANTS.fullmatch(call)] == []
    calls = [node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    methods = [call for call in calls if isinstance(call, ast.Attribute) and call.attr in OF_PATHS]
    assert [ast.unparse(call) for call in methods if ast.unparse(call.value) not in NO_PATHS] == []
    assert [call for call in calls if isinstance(call, ast.Name) and call.id == "open"] == []


_FAULTS = """
import resource
from broker.host import KEPT_BYTES, keep_freed_memory
if {asked}:
    keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def messages():
    for size in (256 << 10, 1 << 20, 3 << 20):
        held = [b"x" * size for _ in range((KEPT_BYTES >> 3) // size)]

messages()
before = faults()
messages()
print(faults() - before)
"""


def test_the_memory_of_freed_messages_is_used_again_without_the_kernel() -> None:
    """Breaks when it is returned to the machine: then each page of the next message is filled with zeros first."""

    def faults(*, asked: bool) -> int:
        words = [sys.executable, "-c", _FAULTS.format(asked=asked)]
        return int(subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT).stdout)

    assert faults(asked=True) < 200 < faults(asked=False)
