"""Reading an ACL file, line by line.

    group GROUP NAME ... [\\]
    acl allow|allow-log|deny|deny-log USER|GROUP|all ACTION|all [OBJECT|all [PROPERTY=VALUE ...]]
    quota connections|queues NUMBER USER|GROUP|all ...

A line that begins with # is a comment. Only a group can continue in the next line, after a \\ at the end. A group consists of
users and of groups that are defined before it.

An error names the file and the line. A rule that can never match is accepted with a warning, as in qpidd, so that qpidd's files
can be used here.

Source: Qpid C++ broker book, "ACL Syntax" and "ACL Syntactic Conventions". Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from broker.core.acl.lookups import ACTIONS, ALL, GUARDED, LIMITED, LOOKUPS, OBJECTS, PROPERTIES
from broker.core.acl.rules import Acl, Address, Decision, HostRule, Rule

MAX_LINE: Final = 1024
"""Characters of a line."""
MAX_FILE: Final = 1024 * 1024
"""Characters of a file."""
MAX_QUOTA: Final = 65_530
_GROUP = re.compile(r"[A-Za-z0-9_-]+")
_USER = re.compile(r"[A-Za-z0-9_.@/-]+")
_PERMISSIONS: Final = {"allow": (True, False), "allow-log": (True, True), "deny": (False, False), "deny-log": (False, True)}


class BadAcl(Exception):
    """The file cannot be used; the text names the place, the reason, and what is allowed there."""


def read(text: str, name: str, *, connections_of_all: int = 0, queues_of_all: int = 0) -> Acl:
    """Read the rules in `text`; `name` is the file's name, for messages. BadAcl at the first wrong line. The other arguments are
    quotas for `all`, as if they were before the first line; 0 is none.
    """
    if len(text) > MAX_FILE:
        raise BadAcl(f"{name} has {len(text)} characters; an ACL file has at most {MAX_FILE}")
    reader = _Reader()
    for quotas, number in ((reader.quotas["connections"], connections_of_all), (reader.quotas["queues"], queues_of_all)):
        if number:
            quotas[ALL] = number
    for line, content in enumerate(text.splitlines(), 1):
        try:
            reader.take(line, content)
        except ValueError as error:
            raise BadAcl(f"{name}:{line}: {error}") from None
    if reader.group:
        raise BadAcl(f"{name}: the last line ends with \\, and no line follows")
    return reader.finish(name)


@dataclass(slots=True)
class _Reader:
    groups: dict[str, set[str]] = field(default_factory=dict)
    group: str = ""
    """The group that continues in the next line."""
    rules: list[Rule] = field(default_factory=list)
    hosts: list[HostRule] = field(default_factory=list)
    quotas: dict[str, dict[str, int]] = field(default_factory=lambda: {"connections": {}, "queues": {}})

    def take(self, line: int, content: str) -> None:
        """Read one line. ValueError says what is wrong with it."""
        if len(content) > MAX_LINE:
            raise ValueError(f"it has {len(content)} characters; a line has at most {MAX_LINE}")
        if not content.isascii():
            raise ValueError("only ASCII characters may stand in an ACL file")
        if content.startswith("#") and not self.group:
            return
        goes_on = content.endswith("\\")
        words = content.removesuffix("\\").split()
        if "\\" in content.removesuffix("\\"):
            raise ValueError("a \\ may only be the last character of a line")
        if self.group:
            self._add(self.group, words, goes_on)
        elif not words and not goes_on:
            return
        elif words[:1] == ["group"]:
            self._begin_group(words[1:], goes_on)
        elif goes_on:
            raise ValueError("only a group can continue on the next line")
        elif words[0] == "acl":
            self._take_rule(line, words[1:])
        elif words[0] == "quota":
            self._take_quota(words[1:])
        else:
            raise ValueError(f"a line begins with `group`, `acl`, `quota` or #, not with {words[0]!r}")

    # ---- groups

    def _begin_group(self, words: list[str], goes_on: bool) -> None:
        if not words:
            raise ValueError("a group needs a name in the same line")
        name, *members = words
        if not _GROUP.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a group: it must consist of letters, digits, - and _")
        if name == ALL:
            raise ValueError("`all` means every user, so it cannot be the name of a group")
        if name in self.groups:
            raise ValueError(f"there is a group {name!r} already")
        if not members and not goes_on:
            raise ValueError(f"group {name!r} has no members")
        self.groups[name] = set()
        if members:
            self._add(name, members, goes_on)
        self.group = name if goes_on else ""

    def _add(self, group: str, words: list[str], goes_on: bool) -> None:
        if not words:
            raise ValueError(f"the line should go on with members of group {group!r}")
        for word in words:
            if word == ALL:
                raise ValueError("`all` means every user, so it cannot be in a group")
            self.groups[group] |= self.groups[word] if word in self.groups else {_user(word)}
        self.group = group if goes_on else ""

    def _users(self, word: str) -> frozenset[str] | None:
        if word == ALL:
            return None
        return frozenset(self.groups[word]) if word in self.groups else frozenset({_user(word)})

    # ---- rules

    def _take_rule(self, line: int, words: list[str]) -> None:
        if len(words) < 3:
            raise ValueError(
                "a rule needs a permission, a user and an action: acl allow|deny USER ACTION [OBJECT [PROPERTY=VALUE]]"
            )
        permission, user, action, *rest = words
        if permission not in _PERMISSIONS:
            raise ValueError(f"{permission!r} is not a permission: {_among(_PERMISSIONS)}")
        if action not in (ALL, *ACTIONS):
            raise ValueError(f"{action!r} is not an action: {_among((ALL, *ACTIONS))}")
        kind = rest[0] if rest else ALL
        if kind not in (ALL, *OBJECTS):
            raise ValueError(f"{kind!r} is not an object: {_among((ALL, *OBJECTS))}")
        properties = _properties(rest[1:])
        if user == action == ALL and (kind != ALL or properties):
            raise ValueError("a rule for all users and all actions is the mode of the whole file, and names nothing else")
        allows, logs = _PERMISSIONS[permission]
        if (action, kind) == ("create", "connection"):
            self.hosts.append(_host_rule(line, allows, logs, self._users(user), properties))
        else:
            named = None if action == ALL else action, None if kind == ALL else kind
            self.rules.append(Rule(line, allows, logs, self._users(user), *named, tuple(properties.items())))

    # ---- quotas

    def _take_quota(self, words: list[str]) -> None:
        if len(words) < 3:
            raise ValueError("a quota needs a kind, a number and a user: quota connections|queues NUMBER USER ...")
        kind, number, *names = words
        if kind not in self.quotas:
            raise ValueError(f"{kind!r} is not a kind of quota: {_among(self.quotas)}")
        if not number.isdecimal() or int(number) > MAX_QUOTA:
            raise ValueError(f"{number!r} is not a quota: it must be a whole number from 0 to {MAX_QUOTA}")
        for name in names:
            for user in self._users(name) or (ALL,):
                self.quotas[kind][user] = int(number)

    def finish(self, name: str) -> Acl:
        """The result. The last rule for all users and all actions is the mode; it decides after all others."""
        modes = [rule for rule in self.rules if rule.users is None and rule.action is None]
        last = modes[-1] if modes else None
        mode = Decision(last.allows, last.logs, last.line) if last else Decision(allowed=False)
        rules = tuple(rule for rule in self.rules if rule is not last)
        warnings = [f"{name}:{rule.line}: {why}" for rule in rules if (why := _never_matches(rule))]
        return Acl(
            rules,
            tuple(self.hosts),
            mode,
            self.quotas["connections"],
            self.quotas["queues"],
            tuple(warnings),
        )


def _never_matches(rule: Rule) -> str:
    """Why a rule can match no lookup; empty when it can."""
    if any(rule.is_about(*lookup) for lookup in LOOKUPS):
        return ""
    if rule.action is None or rule.kind is None:
        return f"nothing that this broker checks has the properties {_named(rule)}: the rule is never used"
    about = f"{rule.action} {rule.kind}"
    if (rule.action, rule.kind) not in LOOKUPS:
        return f"this broker never checks `{about}`: the rule is never used"
    if (rule.action, rule.kind) in GUARDED and not rule.properties:
        return f"`{about}` is allowed by rules that name a user or a group alone: this one, for all, is never used"
    return f"`{about}` is never checked with {_named(rule)}: the rule is never used"


def _named(rule: Rule) -> str:
    return ", ".join(name for name, _ in rule.properties)


def _user(word: str) -> str:
    if not _USER.fullmatch(word):
        raise ValueError(f"{word!r} is not the name of a user: it must consist of letters, digits, and - _ . @ /")
    return word


def _properties(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise ValueError(f"{word!r} is not a property with a value: write PROPERTY=VALUE, without spaces")
        if name not in PROPERTIES:
            raise ValueError(f"{name!r} is not a property: {_among(sorted(PROPERTIES))}")
        if name in found:
            raise ValueError(f"property {name!r} is given twice")
        if name in LIMITED and not value.isdecimal():
            raise ValueError(f"{value!r} is not a limit for {name}: it must be a whole number")
        found[name] = value
    return found


def _host_rule(line: int, allows: bool, logs: bool, users: frozenset[str] | None, properties: dict[str, str]) -> HostRule:
    host = properties.pop("host", "")
    if not host or properties:
        raise ValueError(
            "a rule about `create connection` names the property host, and no other: host=IP, host=IP,IP or host=all"
        )
    if host == ALL:
        return HostRule(line, allows, logs, users, None, None)
    first, comma, last = host.partition(",")
    low, high = _address(first), _address(last if comma else first)
    if low.version != high.version or int(low) > int(high):
        raise ValueError(f"{host!r} is not a range of addresses: the first one is not below the last one")
    return HostRule(line, allows, logs, users, low, high)


def _address(text: str) -> Address:
    try:
        return ip_address("127.0.0.1" if text == "localhost" else text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address (names are not looked up)") from None


def _among(words: object) -> str:
    assert hasattr(words, "__iter__")
    return "one of " + ", ".join(words)
