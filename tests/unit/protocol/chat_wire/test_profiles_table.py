"""The table of providers: each profile has the golden bodies of one conversation, and nothing more to prove.

A new provider is a row in `profiles.py` and a file in `tests/recorded/golden`, named for the profile: what
goes out when everything is set that can be. It holds the two requests of a turn that offers a tool, gets a
call of it, and is then forced to its answer. `GRUE_UPDATE_GOLDEN=1` writes the files that are missing or
differ; review them afterwards.
"""

import json
import os
from pathlib import Path
from typing import Any, get_args

import pytest
from case_tables import each_case

from grue.messages import (
    AnswerSchema,
    CallId,
    OfferTools,
    RequireAnswer,
    ServerName,
    SystemText,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.profiles import (
    GENERIC,
    PROFILES,
    profile_for,
)
from grue.protocol.chat_wire.wire_format import Reply
from grue.testing.providers.dialects import dialect_of

GOLDEN = Path(__file__).parents[3] / "recorded" / "golden"
ROWS = [(host, profile) for host, rows in PROFILES.items() for profile in rows]
ALL = [profile for _, profile in ROWS] + [each.profile for each in FORMATS.values()]
SETTINGS = ModelSettings(
    model="some/model",
    temperature=0.5,
    top_p=0.9,
    top_k=40,
    min_p=0.1,
    max_tokens=300,
    stop=("END",),
    reasoning_effort="low",
    extra_body={"metadata": {"user_id": "player"}},
)
THINK = ToolDefinition(
    server=ServerName("think"), tool="think", description="Think.", input_schema={"type": "object"}
)
ANSWER = AnswerSchema(
    "Decision",
    {"type": "object", "properties": {"action": {"type": "string"}, "why": {"type": "string"}}},
)


def bodies(profile: WireProfile) -> list[Any]:
    conversation = EncodedConversation(profile)
    conversation.ask((SystemText("You play."), UserText("Where am I?")), OfferTools((THINK,)))
    bodies = [conversation.body(SETTINGS, stream=True)]
    call = ToolCall(call_id=CallId("call_1"), name="think.think", arguments='{"thought":"A maze?"}')
    conversation.keep(Reply(content="Hm.", tool_calls=(call,)))
    said = (ToolMessage(CallId("call_1"), '{"content":"Yes."}'), UserText("Answer now."))
    conversation.ask(said, RequireAnswer(ANSWER))
    bodies.append(conversation.body(SETTINGS))
    return [json.loads(body) for body in bodies]


def golden_file(profile: WireProfile) -> Path:
    return GOLDEN / f"{profile.name.replace(' ', '_')}.json"


@each_case("profile", ALL)
def test_p15_golden_bodies(profile: WireProfile) -> None:
    file, sent = golden_file(profile), bodies(profile)
    text = json.dumps(sent, indent=2)
    if os.environ.get("GRUE_UPDATE_GOLDEN") and (not file.exists() or json.loads(file.read_text()) != sent):
        file.write_text(f"{text}\n")
    saved = json.loads(file.read_text()) if file.exists() else None
    assert sent == saved, f"{file} has to hold these bodies; GRUE_UPDATE_GOLDEN=1 writes them:\n{text}"


def test_each_profile_has_a_name_and_a_golden_file_of_its_own() -> None:
    assert len({profile.name for profile in ALL}) == len(ALL)
    assert sorted(map(golden_file, ALL)) == sorted(GOLDEN.iterdir())


@each_case("profile", ALL)
def test_p14_p15_r5_8_what_holds_for_every_profile(profile: WireProfile) -> None:
    offered, forced = bodies(profile)
    for body, texts in ((offered, 2), (forced, 3)):
        assert json.dumps(body).count('"cache_control"') == min(profile.cache_markers, texts)
    assert "json_schema" not in json.dumps(offered)
    assert "response_format" not in offered
    dialect = dialect_of(FORMATS[profile.wire].path)
    assert dialect is not None
    chat = [dialect.to_chat({"model": "in the path of some formats", **body}) for body in (offered, forced)]
    assert ["tools" in each for each in chat] == [True, profile.tools_with_forced]
    dotted = '"think.think"' in json.dumps(offered)
    assert dotted == (profile.names != "encoded")


@pytest.mark.parametrize(("host", "profile"), ROWS, ids=lambda value: getattr(value, "name", value))
def test_a_row_is_found_by_its_host_and_format(host: str, profile: WireProfile) -> None:
    for authority in (host, f"eu.{host}", f"{host.upper()}:443"):
        assert profile_for(f"https://{authority}/v1", wire=profile.wire) is profile
    assert profile_for(f"https://{host}.example.net/v1") is GENERIC


def test_a_wire_format_is_one_row_under_the_name_that_settings_use() -> None:
    assert {name: each.profile.wire for name, each in FORMATS.items()} == {n: n for n in get_args(WireName)}
    assert all(dialect_of(each.path) is not None for each in FORMATS.values())
