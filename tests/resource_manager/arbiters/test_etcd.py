"""The arbiter for etcd, against a real one: turns, what becomes of them when etcd moves, is compacted, full, or away."""

from __future__ import annotations

import json
import signal
import ssl
from base64 import b64decode
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from twisted.internet import reactor as installed_reactor

from broker.options import SettingsError
from resource_manager import arbiters
from resource_manager.arbiters.etcd import EtcdArbiter
from resource_manager.arbitration import Arbitration
from resource_manager.core.arbiter import NEVER, ArbiterSettings, Guarantee, Published
from tests.broker.real_time import time_passes, until
from tests.certificates import Authority
from tests.resource_manager.arbiters.asked import Asked, reaching
from tests.resource_manager.etcd import Etcd, encoded, running_etcd, three_members

reactor: Any = installed_reactor


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


class Daemon(Asked):
    """An arbiter as a daemon has it, and how often its watcher was called."""

    def __init__(self, url: str, name: str, cluster: str, **options: str) -> None:
        settings = ArbiterSettings(
            cluster, {"endpoints": url, "ttl": "10"} | {k.replace("_", "-"): v for k, v in options.items()}
        )
        arbiter = arbiters.make("etcd", settings, reactor, name)
        assert isinstance(arbiter, EtcdArbiter)
        super().__init__(arbiter)
        self.watch()


def daemons(url: str, cluster: str, *names: str, **options: str) -> AbstractAsyncContextManager[list[Daemon]]:
    """Daemons that have reached etcd."""
    return reaching(Daemon(url, name, cluster, **options) for name in names)


def turn(etcd: Etcd, cluster: str) -> str:
    return b64decode(etcd.value(f"/understudy/{cluster}/turn").get("value", "")).decode()


@pytest_twisted.ensureDeferred
async def test_of_two_daemons_in_a_need_one_has_the_turn_and_the_other_when_that_one_rests(etcd: Etcd) -> None:
    async with daemons(etcd.url, "pair", "rm-1", "rm-2") as two:
        assert two[0].arbiter.guarantee is Guarantee.LEASED
        assert turn(etcd, "pair") == "", "nobody has it without a need"
        await until(lambda: [daemon.has_turn() for daemon in two] != [False, False])
        first, second = sorted(two, key=lambda daemon: not daemon.has_turn())
        now_s = reactor.seconds()
        since_s = first.arbiter.acts_at(now_s, now_s)
        await time_passes(0.3)
        assert (second.has_turn(), turn(etcd, "pair")) == (False, first.arbiter._daemon)
        assert first.arbiter.acts_at(now_s, reactor.seconds()) == since_s, "it does not move"
        told = second.told
        first.arbiter.rest()
        await until(lambda: second.told > told)
        assert second.has_turn()
        assert not first.has_turn()


@pytest_twisted.ensureDeferred
async def test_the_turn_of_a_daemon_that_closes_is_free_at_once(etcd: Etcd) -> None:
    """Breaks when others must wait for the end of its lease."""
    async with daemons(etcd.url, "closing", "rm-1", ttl="600") as [first], daemons(etcd.url, "closing", "rm-2") as [second]:
        await until(first.has_turn)
        await first.arbiter.close()
        assert turn(etcd, "closing") == ""
        await until(second.has_turn)


@pytest_twisted.ensureDeferred
async def test_the_turn_of_a_dead_daemon_ends_with_its_lease(etcd: Etcd) -> None:
    dead = int(etcd.call("lease/grant", {"TTL": "1"})["ID"])
    key = encoded("/understudy/dead/turn")
    etcd.call("kv/put", {"key": key, "value": encoded("rm-0"), "lease": str(dead)})
    async with daemons(etcd.url, "dead", "rm-1") as [daemon]:
        assert not daemon.has_turn()
        await until(daemon.has_turn)
        assert turn(etcd, "dead") == "rm-1"


@pytest_twisted.ensureDeferred
async def test_who_loses_the_key_or_the_lease_loses_the_turn_and_gets_another(etcd: Etcd) -> None:
    async with daemons(etcd.url, "losing", "rm-1") as [daemon]:
        await until(daemon.has_turn)
        told = daemon.told
        etcd.put("/understudy/losing/turn", "somebody by hand")
        await until(lambda: daemon.told > told)
        assert not daemon.has_turn()
        etcd.delete("/understudy/losing/turn")
        await until(daemon.has_turn)
        etcd.call("lease/revoke", {"ID": str(daemon.arbiter._candidate.lease)})
        await until(lambda: not daemon.has_turn())
        await until(daemon.has_turn)


