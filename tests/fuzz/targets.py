"""What is fed with any bytes, and what must hold whatever they are.

Life of an input: a target reads it as the product would, and compares: with another way to read the same (proton's codec, a
stream cut elsewhere, a log as it was written), or with what was read when that is written and read again. The errors that a
reader says it raises are its answer; any other error, and any difference, is a find.

Invariant: an input is read the same way each time, so that a find can be repeated from its bytes.
"""

from __future__ import annotations

import atexit
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import google_crc32c
import proton
from twisted.internet.defer import succeed
from twisted.internet.task import Clock

from broker import settings
from broker.amqp import management_node
from broker.core import arrivals, commands, message, sasl, urls, values
from broker.core.acl import grammar
from broker.core.bundles import FORMAT, is_bundle, messages_of
from broker.core.door import HEADER as AMQP
from broker.core.filters import filters_of
from broker.core.identity import Certificate, Socket
from broker.core.management import plan
from broker.core.nodes import CLUSTER, LOCAL, Nodes, Refused
from broker.core.performatives import Refusal
from broker.core.records import HEADER, HEADER_BYTES, BadBatch, Batch, message_runs
from broker.core.selector.grammar import BadSelector
from broker.core.selector.selected import Selector, selected
from broker.core.state import State
from broker.core.tokens import BadKeys, BadToken, Rules, Tokens, parse_keys
from broker.core.users import HASHES, BadUsers, Users, derive
from broker.core.users import parse as parse_users
from broker.disk.durable import DamagedStore
from broker.disk.files import RealDisk
from broker.disk.recovery import recover
from broker.disk.segments import SUFFIX
from broker.options import SettingsError, gather
from broker.sessions.authentication import Authentication
from ha.amqp import replication_link
from ha.core.messages import Append, SnapshotChunk, fault_of
from tests.broker.amqp.pairs import Side
from tests.broker.core.stream import OPEN, Knock, admitted, cut, frame, init
from tests.broker.core.test_message import plain
from tests.broker.disk.logs import SMALL, batches, written
from tests.fuzz.seeds import SEED_TOKEN, public_key
from tests.tokens import AUDIENCE, ISSUER, NOW_S

Target = Callable[[bytes], None]

_CHECKSUM = struct.Struct("<I")
_COMPOUND = b"\xc0\xd0\xc1\xd1"
_DEPTH_OF_PROTON = 10
"""Proton's codec gives up on what is nested deeper."""
_MARKS = (range(512, 552), range(1024, 1064))
"""Where a segment says how far it is known to be synced (`broker.disk.segments`)."""
_MARK = struct.Struct("<4sQQQQ")
"""A mark's magic, its number, where what it speaks of ends, and the index and epoch of the last batch there."""
_UNLIKE_PROTON = b"\x00\xe0\xf0\x73\x74\x84\x94"
"""Described values and arrays, whose descriptors and elements proton takes in fewer forms; a character, which proton does not
look at; decimals, which we give as their bytes. Other values with these bytes in them are not compared either."""


# ---- connections


def door(data: bytes) -> None:
    """A stream of a client. What the door says and lets through does not depend on how the stream was cut."""
    at, stream = (list(data[1 : 1 + data[0] % 8]), data[1 + data[0] % 8 :]) if data else ([], b"")
    whole, pieces = Knock().say(stream), Knock().say(*cut(stream, at))
    assert (whole.refusal, whole.reason) == (pieces.refusal, pieces.reason)
    assert bytes(whole.door.output) == bytes(pieces.door.output)
    if not whole.refusal:  # what stands before the fault may go through in pieces, and not at once
        assert whole.passed == pieces.passed


def frames(data: bytes) -> None:
    """The body of a frame after the Open, on its own: it goes through as it came, or is refused."""
    knock = admitted().say(stream := frame(data))
    assert knock.refusal or knock.passed == stream or FORMAT in data
    assert knock.refusal or len(knock.passed) == len(stream)


def engine(data: bytes) -> None:
    """The door with proton behind it: whatever is let through ends in an answer or a refusal, not in an error or a crash."""
    side = Side(server=True)
    try:
        for piece in (sasl.HEADER, init(), AMQP, OPEN, data):
            side.engine.push(piece)
            side.engine.drain()
            b"".join(side.engine.take_output())
    finally:
        side.engine.free()


