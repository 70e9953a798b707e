"""The daemon on real connections: brokers are responders in processes of their own, killed and frozen for real.

No test says how quickly something comes: when the daemon acts is told to the moment by the tests of `core/`, on a clock that they
move. What must not come is watched for a few detection times; on a busy machine that proves less, and fails never.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.logger import capturedLogs, formatEvent

from broker.client import ManagementClient
from broker.core import urls
from resource_manager import arbiters
from resource_manager.service import ResourceManager
from resource_manager.settings import read
from tests.broker.management_peer import Peer, running_peer
from tests.broker.real_time import PATIENCE_S, time_passes, until
from tests.resource_manager import planted
from tests.resource_manager.api_server import DAEMON, pod, running_api_server

reactor: Any = installed_reactor

JOINING: dict[str, Any] = {"status": "joining", "epoch": 3, "lastEpoch": 3, "lastIndex": 70, "primary": ""}
ACTIVE = JOINING | {"status": "active"}


@pytest.fixture
def peers() -> Iterator[Any]:
    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(running_peer(**given))


@pytest.fixture
def manage() -> Iterator[Any]:
    """Start daemons with `manage(peers, **options)`; all are stopped after the test."""
    services: list[ResourceManager] = []

    def start(brokers: list[Peer], **options: str) -> ResourceManager:
        url = ",".join(peer.name for peer in brokers)
        settings = read({"brokers": url, "detection_time": "0.4", "probe_interval": "0.05"} | options, {})
        services.append(ResourceManager(reactor, settings, jitter=lambda: 0.5))
        services[-1].startService()
        return services[-1]

    yield start
    for service in services:
        if service.running:
            service.stopService()


async def sees(service: ResourceManager, count: int) -> None:
    """Wait until so many brokers have answered the daemon, and none is silent."""
    await until(lambda: len(service._detector.sight(reactor.seconds()).reachable) == count)


def lines_in(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of telemetry of that kind."""
    lines = [line for path in folder.glob("*.jsonl") for line in map(json.loads, path.read_text().splitlines())]
    return [line for line in lines if line["kind"] == kind]


class Watcher:
    """Looks over a connection of its own at what a responder was asked."""

    def __init__(self, client: ManagementClient) -> None:
        self._client = client

    @classmethod
    async def of(cls, peer: Peer) -> Watcher:
        return cls(await ManagementClient.connect(reactor, urls.parse(peer.name).addresses[0]))

    async def promotions(self) -> list[dict[str, Any]]:
        items = (await self._client.request("QUERY", "requests"))["items"]
        return [item["body"] for item in items if item["what"] == "PROMOTE ha"]

    async def promoted(self) -> str:
        """Wait until the responder is asked to promote itself; the reason that it is told."""
        until_s = reactor.seconds() + PATIENCE_S
        while not (asked := await self.promotions()):
            assert reactor.seconds() < until_s, f"no PROMOTE in {PATIENCE_S} s"
            await time_passes(0.002)
        return str(asked[0]["reason"])

    async def becomes(self, **ha: Any) -> None:
        await self._client.request("SET", "peer", body={"ha": JOINING | ha})

    async def close(self) -> None:
        await self._client.close()


@pytest_twisted.ensureDeferred
async def test_at_the_start_the_newest_log_is_promoted(peers: Any, manage: Any) -> None:
    older, newest, third = peers(ha=JOINING), peers(ha=JOINING | {"lastIndex": 71}), peers(ha=JOINING)
    watcher, other = await Watcher.of(newest), await Watcher.of(older)
    manage([older, newest, third])
    assert await watcher.promoted() == "there is no primary yet"
    await time_passes(0.3)
    assert (len(await watcher.promotions()), await other.promotions()) == (1, [])
    await watcher.close()
    await other.close()


