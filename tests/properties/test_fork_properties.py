"""A fork that changes nothing is the recorded turn, wherever it is forked, and calls no tool."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_counts import examples
from forked_turns import KINDS, WIRES, Record, fork, records, repeated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grue.messages import TurnForked
from grue.protocol.chat_wire.formats import WireName
from grue.tracing.diff import diff
from grue.tracing.reading import open_episode
from grue.tracing.replay import replay

_numbers = itertools.count()


@pytest.fixture(scope="module")
def recorded(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[tuple[str, WireName], Record]]:
    with records(tmp_path_factory.mktemp("records")) as found:
        yield found


@pytest.mark.slow
@given(kind=st.sampled_from([*KINDS]), wire=st.sampled_from(WIRES), data=st.data())
@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_an_unchanged_fork_is_the_record_wherever_it_is_forked(
    recorded: dict[tuple[str, WireName], Record],
    tmp_path: Path,
    kind: str,
    wire: WireName,
    data: st.DataObject,
) -> None:
    record = recorded[kind, wire]
    place = data.draw(st.sampled_from([each.seq for each in record.envelopes]), label="the fork is before")
    trace = tmp_path / f"{next(_numbers)}.jsonl"
    check(record, trace, place)
    trace.unlink()  # it has been replayed


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.slow
def test_forks_from_the_first_and_the_last_message(
    recorded: dict[tuple[str, WireName], Record], tmp_path: Path, kind: str, wire: WireName
) -> None:
    record = recorded[kind, wire]
    for place in (None, record.envelopes[-1].seq):
        check(record, tmp_path / f"{place}.jsonl", place)


def check(record: Record, trace: Path, place: int | None) -> None:
    outcome, sent = fork(record, trace, at=place)
    assert outcome.response == record.response
    assert sent == record.requests[len(record.requests) - len(sent) :], (
        "the model is asked the same, byte for byte"
    )
    assert repeated(record, trace) > 0
    assert all(each.divergence is None for each in replay(open_episode(trace)))
    forked = next(each.body for each in open_episode(trace) if isinstance(each.body, TurnForked))
    assert (forked.trace, forked.turn) == (str(record.trace.absolute()), record.turn)
    if record.parts == 1:
        # A turn that was parked has two parts; its fork gets the answers at once, and goes on.
        assert [*diff(open_episode(record.trace), open_episode(trace))] == []
