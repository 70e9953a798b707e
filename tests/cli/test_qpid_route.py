"""`qpid-route`: what can be said to it, what cannot, and what it prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.core import urls
from broker.options import SettingsError
from cli.commands.qpid_route import _show_dynamic
from cli.options import Target
from tests.cli.running import run
from tests.system.harness import free_ports


@pytest.mark.parametrize(
    "words,why",
    [
        (["dynamic", "add", "a:1", "b:1"], "write: dynamic add DEST SRC EXCHANGE [TAG] [EXCLUDE,...] [MECHANISM]"),
        (["dynamic", "del", "a:1", "b:1", "x", "k"], "has too many or too few words; write: dynamic del DEST SRC EXCHANGE"),
        (["dynamic", "add", "a:1", "b:1", "x", "--src-local"], "a route fetches messages"),
        (["dynamic", "add", "a:1", "b:1", "x", "t", "e", "GSSAPI"], "'GSSAPI' is not a SASL mechanism"),
        (["dynamic", "add", "a:1", "a:1", "x"], "DEST and SRC are the same broker, a:1: a route from an exchange"),
        (["link", "add", "a:1", "b:1"], "links exist only for routes"),
        (["route", "add", "a:1", "b:1", "x"], "has too many or too few words; write: route add DEST SRC EXCHANGE KEY [TAG]"),
        (["route", "ad", "a:1"], "there is no command 'route ad'; there are: route add, "),
        (["rout", "add"], "; did you mean 'route add'?"),
        (["add", "dynamic", "a:1"], "; did you mean 'dynamic add'?"),
        (["list", "a:1"], "; did you mean 'route list' or 'link list'?"),
        (["lst"], "there is no command 'lst'; there are: route add, "),
        (["route", "add", "a:1", "b:1", "x", "k", "-s"], "a route fetches messages"),
        (["queue", "add", "a:1", "b:1", "x", "q", "--ack", "5"], "--ack has no meaning here"),
        (["queue", "add", "a:1", "b:1", "x", "q", "--credit", "5"], "--credit has no meaning here"),
        (["queue", "add", "a:1", "b:1", "x", "q", "-t", "rdma"], "'rdma' is not a transport"),
        (["queue", "add", "a:1", "b:1", "x", "q", "GSSAPI"], "'GSSAPI' is not a SASL mechanism"),
        (["queue", "add", "a:1", "ann/secret@b:1", "x", "q"], "other users can see a password of SRC"),
        (["queue", "add", "a:1", "b:x", "x", "q"], "b:x"),
        (
            ["route", "add", "a:1", "a:1", "x", "k"],
            "DEST and SRC are the same broker, a:1: a route from an exchange",
        ),
        (["route", "add", "a:1,b:1", "amqp:ann@c:1,b:1", "x", "k"], "DEST and SRC are the same broker, b:1: a route from"),
    ],
)
def test_what_has_no_meaning_here_is_refused_before_a_broker_is_asked(words: list[str], why: str) -> None:
    found = run("qpid-route", *words)
    assert found.status == 2
    assert why in found.err
    assert "secret" not in found.err


def test_a_password_for_dest_is_told_where_it_goes(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pencil\n")
    (tmp_path / "password").chmod(0o600)
    ran = run("qpid-route", "--password-file", tmp_path / "password", "route", "list", "h")
    assert (ran.status, ran.err) == (
        2,
        "qpid-route: --password-file needs a user in DEST, as in ann@host (see qpid-route --help)\n",
    )
    ran = run("qpid-route", "route", "list", "ann/secret@h")
    assert (ran.status, "DEST: other users" in ran.err, "QPID_BROKER" in ran.err, "secret" in ran.err) == (2, True, False, False)


def test_the_words_become_requests(peers: Any, tmp_path: Path) -> None:
    answers = {"CREATE route": [201, "created", {"uuid": "u"}], "DELETE route": [202, "it ends", {"uuid": "u", "ending": True}]}
    broker = peers(items={"route": [OF_A_QUEUE, ELSEWHERE, FOLLOWING]}, answers=answers, record=str(tmp_path / "asked"))
    for words, printed in (
        (
            ["route", "add", "%", "ann@h1,h2:1", "x", "a.#", "north", "s,t", "PLAIN", "-v"],
            "route u: amqp:ann@h1:5672,h2:1 x a.#\n",
        ),
        (["dynamic", "add", "%", "h1", "x", "north", "s,t", "PLAIN", "-v"], "route u: amqp:h1:5672 x <dynamic>\n"),
        (["dynamic", "add", "%", "h1", "x", "-d"], ""),
        (["dynamic", "del", "%", "h1", "x"], "the route ends as soon as its source has deleted its queue; --force "),
        (["queue", "add", "%", "h3", "x", "out", "-t", "ssl", "-d", "-e"], ""),
        (["route", "del", "%", "h1", "x", "k"], "the route ends as soon as its source has deleted its queue; --force "),
        (["queue", "del", "%", "h1", "x", "out", "--force"], ""),
        (["link", "del", "%", "ssl:h3:5671"], ""),
        (
            ["route", "flush", "%", "-v"],
            "Deleting Bridge: h1:5672 amq.topic out... Ok\nDeleting Bridge: h3:5671 amq.topic out... Ok\n"
            "Deleting Bridge: h1:5672 amq.topic <dynamic>... Ok\n",
        ),
    ):
        found = run("qpid-route", *(broker.name if word == "%" else word for word in words))
        assert (found.status, found.err) == (0, "")
        assert found.out.startswith(printed)
    plain = {"kind": "queue", "source": "amqp:h1:5672", "exchange": "x", "key": "out"}
    of_a_key = plain | {"kind": "exchange", "key": "k", "source": "amqp:ann@h1:5672,h2:1"}
    follows = plain | {"kind": "dynamic", "key": ""}
    listed = {field: OF_A_QUEUE[field] for field in plain}
    asked = map(json.loads, (tmp_path / "asked").read_text().splitlines())
    assert [(each["what"], each["body"]) for each in asked if each["what"] != "QUERY route"] == [
        ("CREATE route", of_a_key | {"key": "a.#", "tag": "north", "exclude": ["s", "t"], "mechanism": "PLAIN"}),
        ("CREATE route", follows | {"tag": "north", "exclude": ["s", "t"], "mechanism": "PLAIN"}),
        ("CREATE route", follows | {"tag": "", "exclude": [], "mechanism": ""}),
        ("DELETE route", follows | {"force": False}),
        ("CREATE route", plain | {"source": "amqp:ssl:h3:5671", "mechanism": ""}),
        ("DELETE route", of_a_key | {"source": "amqp:h1:5672", "force": False}),
        ("DELETE route", plain | {"force": True}),
        ("DELETE route", listed | {"source": "amqp:ssl:h3:5671", "force": False}),
        ("DELETE route", listed | {"force": False}),
        ("DELETE route", listed | {"source": "amqp:ssl:h3:5671", "force": False}),
        ("DELETE route", listed | {"kind": "dynamic", "key": "", "force": False}),
    ]


@pytest.mark.parametrize(
    "answer,words,text",
    [
        ([409, "this route exists already", {}], ["queue", "add"], "Duplicate Route - ignoring: x(out)"),
        ([404, "there is no such route", {}], ["queue", "del"], "Route not found"),
        ([409, "this broker leaves", {}], ["queue", "add"], "this broker leaves"),
    ],
)
def test_what_the_broker_refuses_is_told_and_what_is_so_already_is_no_error_when_quiet(
    peers: Any, answer: list[Any], words: list[str], text: str
) -> None:
    broker = peers(answers=dict.fromkeys(("CREATE route", "DELETE route"), answer))
    found = run("qpid-route", *words, broker.name, "h1", "x", "out")
    assert (found.status, found.out, text in found.err) == (1, "", True)
    assert run("qpid-route", *words, broker.name, "h1", "x", "out", "-q").status == ("leaves" in text)


OF_A_QUEUE: dict[str, Any] = {"kind": "queue", "source": "amqp:h1:5672,h2:5672", "host": "h1", "port": 5672, "transport": "tcp"}
OF_A_QUEUE |= {"exchange": "amq.topic", "key": "out", "state": "Operational", "lastError": "", "ending": False}
OF_AN_EXCHANGE = OF_A_QUEUE | {"kind": "exchange", "key": "a.#", "state": "Waiting", "lastError": "h1:5672: refused"}
FOLLOWING = OF_A_QUEUE | {"kind": "dynamic", "key": "", "bindings": 3}
ELSEWHERE = OF_A_QUEUE | {"source": "amqp:ssl:h3:5671", "host": "h3", "port": 5671, "transport": "ssl"}


def test_routes_and_links_are_listed_as_apaches_tool_lists_them(peers: Any) -> None:
    broker = peers(items={"route": [FOLLOWING, OF_A_QUEUE, OF_AN_EXCHANGE, ELSEWHERE]})
    assert json.loads(run("qpid-route", "route", "list", broker.name, "--format", "json").out)[0]["bindings"] == 3
    assert run("qpid-route", "route", "list", broker.name).out.splitlines() == [
        f"{broker.name} h1:5672 amq.topic <dynamic>",
        f"{broker.name} h1:5672 amq.topic <queue out>",
        f"{broker.name} h1:5672 amq.topic a.#",
        f"{broker.name} h3:5671 amq.topic <queue out>",
    ]
    assert run("qpid-route", "link", "list", broker.name).out.splitlines() == [
        "",
        "Host            Port    Transport Durable  State             Last Error",
        "=============================================================================",
        "h1              5672    tcp          Y     Waiting           h1:5672: refused",
        "h3              5671    ssl          Y     Operational",
    ]
    assert run("qpid-route", "link", "list", peers(items={"route": []}).name).out == "No Links Found\n"


def test_a_map_has_the_routes_of_all_brokers_that_fetch_from_each_other_and_says_whom_it_does_not_reach(peers: Any) -> None:
    far = peers(items={"route": []})
    away = f"127.0.0.1:{free_ports(1)[0]}"
    first = OF_A_QUEUE | {"source": f"amqp:{far.name}", "host": far.host, "port": far.port}
    second = OF_AN_EXCHANGE | {"source": f"amqp:{away}", "host": "127.0.0.1", "port": int(away.rpartition(":")[2])}
    near = peers(items={"route": [first, second]})
    found = run("qpid-route", "route", "map", near.name)
    assert (found.status, found.err) == (0, "")
    lines = found.out.splitlines()
    assert lines[1:4] == ["Finding Linked Brokers:", f"   {near.name}... Ok", f"   {far.name}... Ok"]
    assert lines[4].startswith(f"   {away}... {away}: ")
    assert lines[5:] == [
        *("", "Dynamic Routes:", "   none found", "", "Static Routes:"),
        f"   {near.name}(ex=amq.topic) <= {far.name}(queue=out)",
        f"   {near.name}(ex=amq.topic) <= {away}(ex=amq.topic) key=a.#",
        "",
    ]
    assert "Static Routes:\n   none found\n" in run("qpid-route", "route", "map", far.name).out


def test_a_map_has_dynamic_routes_by_exchange(peers: Any) -> None:
    far, other = peers(items={"route": []}), peers(items={"route": []})

    def follows(source: Any, exchange: str) -> dict[str, Any]:
        at = {"source": f"amqp:{source.name}", "host": source.host, "port": source.port}
        return FOLLOWING | at | {"exchange": exchange}

    near = peers(items={"route": [follows(far, "amq.topic"), follows(other, "amq.topic"), follows(far, "news")]})
    lines = run("qpid-route", "route", "map", near.name).out.splitlines()
    assert lines[5:] == [
        *("", "Dynamic Routes:", ""),
        *("  Exchange amq.topic:", f"    {far.name}  => {near.name}", f"    {other.name}  => {near.name}", ""),
        *("  Exchange news:", f"    {far.name}  => {near.name}", "", "Static Routes:", "   none found", ""),
    ]


def test_no_password_goes_in_the_clear_to_an_address_that_a_broker_has_told_without_tls() -> None:
    told = urls.parse("b:2").addresses
    target = Target(urls.parse("amqps:ann@a:1"), 1.0, "PLAIN", admin=True)
    with pytest.raises(SettingsError, match=r"^a broker names b:2 without TLS: with the mechanism PLAIN, the password"):
        target.at(*told)
    assert target.at(*urls.parse("amqps:b:2").addresses).url.names == ("b:2",)
    assert replace(target, mechanism="SCRAM-SHA-256").at(*told).url.names == ("b:2",), "which does not show the password"
    assert replace(target, url=urls.parse("ann@a:1")).at(*told).url.names == ("b:2",), "as its user has chosen"


def test_routes_that_differ_by_the_user_or_another_address_are_listed_with_the_whole_of_their_sources(peers: Any) -> None:
    """Breaks when the list has equal lines for them, and nobody knows what to delete."""
    sources = ["amqp:h1:5672,h2:5672", "amqp:ann@h1:5672", "amqp:ssl:h1:5672"]
    items = [OF_A_QUEUE | {"source": source} for source in sources]
    broker = peers(items={"route": [*items, OF_AN_EXCHANGE]})
    assert run("qpid-route", "route", "list", broker.name).out.splitlines() == [
        f"{broker.name} h1:5672,h2:5672 amq.topic <queue out>",
        f"{broker.name} ann@h1:5672 amq.topic <queue out>",
        f"{broker.name} ssl:h1:5672 amq.topic <queue out>",
        f"{broker.name} h1:5672 amq.topic a.#",
    ]


def test_links_that_differ_by_the_user_or_another_address_are_listed_with_the_whole_of_their_sources(peers: Any) -> None:
    """Breaks when two lines are equal but for the error, and nobody knows whose login fails."""
    broker = peers(items={"route": [OF_A_QUEUE, OF_AN_EXCHANGE | {"source": "amqp:ann@h1:5672"}, ELSEWHERE]})
    assert run("qpid-route", "link", "list", broker.name).out.splitlines()[3:] == [
        "h1:5672,h2:5672 5672    tcp          Y     Operational",
        "ann@h1          5672    tcp          Y     Waiting           h1:5672: refused",
        "h3              5671    ssl          Y     Operational",
    ]


def test_a_map_tells_routes_apart_that_differ_by_the_user(peers: Any) -> None:
    far = peers(items={"route": []})
    at = {"source": f"amqp:{far.name}", "host": far.host, "port": far.port}
    anns = at | {"source": f"amqp:ann@{far.name}"}
    near = peers(items={"route": [each | who for each in (OF_A_QUEUE, FOLLOWING) for who in (at, anns)]})
    assert run("qpid-route", "route", "map", near.name).out.splitlines()[4:] == [
        *("", "Dynamic Routes:", "", "  Exchange amq.topic:"),
        *(f"    {far.name}  => {near.name}", f"    ann@{far.name}  => {near.name}", "", "Static Routes:"),
        f"   {near.name}(ex=amq.topic) <= {far.name}(queue=out)",
        f"   {near.name}(ex=amq.topic) <= ann@{far.name}(queue=out)",
        "",
    ]


def test_a_map_has_one_line_for_both_directions_if_there_is_one_route_in_each(capsys: pytest.CaptureFixture[str]) -> None:
    def route(source: str, dest: str) -> dict[str, Any]:
        host, _, port = source.rpartition("@")[2].partition(":")
        return FOLLOWING | {"source": f"amqp:{source}", "host": host, "port": int(port), "broker": dest}

    _show_dynamic([route("a:1", "b:2"), route("b:2", "a:1")])
    assert capsys.readouterr().out.splitlines()[4:-1] == ["    a:1 <=> b:2"]
    _show_dynamic([route("a:1", "b:2"), route("ann@a:1", "b:2"), route("b:2", "a:1")])
    assert capsys.readouterr().out.splitlines()[4:-1] == ["    a:1  => b:2", "    ann@a:1  => b:2", "    b:2  => a:1"]


def test_a_broker_without_routes_says_so_beside_the_list(peers: Any) -> None:
    broker = peers(items={"route": []})
    ran = run("qpid-route", "route", "list", broker.name)
    assert (ran.status, ran.out, ran.err) == (0, "", f"{broker.name} has no route\n")


@pytest.mark.parametrize(
    "silent,words,status",
    [
        ("CREATE route", ["queue", "add", "%", "h1", "x", "out"], 3),
        ("DELETE route", ["queue", "del", "%", "h1", "x", "out"], 3),
        ("DELETE route", ["route", "flush", "%"], 3),
        ("QUERY route", ["link", "del", "%", "h1"], 3),
        ("QUERY route", ["route", "list", "%"], 3),
        ("QUERY route", ["route", "map", "%"], 0),
    ],
)
def test_an_answer_is_awaited_for_the_time_that_is_given(peers: Any, silent: str, words: list[str], status: int) -> None:
    broker = peers(items={"route": [OF_A_QUEUE]}, silent_on=[silent])
    found = run("qpid-route", "--timeout", "0.3", *(broker.name if word == "%" else word for word in words))
    assert found.status == status
    assert f"no answer to {silent} in 0.3 s" in found.err + found.out


def test_a_long_host_does_not_run_into_its_port(peers: Any) -> None:
    host = "understudy-0.understudy-brokers"
    broker = peers(items={"route": [OF_A_QUEUE | {"host": host, "source": f"amqp:{host}:5672", "state": "x" * 20}]})
    (line,) = run("qpid-route", "link", "list", broker.name).out.splitlines()[3:]
    assert line.split()[:5] == [host, str(OF_A_QUEUE["port"]), OF_A_QUEUE["transport"], "Y", "x" * 20]
