"""An assembled broker process: store, logs, links to the other members, listening port.

Life: `run` locks the store and takes the port, so that it cannot touch anything of another broker. It replays the local log and,
in a cluster, joins: it connects to every member until one of them is the primary or knows it. Nothing here makes this broker the
primary: only a `PROMOTE` from a resource manager or an operator does. SIGTERM and SIGINT shut everything down in order.

Invariants: each log has its own journal in the one store; the id of the cluster is written to the store before this broker acts
on it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import ServerFactory
from twisted.internet.threads import deferToThreadPool
from twisted.logger import (
    FilteringLogObserver,
    ILogObserver,
    Logger,
    globalLogBeginner,
)
from twisted.python.failure import Failure
from zope.interface import provider

from broker.acl_file import AclFile
from broker.core.acl.grammar import BadAcl
from broker.core.limits import MAX_HANDSHAKES, PART_BYTES, PROBE_CONNECTIONS, RESERVED_DESCRIPTORS, SPARE_CONNECTIONS
from broker.core.nodes import CLUSTER, LOCAL
from broker.core.records import BadBatch
from broker.core.users import Users
from broker.disk.journal import FILE_BYTES
from broker.disk.store import DamagedStore, StorageError, Store, StoreInUse, StoreOfAnotherCluster
from broker.host import REAL_HOST, Host, keep_freed_memory, raise_open_files
from broker.log_levels import LogLevels, text_of
from broker.net.listener import CannotListen, ConnectionFactory, Handshakes, listen
from broker.net.reactor import on_hangup
from broker.options import SettingsError
from broker.routes.dialer import Dialer, check_passwords
from broker.secret_files import warning
from broker.service import Broker
from broker.sessions.authentication import Authentication
from broker.settings import BrokerSettings
from broker.telemetry import TelemetryWriter
from broker.telemetry_files import must_take_files
from broker.users_file import Accounts, BadUsersFile
from ha.cluster_member import ClusterMember, Links
from ha.core.membership import Membership
from ha.core.settings import ReplicaSettings
from ha.lag import LagReporter
from ha.log.retention import CHECKPOINT_BYTES
from ha.net.peers import Peers as MemberLinks
from ha.outbox import Peers
from ha.replicated_log import ReplicatedLog
from ha.settings import HaSettings, own_address
from ha.standalone import ANSWER_S, Standalone
from ha.virtual_ip import CannotHold

if TYPE_CHECKING:
    from broker.core.tokens import Tokens
    from broker.net.credentials import Credentials
    from broker.net.probes import Health
    from broker.net.token_keys import TokenKeys

_log = Logger(namespace="qpidd")
_STOP_S = 5.0
_COLLECT_AFTER = 50_000, 1, 50
"""How many new objects the garbage collector looks at, then how many such looks it repeats together, and after how many of these
it looks at everything. With Python's 10 instead of 1 it would look at half a million objects at once, which takes 0.2 s."""


class CannotStart(Exception):
    """The broker cannot start; the text is one line for people."""


@cache
def release() -> str:
    """The version of this software."""
    try:
        return version("understudy")
    except PackageNotFoundError:
        return "unknown"


