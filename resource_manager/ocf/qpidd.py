#!/usr/bin/env python3
"""OCF 1.1 resource agent: a broker of a cluster as a promotable clone of Pacemaker. Install as
.../resource.d/understudy/qpidd.

Life of an instance: `start` runs qpidd in the background and returns when it answers. A broker that answers there before
is not this resource's, and `start` fails. `monitor` asks the broker for its state and reports it to Pacemaker. `promote`
makes it the primary. `demote` makes another broker take over. `stop` ends the process. Each action is a separate
process. They share a file with the broker's process id and the start time of that process.

Each node gives its own broker a promotion score, by the state of the broker. It is written only when it changes, and
deleted when the node leaves. It is only a preference: whichever broker Pacemaker promotes becomes the primary
(docs/adr/0030). The broker's address is stored beside it, so that the demoting agent can hand over directly to the
broker that Pacemaker is about to promote: with `notify=true` Pacemaker names that broker's node. A third broker that is
the primary in between would be seen, and recovered, as promoted by mistake.

Invariants: the reported state is the broker's own, not the result of the last action. A broker counts as failed only if
its process has ended, or if it has not answered for the whole time of the action. `demote` stops nothing, and if no
other broker can take over, the primary continues to serve. Every wait ends before the action's time is over.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

SUCCESS, ERR_GENERIC, ERR_UNIMPLEMENTED, ERR_INSTALLED, ERR_CONFIGURED = 0, 1, 3, 5, 6
NOT_RUNNING, RUNNING_PROMOTED, FAILED_PROMOTED = 7, 8, 9
PRIMARY = ("active", "recovering")
ADDRESS = "qpidd-address"
"""The node attribute with the address of the node's broker."""
NEVER = "-INFINITY"
KIND = "pacemaker"
"""The name of this manager for `qpid-ha authority`."""
_SCORES = {"active": 1000, "recovering": 1000, "ready": 900, "catchup": 100}
_JOINING, _STEP, _LEAST = 500, 10, 10
_PAUSE_S = 0.2
_RESERVE_S = 2.0
"""The part of an action's time that is kept for its own end."""
_UNTIL_REBOOT = ("--lifetime", "reboot")
_SHORTEST_S, _ANSWER_S, _KILL_S = 1.0, 5.0, 1.5

PARAMETERS = {
    "config": ("string", "/etc/qpidd.conf", "Configuration", "File of qpidd's options, as `qpidd --config` takes it."),
    "options": ("string", "", "More options", "Further options of qpidd, as on its command line."),
    "broker": (
        "string",
        "localhost:5672",
        "Address",
        "Where this node's broker is asked: [amqps:][user@]host[:port], as `qpid-ha -b` takes it.",
    ),
    "ha_config": ("string", "", "Configuration of qpid-ha", "File of qpid-ha's options (password, TLS), if it needs any."),
    "qpidd": ("string", "qpidd", "Broker", "The command qpidd, with its path if it is not on PATH."),
    "qpid_ha": ("string", "qpid-ha", "Tool", "The command qpid-ha, with its path if it is not on PATH."),
    "user": (
        "string",
        "",
        "User",
        "User as which the broker runs, with its groups. Default: the one that Pacemaker runs agents as.",
    ),
    "log": ("string", "", "Log", "File to which the broker logs. Default: NAME.log beside the process id."),
    "pidfile": ("string", "", "Process id", "File for the broker's process id. Default: in Pacemaker's run folder."),
}
ACTIONS = (
    ("start", 60, None, None),
    ("stop", 60, None, None),
    ("promote", 30, None, None),
    ("demote", 30, None, None),
    ("monitor", 20, 10, "Unpromoted"),
    ("monitor", 20, 5, "Promoted"),
    ("notify", 10, None, None),
    ("meta-data", 5, None, None),
    ("validate-all", 20, None, None),
)
"""Name, timeout in s, interval in s, role."""


