"""`make bench`: throughput and latency of a real cluster on this machine, beside a calibration of the machine itself.

Three brokers, fdatasync on, level all, messages of 1 KiB (1 MiB in one scenario), a load generator in C++ on Qpid Proton
(tests/bench/load.cpp; g++ and libqpid-proton-cpp12-dev, which `apt-get install` brings). Figures move with the machine: compare
ratios, and the calibration first. Options: `--messages N`, `--scenario NAME`, `--tls`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench import drains, floods, probes
from tests.bench.meter import cpu_s
from tests.system import harness
from tests.system.secured import secured

HERE = Path(__file__).parent
KIB = 1024
WINDOW = "1000"
Scenario = Callable[[str, harness.Cluster, str, int], None]


def main() -> int:
    """Run the scenarios and print a table."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000, help="messages in each throughput scenario")
    parser.add_argument(
        "--scenario", action="append", choices=sorted([*SCENARIOS, *TELEMETRY, *OTHERS]), help="only this one (again for more)"
    )
    parser.add_argument("--tls", action="store_true", help="everything over TLS, each scenario also in the clear beside it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        if options.scenario == ["floods"]:
            floods.measure(Path(folder))
            return 0
        load = build(Path(folder))
        if load is None:
            return 1
        print("the machine:", ", ".join(f"{name} {value}" for name, value in calibrate(Path(folder)).items()), flush=True)
        good = True
        print(f"{'scenario':<34}{'messages/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'primary us/msg':>16}{'backup us/msg':>15}")
        for name in options.scenario or [*SCENARIOS, *TELEMETRY, *TABLES]:
            if name == "floods":
                floods.measure(Path(folder) / name)
                continue
            if name in TABLES:
                good &= TABLES[name](Path(folder) / name, str(load), options.messages)
                continue
            if name in SCENARIOS:
                with harness.cluster(Path(folder) / name) as brokers:
                    SCENARIOS[name](name, brokers, str(load), options.messages)
                if options.tls:
                    _over_tls(name, Path(folder), str(load), options.messages)
            else:
                _telemetry(name, Path(folder) / name, str(load), options.messages, TELEMETRY[name])
            shutil.rmtree(Path(folder) / name)
    return 0 if good else 1


def build(folder: Path) -> Path | None:
    """Compile the load generator; None, having said why, when that cannot be."""
    target = folder / "load"
    command = ["g++", "-O2", "-std=c++17", "-o", str(target), str(HERE / "load.cpp"), "-lqpid-proton-cpp"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        print("bench: the load generator needs a compiler: apt-get install g++ libqpid-proton-cpp12-dev", file=sys.stderr)
        return None
    if done.returncode:
        print("bench: the load generator does not compile: apt-get install libqpid-proton-cpp12-dev", file=sys.stderr)
        return None
    return target


def calibrate(folder: Path) -> dict[str, str]:
    """What the machine gives to anybody: a call into proton, a synced write, bytes over loopback."""
    from cproton_ffi import lib

    collector = lib.pn_collector()
    began = time.perf_counter()
    for _ in range(200_000):
        lib.pn_collector_peek(collector)
    call_ns = (time.perf_counter() - began) / 200_000 * 1e9
    lib.pn_collector_free(collector)
    return {
        "cores": str(os.cpu_count()),
        "call into proton": f"{call_ns:.0f} ns",
        "fdatasync of 64 KiB": f"{_sync_us(folder):.0f} us",
        "loopback": f"{_loopback_mb_s():.0f} MB/s",
    }


def _sync_us(folder: Path) -> float:
    path, block, times = folder / "sync", bytes(64 * KIB), []
    path.write_bytes(bytes(200 * len(block)))
    with path.open("r+b", buffering=0) as file:
        os.fsync(file.fileno())
        for position in range(200):
            began = time.perf_counter()
            os.pwrite(file.fileno(), block, position * len(block))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    path.unlink()
    return statistics.median(times) * 1e6


def _loopback_mb_s() -> float:
    total, block = 512 * KIB * KIB, bytes(64 * KIB)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drain() -> None:
            peer, _ = server.accept()
            with peer:
                left = total
                while left > 0:
                    left -= len(peer.recv(256 * KIB))

        reader = threading.Thread(target=drain)
        reader.start()
        with socket.create_connection(server.getsockname()) as client:
            began = time.perf_counter()
            for _ in range(total // len(block)):
                client.sendall(block)
            reader.join()
    return total / (time.perf_counter() - began) / 1e6


def _run(commands: list[list[str]]) -> list[dict[str, Any]]:
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    outputs = [process.communicate(timeout=300)[0] for process in running]
    for command, process in zip(commands, running, strict=True):
        if process.returncode:
            raise SystemExit(f"bench: {' '.join(command)} ended with {process.returncode}")
    return [json.loads(output.strip().splitlines()[-1]) for output in outputs]


def _pairs(
    name: str,
    brokers: harness.Cluster,
    load: str,
    messages: int,
    pairs: int,
    window: str,
    *,
    size: int = KIB,
    receive: bool = True,
    create: bool = True,
) -> None:
    primary = brokers.brokers[0]
    queues = [f"q{number}" for number in range(pairs)]
    for queue in queues if create else ():
        harness.ask(primary.address, "CREATE", "queue", queue, {"replicate": "all", "arguments": {"qpid.max_size": 0}})
    each = messages // pairs
    commands = [[load, "send", primary.url, queue, str(each), str(size), window] for queue in queues]
    if receive:
        commands += [[load, "receive", primary.url, queue, str(each), WINDOW] for queue in queues]
    before = [cpu_s(broker) for broker in brokers.brokers]
    began = time.perf_counter()
    results = _run(commands)
    took = time.perf_counter() - began
    used = [(cpu_s(broker) - start) / messages * 1e6 for broker, start in zip(brokers.brokers, before, strict=True)]
    sent = [result for result in results if "sent" in result]
    p50, p99 = statistics.median(result["p50_ms"] for result in sent), max(result["p99_ms"] for result in sent)
    rate = results[0]["rate"] if pairs == 1 else messages / took
    print(f"{name:<34}{rate:>12,.0f}{p50:>9.2f}{p99:>9.2f}{used[0]:>16.1f}{statistics.mean(used[1:]):>15.1f}", flush=True)


def _one_to_one(name: str, brokers: harness.Cluster, load: str, messages: int) -> None:
    _pairs(name, brokers, load, messages, 1, WINDOW)


def _ten_to_ten(name: str, brokers: harness.Cluster, load: str, messages: int) -> None:
    _pairs(name, brokers, load, messages, 10, WINDOW)


def _producer_alone(name: str, brokers: harness.Cluster, load: str, messages: int) -> None:
    _pairs(name, brokers, load, messages, 1, WINDOW, receive=False)


def _large_bodies(name: str, brokers: harness.Cluster, load: str, messages: int) -> None:
    _pairs(name, brokers, load, messages // 200, 1, "20", size=KIB * KIB)


def _one_at_a_time(name: str, brokers: harness.Cluster, load: str, messages: int) -> None:
    _pairs(name, brokers, load, messages // 100, 1, "1")


def _over_tls(name: str, folder: Path, load: str, messages: int) -> None:
    """The same with clients and links over TLS."""
    with secured(folder / "tls") as brokers:
        os.environ["SSL_CERT_FILE"] = str(brokers.ca)  # whom the load generator is to trust
        brokers.promote(brokers.brokers[0])
        for backup in brokers.brokers[1:]:
            backup.wait_for("ready")
        SCENARIOS[name](f"{name}, TLS", brokers, load, messages)
    shutil.rmtree(folder / "tls")


def _telemetry(name: str, folder: Path, load: str, messages: int, queues: int) -> None:
    """What telemetry takes of the primary's processor time, with three backups, so many queues, and load on up to ten of them."""
    with harness.cluster(folder, 4, "--telemetry-dir", str(folder / "lag")) as brokers:
        primary = brokers.brokers[0]
        attributes = {"replicate": "all", "arguments": {"qpid.max_size": 0}}
        requests = [("CREATE", "queue", f"q{number}", attributes) for number in range(queues)]
        harness.ask_all(primary.address, *requests, timeout_s=60)
        began_s, spent_s = cpu_s(primary), primary.status()["telemetry"]["cpu_s"]
        _pairs(name, brokers, load, messages, min(queues, 10), WINDOW, create=False)
        telemetry = primary.status()["telemetry"]
        used_s, spent_s = cpu_s(primary) - began_s, telemetry["cpu_s"] - spent_s
        words = f"{spent_s:.2f} s of {used_s:.1f} s of the primary's processor time, {telemetry['written']:,} lines"
        print(f"{'':<34}of that telemetry: {100 * spent_s / used_s:.2f} % ({words})", flush=True)
        assert telemetry["dropped"] == 0, telemetry["reason"]


SCENARIOS: dict[str, Scenario] = {
    "one producer, one consumer": _one_to_one,
    "ten producers, ten consumers": _ten_to_ten,
    "one producer alone": _producer_alone,
    "a window of one message": _one_at_a_time,
    "bodies of 1 MiB": _large_bodies,
}
TELEMETRY = {"with telemetry of one queue": 1, "with telemetry of 1,000 queues": 1000}
"""Queues by scenario."""
TABLES: dict[str, Callable[[Path, str, int], bool]] = {"probes": probes.measure, "drain": drains.measure}
"""Scenarios with tables of their own, which say whether what they have measured is good."""
OTHERS = ("floods", *TABLES)


if __name__ == "__main__":
    sys.exit(main())