class Process:
    """All parts of one broker process.

    It reaches the outside world only through `reactor` and `host`. `links` makes the links to the other members.
    `segment_bytes` bounds the segments of a log, a checkpoint is due when the log has grown by `checkpoint_bytes`, and large
    messages are received in parts of `part_bytes`. Without `runs_routes` it fetches no messages from other brokers.
    """

    def __init__(
        self,
        reactor: Any,
        settings: BrokerSettings,
        ha: HaSettings,
        host: Host = REAL_HOST,
        *,
        links: Callable[..., Links] = MemberLinks,
        segment_bytes: int = FILE_BYTES,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        part_bytes: int = PART_BYTES,
        runs_routes: bool = True,
    ) -> None:
        self.host = host
        self.links = links
        self.segment_bytes = segment_bytes
        self.checkpoint_bytes = checkpoint_bytes
        self.part_bytes = part_bytes
        self.runs_routes = runs_routes
        self.reactor = reactor
        self.settings = settings
        self.ha = ha
        self.acl_file = AclFile(
            settings.acl_file,
            host.wall,
            quotas=(settings.connection_limit_per_user, settings.max_queues_per_user),
        )
        self.status = 0
        """Not 0: the process cannot continue, and marks nothing as clean."""
        self.ends_with = 0
        """The exit status of an orderly stop."""
        self.patience_s = _STOP_S
        """The time that clients have to read that this broker stops."""
        self.logs: dict[str, ReplicatedLog] = {}
        self.member: ClusterMember | None = None
        self.lag: LagReporter | None = None
        self.accounts: Accounts | None = None
        self.token_keys: TokenKeys | None = None
        self.tls: Credentials | None = None
        self.tls_port: int | None = None
        """The port for TLS, if it has one."""
        self.admin_port: int | None = None
        """The port for probes, if it has one."""
        self._stopping = False
        self._handshakes: Handshakes | None = None
        self._ports: list[Any] = []

    def start(self) -> None:
        """Take port and store, replay, begin to join or to serve. CannotStart gives the reason for a failure; SettingsError
        the error in a file that an option names."""
        if self.ha.ha_cluster and self.settings.telemetry_dir is not None:
            must_take_files(self.settings.telemetry_dir)
        if self.settings.route_passwords is not None:
            check_passwords(self.settings.route_passwords)
            self._warn_if_seen(self.settings.route_passwords, "its passwords are")
        self.tls = self._credentials()
        max_connections = self._max_connections()
        authentication = self._authentication()
        try:
            self.acl_file.load()
        except BadAcl as error:
            raise SettingsError(str(error)) from None
        try:
            self.store = Store.open(self.settings.data_dir, host=self.host, segment_bytes=self.segment_bytes)
        except (StoreInUse, DamagedStore, StorageError, OSError) as error:
            raise CannotStart(str(error)) from None
        self.broker = Broker(
            self.reactor,
            broker_id=self.store.store_id,
            version=release(),
            clustered=self.ha.ha_cluster,
            default_level=self.ha.ha_replicate,
            max_message_bytes=self.settings.max_message_size,
            part_bytes=self.part_bytes,
            max_connections=max_connections,
            max_connections_per_host=self.settings.connection_limit_per_ip,
            queue_patterns=self.settings.queue_patterns,
            topic_patterns=self.settings.topic_patterns,
            slow_s=self.settings.slow_consumer_time / 1000,
            ends_slow=self.settings.slow_consumer_policy == "close",
            consumer_s=self.settings.consumer_timeout / 1000,
            quotas=(self.settings.connection_limit_per_user, self.settings.max_queues_per_user),
            max_frame_bytes=self.settings.max_frame_size,
            open_timeout_s=self.settings.max_negotiate_time / 1000,
            default_queue_bytes=self.settings.default_queue_limit,
            message_memory=self.settings.message_memory or self.host.memory_bytes() // 4,
            on_fatal=self.fail,
            new_id=self.host.new_id,
            authentication=authentication,
            machine_version=self.ha.ha_machine_version_limit,
            wall=self.host.wall,
            as_rabbitmq=self.settings.rabbitmq_clients,
            dial=Dialer(self.reactor, self.settings.route_passwords, self.tls, f"route-{self.store.store_id}"),
            runs_routes=self.runs_routes,
            free_bytes=self._free_bytes,
        )
        self.acl_file.attach_to(self.broker)
        try:
            self._listen()
            if self.ha.ha_cluster:
                self._join()
            else:
                Standalone(self.broker, lambda: self.reactor.callLater(ANSWER_S, self.end))
            self._open_log(LOCAL, "this broker", ReplicaSettings(standalone=True), Membership.of(["this broker"]))
            self.logs[LOCAL].start()
            if self.member is not None:
                self.member.start()
        except (
            CannotListen,
            CannotHold,
            SettingsError,
            DamagedStore,
            StorageError,
            StoreOfAnotherCluster,
            BadBatch,
            OSError,
        ) as e:
            self.store.close(clean=self.store.was_clean)
            raise CannotStart(str(e)) from None
        if self.lag is not None:
            self.lag.start()
        if self.token_keys is not None:
            self.token_keys.start()

    def _free_bytes(self) -> int:
        try:
            return self.host.disk.free(self.store.data_dir).free
        except OSError:
            return 0

    def _credentials(self) -> Credentials | None:
        files = self.settings.tls
        if files.certificate is None:
            return None
        from broker.net.credentials import Credentials  # this import takes time

        found = Credentials(files, demands=self.settings.ssl_require_client_authentication, wall=self.host.wall)
        for path, what in files.private:
            self._warn_if_seen(path, what)
        return found

    def _authentication(self) -> Authentication:
        """How clients log in. CannotStart if the users' file or the keys for tokens cannot be read."""
        settings, host = self.settings, self.host
        users = None
        if settings.users is not None or (settings.auth and settings.token_keys is None):
            secret = (host.new_id() + host.new_id()).encode()
            users = Users({}, secret)
            if settings.users is not None:
                self.accounts = Accounts(settings.users, secret)
                users = self._users(self.accounts)
        return Authentication(
            self.reactor,
            self._in_thread,
            host.new_id,
            demanded=settings.auth,
            users=users,
            mechanisms=settings.sasl_mechanisms,
            realm=settings.realm,
            plain_in_clear=settings.plain_without_tls,
            name_in_certificate=settings.ssl_user_name,
            tokens=self._tokens(),
            token_put=settings.token_put,
            checks_user_ids=settings.check_user_id,
        )

    def _tokens(self) -> Tokens | None:
        settings = self.settings
        if settings.token_keys is None:
            return None
        from broker.core.tokens import BadKeys, Rules, Tokens  # these imports take time
        from broker.net.token_keys import TokenKeys

        rules = Rules(settings.token_issuer, settings.token_audience, settings.token_user_claim)
        tokens = Tokens(rules, self.host.wall)
        self.token_keys = TokenKeys(self.reactor, settings.token_keys, tokens)
        try:
            self.token_keys.load()
        except BadKeys as error:
            raise SettingsError(f"--token-keys {error}") from None
        return tokens

    def _users(self, accounts: Accounts) -> Users:
        try:
            users = accounts.load()
        except BadUsersFile as error:
            raise SettingsError(str(error)) from None
        self._warn_if_seen(accounts.path, "its keys are")
        return users

    def _warn_if_seen(self, path: Path, what: str) -> None:
        if text := warning(path, what):
            _log.warn("{text}", text=text)

    def _in_thread(self, work: Callable[[], Any]) -> Deferred[Any]:
        return deferToThreadPool(self.reactor, self.reactor.getThreadPool(), work)

    def _max_connections(self) -> int:
        """The requested number, or fewer if the limit of open files is low: the disk and the other members have priority."""
        files, wanted = self.host.open_files(), self.settings.max_connections
        kept = RESERVED_DESCRIPTORS + SPARE_CONNECTIONS + (2 * MAX_HANDSHAKES if self.tls is not None else 0)
        kept += PROBE_CONNECTIONS if self.settings.admin_port is not None else 0
        if files <= kept:
            raise CannotStart(
                f"only {files} files may be open, and a broker needs {kept} for its disk, the other members and administrators, "
                "and one for each client: raise the hard limit (`ulimit -Hn`, LimitNOFILE= of systemd)"
            )
        if files - kept < wanted:
            _log.warn(
                "{n} connections are served instead of {wanted} (--max-connections), because only {files} files may be open; "
                "for more, raise the "
                "hard limit (`ulimit -Hn`, LimitNOFILE= of systemd)",
                n=files - kept,
                wanted=wanted,
                files=files,
            )
        return min(wanted, files - kept)

    def _listen(self) -> None:
        settings, broker = self.settings, self.broker
        if not settings.require_encryption:
            self.port: int = self._listen_on(settings.port, "--port", ConnectionFactory(broker.new_connection))
        if self.tls is not None:
            timeout_s = settings.max_negotiate_time / 1000
            failed = broker.admission.handshake_failed
            share = broker.admission.share
            self._handshakes = Handshakes(self.reactor, self.tls, broker.new_connection, failed, timeout_s, share)
            self.tls_port = self._listen_on(settings.ssl_port, "--ssl-port", self._handshakes)
            if settings.require_encryption:
                self.port = self.tls_port
            self.tls.watch(self.reactor)

        if settings.admin_port is not None:
            from broker.net.probes import Probes  # this import takes time

            probes = Probes(self.reactor, self._health, metrics=self._metrics())
            self.admin_port = self._listen_on(settings.admin_port, "--admin-port", probes, settings.admin_interface)

    def _metrics(self) -> Callable[[], Iterator[str]] | None:
        from broker.metrics import NONE, Metrics
        from ha.metrics import families

        if self.settings.metrics == NONE:
            return None
        return Metrics(
            self.broker,
            self.settings.metrics,
            version=release(),
            wall=self.host.wall,
            free_bytes=self._free_bytes,
            certificates=lambda: None if self.tls is None else self.tls.expires,
            others=lambda: families(self.broker.administration.extensions["ha"].items()[0]),
        ).text

    def _health(self) -> Health:
        from broker.net.probes import Health

        logs, ended = self.broker.logs, bool(self.status) or self._stopping
        leaves = self.broker.leaving.under_way or logs.closed or ended
        state = logs.state if self.member is None else self.member.state
        stopped = self.member is not None and bool(self.member.log.halted)
        return Health(state, logs.serving and not ended, leaves, logs.primary, stopped)

    def _listen_on(self, number: int, option: str, factory: ServerFactory, interfaces: tuple[str, ...] = ()) -> int:
        """Listen on this port of every interface; returns the port."""
        for interface in interfaces or self.settings.interface:
            if option == "--admin-port":
                port = listen(self.reactor, factory, number, interface, (option, "--admin-interface"), urgent=True)
            else:
                options = (option, "--interface")
                port = listen(self.reactor, factory, number, interface, options, share=self.broker.admission.share)
            self._ports.append(port)
            where: Any = port.getHost()
            number = where.port
        return number

    def _join(self) -> None:
        """Open the cluster's log; nothing is sent before `start`."""
        port = self.tls_port if self.ha.encrypted and self.tls_port is not None else self.port
        me = own_address(self.ha, self.settings.interface, port).name
        telemetry = None
        if self.settings.telemetry_dir is not None:
            telemetry = TelemetryWriter(
                self.settings.telemetry_dir,
                cluster=self.store.cluster_id or "new",
                sender=me,
                clock=self.host.wall,
                interval_ms=self.settings.telemetry_interval_ms,
                max_bytes=self.settings.telemetry_max_size,
            )
        member = ClusterMember(
            self.reactor,
            self.reactor,
            self.broker,
            self.store,
            self.ha,
            me,
            wall=self.host.wall,
            telemetry=telemetry,
            links=self.links,
            credentials=self.tls if self.ha.encrypted else None,
            end=self.end,
            new_id=self.host.new_id,
        )
        member.virtual_ip.check()
        replica = self.ha.replica(me)
        log = self._open_log(CLUSTER, me, replica, self.ha.membership, member.peers, member)
        misfit = log.misfit(replica)
        if misfit:
            raise CannotStart(f"the store in {self.settings.data_dir} {misfit}")
        if self.store.cluster_id and not set(self.ha.members) & set(log.replica.members.addresses):
            raise CannotStart(
                f"the store in {self.settings.data_dir} belongs to cluster {self.store.cluster_id} of "
                f"{', '.join(log.replica.members.addresses)}, and --ha-brokers-url names none of them: give another --data-dir, "
                "or the right URL"
            )
        member.log = log
        self.member = member
        self.broker.drains.tell = lambda detail: member.note("drain", detail=detail)
        if telemetry is not None:
            self.lag = LagReporter(self.reactor, self.broker, log, me, telemetry, self.host.wall)

    def _open_log(
        self,
        name: str,
        me: str,
        replica: ReplicaSettings,
        members: Membership,
        peers: Peers | None = None,
        member: ClusterMember | None = None,
    ) -> ReplicatedLog:
        log = ReplicatedLog(
            self.store,
            name,
            me=me,
            settings=replica,
            members=members,
            clock=self.reactor,
            wall=self.host.wall,
            new_id=self.host.new_id,
            listener=self.broker.ledgers[name],
            call_in_reactor=self.reactor.callFromThread,
            in_thread=self._in_thread,
            peers=peers,
            on_members=member.members_changed if member is not None else lambda members: None,
            on_event=member.note if member is not None else lambda kind, **fields: None,
            checkpoint_bytes=self.checkpoint_bytes,
            first_format=member.has_first_release if member is not None else lambda: False,
            before_end=member.virtual_ip.leave if member is not None else lambda: None,
        )
        self.logs[name] = log
        self.broker.attach_log(name, log)
        return log

    def fail(self, text: str) -> None:
        """The broker cannot continue: end the process, and mark nothing as clean. Only the first reason is logged as
        critical, because people need that one."""
        if self.status:
            _log.info("and while it stops: {text}", text=text)
            return
        _log.critical("{text}; this broker stops", text=text)
        self.status = 1
        self.reactor.callWhenRunning(self.end)

    def end(self) -> None:
        """Begin to stop."""
        if self.reactor.running and not self.reactor._stopped:
            self.reactor.stop()

    def hang_up(self) -> None:
        """SIGHUP: read again the files that may change while this broker runs. If a file is now wrong, its old content stays
        in force."""
        if self.tls is not None:
            self.tls.reload()
        if self.accounts is not None:
            self._read_users_again(self.accounts)
        if self.token_keys is not None:
            self.token_keys.reload()
        if self.settings.acl_file is not None:
            self.acl_file.reload()
        if self.tls is None and self.accounts is None and self.token_keys is None and self.settings.acl_file is None:
            _log.warn("SIGHUP has no effect: options are read only at the start; restart this broker to change them")

    def _read_users_again(self, accounts: Accounts) -> None:
        """Read in a thread, because a hundred thousand users take seconds."""

        def take(users: Users) -> None:
            self.broker.authentication.users = users
            self.broker.admission.look_again()
            _log.info("{n} users read from {path}", n=len(users), path=accounts.path)

        def keep(failure: Failure) -> None:
            _log.error("{error}; the old users stay in force", error=failure.getErrorMessage())

        self._in_thread(accounts.load).addCallbacks(take, keep)

    def stop(self) -> Deferred[None]:
        """Stop in order: the primary's part, clients, links, logs, store. Fires when the last messages to clients have left,
        or after a short time in any case."""
        _log.info("stopping")
        self._stopping = True
        if self.member is None or self.status:
            return self._stop()
        return self.member.hand_over().addCallback(lambda _: self._stop())

    def _stop(self) -> Deferred[None]:
        for port in self._ports:
            port.stopListening()
        if self._handshakes is not None:
            self._handshakes.stop()
        if self.tls is not None:
            self.tls.stop()
        if self.token_keys is not None:
            self.token_keys.stop()
        if self.member is not None:
            self.member.stop()
        self.broker.close()
        for log in self.logs.values():
            log.stop()
        if self.lag is not None:
            self.lag.stop()
        stopped: Deferred[None] = Deferred()
        self._wait_for_clients(self.reactor.seconds(), stopped)
        return stopped.addBoth(lambda _: self._stopped())

    def _stopped(self) -> None:
        if self.member is not None:
            self.member.virtual_ip.leave()  # the last messages to clients have left through it
        self.store.close(clean=self.status == 0)

    def _wait_for_clients(self, since_s: float, stopped: Deferred[None]) -> None:
        if self.broker.connections and self.reactor.seconds() < since_s + self.patience_s:
            self.reactor.callLater(0.02, self._wait_for_clients, since_s, stopped)
        else:
            stopped.callback(None)