@pytest_twisted.ensureDeferred
async def test_the_primary_is_published_and_an_older_epoch_never_replaces_it(etcd: Etcd) -> None:
    def published() -> Any:
        return json.loads(b64decode(etcd.value("/understudy/told/primary").get("value", "bnVsbA==")))

    async with daemons(etcd.url, "told", "rm-1", "rm-2") as [first, second]:
        first.arbiter.publish(Published("a:1", 3))
        first.arbiter.publish(Published("b:1", 4))
        await until(lambda: bool(published() == {"primary": "b:1", "epoch": 4}))
        second.arbiter.publish(Published("", 3))
        await until(lambda: second.arbiter._candidate._told == Published("", 3))
        assert published() == {"primary": "b:1", "epoch": 4}
        second.arbiter.publish(Published("", 4))
        await until(lambda: bool(published() == {"primary": "", "epoch": 4}))


@pytest_twisted.ensureDeferred
async def test_a_cluster_that_was_made_anew_is_published_when_the_key_of_the_old_one_is_deleted(
    etcd: Etcd, lines: list[str]
) -> None:
    """Its epochs are lower. Breaks when the key names the primary of the old cluster for ever, and nobody says so."""
    async with daemons(etcd.url, "anew", "rm-1", "rm-2") as [old, new]:
        old.arbiter.publish(Published("a:1", 7))
        await until(lambda: old.arbiter._candidate._told == Published("a:1", 7))
        new.arbiter.publish(Published("b:1", 1))
        text = "/understudy/anew/primary has epoch 7, and the cluster is in 1: if it was made anew, delete this key"
        await until(lambda: lines == [f"the primary cannot be published in etcd: {text}"])
        assert new.reachable
        etcd.call("kv/deleterange", {"key": encoded("/understudy/anew/primary")})
        await until(lambda: bool(etcd.value("/understudy/anew/primary")))
        await until(lambda: lines[1:] == ["the primary is published in etcd again"])


@pytest_twisted.ensureDeferred
async def test_a_watch_that_meets_a_compaction_is_begun_anew(etcd: Etcd) -> None:
    """Breaks when a daemon goes deaf, or fails, because etcd has dropped the revision from which it listens."""
    async with daemons(etcd.url, "compacted", "rm-1") as [daemon]:
        ended: list[str] = []
        for number in range(3):
            last = int(etcd.put("/other", str(number))["header"]["revision"])
        etcd.call("kv/compaction", {"revision": str(last)})
        daemon.arbiter._client.watch(b"/other", last - 2, lambda holder: None).addCallback(ended.append)
        await until(lambda: bool(ended))
        assert ended == [f"etcd was compacted up to revision {last}"]
        daemon.arbiter._begin_watch(last - 2)
        await until(daemon.has_turn)
        told = daemon.told
        etcd.put("/understudy/compacted/turn", "somebody by hand")
        await until(lambda: daemon.told > told)


@pytest_twisted.ensureDeferred
async def test_it_follows_a_member_that_moves_and_is_reachable_again(tmp_path: Path) -> None:
    """And a frozen one is away. Breaks when the daemon stays with an endpoint that does not answer."""
    with running_etcd(tmp_path / "etcd") as moving:
        old = moving.url
        moved = Etcd(tmp_path / "etcd")
        async with daemons(f"{old},{moved.url}", "moving", "rm-1", ttl="2") as [daemon]:
            moving.kill()
            await until(lambda: "refused" in daemon.reason)
            assert not daemon.reachable
            moving.port = moved.port
            moving.start()
            await until(lambda: daemon.reachable)
            await until(daemon.has_turn)
            moving.signal(signal.SIGSTOP)
            await until(lambda: "no answer for 0.4 s" in daemon.reason)
            await until(lambda: not daemon.has_turn())
            moving.signal(signal.SIGCONT)
            await until(lambda: daemon.reachable and daemon.has_turn())