def login(data: bytes) -> None:
    """A client's SASL frames: the init, then responses. One outcome at most; nobody gets in who has not shown who it is; and
    nothing secret stands in a reason."""
    exchange = sasl.Exchange(
        _authentication().offer(Socket("10.0.0.1:5", encrypted=True, certificate=Certificate("CN=client", "client")))
    )
    pieces, reason = data.split(b"\xff\xff\xff"), ""
    try:
        exchange.take(pieces[0])
        for piece in pieces[1:]:
            while exchange.waits is not None:
                exchange.resume(exchange.waits.work() if exchange.waits.work is not None else b"")
            if exchange.granted is not None:
                break
            exchange.take(b"\x00\x53\x43" + values.items([values.encode(piece)]))
    except Refusal as refusal:
        reason = refusal.text
    assert _PASSWORD not in reason
    assert exchange.output.count(b"\x00\x53\x44") <= 1
    if exchange.granted is not None:
        assert exchange.granted.mechanism == sasl.EXTERNAL or _PASSWORD.encode() in data


_PASSWORD = "correct horse"


@cache
def _authentication() -> Authentication:
    """That of a broker with one user, whose password stands in no seed."""
    keys = {mechanism: derive(mechanism, _PASSWORD, bytes(16)) for mechanism in HASHES}
    users = Users({"user": keys}, bytes(16))
    return Authentication(Clock(), lambda work: succeed(work()), lambda: "nonce", demanded=True, users=users)


def token(data: bytes) -> None:
    """A set of keys, and a token behind its line: read or refused. Only what the issuer has signed counts as signed. Claims
    are looked at without a signature too, for none that is made here would be right: they name somebody, or nobody."""
    keys, _, compact = data.partition(b"\n")
    with suppress(BadKeys):
        parse_keys(keys.decode(errors="replace"))
    looked_at = Tokens(Rules(ISSUER, AUDIENCE), lambda: NOW_S)
    looked_at.keys = parse_keys(public_key())
    text = compact.decode(errors="replace")
    with suppress(BadToken):
        payload = looked_at.looked_at(text)()
        assert not payload or compact.startswith(SEED_TOKEN.rpartition(b".")[0])
        _named(looked_at, payload)
    with suppress(BadToken):
        _named(looked_at, compact)


def _named(tokens: Tokens, payload: bytes) -> None:
    bearer = tokens.bearer(payload)
    assert bearer.user
    assert bearer.user.isprintable()
    assert NOW_S < bearer.until_s < float("inf")


# ---- what is encoded in AMQP


def value(data: bytes) -> None:
    """One value: what we take proton takes, as the same; and what we make of it is written and read as the same."""
    try:
        ours = values.decode(data)
    except values.BadValue:
        return
    if not any(byte in data for byte in _UNLIKE_PROTON) and sum(byte in _COMPOUND for byte in data) < _DEPTH_OF_PROTON:
        theirs = proton.Data()
        assert theirs.decode(data) == len(data)
        theirs.rewind()
        assert theirs.next() is not None
        assert repr(plain(theirs.get_object())) == repr(ours)
    with suppress(TypeError, ValueError):  # what has no single type in AMQP, and text that UTF-8 does not take
        assert repr(values.decode(values.encode(ours))) == repr(ours)


def sections(data: bytes) -> None:
    """A message: the quick look and the slow one agree; every reader reads or refuses; the header that we write is read again.
    The same bytes as those in a bundle."""
    try:
        message.check(data)
        plain = True
    except message.BadMessage:
        plain = False
    assert (arrivals.malformed([data]) == []) == plain
    for read in (message.message_id, message.to, message.reply_to, message.application_properties, message.body_value):
        with suppress(message.BadMessage):
            read(data)
    assert not (plain and is_bundle(data))
    with suppress(message.BadMessage):
        assert arrivals.malformed(messages_of(bytes(4) + data)) == []
    message.body_begins_in(data)
    with suppress(message.BadMessage):
        was = message.header(data)
        now = message.header(message.with_delivery_state(data, 7, True))
        assert (now.delivery_count, now.first_acquirer, now.durable, now.ttl_ms) == (7, True, was.durable, was.ttl_ms)


def request(data: bytes) -> None:
    """A request to management: it is carried out, planned or refused with a status."""
    try:
        asked = management_node.decode(data)
    except management_node.BadRequest:
        return
    for operation in ("CREATE", "DELETE"):
        for kind in ("queue", "exchange", "binding"):
            with suppress(Refused, KeyError, TypeError, ValueError):  # these are the body's fault too
                plan(_nodes(), operation, kind, asked.name, asked.body, "uuid", 0)


@cache
def _nodes() -> Nodes:
    """Those of a broker on which nobody has made any."""
    nodes = Nodes(clustered=True)
    nodes.rebuild({CLUSTER: State(), LOCAL: State()})
    return nodes


# ---- what members and disks give


def replication(data: bytes) -> None:
    """A message of another member."""
    with suppress(replication_link.BadReplication):
        found, _ = replication_link.decode(data)
        if isinstance(found, (Append, SnapshotChunk)):
            fault_of(found)