def meta_data() -> str:
    """The description of this agent, by OCF 1.1 and the older DTD of resource agents."""
    lines = [
        '<?xml version="1.0"?>',
        '<!DOCTYPE resource-agent SYSTEM "ra-api-1.dtd">',
        '<resource-agent name="qpidd" version="0.1">',
        "<version>1.1</version>",
        '<longdesc lang="en">A broker of an active-passive AMQP 1.0 cluster (Understudy), as a promotable clone: one is the '
        "primary and serves clients. Promoting makes a broker the primary whenever a majority of the brokers can be reached; "
        "demoting is a planned switchover.</longdesc>",
        '<shortdesc lang="en">Understudy, an AMQP 1.0 broker cluster</shortdesc>',
        "<parameters>",
    ]
    for name, (kind, default, short, text) in PARAMETERS.items():
        lines += [
            f'<parameter name="{name}" unique="{int(name == "pidfile")}">',
            f'<longdesc lang="en">{text}</longdesc>',
            f'<shortdesc lang="en">{short}</shortdesc>',
            f'<content type="{kind}" default="{default}" />',
            "</parameter>",
        ]
    lines += ["</parameters>", "<actions>"]
    for name, timeout_s, interval_s, role in ACTIONS:
        every = f' interval="{interval_s}s"' if interval_s else ""
        as_role = f' role="{role}"' if role else ""
        lines.append(f'<action name="{name}" timeout="{timeout_s}s"{every}{as_role} />')
    return "\n".join([*lines, "</actions>", "</resource-agent>"])


def score(view: Mapping[str, Any], views: Sequence[Mapping[str, Any]] = ()) -> str:
    """The promotion score of the broker with this view. `views`: those of all members that answer, used if there is no
    primary.
    """
    me = view.get("address")
    role = next((member.get("role") for member in view.get("members") or [] if member.get("address") == me), "")
    if view.get("stopped") or role != "voter":
        return NEVER
    status = str(view.get("status"))
    if status not in PRIMARY and _held_back(view):
        return NEVER
    if status in _SCORES:
        return str(_SCORES[status])
    newer = sum(_end(other) > _end(view) for other in views)
    return str(max(_JOINING - _STEP * newer, _LEAST))


def _held_back(view: Mapping[str, Any]) -> bool:
    """Whether the cluster's settings do not allow Pacemaker to promote any broker, or this one (docs/adr/0031)."""
    settings = view.get("settings") or {}
    kind = (settings.get("authority") or {}).get("kind", KIND)
    tags = settings.get(f"tags:{view.get('address')}") or {}
    return "pause" in settings or kind != KIND or tags.get("nofailover") is True


def _in_the_name_of(view: Mapping[str, Any]) -> tuple[str, ...]:
    """Options of `promote` that name the requester. A failover is Pacemaker's own decision, and is refused during a
    pause. The move of a serving primary is an administrator's decision, which nothing may refuse. If Pacemaker has the
    cluster's authority, the history shows that Pacemaker requested it (docs/adr/0031).
    """
    settings = view.get("settings") or {}
    agreed = (settings.get("authority") or {}).get("kind") == KIND and "pause" not in settings
    return ("--manager", KIND) if agreed or not view.get("primary") else ()


def _end(view: Mapping[str, Any]) -> tuple[int, int]:
    return int(view.get("lastEpoch") or 0), int(view.get("lastIndex") or 0)


def successors(view: Mapping[str, Any]) -> list[str]:
    """The brokers that could take over from the primary with this view, by address, the one with the newest log first."""
    others = [
        member
        for member in view.get("members") or []
        if member.get("role") == "voter" and member.get("connected") and member.get("address") != view.get("address")
    ]
    others.sort(key=lambda member: (-int(member.get("ackedIndex") or 0), str(member.get("address"))))
    return [str(member["address"]) for member in others]


def at(member: str, view: Mapping[str, Any], broker: str) -> str:
    """The URL of another member: with TLS if members' links use it, and with the user of `broker`."""
    scheme = "amqps:" if str(view.get("brokersUrl")).startswith("amqps:") else ""
    user = broker.rpartition("@")[0].removeprefix("amqps:").removeprefix("amqp:").lstrip("/")
    return f"{scheme}{user}@{member}" if user else f"{scheme}{member}"


