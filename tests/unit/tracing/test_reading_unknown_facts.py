"""Facts of hosts that are not installed are read as data, and written back as they were."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.errors import TraceError
from grue.runtime.trace.format import FORMAT
from grue.tracing.facts import EpisodeEnded, EpisodeStarted, Fact
from grue.tracing.message_words import kind_of, summarize
from grue.tracing.reading import read_episode, unknown_fact, with_hosts_fields
from grue.tracing.show import json_line
from grue.tracing.turn_slices import turn_of

pytestmark = pytest.mark.made_up_trace


def trace(tmp_path: Path, *bodies: dict[str, Any], receiver: str = "trace") -> Path:
    header = {"format": FORMAT, "episode": "e", "started_at": 0.0, "version": "0"}
    lines = [header]
    for seq, body in enumerate(bodies, start=1):
        line = {"seq": seq, "t": 0.0, "at": 0.0, "turn": 0, "from": "host", "to": receiver, "cause": None}
        lines.append({**line, "body": body})
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


NESTED = {"type": "other.Thing", "turn": 4, "n": 1, "of": {"a": [None, True, "é"]}}
CONFUSING = {"type": "other.Odd", "summary": "x", "class": 1, "a b": 2, "__init__": 3, "field_0": 4, "": 5}


@pytest.mark.parametrize("body", [NESTED, CONFUSING, {"type": "Sneezed"}])
def test_an_unknown_fact_is_kept_as_it_is(tmp_path: Path, body: dict[str, Any]) -> None:
    (envelope,) = read_episode(trace(tmp_path, body)).envelopes
    assert isinstance(envelope.body, Fact)
    assert kind_of(envelope.body) == body["type"]
    assert json.loads(json_line(envelope))["body"] == body


def test_it_is_shown_by_its_fields_in_its_turn(tmp_path: Path) -> None:
    (envelope,) = read_episode(trace(tmp_path, NESTED)).envelopes
    assert summarize(envelope.body) == 'n 1, of {"a":[null,true,"é"]}'
    assert turn_of(envelope) == 4


def test_a_turn_that_is_no_number_is_no_turn(tmp_path: Path) -> None:
    bodies = [{"type": "other.Thing", "turn": turn} for turn in ("seven", None, True, 2.5, [1])]
    assert [turn_of(envelope) for envelope in read_episode(trace(tmp_path, *bodies)).envelopes] == [0] * 5


def test_fields_that_a_host_adds_to_the_start_of_an_episode_are_kept(tmp_path: Path) -> None:
    body = {"type": "EpisodeResumed", "episode_id": "e", "turns": 2, "desk": {"open": True}, "title": "t"}
    (envelope,) = read_episode(trace(tmp_path, body)).envelopes
    written = json.loads(json_line(envelope))["body"]
    assert {name: written[name] for name in body} == body
    started = {"type": "EpisodeStarted", "episode_id": "e", "game": "g", "game_hash": "h", "seed": 1}
    (envelope,) = read_episode(trace(tmp_path, started)).envelopes
    assert isinstance(envelope.body, EpisodeStarted)


def test_an_episode_of_another_host_is_not_taken_for_a_games(tmp_path: Path) -> None:
    from grue.hosts.zork import facts

    game = {"type": "EpisodeStarted", "episode_id": "e", "game": "g", "game_hash": "h", "seed": 1}
    end = {"type": "EpisodeEnded", "reason": "won", "detail": "d", "turns": 1}
    bodies = (
        game,
        {"type": "EpisodeStarted", "episode_id": "e"},
        {**game, "seed": "none", "planted": 3},
        {**end, "score": 3, "max_score": None},
        {**end, "reason": "sold", "price": 3},
        end,
    )
    kinds = [type(envelope.body) for envelope in read_episode(trace(tmp_path, *bodies)).envelopes]
    games = [facts.EpisodeStarted, facts.EpisodeEnded]
    assert [kind in games for kind in kinds] == [True, False, False, True, False, False]
    assert all(issubclass(kind, EpisodeStarted | EpisodeEnded) for kind in kinds)


@pytest.mark.parametrize(
    ("body", "receiver"), [({"type": "Sneezed"}, "agent"), ({"type": "no\x1bname"}, "trace"), ({}, "trace")]
)
def test_an_unknown_message_between_actors_is_an_error(tmp_path: Path, body: Any, receiver: str) -> None:
    said = (
        "not a message this version knows: .* If a later grue or another version of the host has written it"
    )
    with pytest.raises(TraceError, match=said):
        read_episode(trace(tmp_path, body, receiver=receiver))


KEYS = st.text(max_size=6) | st.sampled_from(
    ["summary", "turn", "field_0", "step", "between_turns", "class", "title", "failed", "__class__"]
)
VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.dictionaries(st.text(), st.integers())


@given(st.dictionaries(KEYS, VALUES, max_size=6))
@pytest.mark.slow
def test_any_fields_are_kept_or_refused_and_can_be_presented(fields: dict[str, Any]) -> None:
    fields.pop("type", None)
    end = {"reason": "x", "detail": "d", "turns": 1, "type": "EpisodeEnded"}
    facts: list[tuple[dict[str, Any], Callable[[bytes], Fact]]] = [
        ({"type": "a.B", **fields}, unknown_fact),
        (fields | end, lambda body: with_hosts_fields(EpisodeEnded(reason="x", detail="d", turns=1), body)),
    ]
    for body, read in facts:
        try:
            fact = read(msgspec.json.encode(body))
        except msgspec.DecodeError:
            assert any(char in '\\"' or ord(char) < 32 for name in fields for char in name)
            continue
        assert json.loads(msgspec.json.encode(fact)) == body
        assert isinstance(summarize(fact) + fact.headline() + fact.mark(), str)
        assert fact.log_lines()


@pytest.mark.slow
def test_many_kinds_of_facts_are_read_in_bounded_memory(tmp_path: Path) -> None:
    bodies = [{"type": f"other.Kind{number}", f"f{number}": number} for number in range(1500)]
    assert len(read_episode(trace(tmp_path, *bodies)).envelopes) == 1500