def batch(data: bytes) -> None:
    """A batch whose checksum is right: it is read whole, or refused, and its runs lie within it."""
    if len(data) >= HEADER_BYTES:
        fields = list(HEADER.unpack_from(data))
        fields[2] = len(data)
        data = HEADER.pack(*fields) + data[HEADER_BYTES:]
        data = data[:4] + _CHECKSUM.pack(google_crc32c.value(data[8:])) + data[8:]
    with suppress(BadBatch):
        found = Batch.parse(data)
        for run in found.runs:
            assert run.start + run.nbytes <= len(data)
            assert sum(map(len, found.messages(run))) == sum(run.lengths)
        message_runs(data)


def command(data: bytes) -> None:
    """A record of the log that defines something: a command that says the same when it is read again, or an unknown one."""
    found = commands.decode(data)
    if isinstance(found, commands.Command):
        assert found.text == data
        assert repr(commands.decode(json.dumps(found.to_dict()).encode())) == repr(found)  # NaN is not equal to itself


@cache
def _store() -> tuple[Path, dict[str, bytes], list[bytes]]:
    """A folder for logs, the files of one as it was written, and its batches."""
    folder = Path(tempfile.mkdtemp(prefix="understudy-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sealed = batches(1, 150)
    written(folder / "made", sealed)
    return folder, {path.name: path.read_bytes() for path in (folder / "made").iterdir()}, sealed


def log(data: bytes) -> None:
    """A log in which some bytes were changed: what comes back is a beginning of it, and what is missing is known to be.

    One loss is not (`broker.disk.segments` says why): where the newest segment's mark has rotted, and a batch that it alone spoke
    of, at once. But all comes back that a mark speaks of which has not changed.
    """
    folder, files, sealed = _store()
    place = folder / "damaged"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    names = sorted(files)
    content = {name: bytearray(files[name]) for name in names}
    newest = max(name for name in names if name.endswith(SUFFIX))
    changed, marks = False, set(_MARKS)
    for which, offset, bits in struct.iter_unpack("<BHB", data[: len(data) // 4 * 4]):
        name = names[which % len(names)]
        victim = content[name]
        if victim and bits:
            victim[offset % len(victim)] ^= bits
            changed = True
            if name == newest:
                marks -= {place for place in marks if offset % len(victim) in place}
    for name, what in content.items():
        (place / name).write_bytes(what)
    try:
        found, kept = recover(place, SMALL, RealDisk())
    except DamagedStore:
        return
    for segment in kept:
        segment.close(RealDisk())
    indexes = [entry.index for entry in found.entries]
    assert indexes == list(range(1, len(indexes) + 1))
    assert [entry.nbytes for entry in found.entries] == [len(one) for one in sealed[: len(indexes)]]
    spoken_of = [_MARK.unpack_from(files[newest], place.start)[3] for place in marks]
    least = max(spoken_of, default=int(newest.removesuffix(SUFFIX)) - 1)
    assert len(indexes) >= (len(sealed) if len(marks) == len(_MARKS) else least) or found.blank or found.floor is not None
    assert changed or len(indexes) == len(sealed)


# ---- what people write


def url(data: bytes) -> None:
    """A list of brokers: what is read is written and read as the same."""
    with suppress(urls.BadUrl):
        found = urls.parse(data.decode(errors="replace"))
        assert urls.parse(str(found)).names == found.names


def acl(data: bytes) -> None:
    """A file of access rules."""
    with suppress(grammar.BadAcl):
        grammar.read(data.decode(errors="replace"), "acl")


def selector(data: bytes) -> None:
    """Two bytes of a size, a selector of so many, and a message that it is asked about; the same bytes as a source's filters."""
    size = 2 + int.from_bytes(data[:2], "big")
    with suppress(BadSelector):
        Selector(data[2:size].decode(errors="replace")).takes(data[size:])
    with suppress(values.BadValue, BadSelector):
        selected(filters_of(data[size:]))


def users(data: bytes) -> None:
    """A file of users."""
    with suppress(BadUsers):
        parse_users(data.decode(errors="replace"))


def options(data: bytes) -> None:
    """A file of options."""
    folder, _, _ = _store()
    path = folder / "qpidd.conf"
    path.write_bytes(data)
    with suppress(SettingsError):
        gather(settings.OPTIONS, {"config": str(path)}, {})


TARGETS: dict[str, Target] = {
    each.__name__: each
    for each in (
        door,
        frames,
        engine,
        login,
        token,
        value,
        sections,
        request,
        replication,
        batch,
        command,
        log,
        url,
        acl,
        selector,
        users,
        options,
    )
}
"""By name."""