@pytest_twisted.ensureDeferred
async def test_whoever_has_seen_an_epoch_without_a_primary_does_not_know_the_one_that_is_elected_in_it(
    peers: Any, manage: Any
) -> None:
    """Breaks when a second daemon, which has looked during the election, promotes another broker right after it."""
    newest = peers(ha=JOINING | {"lastIndex": 71})
    watcher = await Watcher.of(newest)
    manage([newest, peers(ha=JOINING), peers(ha=JOINING)])
    await watcher.promoted()
    assert [asked["epoch"] for asked in await watcher.promotions()] == [JOINING["epoch"] - 1]
    await watcher.close()


@pytest_twisted.ensureDeferred
async def test_a_killed_primary_is_replaced_before_any_probe_is_due(peers: Any, manage: Any) -> None:
    """Breaks when the daemon waits for its next probe, or for a new connection to the candidate."""
    primary, backup, third = peers(ha=ACTIVE), peers(ha=JOINING), peers(ha=JOINING | {"lastIndex": 1})
    watcher = await Watcher.of(backup)
    service = manage([primary, backup, third], detection_time="60", probe_interval="30")
    await sees(service, 3)
    due = [probe._timer.getTime() for probe in service._probes.values()]
    primary.kill()
    await watcher.promoted()
    assert reactor.seconds() < min(due)
    await watcher.close()


@pytest_twisted.ensureDeferred
async def test_a_frozen_primary_is_replaced_after_the_detection_time(peers: Any, manage: Any) -> None:
    primary, backup, third = peers(ha=ACTIVE), peers(ha=JOINING), peers(ha=JOINING)
    watcher, other = await Watcher.of(backup), await Watcher.of(third)
    service = manage([primary, backup, third], priority=f"{backup.name}=1", detection_time="2")
    await sees(service, 3)
    assert await watcher.promotions() == []
    primary.freeze()
    assert await watcher.promoted() == f"the primary {primary.name} failed: no answer for 2 s"
    await watcher.close()
    await other.close()


@pytest_twisted.ensureDeferred
async def test_while_the_backups_hear_the_primary_the_daemon_keeps_still(peers: Any, manage: Any) -> None:
    """Breaks when the daemon believes its own eyes alone; and when it does not come back to the matter."""
    primary = peers(ha=ACTIVE)
    hearing = JOINING | {"status": "ready", "primary": primary.name}
    backups = [peers(ha=hearing), peers(ha=hearing)]
    watchers = [await Watcher.of(backup) for backup in backups]
    service = manage([primary, *backups], priority=f"{backups[0].name}=1")
    await sees(service, 3)
    primary.kill()
    await sees(service, 2)
    await time_passes(0.4)
    assert [await watcher.promotions() for watcher in watchers] == [[], []]
    for watcher in watchers:
        await watcher.becomes(status="joining")
    await watchers[0].promoted()
    for watcher in watchers:
        await watcher.close()


@pytest_twisted.ensureDeferred
async def test_the_next_candidate_is_asked_when_the_first_refuses(peers: Any, manage: Any, tmp_path: Path) -> None:
    refusing = peers(ha=JOINING | {"lastIndex": 99}, answers={"PROMOTE ha": [409, "not enough votes", None]})
    willing = peers(ha=JOINING)
    watcher = await Watcher.of(willing)
    service = manage([refusing, willing], telemetry_dir=str(tmp_path), name="rm-1")
    await watcher.promoted()
    await until(lambda: service._promotion._served is not None)
    service.stopService()
    told = [(event["type"], event["broker"]) for event in lines_in(tmp_path, "event")]
    assert told == [
        ("promote_asked", refusing.name),
        ("promote_refused", refusing.name),
        ("promote_asked", willing.name),
        ("promote_won", willing.name),
        ("discovery", willing.name),
    ]
    await watcher.close()


