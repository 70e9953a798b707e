"""A real etcd of one member on loopback, for tests that kill it, move it and fill it."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

from tests.system.harness import free_ports

START_S = 60.0


class Etcd:
    """One member and its data, through all its lives. A lease may be as short as a second."""

    def __init__(self, folder: Path, *options: str, tls: ssl.SSLContext | None = None) -> None:
        self.folder = folder
        self.options = options
        self._tls = tls
        self.port, peer_port = free_ports(2)
        self.name, self.peer = "one", f"http://127.0.0.1:{peer_port}"
        self.members = f"{self.name}={self.peer}"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        self.spawn()
        self.wait()

    def spawn(self) -> None:
        """Start."""
        words = ["etcd", "--name", self.name, "--data-dir", str(self.folder / "data"), "--unsafe-no-fsync", "--logger", "zap"]
        words += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url, "--listen-peer-urls", self.peer]
        words += ["--initial-advertise-peer-urls", self.peer, "--initial-cluster", self.members]
        words += ["--heartbeat-interval", "20", "--election-timeout", "200", *self.options]
        with (self.folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)

    def wait(self) -> None:
        """Until it answers."""
        until_s = time.monotonic() + START_S
        while True:
            try:
                self.call("kv/range", {"key": "AA=="})
            except OSError:
                assert time.monotonic() < until_s, (self.folder / "etcd.log").read_text()[-3000:]
                time.sleep(0.02)
            else:
                return

    @property
    def running(self) -> bool:
        """Whether it has been started and not killed."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def call(self, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
        """A call of the JSON gateway, whatever becomes of it. OSError when it does not answer."""
        there = "127.0.0.1", self.port
        connection = HTTPSConnection(*there, timeout=10, context=self._tls) if self._tls else HTTPConnection(*there, timeout=10)
        try:
            connection.request("POST", f"/v3/{path}", json.dumps(body), {"Authorization": token} if token else {})
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return answer

    def value(self, key: str) -> dict[str, Any]:
        """What etcd has under that key; {} for nothing."""
        return dict((self.call("kv/range", {"key": encoded(key)}).get("kvs") or [{}])[0])

    def put(self, key: str, value: str) -> dict[str, Any]:
        """Set it."""
        return self.call("kv/put", {"key": encoded(key), "value": encoded(value)})

    def delete(self, key: str) -> None:
        """Away with it."""
        self.call("kv/deleterange", {"key": encoded(key)})


def encoded(text: str) -> str:
    """As the gateway has keys and values."""
    return b64encode(text.encode()).decode()


@contextmanager
def running_etcd(folder: Path, *options: str, tls: ssl.SSLContext | None = None) -> Iterator[Etcd]:
    """One that runs; `tls` is what this process shows it, if its options make it ask for that."""
    etcd = Etcd(folder, *options, tls=tls)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.kill()


@contextmanager
def three_members(folder: Path) -> Iterator[list[Etcd]]:
    """An etcd of three, which run."""
    three = [Etcd(folder / name) for name in ("one", "two", "three")]
    for etcd in three:
        etcd.name = etcd.folder.name
    for etcd in three:
        etcd.members = ",".join(f"{each.name}={each.peer}" for each in three)
    try:
        for etcd in three:
            etcd.spawn()
        for etcd in three:
            etcd.wait()
        yield three
    finally:
        for etcd in three:
            etcd.kill()
