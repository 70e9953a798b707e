"""Executes the actions of a plan on a world, each at its time. An action that is not possible at this time, or not
within the promises, is left out, and the trace says so.

Life of a fault: it begins at its time, and a lasting fault ends by itself. `heal` ends all remaining faults at the end
of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation import promises
from tests.simulation.disk import PAGE
from tests.simulation.layouts import ASIDE, BESIDE
from tests.simulation.plan import Action

if TYPE_CHECKING:
    from tests.simulation.hosts import BrokerHost
    from tests.simulation.world import World

SCRATCH = "scratch"
EXCHANGE = "news"
LEVELS = ("all", "configuration", "none")
_MADE_SO_S = 2.0
_COMMITTED_S = 0.4
"""A setting is committed in this time, where nothing goes wrong."""
_GLANCE_S = 0.0005
_ASKED = 6
_ASK_AGAIN_S = 0.2
_BACK_AFTER_S = (0.02, 0.08, 0.16, 0.24, 0.32)
"""Several times: it is refused until the successor has committed a batch of its own."""


class Faults:
    """The actions of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rng = Random(f"{world.plan.seed}/faults")
        self.done: dict[str, int] = {}
        self._new_queues = 0
        for number, action in world.plan.actions:
            world.events.at(action.at_s, None, self._do, number, action)

    def _do(self, number: int, action: Action) -> None:
        if self._world.healed:
            return
        self.rng = Random(f"{self._world.plan.seed}/{number}")
        perform: Callable[[Action], str | None] = getattr(self, "_" + action.kind.replace("-", "_"))
        why_not = perform(action)
        if why_not is None:
            self.done[action.kind] = self.done.get(action.kind, 0) + 1
            self._world.say(f"** {number}: {action}")
        else:
            self._world.say(f"** {number}: {action}: left out, {why_not}")

    def _host(self, who: int | str) -> BrokerHost | None:
        hosts = self._world.hosts
        if isinstance(who, int):
            return hosts[who % len(hosts)]
        primary = self._world.primary()
        if who == "primary":
            return primary
        others = [host for host in hosts if host.up and host is not primary]
        return self.rng.choice(others) if others else None

    def _later(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        self._world.events.at(self._world.events.now + seconds, None, call, *arguments)

    # ---- processes

    def _kill(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None or not host.up:
            return "nobody there"
        host.kill()
        self._later(action.seconds, host.start)
        return None

    def _power(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None:
            return "nobody there"
        host.cut_power()
        self._later(action.seconds, host.start)
        return None

    def _blackout(self, action: Action) -> str | None:
        for host in self._world.hosts:
            if self.rng.random() < 0.5 or action.choice < 0.5:
                host.cut_power()
            else:
                host.kill()
            self._later(action.seconds * self.rng.random(), host.start)
        return None

    def _freeze(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None or not host.up or host.reactor is None or host.reactor.frozen:
            return "nobody there"
        host.freeze()
        self._later(action.seconds, host.thaw)
        return None

    def _stop(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None or not host.running:
            return "nobody there"
        host.stop(rest_s=action.seconds)
        return None

    def _rolling(self, action: Action) -> str | None:
        for turn, host in enumerate(self._world.hosts):
            self._later(turn * (0.3 + action.seconds), self._roll, host)
        return None

    def _roll(self, host: BrokerHost) -> None:
        if not self._world.healed:
            host.stop(rest_s=0.0)

    # ---- network

    def _ips(self) -> list[str]:
        world = self._world
        return [host.ip for host in world.hosts] + [manager.ip for manager in world.managers] + list(world.client_ips)

    def _block(self, pairs: list[tuple[str, str]], seconds: float) -> None:
        for source, target in pairs:
            self._world.network.block(source, target)
        self._later(seconds, self._unblock, pairs)

    def _unblock(self, pairs: list[tuple[str, str]]) -> None:
        for source, target in pairs:
            self._world.network.unblock(source, target)

    def _isolate(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None:
            return "nobody there"
        others = [host.ip for host in self._world.hosts] if action.choice < 0.5 else self._ips()
        pairs = [(host.ip, ip) for ip in others if ip != host.ip]
        self._block(pairs + [(target, source) for source, target in pairs], action.seconds)
        return None

    def _split(self, action: Action) -> str | None:
        ips = self._ips()
        side = {ip for ip in ips if self.rng.random() < 0.5}
        self._block([(a, b) for a in ips for b in ips if (a in side) != (b in side)], action.seconds)
        return None

    def _one_way(self, action: Action) -> str | None:
        one, other = self._host(action.who), self._host(action.other)
        if one is None or other is None or one is other:
            return "nobody there"
        targets = [other.ip] if action.choice < 0.6 else [ip for ip in self._ips() if ip != one.ip]
        pairs = [(one.ip, target) for target in targets]
        self._block(pairs if action.choice < 0.8 else [(b, a) for a, b in pairs], action.seconds)
        return None

    def _partial(self, action: Action) -> str | None:
        one, other = self._host(action.who), self._host(action.other)
        if one is None or other is None or one is other:
            return "nobody there"
        self._block([(one.ip, other.ip), (other.ip, one.ip)], action.seconds)
        return None

    def _slow(self, action: Action) -> str | None:
        one, other = self._host(action.who), self._host(action.other)
        if one is None or other is None or one is other:
            return "nobody there"
        network, pair = self._world.network, (one.ip, other.ip)
        network.slow[pair] = 0.01 + 0.3 * action.choice
        self._later(action.seconds, network.slow.pop, pair, None)
        return None

    def _cut(self, action: Action) -> str | None:
        network = self._world.network
        host = self._host(action.who)
        sockets = [socket for socket in network.sockets if host is None or host.ip in (socket.here[0], socket.there[0])]
        if not sockets:
            return "no connection"
        network.cut(sockets[int(action.choice * len(sockets))])
        return None

    # ---- clocks

    def _jump(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None:
            return "nobody there"
        host.wall_offset_s += (action.choice - 0.5) * 10_000
        return None

    # ---- disks

    def _full(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None:
            return "nobody there"
        host.disk.capacity = host.disk.used + round(action.choice * 40_000)
        if not host.has_joined:
            host.excused = "its disk was full while it joined its cluster, which takes room"
        self._later(action.seconds, self._room, host)
        return None

    @staticmethod
    def _room(host: BrokerHost) -> None:
        host.disk.capacity = None

    def _sync_error(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None or not host.up:
            return "nobody there"
        host.disk.bad_syncs = 1
        host.excused = "a sync failed"
        return None

    def _slow_disk(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None:
            return "nobody there"
        host.disk.sync_s = 0.02 + action.choice * 0.3
        self._later(action.seconds, self._fast, host)
        return None

    def _fast(self, host: BrokerHost) -> None:
        host.disk.sync_s = self._world.plan.disk_s

    def _wipe(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None or not self._world.promises.may_hurt(host):
            return "too many stores are hurt"
        self._world.hurt(host)
        host.cut_power()
        host.replace_disk()
        self._world.wiped(host)
        self._later(promises.OFF_BEFORE_REPLACED_S + action.seconds, host.start)
        return None

    def _lose_stores(self, action: Action) -> str | None:
        """Everybody goes down and gets a new disk but one, who has everything and comes back last, after `seconds`."""
        world = self._world
        kept = world.promises.survivor()
        if kept is None:
            return "no store has everything"
        for host in world.hosts:
            if host is not kept:
                world.hurt(host)
            host.cut_power()
        for host in world.hosts:
            if host is not kept:
                host.replace_disk()
                world.wiped(host)
                self._later(promises.OFF_BEFORE_REPLACED_S, host.start)
        self._later(promises.OFF_BEFORE_REPLACED_S + action.seconds, kept.start)
        return None

    def _rot(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None or not self._world.promises.may_hurt(host):
            return "too many stores are hurt"
        host.cut_power()
        self._later(action.seconds, host.start)
        path = promises.file_to_rot(host.disk.paths(), self.rng)
        where = promises.bytes_to_flip(path, host.disk) if path else range(0)
        if not where:
            return "nothing to rot; its power went all the same"
        self._world.hurt(host)
        at = where[-1 - int(len(where) * self.rng.random() ** 2)]  # rather what came last, which no checkpoint covers
        if action.choice < 0.3 and at // PAGE < where.stop // PAGE:
            host.disk.make_unreadable(path, at)
            self._world.decayed(host, f"a page of {path} cannot be read any more")
        else:
            host.disk.flip(path, at, self.rng.randrange(8))
            self._world.decayed(host, f"a bit of {path} has flipped")
        return None

    def _lose_file(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None or not self._world.promises.may_hurt(host):
            return "too many stores are hurt"
        host.cut_power()
        self._later(action.seconds, host.start)
        paths = promises.files_to_lose(host.disk.paths())
        if not paths:
            return "no such file; its power went all the same"
        self._world.hurt(host)
        path = self.rng.choice(paths)
        host.disk.lose(path)
        self._world.decayed(host, f"{path} is lost")
        return None

    # ---- operations

    def _promote(self, action: Action) -> str | None:
        host = self._host(action.who)
        if host is None:
            return "nobody there"
        self._world.operators.ask(host, "PROMOTE", "ha", body={"reason": "an operator's whim"})
        return None

    def _promote_laggiest(self, action: Action) -> str | None:
        """An operator insists on the broker that has least of all, while all that run can be reached: it becomes the primary."""
        world = self._world
        voters = [host for host in world.hosts if host.running and not host.is_witness]
        if len(voters) <= len(world.hosts) // 2:
            return "no majority runs"
        host = min(voters, key=lambda each: (each.state in ("active", "recovering"), each.log.replica.log.last_index))
        epoch = max(int(each.log.epoch) for each in voters)
        world.operators.ask(host, "PROMOTE", "ha", body={"reason": "an operator insists"})
        self._later(_MADE_SO_S, self._made_so, host, epoch)
        return None

    def _made_so(self, host: BrokerHost, epoch: int) -> None:
        checks = self._world.checks
        if not any(primary == host.address and since > epoch for since, primary in checks.consensus.primaries.items()):
            checks.faults.append(
                f"insisted: {host.name} was to be made the primary after epoch {epoch}, and is not after a while"
            )

    def _promote_as(self, action: Action) -> str | None:
        """A second kind of cluster manager, started by mistake, wants another primary than the one that serves."""
        host, checks = self._host(action.who), self._world.checks
        if host is None or self._world.primary() is None:
            return "no primary"
        self._world.operators.ask(host, "PROMOTE", "ha", body={"reason": "a second kind of manager", "manager": "another"})
        self._later(action.seconds, self._was_moved, max(checks.consensus.primaries))
        return None

    def _was_moved(self, epoch: int) -> None:
        checks = self._world.checks
        for since, primary in checks.consensus.primaries.items():
            if since > epoch:
                checks.faults.append(f"moved: {primary} became the primary of epoch {since} for a second kind of manager")

    def _tag(self, action: Action) -> str | None:
        """An operator gives a broker a priority."""
        host, primary = self._host(action.who), self._world.primary()
        if host is None or primary is None:
            return "no primary"
        body = {"setting": "tags", "address": host.address, "tags": {"priority": 5}}
        self._world.operators.ask(primary, "SET", "ha", body=body)
        return None

    def _schedule(self, action: Action) -> str | None:
        """An operator plans a switchover, for a time soon by the primary's own clock."""
        primary = self._world.primary()
        if primary is None:
            return "no primary"
        at = datetime.fromtimestamp(primary.process.host.wall() + action.seconds, UTC).isoformat()
        self._world.operators.ask(primary, "SET", "ha", body={"setting": "switchover", "at": at})
        return None

    def _pause(self, action: Action) -> str | None:
        """An operator pauses the cluster: for so many seconds nobody is promoted, since no person asks for it either."""
        primary = self._world.primary()
        if primary is None:
            return "no primary"
        self._world.operators.ask(primary, "SET", "ha", body={"setting": "pause", "reason": "an operator's whim"})
        self._later(_COMMITTED_S, self._is_paused, action.seconds)
        return None

    def _is_paused(self, seconds: float) -> None:
        checks = self._world.checks
        if "pause" in checks.reference.settings:
            self._later(seconds, self._was_paused, max(checks.consensus.primaries))

    def _was_paused(self, epoch: int) -> None:
        checks = self._world.checks
        for since, primary in checks.consensus.primaries.items():
            if since > epoch:
                checks.faults.append(f"paused: {primary} became the primary of epoch {since} while the cluster was paused")

    def _resume(self, action: Action) -> str | None:
        """An operator ends the pause."""
        del action
        primary = self._world.primary()
        if primary is None:
            return "no primary"
        self._world.operators.ask(primary, "SET", "ha", body={"setting": "resume"})
        return None

    def _promote_two(self, action: Action) -> str | None:
        for who in (action.who, action.other):
            self._promote(Action(action.at_s, "promote", who))
        return None

    def _switchover(self, action: Action) -> str | None:
        """To a backup, and mostly back again at once: what is under way from the first term comes in the third."""
        before = self._world.primary()
        if before is not None and action.choice > 0.2:
            for wait_s in _BACK_AFTER_S:
                self._later(wait_s + 0.2 * action.choice, self._promote, Action(action.at_s, "promote", before.number))
        return self._promote(Action(action.at_s, "promote", "backup"))

    def _bootstrap(self, action: Action) -> str | None:
        """An operator begins the cluster by force, while nothing is committed anywhere that this could give up."""
        host = self._host(action.who)
        if host is None or not host.running:
            return "nobody there"
        if self._world.checks.consensus.commit:
            return "members that are silent may hold what is committed"
        self._world.operators.ask(host, "BOOTSTRAP", "ha", body={"force": True})
        return None

    def _storm(self, action: Action) -> str | None:
        """Cut the primary off from the other brokers, not from its clients, then each next one as soon as it has asked for votes:
        several logs get tails of several epochs that others never see (Raft's Figure 8)."""
        host = self._world.primary()
        if host is None:
            return "no primary"
        self._end_term(host, 2 + round(2 * action.choice))
        return None

    def _end_term(self, host: BrokerHost, more: int) -> None:
        world = self._world
        world.say(f"{host.name} is cut off from the other brokers; {more} more terms are to end so")
        pairs = [(host.ip, each.ip) for each in world.hosts if each is not host]
        for source, target in pairs:
            world.network.block(source, target)
        epoch = max((int(each.log.epoch) for each in world.hosts if each.running), default=0)
        self._next_term(host, pairs, epoch, more, world.events.now + world.plan.election_s * 1.1, _ASKED)

    def _next_term(
        self, host: BrokerHost, pairs: list[tuple[str, str]], epoch: int, more: int, ask_at: float, patience: int
    ) -> None:
        """Have another one stand for election; when it has been heard, let the one before it back among the others."""
        world = self._world
        others = [each for each in world.hosts if each is not host and each.running]
        begun = [each for each in others if each.log.epoch > epoch]
        found = [each for each in begun if each.log.replica._member.voted_for == each.address and len(begun) > 1]
        if not found and patience and not world.healed:
            glance_s = _GLANCE_S
            if world.events.now >= ask_at:
                patience, ask_at = patience - 1, world.events.now + _ASK_AGAIN_S
                if others:
                    world.operators.ask(self.rng.choice(others), "PROMOTE", "ha", body={"reason": "a storm"})
            elif not begun and patience == _ASKED:
                glance_s = ask_at - world.events.now
            self._later(glance_s, self._next_term, host, pairs, epoch, more, ask_at, patience)
            return
        self._unblock(pairs)
        if found and more and not world.healed:
            self._end_term(found[0], more - 1)

    def _add(self, action: Action) -> str | None:
        return self._change(1, 0, action)

    def _remove(self, action: Action) -> str | None:
        return self._change(0, 1, action)

    def _role(self, action: Action) -> str | None:
        """A voter is to follow from now on, or one that follows is to vote; a stranger is taken as one that follows."""
        primary, host = self._world.primary(), self._host(action.who)
        if primary is None or host is None or host.is_witness:
            return "no primary, or a witness"
        members = primary.log.replica.members
        if not self._world.promises.may_change_members(members.voters):
            return "a store is hurt"
        role = members.role(host.address)
        if role:
            body = {"address": host.address, "role": "learner" if role == "voter" else "voter", "force": True}
            self._world.operators.ask(primary, "SET-ROLE", "ha", body=body)
        else:
            body = {"address": host.address, "force": True, "standby": True}
            self._world.operators.ask(primary, "ADD-BROKER", "ha", body=body)
        return None

    def _change_two(self, action: Action) -> str | None:
        return self._change(2, 0, action) if action.choice < 0.3 else self._change(1, 1, action)

    def _change(self, added: int, removed: int, action: Action) -> str | None:
        """Ask the primary for these changes of its members, all at once."""
        primary = self._world.primary()
        if primary is None:
            return "no primary"
        members = primary.log.replica.members
        if not self._world.promises.may_change_members(members.voters):
            return "a store is hurt"
        strangers = [host for host in self._world.hosts if host.address not in members.addresses]
        gone = self._host(action.who)
        if len(strangers) < added:
            return "all are members"
        if removed and (gone is None or len(members.addresses) <= 3):
            return "too few members"
        for host in strangers[:added]:
            body = {"address": host.address, "force": True, "witness": host.is_witness}
            self._world.operators.ask(primary, "ADD-BROKER", "ha", body=body)
        if removed and gone is not None:
            self._world.operators.ask(
                primary, "REMOVE-BROKER", "ha", body={"address": gone.address, "force": True, "abrupt": True}
            )
        return None

    def _recreate(self, action: Action) -> str | None:
        del action
        self._world.history.queue_created(SCRATCH, drained=False)
        self._world.history.queue_deleted(SCRATCH)
        self._world.operators.recreate(SCRATCH)
        return None

    def _new_queue(self, action: Action) -> str | None:
        self._new_queues += 1
        level, name = LEVELS[int(action.choice * len(LEVELS))], f"extra{self._new_queues}"
        self._world.history.queue_created(name, drained=False)
        self._world.levels[name] = level
        self._world.operators.until_done("CREATE", "queue", name, {"replicate": level})
        return None

    def _move(self, action: Action) -> str | None:
        """From now on an operator moves what comes to one queue to another one, or deletes it if it sends on what is left."""
        del action
        deleted = [step for step in self._world.plan.steps if step.name == ASIDE and "alternateExchange" in step.body]
        if deleted:
            self._world.operators.keep_deleting(deleted[0])
        else:
            self._world.operators.keep_moving(ASIDE, BESIDE)
        return None

    def _alter(self, action: Action) -> str | None:
        """Give the queue that all use a note, another one each time."""
        primary = self._world.primary()
        if primary is None:
            return "there is no primary"
        self._world.operators.ask(primary, "UPDATE", "queue", "q0", {"arguments": {"note": action.at_s}})
        return None

    def _policy(self, action: Action) -> str | None:
        """From now on the queues that `_new_queue` makes have a note, another one each time."""
        body = {"arguments": {"note": action.at_s}}
        self._world.operators.until_done("CREATE", "QueuePolicy", "extra", body)
        self._world.operators.until_done("UPDATE", "QueuePolicy", "extra", body)
        return None

    def _new_exchange(self, action: Action) -> str | None:
        """Make an exchange and bind it to a queue, or take it away again."""
        if action.choice < 0.3:
            self._world.operators.until_done("DELETE", "exchange", EXCHANGE)
        else:
            self._world.operators.exchange(EXCHANGE, LEVELS[int(action.choice * 10) % len(LEVELS)], SCRATCH)
        return None

    def _client_drop(self, action: Action) -> str | None:
        connected = [client for client in self._world.clients if client.connection is not None and client.ready]
        if not connected:
            return "no client is connected"
        connection = connected[int(action.choice * len(connected))].connection
        assert connection is not None
        connection.drop()
        return None

    def _manager_kill(self, action: Action) -> str | None:
        manager = self._world.managers[int(action.choice * len(self._world.managers))]
        manager.kill()
        self._later(action.seconds, manager.start)
        return None

    def _manager_freeze(self, action: Action) -> str | None:
        manager = self._world.managers[int(action.choice * len(self._world.managers))]
        manager.freeze()
        self._later(action.seconds, manager.thaw)
        return None

    # ---- the end

    def heal(self) -> None:
        """End everything that is left: from here on the cluster must recover by itself."""
        world = self._world
        world.network.heal()
        world.mail.weather.drop = world.mail.weather.double = world.mail.weather.delay_s = world.mail.weather.stray = 0.0
        for host in world.hosts:
            self._room(host)
            self._fast(host)
            host.disk.bad_syncs = 0
            host.thaw()
            host.upgrade()
            host.start()
        for manager in world.managers:
            manager.thaw()
            manager.start()
