"""The simulated machines: those of brokers, whose disks outlive their processes, and those of resource managers.

Life of a broker's machine: a production process is started on it, with its own reactor. The process stops in order, is
killed, or loses its power. The disk keeps what it had, and the next process starts from that. `world` is told of starts
that fail and of processes that end by themselves.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import ha.service
from broker.core import urls
from broker.core.commands import MACHINE_VERSION
from broker.disk.recovery import DAMAGED
from broker.host import Host
from broker.settings import BrokerSettings
from ha.settings import HaSettings
from resource_manager.core.promotion import PromotionSettings
from resource_manager.service import ResourceManager
from resource_manager.settings import ManagerSettings
from tests.simulation.disk import SimulatedDisk
from tests.simulation.messenger import Messenger
from tests.simulation.promises import OFF_BEFORE_REPLACED_S
from tests.simulation.reactor import HostReactor
from tests.simulation.threads import SimulatedPool, SimulatedThreads

if TYPE_CHECKING:
    from tests.simulation.world import World

PORT = 5672
EPOCH_S = 1_700_000_000.0
STORE = Path("/store")
_IDENTITY = f"{STORE}/store.json"


class BrokerHost:
    """A broker's machine. `process` is there while one runs, `running` once it has started."""

    def __init__(self, world: World, number: int, url: str, newest_url: str) -> None:
        self.world = world
        self.number = number
        self.name = f"b{number}"
        self.ip = f"10.0.0.{number + 1}"
        self.address = f"{self.ip}:{PORT}"
        self.rng = Random(f"{world.plan.seed}/{self.name}")
        self.disk = self._new_disk()
        self.process: Any = None
        self.is_witness = world.plan.witness and number == world.plan.brokers - 1
        self.starts = 0
        self._newest_release = 0
        self.is_put_back = False
        """Whether its process is of an older release than one before it: what that wrote may be too new for this one."""
        self.running = False
        self.reactor: HostReactor | None = None
        self.threads: SimulatedThreads | None = None
        self.wall_offset_s = 0.0
        self.excused = ""
        """The disk's fault, since the process was started, that may stop it or keep it from starting."""
        self.rest_s = 0.0
        self._settings = BrokerSettings.from_values({"port": PORT, "interface": (self.ip,), "data_dir": STORE})
        self._ha = self._ha_settings(url)
        self._newest_url = newest_url
        self._not_before_s = 0.0

    def _ha_settings(self, url: str) -> HaSettings:
        plan = self.world.plan
        witness = f"10.0.0.{plan.brokers}:{PORT}" if plan.witness else ""
        return HaSettings.from_values(
            {
                "ha_witness": witness,
                "ha_cluster": True,
                "ha_brokers_url": urls.parse(url),
                "ha_address": self.address,
                "ha_replicate": "all",
                "ha_heartbeat_interval": plan.heartbeat_s,
                "ha_election_timeout": plan.election_s,
                "ha_promote_timeout": 1.0,
                "ha_switchover_timeout": 1.0,
                "ha_flow_bytes": 65536,
                "link_heartbeat_interval": plan.silence_s,
            }
        )

    def _new_disk(self) -> SimulatedDisk:
        disk = SimulatedDisk(Random(f"{self.world.plan.seed}/{self.name}/disk/{self.rng.random()}"))
        disk.sync_s = self.world.plan.disk_s
        disk.call_s = self.world.plan.disk_call_s
        disk.short_writes = self.world.plan.short_writes
        return disk

    @property
    def up(self) -> bool:
        """Whether a process is there, frozen or not."""
        return self.process is not None

    @property
    def state(self) -> str:
        """The broker's state, "" while it does not run."""
        return str(self.process.broker.state) if self.running else ""

    @property
    def log(self) -> Any:
        """The cluster's log of the running broker."""
        return self.process.logs["cluster"]

    @property
    def has_joined(self) -> bool:
        """Whether its store belongs to a cluster."""
        return _IDENTITY in self.disk.paths() and b'"cluster_id": ""' not in self.disk.content(_IDENTITY)

    @property
    def has_noted_damage(self) -> bool:
        """Whether its process has ended because it had read a body that had rotted."""
        return f"{STORE}/cluster/{DAMAGED}" in self.disk.paths()

    @property
    def release(self) -> int:
        """The machine version of the next process."""
        releases = self.world.plan.releases
        if not releases or self.world.healed:
            return MACHINE_VERSION
        own = releases[self.number]
        return own[min(self.starts, len(own) - 1)]

    def upgrade(self) -> None:
        """Start anew as the newest release, unless it is that."""
        if self.up and self.process.ha.ha_machine_version_limit < MACHINE_VERSION:
            self.kill()

    def start(self) -> None:
        """Start a process, unless there is one; with a new disk, when nothing that the old one had said is still on its way."""
        if self.up:
            return
        if self.world.events.now < self._not_before_s:
            self.world.events.at(self._not_before_s, None, self.start)
            return
        if self.disk.capacity is None and not self.disk.bad_syncs:
            self.excused = ""
        world = self.world
        self.world.network.power_on(self.ip)
        reactor = self.reactor = HostReactor(world.events, world.network, self.ip, rate=world.plan.rates[self.number])
        threads = self.threads = SimulatedThreads(reactor.thread_later, reactor.seconds)
        reactor.enter = threads.enter
        reactor.pool = SimulatedPool(threads)
        self.disk.start(threads.sleep)
        memory_bytes = 4 * world.plan.message_memory
        host = Host(self.disk, threads, self._wall, self._new_id, memory_bytes=lambda: memory_bytes, open_files=lambda: 1 << 20)
        named: dict[str, Any] = {}
        if world.plan.message_links:
            named["links"] = partial(self._messenger, world)
        settings = replace(self._ha, ha_machine_version_limit=self.release)
        self.is_put_back = self.release < self._newest_release
        self._newest_release = max(self._newest_release, self.release)
        self.starts += 1
        self.process = ha.service.Process(
            reactor,
            self._settings,
            settings,
            host,
            segment_bytes=world.plan.segment_bytes,
            checkpoint_bytes=world.plan.checkpoint_bytes,
            part_bytes=world.plan.part_bytes,
            **named,
        )
        reactor.addSystemEventTrigger("before", "shutdown", self.process.stop)
        reactor.on_stopped = self._stopped
        world.say(f"{self.name} starts")
        world.events.at(world.events.now, reactor, self._start, self.process)

    @staticmethod
    def _messenger(world: World, reactor: Any, clock: Any, *, broker_id: str, **named: Any) -> Messenger:
        del clock, broker_id
        return Messenger(world.mail, reactor, **named)

    def _start(self, process: Any) -> None:
        try:
            process.start()
        except ha.service.CannotStart as error:
            self.world.events.at(self.world.events.now, None, self._cannot_start, process, str(error))
        else:
            self.running = process is self.process
            process.reactor.run()

    def _cannot_start(self, process: Any, why: str) -> None:
        if process is self.process:
            self.kill()
            self.world.cannot_start(self, why)

    def _stopped(self) -> None:
        """The process has ended by itself, or in order."""
        status = self.process.status
        self.world.events.at(self.world.events.now, None, self._gone, self.process, status)

    def _gone(self, process: Any, status: int) -> None:
        if process is self.process:
            self._end(power=False)
            self.world.process_ended(self, status)

    def stop(self, rest_s: float) -> None:
        """SIGTERM; started again so long after it has ended."""
        self.rest_s = rest_s
        if self.reactor is not None and self.running:
            self.world.events.at(self.world.events.now, self.reactor, self.reactor.stop)

    def kill(self) -> None:
        """SIGKILL."""
        if self.up:
            self._end(power=False)

    def cut_power(self) -> None:
        """The machine is off."""
        if self.up:
            self._end(power=True)
        else:
            self.disk.crash()
            self.world.network.power_off(self.ip)

    def _end(self, *, power: bool) -> None:
        assert self.reactor is not None
        assert self.threads is not None
        if power:
            self.disk.crash()
        else:
            self.disk.kill()
        if not self.reactor.gone:
            self.reactor.vanish(power=power)
        self.threads.kill()
        self.process = None
        self.running = False

    def freeze(self) -> None:
        """SIGSTOP."""
        if self.reactor is not None and self.up:
            self.reactor.frozen = True

    def thaw(self) -> None:
        """SIGCONT."""
        if self.reactor is not None and self.reactor.frozen:
            self.world.events.thaw(self.reactor)

    def replace_disk(self) -> None:
        """A new, empty disk in the place of the old one; the broker is told all addresses that there are by now."""
        assert not self.up
        self._ha = self._ha_settings(self._newest_url)
        self.disk = self._new_disk()
        self._not_before_s = self.world.events.now + OFF_BEFORE_REPLACED_S

    def _wall(self) -> float:
        return EPOCH_S + self.world.events.now + self.wall_offset_s

    def _new_id(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))