@pytest_twisted.ensureDeferred
async def test_of_three_members_a_majority_is_enough_and_a_single_one_decides_nothing(tmp_path: Path) -> None:
    """Breaks when a member that has lost the others, and knows of a lease that may have ended, is believed."""
    with three_members(tmp_path) as three:
        async with daemons(",".join(etcd.url for etcd in three), "three", "rm-1", ttl="2") as [daemon]:
            await until(daemon.has_turn)
            three[0].kill()
            killed_s = reactor.seconds()
            await until(lambda: (daemon.arbiter.health().answered_s or 0.0) > killed_s and daemon.has_turn())
            three[1].kill()
            await until(lambda: not daemon.reachable)
            await until(lambda: not daemon.has_turn())
            seen = three[2].call("kv/range", {"key": encoded("/understudy/three/turn"), "serializable": True})
            assert seen.get("kvs"), "who asks for what may be stale would still be told of the turn"
            for etcd in three[:2]:
                etcd.spawn()
            await until(lambda: daemon.reachable and daemon.has_turn())


@pytest_twisted.ensureDeferred
async def test_a_full_etcd_counts_as_away_until_there_is_room(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd", "--quota-backend-bytes", str(300_000)) as full:
        async with daemons(full.url, "full", "rm-1") as [daemon]:
            while "code" not in (answer := full.put("/filler", "x" * 60_000)):
                pass
            assert "space exceeded" in answer["message"]
            await until(lambda: daemon.has_turn() or not daemon.reachable)
            assert "429 etcdserver: mvcc: database space exceeded" in daemon.reason
            answered_s = daemon.arbiter.health().answered_s
            await time_passes(0.5)
            assert (daemon.has_turn(), daemon.arbiter.health().answered_s) == (False, answered_s)
            revision = full.call("kv/range", {"key": "AA=="})["header"]["revision"]
            full.call("kv/compaction", {"revision": revision, "physical": True})
            full.call("maintenance/defragment", {})
            member = full.call("maintenance/alarm", {"action": "GET"})["alarms"][0]["memberID"]
            full.call("maintenance/alarm", {"action": "DEACTIVATE", "memberID": member, "alarm": "NOSPACE"})
            await until(lambda: daemon.reachable and daemon.has_turn())


@pytest_twisted.ensureDeferred
async def test_with_users_it_logs_in_and_again_with_a_new_password_when_its_token_has_ended(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("wrong\n")
    with running_etcd(tmp_path / "etcd") as guarded:
        guarded.call("auth/user/add", {"name": "root", "password": "tomato"})
        guarded.call("auth/role/add", {"name": "root"})
        guarded.call("auth/user/grant", {"user": "root", "role": "root"})
        guarded.call("auth/enable", {})
        daemon = Daemon(guarded.url, "rm-1", "guarded", user="root", password_file=str(password), ttl="2")
        await until(lambda: "authentication failed, invalid user ID or password" in daemon.reason)
        assert "tomato" not in daemon.reason
        password.write_text("tomato\n")
        await until(lambda: daemon.reachable)
        token = daemon.arbiter._client._token
        password.write_text("lettuce\n")
        guarded.call("auth/user/changepw", {"name": "root", "password": "lettuce"}, token)  # which ends the user's tokens
        await until(lambda: daemon.reachable and daemon.arbiter._client._token not in ("", token))
        await until(daemon.has_turn)
        await daemon.arbiter.close()


ALL_KEYS = {"key": encoded("/understudy/"), "range_end": encoded("/understudy0")}


def with_users(etcd: Etcd, permission: str = "READWRITE", keys: dict[str, str] = ALL_KEYS) -> str:
    """Users are needed from now on; rm is one, with this permission for the keys. Returns a token of root's."""
    for path, body in (
        *(("auth/user/add", {"name": name, "password": "tomato"}) for name in ("root", "rm")),
        *(("auth/role/add", {"name": name}) for name in ("root", "ha")),
        *((("auth/role/grant", {"name": "ha", "perm": {"permType": permission, **keys}}),) if permission else ()),
        ("auth/user/grant", {"user": "root", "role": "root"}),
        ("auth/user/grant", {"user": "rm", "role": "ha"}),
        ("auth/enable", {}),
    ):
        assert "code" not in etcd.call(path, body)
    return str(etcd.call("auth/authenticate", {"name": "root", "password": "tomato"})["token"])


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("permission", ["", "READ"])
async def test_a_user_without_rights_for_the_turn_keeps_a_promotion_no_longer_than_the_patience(
    permission: str, tmp_path: Path
) -> None:
    """Breaks when the leases, which etcd grants to every user, or the readings pass for a turn that etcd can decide."""
    password = tmp_path / "password"
    password.write_text("tomato\n")
    options = {"user": "rm", "password-file": str(password), "ttl": "2"}
    with running_etcd(tmp_path / "etcd") as guarded:
        with_users(guarded, permission)
        settings = ArbiterSettings("guarded", {"endpoints": guarded.url} | options)
        began_s = reactor.seconds()
        arbitration = Arbitration(reactor, "etcd", settings, "rm-1", 4.0)
        arbitration.start(lambda: None)
        needed_s = reactor.seconds()
        await until(lambda: arbitration.acts_at(needed_s, reactor.seconds()) <= reactor.seconds())
        assert reactor.seconds() >= began_s + 4.0
        assert "403 etcdserver: permission denied" in arbitration.health().reason
        await arbitration.close()


@pytest_twisted.ensureDeferred
async def test_a_user_who_may_write_the_turn_only_gets_turns_and_is_told_once_that_it_cannot_publish(
    tmp_path: Path, lines: list[str]
) -> None:
    """Breaks when etcd counts as away although turns work, and the log says so every few seconds."""
    password = tmp_path / "password"
    password.write_text("tomato\n")
    password.chmod(0o600)
    with running_etcd(tmp_path / "etcd") as guarded:
        root = with_users(guarded, keys={"key": encoded("/understudy/part/turn")})
        async with daemons(guarded.url, "part", "rm-1", ttl="2", user="rm", password_file=str(password)) as [daemon]:
            daemon.arbiter.publish(Published("a:1", 3))
            await until(lambda: daemon.arbiter._candidate._publish_failures >= 3)
            assert daemon.reachable
            await until(daemon.has_turn)
            reason = f"{guarded.url}: 403 etcdserver: permission denied"
            assert lines == [f"the primary cannot be published in etcd: {reason}"]
            perm = {"permType": "READWRITE", "key": encoded("/understudy/part/primary")}
            assert "code" not in guarded.call("auth/role/grant", {"name": "ha", "perm": perm}, root)
            await until(lambda: "the primary is published in etcd again" in lines[-1])


@pytest_twisted.ensureDeferred
async def test_a_signed_token_is_replaced_when_users_or_roles_have_changed(tmp_path: Path) -> None:
    """Breaks when a role for somebody else keeps the daemon out until its token ends: etcd answers 400, not 401."""
    password = tmp_path / "password"
    password.write_text("tomato\n")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    signed = f"jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=10m"
    with running_etcd(tmp_path / "etcd", "--auth-token", signed) as guarded:
        root = with_users(guarded)
        daemon = Daemon(guarded.url, "rm-1", "guarded", user="rm", password_file=str(password), ttl="2")
        await until(lambda: daemon.reachable)
        token = daemon.arbiter._client._token
        assert "code" not in guarded.call("auth/role/add", {"name": "somebody-elses"}, root)
        changed_s = reactor.seconds()
        await until(lambda: (daemon.arbiter.health().answered_s or 0.0) > changed_s)
        assert daemon.arbiter._client._token not in ("", token)
        await until(daemon.has_turn)
        await daemon.arbiter.close()


@pytest_twisted.ensureDeferred
async def test_over_tls_both_sides_show_who_they_are_and_files_may_be_replaced(tmp_path: Path) -> None:
    """Breaks when a stranger could answer for etcd, or a daemon with a new certificate had to be restarted."""
    ours, strangers = Authority(), Authority("Somebody else")
    ca, other_ca = ours.write(tmp_path), strangers.write(tmp_path, "other")
    certificate, key = ours.issue("etcd", "127.0.0.1").write(tmp_path, "etcd")
    late, late_key = ours.issue("late", days=(-3, -1)).write(tmp_path, "client")
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(certificate, key)
    words = ["--cert-file", certificate, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", ca]
    before = set(reactor.getDelayedCalls())
    with running_etcd(tmp_path / "etcd", *map(str, words), tls=context) as guarded:
        shown = {"ca_file": str(ca), "certificate": str(late), "key": str(late_key)}
        expired = Daemon(guarded.url, "expired", "tls", **shown)
        stranger = Daemon(guarded.url, "stranger", "tls", **(shown | {"ca_file": str(other_ca)}))
        elsewhere = Daemon(guarded.url.replace("127.0.0.1", "localhost"), "elsewhere", "tls", **shown)
        await until(lambda: "TLS failed: tls alert" in expired.reason)
        await until(lambda: "TLS failed: certificate verify failed" in stranger.reason)
        await until(lambda: "TLS failed: the server's certificate is for another host" in elsewhere.reason)
        ours.issue("client").write(tmp_path, "client")
        await until(lambda: expired.reachable)
        await until(expired.has_turn)
        assert [daemon.reachable for daemon in (stranger, elsewhere)] == [False, False]
        for daemon in (expired, stranger, elsewhere):
            await daemon.arbiter.close()
    await until(lambda: before.issuperset(reactor.getDelayedCalls()))


@pytest_twisted.ensureDeferred
async def test_after_its_end_there_is_no_timer(etcd: Etcd) -> None:
    before = set(reactor.getDelayedCalls())
    async with daemons(etcd.url, "ending", "rm-1") as [daemon]:
        await until(daemon.has_turn)
    assert not daemon.has_turn()
    await until(lambda: before.issuperset(reactor.getDelayedCalls()))


def test_who_has_never_reached_etcd_has_no_turn() -> None:
    arbiter = arbiters.make("etcd", ArbiterSettings("away", {"endpoints": "http://127.0.0.1:1"}), reactor, "rm-1")
    assert not arbiter.health().reachable
    assert arbiter.acts_at(0.0, reactor.seconds()) == NEVER
    arbiter.close()


@pytest.mark.parametrize(
    "cluster, options, text",
    [
        ("c", {}, "endpoints are needed"),
        ("", {"endpoints": "http://localhost:1"}, "a name for the cluster is needed.*give --cluster-name"),
        ("/c", {"endpoints": "http://localhost:1"}, "cannot be a part of a key"),
        ("c", {"endpoints": "localhost:2379"}, "'localhost:2379' is not an endpoint as https://host:2379"),
        ("c", {"endpoints": "https://a:0"}, "is not an endpoint"),
        ("c", {"endpoints": "https://a:x"}, "is not an endpoint"),
        ("c", {"endpoints": "https://me@a"}, "is not an endpoint"),
        ("c", {"endpoints": "https://a/v3"}, "is not an endpoint"),
        ("c", {"endpoints": "http://etcd1:2379"}, "over http a stranger could answer for etcd1: use https"),
        ("c", {"endpoints": "http://[::1]:1", "ttl": "1"}, "ttl: '1' is not a whole number from 2 to 600"),
        ("c", {"endpoints": "http://[::1]", "timeout": "2"}, "timeout: 2 is too long for a ttl of 5"),
        ("c", {"endpoints": "http://127.9.9.9", "prefix": "x"}, "prefix: 'x' does not begin with /"),
        ("c", {"endpoints": "http://localhost", "user": "ann"}, "user and password-file belong together"),
        ("c", {"endpoints": "http://localhost", "user": "a", "password-file": "/no"}, "cannot read /no"),
        ("c", {"endpoints": "http://localhost", "ca-file": "/no"}, "/no has no effect: no endpoint is https"),
        ("c", {"endpoints": "https://a", "ca-file": "/no"}, "cannot read /no: No such file"),
        ("c", {"endpoints": "https://a", "certificate": "/dev/null"}, "/dev/null: there is no certificate"),
        ("c", {"endpoints": "https://a", "ca-file": "/dev/null"}, "/dev/null: there is no certificate in PEM form"),
        ("c", {"endpoints": "https://a", "key": "/dev/null"}, "key has no effect without certificate"),
        ("c", {"speed": "high"}, "etcd has no option 'speed'; there are: endpoints, prefix"),
    ],
)
def test_wrong_options_are_one_line(cluster: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError, match=text) as raised:
        arbiters.make("etcd", ArbiterSettings(cluster, options), reactor, "rm-1")
    assert "\n" not in str(raised.value)
