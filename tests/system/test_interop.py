"""Client libraries by other authors fail over by their lists of URLs, unchanged: Proton in Python (two ways) and C++, rhea on
Node, and RabbitMQ's for Python.

Each sends and receives through a kill -9 of the primary and the promotion of a backup. Every message arrives. The programs
are in `interop/`. All except Proton in Python need a compiler, libraries, Node or a registry, which not every machine has:
there a warning says why they were not run, and only Proton in Python was tested.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from proton import Message

from tests.cli.running import ROOT, environment
from tests.system.harness import Cluster, Request, ask, ask_all, cluster, eventually
from tests.system.interop.values import CHOSEN, HEADER, LARGE, VALUES
from tests.system.programs import AZURE, HERE, answer, compiled, from_pypi, tried, with_rhea
from tests.system.traffic import take

COUNT, KILL_AT = 1200, 300
"""How many messages a client sends, and when the primary is killed: a client with a window has sent many more by then."""
COUNT_ALONE, KILL_ALONE_AT = 500, 100
"""The same for a client that waits for the outcome of each message: it is one message ahead."""
ALONE = {"blocking", "rabbitmq", "azure"}
Command = Callable[[str, list[str], str, int], list[str]]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("interop"), 3, "--ha-replicate", "all", "--rabbitmq-clients", "yes") as brokers:
        yield brokers


class Program:
    """A client in its process: it prints a number for each message that is done."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.command = command
        self.log = log
        self.count = 0
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=environment()
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.count = int(line)

    def wait_for(self, count: int) -> None:
        """Wait until it has done so many; AssertionError with what it said when it does not. A program that has ended may have
        said more than was read, so what it says is read to the end."""
        what = f"{count} messages of {Path(self.command[0]).name}"
        try:
            eventually(lambda: self.count, lambda found: found >= count or not self._reader.is_alive(), what, 90)
        finally:
            said = self.log.read_text()[-2000:]
        assert self.count >= count, f"{what}: it ended with {self.process.poll()} after {self.count}; it said: {said}"

    def end(self) -> int:
        """Its exit status, when it has ended by itself."""
        status = self.process.wait(60)
        self._reader.join(10)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


# ---- the clients


def python(program: str) -> Command:
    return lambda role, addresses, queue, count: [
        *(sys.executable, str(HERE / program), role),
        *(",".join(f"amqp://{address}" for address in addresses), queue, str(count)),
    ]


def cpp(folder: Path) -> Command:
    binary = compiled(HERE / "client.cpp", folder)
    return lambda role, addresses, queue, count: [
        *(str(binary), role, ",".join(f"amqp://{address}" for address in addresses)),
        *(queue, str(count)),
    ]


def rhea(folder: Path) -> Command:
    command = with_rhea("client.js", folder)
    return lambda role, addresses, queue, count: [*command, role, ",".join(addresses), queue, str(count)]


RABBITMQ = "--no-deps", "packaging>=26", "typing-extensions", "rabbitmq-amqp-python-client>=1,<2"
"""All that it needs beside our own Proton."""


def rabbitmq(folder: Path) -> Command:
    command = from_pypi("rabbitmq.py", folder, *RABBITMQ)
    return lambda role, addresses, queue, count: [
        *(*command, role, ",".join(f"amqp://{address}" for address in addresses)),
        *(queue, str(count)),
    ]


def azure(folder: Path) -> Command:
    command = from_pypi("azure_stack.py", folder, AZURE)
    return lambda role, addresses, queue, count: [*command, role, ",".join(addresses), queue, str(count)]


