"""Options from three sources: who wins, what a file may look like, and errors that say where and what."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import options
from broker.core import urls
from broker.options import Foreign, Option, SettingsError, gather

PORT = Option("port", options.number(0, 65_535), 5672, "PORT", "Listen on this port.", short="p")
URL = Option("ha-brokers-url", options.text, "", "URL", "All brokers.", aliases=("ha-brokers",))
CLUSTER = Option("ha-cluster", options.yes_no, False, "yes|no", "Join a cluster.")
LIMIT = Option("max-size", options.size(1, 1 << 40), 65_536, "BYTES", "The largest.")
PASSWORD = Option("ha-password", options.one_of("right"), "", "PASS", "The password.", secret=True)
TABLE = (PORT, URL, CLUSTER, LIMIT, PASSWORD)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "qpidd.conf"


def from_file(config: Path, content: str) -> dict[str, object]:
    config.write_text(content)
    return gather(TABLE, {"config": str(config)}, {})


def complaint(config: Path, content: str) -> str:
    with pytest.raises(SettingsError) as caught:
        from_file(config, content)
    return str(caught.value).replace(str(config), "FILE")


# ---- who wins


def test_what_nobody_gave_has_its_default() -> None:
    assert gather(TABLE, {}, {}) == {
        "port": 5672,
        "ha_brokers_url": "",
        "ha_cluster": False,
        "max_size": 65_536,
        "ha_password": "",
    }


def test_the_file_wins_over_the_default_the_environment_over_the_file_and_the_command_line_over_both(config: Path) -> None:
    config.write_text("port=1\n")
    named = {"config": str(config)}
    assert gather(TABLE, named, {})["port"] == 1
    assert gather(TABLE, named, {"QPID_PORT": "2"})["port"] == 2
    assert gather(TABLE, {**named, "port": "3"}, {"QPID_PORT": "2"})["port"] == 3


def test_none_on_the_command_line_means_that_it_was_not_given_there() -> None:
    assert gather(TABLE, {"port": None, "config": None}, {"QPID_PORT": "2"})["port"] == 2


def test_the_environment_may_name_the_file_and_the_command_line_another(config: Path, tmp_path: Path) -> None:
    config.write_text("port=1\n")
    other = tmp_path / "other.conf"
    other.write_text("port=2\n")
    assert gather(TABLE, {}, {"QPID_CONFIG": str(config)})["port"] == 1
    assert gather(TABLE, {"config": str(other)}, {"QPID_CONFIG": str(config)})["port"] == 2


def test_a_wrong_value_is_told_even_where_a_stronger_source_hides_it() -> None:
    with pytest.raises(SettingsError, match=r"^QPID_PORT: 'x' is not a whole number"):
        gather(TABLE, {"port": "1"}, {"QPID_PORT": "x"})


def test_an_empty_variable_counts_as_not_set_and_a_foreign_one_is_left_alone() -> None:
    assert gather(TABLE, {}, {"QPID_PORT": "", "QPID_SSL_CERT_DB": "x"})["port"] == 5672


def test_an_alias_stands_for_its_option_in_every_source(config: Path) -> None:
    assert gather(TABLE, {}, {"QPID_HA_BROKERS": "a,b"})["ha_brokers_url"] == "a,b"
    assert from_file(config, "ha-brokers=a,b\n")["ha_brokers_url"] == "a,b"
    assert URL.flags == ("--ha-brokers-url", "--ha-brokers")


def test_two_spellings_that_differ_are_refused_and_two_that_agree_are_not() -> None:
    both = {"QPID_HA_BROKERS_URL": "a", "QPID_HA_BROKERS": "a"}
    assert gather(TABLE, {}, both)["ha_brokers_url"] == "a"
    with pytest.raises(SettingsError, match="QPID_HA_BROKERS and QPID_HA_BROKERS_URL name the same option but differ"):
        gather(TABLE, {}, both | {"QPID_HA_BROKERS": "b"})


# ---- the file


def test_comments_and_blank_lines_are_skipped_and_a_key_alone_means_yes(config: Path) -> None:
    values = from_file(config, "# a broker\n\n  port = 1  # of the test\n   # more\nha-cluster\n")
    assert (values["port"], values["ha_cluster"]) == (1, True)


def test_a_hash_inside_a_word_and_a_second_equals_sign_belong_to_the_value(config: Path) -> None:
    assert from_file(config, "ha-brokers-url=user/a#b=c@host # the only one\n")["ha_brokers_url"] == "user/a#b=c@host"


def test_lines_may_end_as_on_windows(config: Path) -> None:
    assert from_file(config, "port=1\r\nha-cluster=yes\r\n")["ha_cluster"] is True


def test_only_the_end_of_a_line_ends_it(config: Path) -> None:
    """Breaks when a password with such a character is cut, and its rest is taken for a key."""
    assert from_file(config, "ha-brokers-url=a\u2028b\x0bc\n")["ha_brokers_url"] == "a\u2028b\x0bc"


def test_what_another_program_knows_is_noted_or_refused_with_a_way_out(config: Path) -> None:
    noted: list[str] = []
    foreign = Foreign({"worker-threads": "there is one"}, {"sasl-config": "name --users"}, noted.append)
    config.write_text("worker-threads=4\nport=1\n")
    assert gather(TABLE, {"config": str(config)}, {}, foreign)["port"] == 1
    assert noted == [f"{config}:1: worker-threads has no effect: there is one"]
    config.write_text("sasl-config=/etc/sasl2\n")
    with pytest.raises(SettingsError, match="there is no option 'sasl-config': name --users"):
        gather(TABLE, {"config": str(config)}, {}, foreign)


@pytest.mark.parametrize(
    "content, said",
    [
        ("\nprot=1\n", "FILE:2: there is no option 'prot'; did you mean 'port'?"),
        ("HA_CLUSTER=yes\n", "FILE:1: there is no option 'HA_CLUSTER'; did you mean 'ha-cluster'?"),
        ("federation-port=1\n", "FILE:1: there is no option 'federation-port'"),
        ("zzzzzz=1\n", "FILE:1: there is no option 'zzzzzz'"),
        ("=1\n", "FILE:1: there is no option ''"),
        ("config=other\n", "FILE:1: there is no option 'config'"),
        ("port=1\n#\nport=1\n", "FILE:3: port was given in line 1 already: keep one of them"),
        ("ha-brokers=a\nha-brokers-url=a\n", "FILE:2: ha-brokers-url was given in line 1 already: keep one of them"),
        ("port=70000\n", "FILE:1: port: '70000' is not a whole number from 0 to 65535"),
        ("port\n", "FILE:1: port needs a value: write port=PORT"),
        ("port=\n", "FILE:1: port: '' is not a whole number from 0 to 65535"),
    ],
)
def test_a_wrong_line_is_told_with_its_number_and_what_would_do(config: Path, content: str, said: str) -> None:
    assert complaint(config, content) == said


def test_a_file_that_cannot_be_read_is_told_by_name(config: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the configuration file .*qpidd\.conf: No such file"):
        gather(TABLE, {"config": str(config)}, {})
    with pytest.raises(SettingsError, match="Is a directory"):
        gather(TABLE, {"config": str(tmp_path)}, {})


def test_a_file_that_is_no_text_or_far_too_long_is_refused(config: Path) -> None:
    config.write_bytes(b"port=1\n\xff\xfe\n")
    with pytest.raises(SettingsError, match=r":2: not UTF-8 text"):
        gather(TABLE, {"config": str(config)}, {})
    config.write_bytes(b"#" * (options.MAX_FILE_BYTES + 1))
    with pytest.raises(SettingsError, match="it is not a configuration file"):
        gather(TABLE, {"config": str(config)}, {})


# ---- values


def test_a_password_on_the_command_line_is_refused_and_elsewhere_it_is_taken(config: Path) -> None:
    """Others on the machine see what stands on a command line. Breaks when one of the ways in is closed, or one too many open."""
    table = (PASSWORD, Option("broker", urls.parse, None, "URL", "A broker."))
    for words in ({"ha_password": "right"}, {"broker": "ann/right@a"}):
        with pytest.raises(SettingsError, match=r"^--[a-z-]+: other users of this machine can see a password") as caught:
            gather(table, words, {})
        assert "right" not in str(caught.value)
    with pytest.raises(SettingsError, match=r"; for the transport ssl, write ssl: before the host, as in ann@ssl:host$"):
        gather(table, {"broker": "ssl:ann@a"}, {})
    assert gather(table, {}, {"QPID_HA_PASSWORD": "right"})["ha_password"] == "right"
    config.write_text("ha-password=right\nbroker=ann/other@a\n")
    found = gather(table, {"config": str(config)}, {})
    assert (found["ha_password"], found["broker"].password) == ("right", "other")


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "there is no password in the first line of FILE"),
        (b"\nmore\n", "there is no password in the first line of FILE"),
        (b"\xff\n", "the first line of FILE is not UTF-8 text: it is not a password"),
        (b"x" * 4097, "the first line of FILE has more than 4096 bytes: it is not a password"),
        (None, "cannot read FILE: No such file or directory"),
    ],
)
def test_a_password_is_the_first_line_of_a_file(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{said.replace('FILE', str(file))}$"):
        options.password_file(str(file))
    file.write_bytes(b"pass word\r\nmore\n")
    assert options.password_file(str(file)) == "pass word"


def test_a_password_from_a_file_belongs_to_the_user_of_the_url() -> None:
    url = urls.parse("ann@a,b")
    assert options.with_password(url, None, "broker") is url
    assert options.with_password(url, "secret", "broker") == urls.parse("ann/secret@a,b")
    with pytest.raises(SettingsError, match=r"^--password-file needs a user in --broker, as in ann@host$"):
        options.with_password(urls.parse("a"), "secret", "broker")
    with pytest.raises(SettingsError, match=r"^--broker has a password already: leave it or --password-file out$"):
        options.with_password(urls.parse("ann/other@a"), "secret", "broker")


def test_the_text_of_a_secret_is_in_no_error(config: Path) -> None:
    assert complaint(config, "ha-password=hunter2\n") == "FILE:1: ha-password: the value cannot be used"


@pytest.mark.parametrize(
    "text, nbytes",
    [
        ("1", 1),
        ("64k", 65_536),
        ("64K", 65_536),
        ("1M", 1 << 20),
        ("2 GiB", 2 << 30),
        ("10MB", 10 << 20),
        ("3Gi", 3 << 30),
        ("7 B", 7),
        ("1t", 1 << 40),
    ],
)
def test_sizes_take_units_of_1024(text: str, nbytes: int) -> None:
    assert options.size(1, 1 << 40)(text) == nbytes


@pytest.mark.parametrize("text", ["", "k", "-1", "1.5M", "1x", "0", "2T", "1 k x", "1ib", "9" * 40])
def test_what_is_no_size_or_out_of_range_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size from 1 to 1024G: write a whole number of bytes, or one with k, M"):
        options.size(1, 1 << 40)(text)


@pytest.mark.parametrize("text", ["-1", "1e3", "nan", "inf", "", "0.05", "11", "1s", "9" * 40])
def test_what_is_no_time_or_out_of_range_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a number of seconds from 0\.1 to 10"):
        options.seconds(0.1, 10)(text)


def test_times_take_fractions() -> None:
    assert [options.seconds(0, 10)(text) for text in ("0.25", ".5", "3", "3.")] == [0.25, 0.5, 3.0, 3.0]


@pytest.mark.parametrize("text", ["", "1.0", "+1", "٣", "11", "9" * 40])
def test_what_is_no_number_or_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number from 0 to 10"):
        options.number(0, 10)(text)


def test_yes_and_no_have_the_spellings_that_qpidd_takes() -> None:
    assert [options.yes_no(text) for text in ("yes", "TRUE", "on", "1")] == [True] * 4
    assert [options.yes_no(text) for text in ("no", "False", "off", "0")] == [False] * 4
    with pytest.raises(ValueError, match="'maybe' is neither yes nor no"):
        options.yes_no("maybe")


def test_a_folder_cannot_be_nothing() -> None:
    for text in ("", "  ", "a\0b"):
        with pytest.raises(ValueError, match="a folder is needed"):
            options.folder(text)


@given(st.integers(1, 1 << 40))
def test_a_size_that_is_shown_reads_back_as_itself(nbytes: int) -> None:
    assert options.size(1, 1 << 40)(options.show(nbytes)) == nbytes


# ---- what is made from the table


def test_the_reference_table_has_every_spelling_and_default() -> None:
    assert options.markdown((PORT, LIMIT)) == (
        "| option | environment | default | meaning |\n"
        "|---|---|---|---|\n"
        "| `--port`, `-p` `PORT` | `QPID_PORT` | `5672` | Listen on this port. |\n"
        "| `--max-size` `BYTES` | `QPID_MAX_SIZE` | `64k` | The largest. |\n"
    )
