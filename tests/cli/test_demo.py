"""What the demo sends and shows. That its processes live through a kill is for the demo itself and for tests/system."""

from __future__ import annotations

import pickle
import stat
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from broker import users_file
from broker.net.credentials import Credentials as TlsCredentials
from broker.net.credentials import told as told_of
from cli.demo.cluster import Process
from cli.demo.command import Demo, changes_missed, changes_shown, copy_telemetry, encrypted, logins, unsecured
from cli.demo.credentials import USERS, Credentials
from cli.demo.screen import progress, wrapped
from cli.demo.text import MAX_LINE_BYTES, BadInput, Lines, choose_text, planned, read_text, split_lines, usual_texts
from ha import settings as ha_settings
from ha.core.identity import objection_to_member

# ---- the text


@given(st.lists(st.binary(max_size=8).filter(lambda line: b"\n" not in line), min_size=1))
def test_every_line_is_sent_with_the_bytes_it_has_and_empty_ones_too(lines: list[bytes]) -> None:
    assert split_lines(b"\n".join(lines) + b"\n") == lines


def test_a_last_line_without_a_newline_is_a_line() -> None:
    assert split_lines(b"one\n\ntwo") == [b"one", b"", b"two"]


def test_a_text_is_sent_whole_and_so_often_that_there_are_enough_messages() -> None:
    assert planned(7, 100_000) == 100_002
    assert planned(100_000, 100_000) == 100_000
    assert planned(100_001, 100_000) == 100_001


def test_messages_hold_the_lines_of_the_text_again_and_again_in_every_process(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"one\n\nthree")
    lines = pickle.loads(pickle.dumps(Lines(path)))
    assert [lines.body("stream", number) for number in range(5)] == [b"one", b"", b"three", b"one", b""]


@pytest.mark.parametrize(
    "content, complaint",
    [(b"", "is empty"), (b"x" * (MAX_LINE_BYTES + 1), "a line of 1,048,577 bytes")],
    ids=["empty", "long line"],
)
def test_a_text_that_cannot_be_sent_is_refused_before_anything_starts(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=complaint):
        read_text(path)


def test_a_missing_file_and_a_folder_are_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"missing: No such file or directory"):
        read_text(tmp_path / "missing")
    with pytest.raises(BadInput, match=r"Is a directory"):
        read_text(tmp_path)