class Failed(Exception):
    """An action has failed: an exit code of OCF, and the reason in one line."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Agent:
    """One action. `environ` has Pacemaker's variables: OCF_RESKEY_* and the like."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._instance = environ.get("OCF_RESOURCE_INSTANCE", "qpidd")
        given = {name: environ.get(f"OCF_RESKEY_{name}") or row[1] for name, row in PARAMETERS.items()}
        self._given = given
        run = Path(environ.get("HA_RSCTMP") or "/run/resource-agents")
        name = self._instance.replace("/", "_").replace(":", "-")
        self._pid_file = Path(given["pidfile"] or run / f"qpidd-{name}.pid")
        self._log_file = Path(given["log"] or self._pid_file.with_suffix(".log"))
        try:
            timeout_s = int(environ.get("OCF_RESKEY_CRM_meta_timeout") or 20_000) / 1000
        except ValueError:
            timeout_s = 20.0
        self._deadline = time.monotonic() + max(timeout_s - _RESERVE_S, _SHORTEST_S)
        self._is_probe = environ.get("OCF_RESKEY_CRM_meta_interval", "0") == "0"
        self._is_promoted = environ.get("OCF_RESKEY_CRM_meta_role", "") in ("Promoted", "Master")

    # ---- actions

    def start(self) -> int:
        """Start the broker, and wait until it answers."""
        self.validate_all()
        if not self._pid():
            self._refuse_another()
            self._spawn()
        view = self._answer()
        if not self._pid():  # if there is a view, another broker has answered
            raise Failed(ERR_GENERIC, f"qpidd has ended: {_last_line(self._log_file)}")
        if view is None:
            raise Failed(ERR_GENERIC, f"the broker does not answer at {self._given['broker']}; see {self._log_file}")
        self._refuse_standalone(view)
        self._tell_score(view)
        self._attribute("--name", ADDRESS, *_UNTIL_REBOOT, "--update", str(view.get("address")))
        return SUCCESS

    def stop(self) -> int:
        """Stop the broker. A primary hands over first. The broker is killed if this takes longer than the action may."""
        self._forget_score()
        pid = self._pid()
        if pid:
            self._end(pid)
        self._pid_file.unlink(missing_ok=True)
        return SUCCESS

    def monitor(self) -> int:
        """Report the broker's own state."""
        if not self._pid():
            return NOT_RUNNING
        view = self._answer()
        if view is None:
            if not self._pid():
                return NOT_RUNNING
            raise Failed(
                FAILED_PROMOTED if self._is_promoted else ERR_GENERIC, f"the broker does not answer at {self._given['broker']}"
            )
        self._refuse_standalone(view)
        self._tell_score(view)
        return RUNNING_PROMOTED if view.get("status") in PRIMARY else SUCCESS

    def promote(self) -> int:
        """Make this broker the primary, whatever logs the others have."""
        view = self._running()
        if view.get("status") != "active":
            done, text = self._ask("promote", self._given["broker"], self._left_s(), *_in_the_name_of(view))
            if not done:
                raise Failed(ERR_GENERIC, f"not promoted: {text}")
        self._tell_score(dict(view, status="active"))
        return SUCCESS

    def demote(self) -> int:
        """Make another broker take over. If none can, this broker continues to serve, and the action fails."""
        view = self._running(self._left_s() / 3)
        refusals = []
        asks = _in_the_name_of(dict(view, primary=view.get("address")))
        wanted = self._next_primary()
        for member in sorted(successors(view), key=lambda one: one != wanted) if view.get("status") in PRIMARY else ():
            done, text = self._ask("promote", at(member, view, self._given["broker"]), self._left_s(), *asks)
            if done:
                break
            refusals.append(text)
        while view.get("status") in PRIMARY:
            view = self._running()
            if view.get("status") in PRIMARY and (refusals or not successors(view)):
                why = "; ".join(refusals) or "no other voting member is connected"
                raise Failed(ERR_GENERIC, f"this broker continues as the primary, because no other can take over: {why}")
            if view.get("status") in PRIMARY:
                self._pause()
        return SUCCESS  # the next monitor writes the score: a write here would make Pacemaker decide again before it promotes

    def notify(self) -> int:
        """Pacemaker announces its next actions; `demote` reads them."""
        return SUCCESS

    def validate_all(self) -> int:
        """Check whether this node has everything that the parameters name."""
        for name in ("qpidd", "qpid_ha"):
            words = _words(name, self._given[name])
            if shutil.which(words[0]) is None:
                raise Failed(ERR_INSTALLED, f"{words[0]} is not installed (parameter {name})")
        _words("options", self._given["options"] or "-")
        self._user()
        for name in ("config", "ha_config"):
            if self._given[name] and not os.access(self._given[name], os.R_OK):
                raise Failed(ERR_INSTALLED, f"{self._given[name]} cannot be read (parameter {name})")
        broker = self._given["broker"]
        if not broker.strip() or "," in broker or " " in broker:
            raise Failed(ERR_CONFIGURED, f"broker={broker!r} is not the one address of this node's broker")
        return SUCCESS

    # ---- the process

    def _pid(self) -> int:
        """The process id of the running broker, or 0. Another process with the same number does not count."""
        try:
            number, began = self._pid_file.read_text().split()
        except (OSError, ValueError):
            return 0
        return int(number) if number.isdecimal() and began == _began(int(number)) else 0

    def _spawn(self) -> None:
        given = self._given
        command = [*_words("qpidd", given["qpidd"]), "--config", given["config"], *shlex.split(given["options"])]
        self._pid_file.parent.mkdir(parents=True, exist_ok=True)
        identity: dict[str, Any] = {}
        who = self._user()
        if who is not None and who.pw_uid != os.geteuid():
            groups = os.getgrouplist(who.pw_name, who.pw_gid)
            identity = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": groups}
        with self._open_log(who) as log:
            broker = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={name: value for name, value in self._environ.items() if not name.startswith(("OCF_", "HA_", "PCMK_"))},
                **identity,
            )
        self._pid_file.write_text(f"{broker.pid} {_began(broker.pid)}\n")

    def _user(self) -> pwd.struct_passwd | None:
        """The user that runs the broker; None for the one that runs this agent."""
        name = self._given["user"]
        try:
            return pwd.getpwnam(name) if name else None
        except KeyError:
            raise Failed(ERR_INSTALLED, f"there is no user {name} on this node (parameter user)") from None

    def _open_log(self, owner: pwd.struct_passwd | None) -> BinaryIO:
        """The log, which belongs to this user. The user may own its folder, so a link there is not followed: the file
        behind it would be given away.
        """
        if owner is None:
            return self._log_file.open("ab")
        try:
            number = os.open(self._log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise Failed(ERR_CONFIGURED, f"{self._log_file} is a symbolic link: name the file itself (parameter log)") from None
        os.fchown(number, owner.pw_uid, owner.pw_gid)
        return os.fdopen(number, "ab")

    def _end(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)
        while time.monotonic() < self._deadline and self._pid():
            self._pause()
        if self._pid():
            _say("WARNING", f"the broker has not stopped in time and is killed (process {pid})")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed = time.monotonic() + _KILL_S
        while time.monotonic() < killed and self._pid():
            self._pause()
        if self._pid():
            raise Failed(ERR_GENERIC, f"process {pid} does not end, not even by SIGKILL")

    # ---- questions to brokers

    def _running(self, within_s: float | None = None) -> dict[str, Any]:
        """The view of a broker that must be running."""
        if not self._pid():
            raise Failed(NOT_RUNNING, "the broker does not run")
        view = self._answer(within_s)
        if view is None:
            raise Failed(ERR_GENERIC, f"the broker does not answer at {self._given['broker']}")
        return view

    def _next_primary(self) -> str:
        """The address of the broker that Pacemaker promotes after this demotion, "" if it does not say."""
        node = self._environ.get("OCF_RESKEY_CRM_meta_notify_promote_uname", "").strip()
        if not node or " " in node:
            return ""
        known, text = self._attribute("--node", node, "--name", ADDRESS, *_UNTIL_REBOOT, "--query", "--quiet")
        return text if known else ""

    def _answer(self, within_s: float | None = None) -> dict[str, Any] | None:
        """The broker's view of itself, requested until it arrives; None if its process ends, or this action must end."""
        deadline = self._deadline if within_s is None else min(self._deadline, time.monotonic() + within_s)
        while True:
            left_s = max(deadline - time.monotonic(), _SHORTEST_S)
            done, text = self._ask("query", self._given["broker"], min(_ANSWER_S, left_s), "--format", "json")
            if done:
                view = json.loads(text)
                return view if isinstance(view, dict) else None
            if time.monotonic() >= deadline or not self._pid():
                return None
            self._pause()

    def _ask(self, command: str, broker: str, timeout_s: float, *words: str) -> tuple[bool, str]:
        """Run a command of qpid-ha. Returns whether it succeeded, and its output."""
        config = ["--config", self._given["ha_config"]] if self._given["ha_config"] else []
        tool = _words("qpid_ha", self._given["qpid_ha"])
        return _run([*tool, command, "-b", broker, "-t", f"{timeout_s:.1f}", *config, *words], timeout_s + _RESERVE_S / 2)

    def _refuse_another(self) -> None:
        """A broker that answers before ours was started has its address: ours would end when it wants to listen, and until then
        the other one's answers would count as its own."""
        broker = self._given["broker"]
        answers, _ = self._ask("query", broker, min(_SHORTEST_S, self._left_s()), "--format", "json")
        if answers:
            raise Failed(
                ERR_GENERIC, f"another broker than this resource's answers at {broker}: stop it, or correct the parameter broker"
            )

    def _refuse_standalone(self, view: Mapping[str, Any]) -> None:
        if view.get("status") == "standalone":
            raise Failed(ERR_CONFIGURED, f"the broker is in no cluster: {self._given['config']} lacks ha-cluster=yes")

    def _left_s(self) -> float:
        return max(self._deadline - time.monotonic(), _SHORTEST_S)

    def _pause(self) -> None:
        if time.monotonic() >= self._deadline + _RESERVE_S:
            raise Failed(ERR_GENERIC, "this action has no more time")
        time.sleep(_PAUSE_S)

    # ---- the promotion score

    def _tell_score(self, view: Mapping[str, Any]) -> None:
        """Set this node's score if it has changed. Without Pacemaker, as in tests by hand, nothing is set."""
        views: list[Any] = []
        if view.get("status") == "joining" and time.monotonic() < self._deadline:
            _, text = self._ask("query", self._given["broker"], _SHORTEST_S, "--all", "--format", "json")
            with contextlib.suppress(ValueError):
                views = [one for one in json.loads(text) if isinstance(one, dict)]
        wanted = score(view, views)
        known, text = self._attribute("--promotion", "--query", "--quiet")
        if known and text == wanted:
            return
        written, text = self._attribute("--promotion", "--update", wanted)
        if not written:
            _say("WARNING", f"the promotion score {wanted} was not written: {text}")

    def _forget_score(self) -> None:
        self._attribute("--promotion", "--delete")

    def _attribute(self, *words: str) -> tuple[bool, str]:
        """Run crm_attribute, in half of the time left at most: attributes are only preferences, and no action may fail
        because Pacemaker does not answer. Returns whether it succeeded, and its output.
        """
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            return False, "this action has no more time"
        return _run(["crm_attribute", *words], min(_ANSWER_S, left_s / 2))


def _words(name: str, text: str) -> list[str]:
    try:
        return shlex.split(text) or [text]
    except ValueError as error:
        raise Failed(ERR_CONFIGURED, f"parameter {name}: {error}: {text!r}") from None


def _run(command: list[str], timeout_s: float) -> tuple[bool, str]:
    """Run a command. Returns whether it succeeded in time, and its output; after a failure, its last line of errors or
    output.
    """
    try:
        ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return False, f"{command[0]} {command[1]} gave no answer within {timeout_s:.1f} s"
    except OSError as error:
        return False, f"{command[0]}: {error.strerror}"
    if ran.returncode == 0:
        return True, ran.stdout.strip()
    said = (ran.stderr.strip() or ran.stdout.strip() or f"exit code {ran.returncode}").splitlines()
    return False, said[-1]


def _began(pid: int) -> str:
    """The start time of the process with this number, in the kernel's ticks; "" if it does not exist or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def _last_line(path: Path) -> str:
    try:
        return path.read_bytes()[-4096:].decode(errors="replace").strip().rpartition("\n")[2] or "its log is empty"
    except OSError as error:
        return str(error)


def _say(level: str, text: str) -> None:
    """Print a line for the cluster's log: Pacemaker logs the errors of agents."""
    print(f"{level}: {text}", file=sys.stderr)


def main(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Carry out the action that Pacemaker names; the exit code is OCF's."""
    action = words[0] if len(words) == 1 else ""
    if action == "meta-data":
        print(meta_data())
        return SUCCESS
    agent = Agent(environ)
    actions = {
        "start": agent.start,
        "stop": agent.stop,
        "monitor": agent.monitor,
        "promote": agent.promote,
        "demote": agent.demote,
        "notify": agent.notify,
        "validate-all": agent.validate_all,
    }
    if action not in actions:
        _say("ERROR", f"usage: qpidd {'|'.join([*actions, 'meta-data'])}")
        return ERR_UNIMPLEMENTED
    try:
        return actions[action]()
    except Failed as error:
        if error.code != NOT_RUNNING:
            print(f"ocf-exit-reason:{error}", file=sys.stderr)
        return error.code
    except (OSError, LookupError, ValueError) as error:
        print(f"ocf-exit-reason:{action}: {error}", file=sys.stderr)
        return ERR_GENERIC


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