CLIENTS: dict[str, Callable[[Path], Command]] = {
    "blocking": lambda folder: python("blocking.py"),
    "container": lambda folder: python("container.py"),
    "cpp": cpp,
    "rhea": rhea,
    "rabbitmq": rabbitmq,
    "azure": azure,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_s_sender_and_receiver_outlive_the_primary(three: Cluster, client: str, programs: Path, tmp_path: Path) -> None:
    """The first address of the list is a backup's, and the primary is killed half-way: both must go on to the next."""
    if (command := tried(client, CLIENTS[client], programs)) is None:
        return
    primary = three.primary()
    backups = [broker for broker in three.brokers if broker is not primary]
    for backup in backups:
        backup.wait_for("ready")
    addresses = [backups[0].address, primary.address, backups[1].address]
    count, kill_at = (COUNT_ALONE, KILL_ALONE_AT) if client in ALONE else (COUNT, KILL_AT)
    primary.create("queue", client)
    sender = Program(command("send", addresses, client, count), tmp_path / "sender.log")
    receiver = Program(command("receive", addresses, client, count), tmp_path / "receiver.log")
    try:
        for program in (sender, receiver):
            program.wait_for(kill_at)
        assert sender.count < count, "it is still sending"
        primary.kill()
        successor = three.succeed()
        for program in (sender, receiver):
            program.wait_for(count)
            assert program.end() == 0
        eventually(lambda: successor.queue(client)["messages"], lambda left: left == 0, "nothing being left", 30)
    finally:
        sender.close()
        receiver.close()
        if not primary.running:  # the next client needs it, also when this one has failed
            primary.start()
    primary.wait_for("ready")


def test_the_example_for_numbered_links_sends_each_message_once_and_in_order_when_the_primary_is_killed(
    three: Cluster, tmp_path: Path
) -> None:
    """Of docs/howto/once.md, at full rate: Proton then has messages that it has not yet written. A link that is attached again
    sent them first, and their second acceptance ended the program."""
    primary, count = three.primary(), 20_000
    for backup in three.brokers:
        backup.wait_for("ready", "active")
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto/once.md").read_text(), re.DOTALL)
    urls = ", ".join(f'"amqp://{address}"' for address in three.addresses)
    program = example.replace('"amqp://host1", "amqp://host2", "amqp://host3"', urls)
    program = program.replace('["first", "second"]', f"[str(number) for number in range({count})]")
    primary.create("queue", "orders")
    with (tmp_path / "sender.log").open("wb") as log:
        sender = subprocess.Popen([sys.executable, "-c", program], stderr=log, cwd=ROOT, env=environment())
    try:
        eventually(lambda: primary.queue("orders")["messages"], lambda stored: stored >= count // 10, "the first messages", 60)
        primary.kill()
        successor = three.succeed()
        assert successor.queue("orders")["messages"] < count, "it is still sending"
        assert sender.wait(90) == 0, (tmp_path / "sender.log").read_text()[-2000:]
        assert _numbers(take(successor.address, "orders", count)) == list(range(count))
        eventually(lambda: successor.queue("orders")["messages"], lambda left: left == 0, "nothing being left", 30)
    finally:
        sender.kill()
        sender.wait(10)
        if not primary.running:
            primary.start()
    primary.wait_for("ready")


def _numbers(messages: list[bytes]) -> list[int]:
    """The bodies of encoded messages, which are numbers as text."""
    message, numbers = Message(), []
    for data in messages:
        message.decode(data)
        numbers.append(int(str(message.body)))
    return numbers


SELECTING: dict[str, Callable[[Path], list[str]]] = {
    "container": lambda folder: [sys.executable, str(HERE / "select_container.py")],
    "rhea": lambda folder: with_rhea("select.js", folder),
}


@pytest.mark.parametrize("client", SELECTING)
def test_a_client_gets_what_its_selector_names_from_a_queue_and_from_a_topic(three: Cluster, client: str, programs: Path) -> None:
    """Breaks when the filter's type, which each client writes in its own way, is not known."""
    if (command := tried(client, SELECTING[client], programs)) is None:
        return
    primary, queue = three.primary(), f"selected-{client}"
    primary.create("queue", queue)
    assert answer(*command, primary.address, queue, "amq.topic") == {queue: [3, 5, 7, 9], "amq.topic": [3, 5, 7, 9]}
    eventually(lambda: primary.queue(queue)["messages"], lambda left: left == 6, "the others being left", 30)


AZURES = {"true", "int", "double", "uuid", "binary", "string", "list", "map"}
TYPING: dict[str, tuple[Callable[[Path], list[str]], set[str]]] = {
    "container": (lambda folder: [sys.executable, "-m", "tests.system.interop.types_container"], set()),
    "cpp": (lambda folder: [str(compiled(HERE / "types.cpp", folder))], set()),
    "rhea": (lambda folder: with_rhea("types.js", folder), {"described"}),
    "azure": (lambda folder: [*from_pypi("azure_stack.py", folder, AZURE), "types"], set(VALUES) - AZURES),
    "rabbitmq": (lambda folder: [*from_pypi("rabbitmq.py", folder, *RABBITMQ), "types"], set(VALUES) - {"binary"}),
}
"""Each client, and the types that it has not."""


@pytest.mark.parametrize("client", TYPING)
def test_what_a_client_sends_of_every_type_comes_back_and_is_what_others_see(three: Cluster, client: str, programs: Path) -> None:
    """It sends through an exchange: what it then receives from one queue, Proton for Python takes from another one."""
    build, missing = TYPING[client]
    if (command := tried(client, build, programs)) is None:
        return
    primary, exchange = three.primary(), f"types-{client}"
    queues = [f"{exchange}-{purpose}" for purpose in ("back", "chosen", "others")]
    creating: list[Request] = [("CREATE", "queue", queue, {}) for queue in queues]
    binding: list[Request] = [("CREATE", "binding", "", {"exchange": exchange, "queue": queue, "key": ""}) for queue in queues]
    ask_all(primary.address, ("CREATE", "exchange", exchange, {"exchangeType": "fanout"}), *creating, *binding)
    sent = {name: value for name, value in (VALUES | {"large": LARGE}).items() if name not in missing}
    said = answer(*command, primary.address, exchange, *queues[:2])
    assert said == {"same": list(sent), "chosen": [CHOSEN] if CHOSEN in sent else []}
    for name, data in zip(sent, take(primary.address, queues[2], len(sent)), strict=True):
        message: Any = Message()
        message.decode(data)
        body = bytes(message.body) if isinstance(message.body, memoryview) else message.body
        assert (message.properties, type(body), body) == ({"name": name}, type(sent[name]), sent[name])
        assert {field: getattr(message, field) for field in HEADER} == HEADER


SUBSCRIBING: dict[str, Callable[[Path], list[str]]] = {
    "blocking": lambda folder: [sys.executable, str(HERE / "subscribe_blocking.py")],
    "rhea": lambda folder: with_rhea("subscribe.js", folder),
}


@pytest.mark.parametrize("client", SUBSCRIBING)
def test_a_client_comes_back_to_its_durable_subscription_and_ends_it(three: Cluster, client: str, programs: Path) -> None:
    """With the fields that clients of JMS send, as each library writes them; and with a temporary queue."""
    if (command := tried(client, SUBSCRIBING[client], programs)) is None:
        return
    primary = three.primary()
    found = {"back": [1, 2, 3], "found": "amq.topic", "missing": "amqp:not-found", "temporary": ["for a time"]}
    assert answer(*command, primary.address, "amq.topic") == found


def test_proton_c_s_load_generator_loses_nothing(three: Cluster, programs: Path) -> None:
    """What the benchmarks measure with, is accounted for message by message."""
    binary = tried("the load generator", partial(compiled, ROOT / "tests/bench/load.cpp"), programs)
    if binary is None:
        return
    primary = three.primary()
    primary.create("queue", "load")

    def load(*words: Any) -> str:
        made = subprocess.run([binary, *map(str, words)], capture_output=True, text=True, timeout=120, check=False)
        assert made.returncode == 0, made.stderr
        return made.stdout

    assert '"sent": 20000' in load("send", primary.address, "load", 20_000, 200, 1000)
    assert primary.queue("load")["messages"] == 20_000
    assert '"received": 20000' in load("receive", primary.address, "load", 20_000, 1000)
    assert ask(primary.address, "QUERY", "queue", "load")["items"][0]["messagesIn"] == 20_000


def test_the_table_of_clients_has_every_client_that_is_tried() -> None:
    rows = re.findall(r"^\| .* \| `(\w+)` \|$", (ROOT / "docs/howto/clients.md").read_text(), re.M)
    assert sorted(rows) == sorted(CLIENTS)