def test_the_text_that_is_asked_for_wins_and_else_the_first_that_is_there(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("text")
    assert choose_text("asked", [there]) == Path("asked")
    assert choose_text("", [tmp_path / "not", there, tmp_path / "later"]) == there
    with pytest.raises(BadInput, match="INPUT="):
        choose_text("", [tmp_path / "not"])


def test_python_itself_brings_the_last_resort() -> None:
    *_, last = usual_texts()
    assert len(split_lines(read_text(last))) > 1000


# ---- who is who


def test_what_is_secret_is_its_owner_s_alone_and_tells_the_brokers_who_is_who(tmp_path: Path) -> None:
    addresses = ["127.0.0.1:1001", "127.0.0.1:1002"]
    made = Credentials(tmp_path, addresses)
    folder = made.authority.parent
    kept = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    secret = {"broker1.key", "broker2.key", "users", *(f"{user}.password" for user in USERS)}
    assert {name for name, mode in kept.items() if mode == 0o600} == secret
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(users_file.checked(made.users, users_file.read(made.users))) == sorted(USERS)
    told = made.of_broker(2)
    assert not any(password in " ".join(told) for password in made.passwords.values())
    assert not any(password in made.config.read_text() for password in made.passwords.values())
    broker, ha = ha_settings.read(
        {
            "ha_cluster": "yes",
            "ha_brokers_url": f"amqps:{','.join(addresses)}",
            **{name.removeprefix("--").replace("-", "_"): value for name, value in zip(told[::2], told[1::2], strict=True)},
        },
        {},
    )
    assert (ha.login.user, ha.login.password) == ("brokers", made.passwords["brokers"])
    TlsCredentials(broker.tls)  # takes them as they are
    shown = told_of(x509.load_pem_x509_certificate((folder / "broker2.pem").read_bytes()))
    assert [objection_to_member(address, shown) == "" for address in addresses] == [False, True]


def connection(user: str, mechanism: str = "SCRAM-SHA-512", certificate: str = "", **more: object) -> dict[str, object]:
    return {"user": f"{user}@QPID", "mechanism": mechanism, "certificate": certificate, "encrypted": True} | more


def test_who_came_in_how_is_told_and_whoever_came_in_otherwise_is_a_fault() -> None:
    all_of_them = [connection("client"), connection("client"), connection("manager"), connection("operator")]
    all_of_them.append(connection("brokers", certificate="CN=broker 1"))
    assert logins(all_of_them) == "client (2), manager, operator by SCRAM-SHA-512; brokers by SCRAM-SHA-512 with a certificate"
    assert (encrypted(all_of_them), unsecured(all_of_them)) == (5, [])
    bad = [*all_of_them[2:], connection("client", "PLAIN", encrypted=False)]
    assert unsecured(bad) == ["a connection of client@QPID was not encrypted", "client@QPID logged in by PLAIN"]
    assert unsecured(all_of_them[1:3]) == ["no connection of brokers, operator was seen"]


# ---- what is shown


@given(st.integers(1, 100))
def test_progress_fits_the_window_and_cuts_no_figure(width: int) -> None:
    line = progress({"accepted": 54_321, "received": 43_210}, 100_000, 4_512.3, width)
    assert " 43 %  54,321 accepted  43,210 received  4,512/s"[: len(line)] == line
    assert len(line) <= width
    assert width < 6 or line.endswith(("%", "accepted", "received", "/s"))


def test_more_messages_than_planned_are_not_more_than_everything() -> None:
    assert progress({"accepted": 250, "received": 240}, 100, 1.0, 80).startswith("100 %")


def test_a_line_of_the_story_is_wrapped_and_a_path_in_it_stays_whole() -> None:
    text = wrapped(1.23, "stores in /tmp/understudy-demo-12345678 and so on", 40)
    assert text == "   1.2 s  stores in\n          /tmp/understudy-demo-12345678\n          and so on"


# ---- telemetry of brokers that go on running


def test_telemetry_that_is_still_written_is_copied_up_to_its_last_whole_line(tmp_path: Path) -> None:
    source = tmp_path / "telemetry"
    source.mkdir()
    (source / "one.jsonl").write_text("a\n")
    (source / ".two.part").write_text('b\nc\n{"torn')
    target = copy_telemetry(source, tmp_path / "copy")
    assert {path.name: path.read_text() for path in target.iterdir()} == {"one.jsonl": "a\n", "two.jsonl": "b\nc\n"}


def test_a_page_that_shows_no_failover_after_a_kill_is_a_fault() -> None:
    both = [{"kind": "failover", "gap_ms": 1240.0}, {"kind": "switchover", "gap_ms": 180.4}]
    assert changes_missed(both) == ""
    assert "shows no failover, though" in changes_missed(both[1:])
    assert "no failover and no switchover" in changes_missed([])
    assert changes_shown(both) == "a failover with 1,240 ms, a switchover with 180 ms"


def test_what_can_be_done_with_a_cluster_that_is_kept_stands_below_its_heading(tmp_path: Path) -> None:
    """Breaks when the kill of the primary stands below the drain, or when a broker that was not started is to be stopped."""
    (tmp_path / "text").write_text("a line\n")
    demo = Demo(tmp_path / "text", tmp_path, keep=True)
    cluster = demo.cluster
    cluster.resource_manager = Process("qpid-resource-manager", ["sleep", "600"], tmp_path)
    cluster.brokers = {address: Process(f"qpidd-{address}", ["sleep", "600"], tmp_path) for address in cluster.addresses}
    try:
        cluster.start()
        lines = demo.commands().splitlines()
        pids = [str(process.pid) for process in cluster.processes]
    finally:
        demo.stop()
    at = lines.index("Let the primary hand over, or kill it and see the resource manager act:")
    assert " switchover " in lines[at + 1]
    assert lines[at + 2 : at + 4] == ["  kill -9 PID", "Let it leave for good, into a broker of yours:"]
    assert "qpid-drain" in lines[at + 4]
    assert lines[at + 5 :] == ["Stop it:", f"  kill {' '.join(pids)}; sleep 2; rm -r {tmp_path}"]
