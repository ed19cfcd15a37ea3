"""The schema of a trace: what is written is valid by it, and what is not is told."""

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_turns import Called, Play, Tape

from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted
from grue.messages import RunTurn
from grue.runtime.trace.file import TraceOptions, TraceWriter
from grue.tracing.reading import known_kinds, trace_schema

pytestmark = pytest.mark.made_up_trace

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install mcp")
THINK = "thoughtbox.think"


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(json.dumps(trace_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(params=[65_536, 80], ids=["bodies in lines", "bodies in files"])
def lines(request: pytest.FixtureRequest, tmp_path: Path) -> list[Any]:
    options = TraceOptions(max_payload_bytes=request.param, version="0")
    writer = TraceWriter(tmp_path / "trace.jsonl", episode="ep-1", options=options)
    tape = Tape(writer)
    tape.recorder.hide("KEY", "planted-secret")
    started = EpisodeStarted(episode_id="ep-1", game="house", game_hash="1", seed=7, model="m")
    tape.say(started, sender="host")
    replies: list[Any] = [
        [Called(THINK, '{"thought": "planted-secret"}', content={"next": False})],
        [Called(THINK, outcome="error"), Called("nowhere.go"), Called(THINK, outcome="timeout")],
        [Called(THINK, outcome="died")],
        "look",
    ]
    run = RunTurn(turn=1, system="s", user="u", servers=("thoughtbox",), fallback={"action": "look"})
    Play(tape, run, replies)
    tape.say(Decided(turn=1, action="look", reasoning="", new_objective=None, kind="answered"))
    tape.say(EpisodeEnded(reason="won", detail="lamp on", turns=1))
    writer.close()
    return [json.loads(line) for line in writer.path.read_bytes().splitlines()]


@pytest.mark.slow
def test_every_line_of_a_trace_is_valid(validator: Any, lines: list[Any]) -> None:
    assert len(lines) > 20
    for line in lines:
        validator.validate(line)


@pytest.mark.parametrize(
    ("key", "value"),
    [("seq", "1"), ("from", None), ("body", {"type": "Sneezed"}), ("body", {"type": "Decided", "turn": 1})],
)
@pytest.mark.slow
def test_what_is_no_line_is_told(validator: Any, lines: list[Any], key: str, value: object) -> None:
    assert not validator.is_valid({**lines[1], key: value})


def test_every_message_is_in_it_with_its_words() -> None:
    definitions = trace_schema()["$defs"]
    for kind in known_kinds().values():
        tag = kind.__struct_config__.tag  # a renamed class keeps the name that older files have
        assert definitions[kind.__name__]["properties"]["type"]["enum"] == [tag]
        assert definitions[kind.__name__]["description"]