class ManagerHost:
    """A resource manager's machine."""

    def __init__(self, world: World, number: int, url: str) -> None:
        self.world = world
        self.name = f"rm{number}"
        self.ip = f"10.0.2.{number + 1}"
        self.rng = Random(f"{world.plan.seed}/{self.name}")
        self.reactor: HostReactor | None = None
        self.service: ResourceManager | None = None
        plan = world.plan
        self._settings = ManagerSettings(
            brokers=urls.parse(url),
            arbiter="builtin",
            name=self.name,
            detection_s=plan.detection_s,
            probe_interval_s=plan.probe_s,
            promotion=PromotionSettings(
                start_grace_s=0.3, recheck_s=0.05, max_recheck_s=0.5, promote_timeout_s=2.0, max_retry_s=1.0
            ),
            telemetry_dir=None,
            telemetry_interval_ms=1000,
            telemetry_max_size=1 << 20,
            mechanism="",
            cluster_name="simulated",
        )

    def start(self) -> None:
        """Start the daemon, unless it runs."""
        if self.service is None:
            world = self.world
            self.reactor = HostReactor(world.events, world.network, self.ip)
            self.service = ResourceManager(self.reactor, self._settings, self.rng.random)
            world.say(f"{self.name} starts")
            world.events.at(world.events.now, self.reactor, self.service.startService)

    def kill(self) -> None:
        """SIGKILL."""
        if self.reactor is not None and self.service is not None:
            self.reactor.vanish()
            self.service = None

    def freeze(self) -> None:
        """SIGSTOP."""
        if self.reactor is not None:
            self.reactor.frozen = True

    def thaw(self) -> None:
        """SIGCONT."""
        if self.reactor is not None and self.reactor.frozen:
            self.world.events.thaw(self.reactor)
