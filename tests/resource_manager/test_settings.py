"""The daemon's options: what is taken, and how what is wrong is named."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from broker.options import SettingsError
from resource_manager.settings import jittered, read


def test_the_brokers_are_enough() -> None:
    settings = read({"brokers": "amqp:a,b:5673"}, {})
    assert settings.brokers.names == ("a:5672", "b:5673")
    assert (settings.detection_s, settings.probe_interval_s, settings.promotion.start_grace_s) == (1.0, 0.25, 2.0)
    assert (settings.arbiter, settings.cluster_name) == ("builtin", "")
    assert settings.name


def test_who_it_is_stands_in_the_url_and_its_password_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    url = read({"brokers": "amqp:guest@a,b:5673", "password_file": str(file)}, {}).brokers
    assert (url.user, url.password, url.names) == ("guest", "secret", ("a:5672", "b:5673"))
    assert "secret" not in repr(read({}, {"QPID_BROKERS": "guest/secret@a"}))


def test_two_daemons_of_one_host_have_different_names_by_default() -> None:
    """Breaks when daemons cannot tell each other apart, and both take the first turn."""
    assert read({"brokers": "a"}, {}).name.rpartition("-")[2].isdecimal()


def test_file_and_environment_are_read_as_well(tmp_path: Path) -> None:
    file = tmp_path / "rm.conf"
    file.write_text("brokers = a,b\npriority = a=3, b:5672=-1\n")
    settings = read({"config": str(file)}, {"QPID_DETECTION_TIME": "0.7"})
    assert (settings.promotion.priorities, settings.detection_s) == ({"a:5672": 3, "b:5672": -1}, 0.7)


def test_an_arbiters_own_options_stand_in_one_line_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rm.conf"
    file.write_text("brokers = a\narbiter = etcd\narbiter-option = endpoints=http://[::1]:1,http://[::1]:2 'user=a b'\n")
    settings = read({"config": str(file)}, {"QPID_ARBITER_PATIENCE": "never", "QPID_CLUSTER_NAME": "orders"})
    assert settings.for_arbiter.options == {"endpoints": "http://[::1]:1,http://[::1]:2", "user": "a b"}
    assert (settings.for_arbiter.cluster, settings.arbiter, settings.arbiter_patience_s) == ("orders", "etcd", inf)
    assert read({"brokers": "a"}, {}).arbiter_patience_s == 10.0


@pytest.mark.parametrize(
    "options, text",
    [
        ({}, "--brokers URL is needed"),
        ({"brokers": "a b"}, "is not a host name"),
        ({"brokers": "a", "arbiter": "zookeeper"}, "there is no arbiter 'zookeeper'; there are: builtin"),
        ({"brokers": "a", "arbiter_option": "x"}, "--arbiter-option: 'x' is not KEY=VALUE"),
        ({"brokers": "a", "arbiter_patience": "-1"}, "--arbiter-patience: '-1' is not a number of seconds.*nor `never`"),
        ({"brokers": "a", "priority": "b=1"}, "which is none of --brokers"),
        ({"brokers": "a", "priority": "a"}, "is not ADDR=N"),
        ({"brokers": "a", "priority": "a=x"}, "is not ADDR=N"),
        ({"brokers": "a", "detection_time": "0.2"}, "must be below --detection-time"),
        ({"brokers": "a", "name": " "}, "is not a name"),
    ],
)
def test_what_is_wrong_is_named_with_its_option(options: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        read(options, {})


def test_jitter_stays_within_a_tenth() -> None:
    draws = iter([0.0, 0.5, 1.0])
    assert [jittered(1.0, lambda: next(draws)) for _ in range(3)] == pytest.approx([0.9, 1.0, 1.1])
