"""A line of telemetry says what its record says, however it was put together."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import lines, schema
from telemetry.lines import Head, LagSample, SampleText, queue_text, rate_text, rate_texts

HEAD = Head("c", 7, "127.0.0.1:5672", "2026-01-05T08:00:00.000Z")
ROW = LagSample("127.0.0.1:5673", None, "all", 9, 9, None, 8, None, 3, 3072, 12.5, 0.0, "ready", True, True, 1 << 30)

ages = st.floats(min_value=0, max_value=1e12, allow_nan=False).map(lambda value: float(f"{value:.3f}"))
counts = st.integers(min_value=0, max_value=2**53)
perhaps = st.none() | counts
measures = st.none() | ages
rows = st.builds(
    LagSample,
    backup=st.text(),
    queue=st.none() | st.text(),
    replicate=st.sampled_from(["all", "configuration"]),
    commit_index=counts,
    sent_index=perhaps,
    received_index=perhaps,
    acked_index=perhaps,
    applied_index=perhaps,
    lag_records=counts,
    lag_bytes=counts,
    lag_ms=ages,
    stall_ms=ages,
    state=st.sampled_from(schema.STATES),
    in_sync=st.booleans(),
    connected=st.booleans(),
    headroom_bytes=perhaps,
    role=st.sampled_from(["primary", "backup"]),
    sync_ms=measures,
    sync_max_ms=measures,
    round_trip_ms=measures,
    records_per_s=measures,
    bytes_per_s=measures,
)


def parsed(text: str) -> list[list[tuple[str, object]]]:
    """Lines as lists of fields, so that their order counts."""
    return [list(json.loads(line).items()) for line in text.splitlines()]


@given(rows, st.text(), st.text())
def test_a_sample_put_together_from_parts_is_the_record_that_defines_it(row: LagSample, cluster: str, primary: str) -> None:
    head = HEAD._replace(cluster=cluster)
    record = lines.sample_record(head, 41, interval_ms=1000, primary=primary, sample=row)
    assert parsed(SampleText(head, interval_ms=1000, primary=primary).line(41, row)) == [list(record.items())]


queues = st.lists(st.tuples(st.text(), st.none() | st.tuples(counts, counts, ages, ages), measures, measures), max_size=5)


@given(rows, queues)
def test_a_backups_queues_are_its_whole_log_but_for_what_is_their_own(
    whole: LagSample, of: list[tuple[str, tuple[int, int, float, float] | None, float | None, float | None]]
) -> None:
    """Idle and busy ones in one call: breaks when one gets its neighbour's lag."""
    text = SampleText(HEAD, interval_ms=500, primary="p")
    waiting = {position: lag for position, (_, lag, _, _) in enumerate(of) if lag is not None}
    rates = [rate_text(records, nbytes) for _, _, records, nbytes in of]
    found = parsed(text.queue_lines(100, whole, [queue_text(name, "all") for name, *_ in of], waiting, rates))
    assert len(found) == len(of)
    for position, (name, lag, records_per_s, bytes_per_s) in enumerate(of):
        records, nbytes, lag_ms, stall_ms = lag or (0, 0, 0.0, 0.0)
        expected = lines.sample_record(
            HEAD,
            100 + position,
            interval_ms=500,
            primary="p",
            sample=whole._replace(
                queue=name,
                replicate="all",
                lag_records=records,
                lag_bytes=nbytes,
                lag_ms=lag_ms,
                stall_ms=stall_ms,
                records_per_s=records_per_s,
                bytes_per_s=bytes_per_s,
            ),
        )
        assert found[position] == list(expected.items())


def test_rates_are_what_came_in_the_time_that_passed() -> None:
    texts = rate_texts([0, 10, 3], [0, 500, 0], 2.0)
    assert texts == [rate_text(0.0, 0.0), rate_text(5.0, 250.0), rate_text(1.5, 0.0)]


def test_the_samples_of_one_call_share_their_words() -> None:
    text = SampleText(HEAD, interval_ms=1, primary="p")
    (first,), (second,) = parsed(text.line(5, ROW)), parsed(text.line(6, ROW._replace(state="catchup")))
    assert dict(second) == dict(first) | {"seq": 6, "state": "catchup"}


def test_the_cluster_may_have_a_name_that_looks_like_a_field() -> None:
    head = HEAD._replace(cluster='"seq":0', sender='"seq":0')
    (fields,) = parsed(SampleText(head, interval_ms=1, primary="p").line(5, ROW))
    assert dict(fields)["seq"] == 5
    assert dict(fields)["cluster"] == '"seq":0'


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_json_has_no_number_for_is_refused(bad: float) -> None:
    """It would be a line that nobody can read."""
    text = SampleText(HEAD, interval_ms=1, primary="p")
    with pytest.raises(ValueError, match="finite"):
        text.line(1, ROW._replace(lag_ms=bad))
    with pytest.raises(ValueError, match="JSON compliant"):
        lines.line(lines.event_record(HEAD, 1, broker="b", type="role", duration_ms=bad))


def test_an_event_of_no_known_type_is_refused() -> None:
    with pytest.raises(ValueError, match="'song' is not a type of event; there are backup_lost"):
        lines.event_record(HEAD, 1, broker="b", type="song")


def test_events_probes_and_rosters_are_lines_of_their_kind() -> None:
    event = lines.event_record(HEAD, 1, broker="b", type="role", from_="ready", to="active", nbytes=5)
    probe = lines.probe_record(
        HEAD, 2, interval_ms=1000, probe=lines.Probe("b", "silent", 4, 0, None, None, "", "", None, None, "x")
    )
    roster = lines.roster_record(HEAD, 3, interval_ms=1000, primary="p", backups=("b",), queues=("q",))
    for number, (kind, record) in enumerate({"event": event, "probe": probe, "roster": roster}.items(), 1):
        text = lines.line(record)
        assert text.count(b"\n") == 1
        assert json.loads(text) == record
        assert (record["kind"], record["seq"], record["v"]) == (kind, number, 1)
    assert (event["from"], event["bytes"], event["peer"]) == ("ready", 5, None)


def test_milliseconds_are_rounded_before_the_text_is_cut_so_that_no_second_shows_a_thousand() -> None:
    assert lines.timestamp(1_767_600_000.9996) == "2026-01-05T08:00:01.000Z"