@pytest_twisted.ensureDeferred
async def test_every_probe_is_told_once_an_interval_that_of_a_broker_that_does_not_answer_too(
    peers: Any, manage: Any, tmp_path: Path
) -> None:
    """And by the name that the brokers give their cluster. Breaks when a broker that is down is not spoken of."""
    primary, frozen = peers(ha=ACTIVE | {"clusterId": "an-id"}), peers(ha=JOINING)
    service = manage([primary, frozen], telemetry_dir=str(tmp_path), telemetry_interval_ms="100", name="rm-1")
    await sees(service, 2)
    frozen.freeze()
    await sees(service, 1)
    await time_passes(0.5)
    service.stopService()
    probes = lines_in(tmp_path, "probe")
    assert [probe["broker"] for probe in probes] == [primary.name, frozen.name] * (len(probes) // 2)
    first, last = probes[-2:]
    assert (first["cluster"], first["reach"], first["state"], first["detail"]) == ("an-id", "reachable", "active", None)
    assert last["reach"] in ("silent", "absent"), "the connection's own heartbeat ends it soon"
    assert (last["answered"], last["round_trip_ms"]) == (0, None)
    assert last["detail"]
    answered = [probe for probe in probes if probe["answered"]]
    assert {probe["broker"] for probe in answered} == {primary.name, frozen.name}
    assert all(0 < probe["round_trip_ms"] <= probe["round_trip_max_ms"] for probe in answered)
    assert sum(probe["answered"] for probe in probes if probe["broker"] == primary.name) >= 2


@pytest_twisted.ensureDeferred
async def test_brokers_may_come_after_the_daemon(peers: Any, manage: Any) -> None:
    """Breaks when a broker that is missing at the start is given up."""
    late, early = peers(ha=JOINING), peers(ha=JOINING)
    late.freeze()
    watcher = await Watcher.of(early)
    service = manage([late, early], start_grace="0", priority=f"{late.name}=1")
    await sees(service, 1)
    await time_passes(0.4)
    assert await watcher.promotions() == []
    late.thaw()
    other = await Watcher.of(late)
    await other.promoted()
    await watcher.close()
    await other.close()


@pytest_twisted.ensureDeferred
async def test_a_second_daemon_lets_the_first_act(peers: Any, manage: Any) -> None:
    """Breaks when daemons do not find each other in the brokers' lists of connections, or both ask."""
    listed = {"connection": [{"container": f"qpid-resource-manager:rm-{n}"} for n in (1, 2)]}
    primary, backup, third = peers(ha=ACTIVE), peers(ha=JOINING, items=listed), peers(ha=JOINING, items=listed)
    watcher = await Watcher.of(backup)
    daemons = [manage([primary, backup, third], name=f"rm-{n}", priority=f"{backup.name}=1") for n in (2, 1)]
    for daemon in daemons:
        daemon._arbitration._builtin._step_s = 5.0  # longer than a busy machine holds up the first one's answers
        await sees(daemon, 3)
        daemon._look_for_daemons()
    await until(lambda: all(len(daemon._arbitration._builtin._daemons) == 2 for daemon in daemons))
    primary.kill()
    await watcher.promoted()
    await time_passes(0.5)
    assert len(await watcher.promotions()) == 1
    await watcher.close()


@pytest_twisted.ensureDeferred
async def test_a_daemon_acts_in_its_turn_and_gives_it_back_when_a_primary_serves(
    peers: Any, manage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a daemon asks for a promotion without its turn, or keeps the turn from the others afterwards."""
    monkeypatch.setitem(arbiters.OWN, "planted", "tests.resource_manager.planted")
    taken: Any = object()
    monkeypatch.setattr(planted, "TURNS", {"": taken})
    broker = peers(ha=JOINING)
    watcher = await Watcher.of(broker)
    service = manage([broker], arbiter="planted")
    await sees(service, 1)
    await time_passes(0.3)
    assert await watcher.promotions() == [], "it is another daemon's turn"
    planted.TURNS.clear()
    await watcher.promoted()
    await until(lambda: service._promotion._served is not None)
    assert planted.TURNS == {"": None}
    await watcher.close()


@pytest_twisted.ensureDeferred
async def test_on_kubernetes_the_service_follows_each_promotion_and_no_turn_is_kept(
    peers: Any, manage: Any, tmp_path: Path
) -> None:
    """Two daemons, as deploy/kubernetes has them. A primary that dies keeps its label until there is another one."""
    (tmp_path / "token").write_text(DAEMON)
    first, second = peers(ha=JOINING | {"lastIndex": 71}), peers(ha=JOINING | {"epoch": 4})
    third = peers(ha=JOINING | {"lastIndex": 1})
    with running_api_server() as server:
        for number in range(3):
            server.make(pod(f"understudy-{number}"))
        names = ",".join(f"{peer.name}=understudy-{number}" for number, peer in enumerate((first, second, third)))
        given = f"server={server.url} namespace=default token-file={tmp_path}/token pods=app=understudy pod-names={names}"
        options = {"arbiter": "kubernetes", "arbiter_option": given, "cluster_name": "orders", "arbiter_patience": "never"}
        options |= {"detection_time": "30", "start_grace": "60"}  # a busy machine changes nobody's mind

        def points_at() -> list[str]:
            items = server.get_all("pods", "default", {"labelSelector": "app=understudy,role=primary"})["items"]
            return [item["metadata"]["name"] for item in items]

        def transitions() -> int:
            return int(server.get("leases", "understudy-orders")["spec"].get("leaseTransitions", 0))

        daemons = [manage([first, second, third], name=f"rm-{number}", **options) for number in (1, 2)]
        await until(lambda: points_at() == ["understudy-0"])
        had = transitions()
        assert had, "one of them has had its turn"
        first.kill()
        await until(lambda: points_at() == ["understudy-1"])
        assert transitions() > had
        await until(lambda: "holderIdentity" not in server.get("leases", "understudy-orders")["spec"])
        for daemon in daemons:
            await daemon.stopService()


@pytest_twisted.ensureDeferred
async def test_after_its_end_the_daemon_has_no_timer_and_no_connection(peers: Any, manage: Any) -> None:
    peer = peers(ha=ACTIVE)
    before = len(reactor.getDelayedCalls())
    service = manage([peer])
    await sees(service, 1)
    service.stopService()
    assert not service.running
    await until(lambda: len(reactor.getDelayedCalls()) <= before)


@pytest_twisted.ensureDeferred
async def test_the_daemon_follows_the_members_that_the_log_names(peers: Any, manage: Any) -> None:
    """Breaks when `qpid-ha add-broker` needs a restart of the daemons, or a removed broker counts for their majority."""
    first, second, third = peers(ha=ACTIVE), peers(ha=JOINING), peers(ha=JOINING)
    members = {"index": 5, "committed": True, "voters": [first.name, third.name], "learners": []}
    told = {"address": first.name, "clusterId": "one", "brokersUrl": f"amqp:{first.name},{third.name}", "membership": members}
    watcher = await Watcher.of(first)
    service = manage([first, second])
    await sees(service, 2)
    await watcher.becomes(**ACTIVE | told)
    await until(lambda: list(service._probes) == [first.name, third.name])
    await sees(service, 2)
    await watcher.becomes(**ACTIVE | told | {"membership": members | {"index": 4, "voters": [first.name, second.name]}})
    await time_passes(0.2)
    assert list(service._probes) == [first.name, third.name], "an older membership is none any more"
    await watcher.close()


@pytest_twisted.ensureDeferred
async def test_a_broker_that_calls_itself_otherwise_than_the_daemon_is_told_once(peers: Any, manage: Any) -> None:
    """Breaks when nothing says why the daemon follows no change of the members."""
    first, second = peers(ha=ACTIVE | {"address": "first.example:5672"}), peers(ha=JOINING | {"address": "@me"})
    with capturedLogs() as events:
        service = manage([first, second])
        await sees(service, 2)
        answered_s = service._detector.sight(reactor.seconds()).brokers[0].answered_s
        await until(lambda: service._detector.sight(reactor.seconds()).brokers[0].answered_s != answered_s)
    said = [text for event in events if "calls itself" in (text := formatEvent(event))]
    told = f"{first.name}: calls itself first.example:5672: call it so in --brokers, or changes of the members are not followed"
    assert said == [told]


@pytest_twisted.ensureDeferred
async def test_a_broker_that_the_daemon_may_not_promote_is_told_once_when_it_connects(peers: Any, manage: Any) -> None:
    """Breaks when the log says it when the primary has failed."""
    denied = {"promoteDenied": "ann@QPID may not: access method name=promote schemaclass=ha"}
    first, second = peers(ha=ACTIVE | denied), peers(ha=JOINING | denied | {"witness": True})
    with capturedLogs() as events:
        service = manage([first, second])
        await sees(service, 2)
        answered_s = service._detector.sight(reactor.seconds()).brokers[0].answered_s
        await until(lambda: service._detector.sight(reactor.seconds()).brokers[0].answered_s != answered_s)
    said = [text for event in events if "cannot promote" in (text := formatEvent(event))]
    assert said == [f"{first.name}: this daemon cannot promote it: {denied['promoteDenied']}; permit this in its ACL file"]


@pytest_twisted.ensureDeferred
async def test_the_daemon_follows_the_members_of_a_cluster_that_was_begun_anew(peers: Any, manage: Any) -> None:
    """Its log begins with 1 again. Breaks when the index of the given up cluster's members is compared with its indexes."""
    first, second, third = peers(ha=ACTIVE), peers(ha=JOINING), peers(ha=JOINING)
    everyone = f"amqp:{first.name},{second.name},{third.name}"
    old = {"index": 5000, "committed": True, "voters": [first.name, second.name], "learners": []}
    told = {"address": first.name, "clusterId": "one", "brokersUrl": everyone, "membership": old}
    watcher = await Watcher.of(first)
    service = manage([first])
    await sees(service, 1)
    await watcher.becomes(**ACTIVE | told)
    await until(lambda: list(service._probes) == [first.name, second.name])
    new = told | {"clusterId": "two", "membership": old | {"index": 12, "voters": [first.name, third.name]}}
    paused = {"settings": {"pause": {"since": "then"}}, "appliedIndex": 5}  # or the daemon would promote it meanwhile
    await watcher.becomes(**JOINING | new | paused)
    await until(lambda: service._watches.startswith("the cluster is paused"))
    assert list(service._probes) == [first.name, second.name], "a broker that does not serve may be one of an older cluster"
    await watcher.becomes(**ACTIVE | new)
    await until(lambda: list(service._probes) == [first.name, third.name])
    await watcher.becomes(**ACTIVE | new | {"membership": old | {"index": 11}})
    await time_passes(0.2)
    assert list(service._probes) == [first.name, third.name], "an older membership is none any more"
    await watcher.close()


@pytest_twisted.ensureDeferred
async def test_in_a_pause_the_daemon_watches_and_acts_when_it_ends(peers: Any, manage: Any) -> None:
    """Breaks when a pause holds back only the daemon that was told of it, or holds for good."""
    broker = peers(ha=JOINING | {"settings": {"pause": {"since": "then"}}, "appliedIndex": 5})
    watcher = await Watcher.of(broker)
    service = manage([broker])
    await sees(service, 1)
    await time_passes(0.3)
    assert await watcher.promotions() == []
    assert service._watches.startswith("the cluster is paused since then")
    await watcher.becomes(settings={}, appliedIndex=6)
    await watcher.promoted()
    assert [asked["manager"] for asked in await watcher.promotions()] == ["builtin"]
    await watcher.close()