def run(
    reactor: Any, settings: BrokerSettings, ha: HaSettings, prepare: Callable[[Process], object] = lambda process: None
) -> int:
    """Run a broker until it is told to stop. Returns the exit status; CannotStart if it cannot begin. `prepare` is called
    with the started process, before it serves."""
    levels = LogLevels(settings.log_enable)
    log_to_stderr(levels)
    raise_open_files()
    keep_freed_memory()
    process = Process(reactor, settings, ha)
    process.start()
    process.broker.administration.extensions["log"] = levels
    prepare(process)
    reactor.addSystemEventTrigger("before", "shutdown", process.stop)
    on_hangup(reactor, process.hang_up)
    if settings.users is not None and not settings.auth:
        _log.warn("--auth no: every client is accepted, whether its user is in {path} or not", path=settings.users)
    if settings.exposed and not settings.auth:
        _log.warn("this broker listens on a network address and requires no login: restrict its network, or set --users")
    elif not settings.auth:
        _log.info("--auth no: every client is accepted without a login; only this machine can reach this broker")
    if settings.acl_file is not None and not settings.auth:
        _log.warn("no login is required (--auth no): for the rules of the ACL file, every client is `anonymous`")
    reactor.callWhenRunning(_tell_ports, process, settings)  # the reactor has taken SIGTERM then: who waits for this may stop it
    spare_collections()
    reactor.run()
    return process.status or process.ends_with


def spare_collections() -> None:
    """Let the garbage collector take little time, and little at once. The objects that exist now stay. Later objects are mostly
    messages, which are in no cycles."""
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def _tell_ports(process: Process, settings: BrokerSettings) -> None:
    if not settings.require_encryption:
        print(f"Listening on TCP/TCP6 port {process.port}", file=sys.stderr, flush=True)
    if process.tls_port is not None:
        print(f"Listening for SSL connections on TCP/TCP6 port {process.tls_port}", file=sys.stderr, flush=True)


def log_to_stderr(levels: LogLevels) -> None:
    """One line for each event on stderr: time, level, text."""

    @provider(ILogObserver)
    def write(event: dict[str, Any]) -> None:
        moment = datetime.fromtimestamp(event["log_time"], UTC)
        when = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
        sys.stderr.write(f"{when} {event['log_level'].name} {text_of(event)}\n")

    globalLogBeginner.beginLoggingTo([FilteringLogObserver(write, [levels.predicate])], redirectStandardIO=False)
