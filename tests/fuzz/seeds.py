"""Inputs that are right, from which libFuzzer begins: without them, it would take hours to write a header or a JSON object."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import proton
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc import jwk

from broker.amqp import management_node
from broker.core import sasl, values
from broker.core.commands import Bind, QueueAdd, Setting, Term
from broker.core.door import HEADER
from broker.core.users import SHA_256, derive, line_of
from ha.amqp import replication_link
from ha.core.membership import Membership
from ha.core.messages import Append, AppendReply, SnapshotChunk
from tests.broker.core.stream import BEGIN, CLOSE, END, OPEN, attach, init, performative, properties, transfer
from tests.broker.disk.logs import batch
from tests.tokens import CLAIMS, signed

CORPUS = Path(__file__).with_name("corpus")
"""A folder for each target, with inputs that reached further than what stands here, named after their content."""
KEPT_BYTES = 8192
"""For one target."""


SCRAM_FINAL = b"\xff\xff\xffc=biws,r=abcnonce,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=\xff\xff\xff"


def _private_key() -> Any:
    """The same in each process: an input is to be read the same way each time."""
    made = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    return jwk.OKPKey.import_key(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


@functools.cache
def public_key() -> str:
    """What the issuer of `SEED_TOKEN` publishes."""
    return json.dumps({"keys": [_private_key().as_dict(private=False) | {"kid": "k", "use": "sig"}]})


SEED_TOKEN = signed("EdDSA", json.dumps(CLAIMS), {"kid": "k"}, _private_key()).encode()


def _message() -> bytes:
    made: Any = proton.Message(id="m", subject="a.b", reply_to="r", body={"name": "q", "arguments": {"qpid.max_count": 3}})
    made.properties = {"operation": "CREATE", "type": "queue", "name": "q", "n": 1.5}
    made.annotations = {proton.symbol("x-opt"): [1, "two", None]}
    made.durable, made.ttl, made.priority = True, 5.0, 7
    return bytes(made.encode())


def _replication() -> list[bytes]:
    members = Membership.of(("a:1", "b:1"), (), "c")
    chunk = SnapshotChunk(epoch=2, index=9, index_epoch=2, members=members, offset=0, nbytes=3, total_bytes=3)
    append = Append(epoch=2, commit_index=4, round=1, prev_index=4, prev_epoch=1, first=5, last=5)
    return [
        replication_link.encode(append, [batch(5, 2)]),
        replication_link.encode(chunk, [b"abc"]),
        replication_link.encode(AppendReply(epoch=2, round=1, accepted=True, match_index=4, received_index=4), []),
    ]


SEEDS: dict[str, list[bytes]] = {
    "door": [b"\x02\x08\x20" + sasl.HEADER + init() + HEADER + OPEN + BEGIN + attach(0) + transfer(b"x") + END + CLOSE],
    "frames": [one[8:] for one in (BEGIN, attach(0), transfer(b"x"), END, CLOSE, performative(0x13, b"\x43", b"\x43"))],
    "engine": [BEGIN + attach(0) + transfer(b"\x00\x53\x77\x40") + END + CLOSE, properties(b"\xc1\x05\x02\xa3\x01k\x40")],
    "login": [
        init()[8:],
        init("PLAIN", values.encode(b"\0user\0password"))[8:] + b"\xff\xff\xff",
        init("EXTERNAL", values.encode(b"client"))[8:],
        *(init(name, values.encode(b"n,,n=user,r=abc"))[8:] + SCRAM_FINAL for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")),
    ],
    "token": [public_key().encode() + b"\n" + SEED_TOKEN, b"\n" + json.dumps(CLAIMS).encode()],
    "value": [values.encode({"key": [1, 2.5, "text", b"bytes", None, True]})],
    "sections": [_message()],
    "request": [
        _message(),
        management_node.encode_request(1, "answers", "CREATE", "binding", "", {"exchange": "e", "queue": "q"}),
    ],
    "replication": _replication(),
    "batch": [batch(3)],
    "command": [
        QueueAdd(uuid="u", name="q", level="all").text,
        Bind(exchange="e", queue="u", key="k", arguments={"x-match": "all"}).text,
        Term(epoch=3, primary="a:1", reason="asked", ts="2026-01-01", gap_ms=7).text,
        Setting(key="pause", value={"since": "2026-01-01"}).text,
        json.dumps({"op": "queue-add", "name": float("nan")}).encode(),
    ],
    "log": [b"\0\0\0\x01", b"\x01\x01\0\x04\x02\x10\x20\xff"],
    "url": [b"amqps://user:password@tcp:a:1,[::1]:5672,b"],
    "acl": [b"group g a@b c@d\nacl allow-log g publish exchange name=e routingkey=a.*\nquota queues 5 all\nacl deny all all\n"],
    "selector": [
        len(text).to_bytes(2, "big") + text + rest
        for text, rest in (
            (b"a = 1 AND NOT (b LIKE '%x_' OR amqp.priority BETWEEN -1 AND 2e3) OR c IN ('y', 0x1F)", _message()),
            (b"-a / 2 + 3 * d >= 017 AND JMSXDeliveryCount IS NOT NULL", b"\x00\x53\x74\xc1\x06\x02\xa1\x01a\x54\x01"),
            (b"TRUE", b"\xc1\x14\x02\xa3\x01s\x00\x80\x00\x00\x01\x74" + bytes(4) + b"\xc1\x06\x02\xa1\x01a\x54\x01"),
        )
    ],
    "users": [line_of("user", {SHA_256: derive(SHA_256, "password", bytes(16))}).encode() + b"\n# comment\n"],
    "options": [b"port=5672\n# comment\ndata-dir=/x\nauth=no\nmessage-memory=1G\n"],
}


def corpus_of(target: str, corpus: Path = CORPUS) -> list[bytes]:
    """The seeds of a target, and its corpus."""
    kept = [path.read_bytes() for path in sorted((corpus / target).glob("*"))]
    return list(dict.fromkeys(SEEDS[target] + kept))


def keep(target: str, corpus: Path, inputs: list[bytes]) -> None:
    """Make these the corpus of a target, but for its seeds and what takes more than `KEPT_BYTES` together: the shortest stay."""
    folder, room = corpus / target, KEPT_BYTES
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for one in sorted(set(inputs) - set(SEEDS[target]), key=lambda each: (len(each), each)):
        room -= len(one)
        if room < 0:
            break
        (folder / hashlib.sha256(one).hexdigest()[:16]).write_bytes(one)
