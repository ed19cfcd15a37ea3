"""Profiles: which one an endpoint, a model and a wanted format get, and what it lets through."""

import msgspec
import pytest
from case_tables import each_case

from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile, left_out
from grue.protocol.chat_wire.profiles import (
    ANTHROPIC,
    ANTHROPIC_CHAT,
    DEEPSEEK,
    GEMINI,
    GENERIC,
    GENERIC_MESSAGES,
    GENERIC_RESPONSES,
    GROQ,
    MISTRAL,
    OPENAI,
    OPENAI_CHAT,
    OPENROUTER,
    PROFILES,
    XAI,
    profile_for,
    wire_of,
)


@each_case(
    "base_url, profile",
    [
        ("https://openrouter.ai/api/v1", OPENROUTER),
        ("https://OpenRouter.ai:443/api/v1/", OPENROUTER),
        ("https://openrouter.ai./api/v1", OPENROUTER),
        ("https://api.openai.com/v1", OPENAI),
        ("https://eu.api.openai.com/v1", OPENAI),
        ("https://api.openai.com/v1/chat/completions", OPENAI_CHAT),
        ("https://api.openai.com/v1/responses/", OPENAI),
        ("https://api.anthropic.com/v1", ANTHROPIC),
        ("https://api.anthropic.com/v1/messages", ANTHROPIC),
        ("https://api.anthropic.com/v1/chat/completions", ANTHROPIC_CHAT),
        ("https://api.deepseek.com", DEEPSEEK),
        ("https://api.groq.com/openai/v1", GROQ),
        ("https://generativelanguage.googleapis.com/v1beta/openai/", GEMINI),
        ("https://api.mistral.ai/v1", MISTRAL),
        (" https://api.x.ai/v1", XAI),
        ("https://notopenrouter.ai/api/v1", GENERIC),
        ("https://api.openai.com.example.net/v1", GENERIC),
        ("http://127.0.0.1:8000/v1", GENERIC),
        ("http://localhost:11434/v1", GENERIC),
        ("http://localhost:4000/v1/messages", GENERIC_MESSAGES),
        ("http://localhost:4000/v1/responses?a=b", GENERIC_RESPONSES),
        ("http://localhost:4000/v1/messages/chat/completions", GENERIC),
        ("", GENERIC),
    ],
)
def test_a_profile_is_recognised_by_its_base_url(base_url: str, profile: WireProfile) -> None:
    assert profile_for(base_url) is profile


@pytest.mark.parametrize(
    ("base_url", "wire", "profile"),
    [
        ("https://api.openai.com/v1", "chat_completions", OPENAI_CHAT),
        ("https://api.openai.com/v1/chat/completions", "responses", OPENAI),
        ("https://api.anthropic.com/v1", "chat_completions", ANTHROPIC_CHAT),
        ("http://localhost/v1", "messages", GENERIC_MESSAGES),
        ("http://localhost/v1/messages", "chat_completions", GENERIC),
    ],
)
def test_a_format_that_is_asked_for_outranks_the_url(
    base_url: str, wire: WireName, profile: WireProfile
) -> None:
    assert profile_for(base_url, wire=wire) is profile


def test_a_known_host_in_another_format_keeps_its_key() -> None:
    profile = profile_for("https://openrouter.ai/api/v1", wire="messages")
    assert profile == msgspec.structs.replace(GENERIC_MESSAGES, key_variable="OPENROUTER_API_KEY")


@pytest.mark.parametrize(
    ("base_url", "wire"),
    [
        ("https://h/v1/chat/completions", "chat_completions"),
        ("https://h/v1/responses/", "responses"),
        ("https://h/v1/messages", "messages"),
        ("https://h/v1", None),
        ("https://h/v1/messages/x", None),
    ],
)
def test_the_format_that_a_url_names(base_url: str, wire: WireName | None) -> None:
    assert wire_of(base_url) == wire


@pytest.mark.parametrize(
    ("model", "role", "sampling"),
    [
        ("o3-mini", "developer", {"max_tokens"}),
        ("gpt-5.2", "developer", {"max_tokens"}),
        ("O1", "developer", {"max_tokens"}),
        ("ft/gpt-12-nano", "developer", {"max_tokens"}),
        ("o1-preview", "user", {"max_tokens"}),
        ("o1-mini-2024-09-12", "user", {"max_tokens"}),
    ],
)
def test_openais_reasoning_models_sample_as_they_see_fit(model: str, role: str, sampling: set[str]) -> None:
    for url in ("https://api.openai.com/v1", "https://api.openai.com/v1/chat/completions"):
        profile = profile_for(url, model)
        assert (profile.system_role, profile.sampling) == (role, sampling)
        assert profile.wire == profile_for(url).wire


@pytest.mark.parametrize("model", ["gpt-4o", "ft:x/gpt-4.1-mini", "gpt-3.5-turbo", "chatgpt-4o-latest"])
def test_openais_models_that_do_not_reason_are_not_asked_for_their_reasoning(model: str) -> None:
    assert profile_for("https://api.openai.com/v1", model) == msgspec.structs.replace(
        OPENAI, reasoning="none"
    )
    assert profile_for("https://api.openai.com/v1/chat/completions", model) is OPENAI_CHAT


@pytest.mark.parametrize("model", ["gpt-5-chat-latest", "foo1", "my-gpt-4o", ""])
def test_other_models_are_as_their_endpoint(model: str) -> None:
    assert profile_for("https://api.openai.com/v1", model) is OPENAI
    assert profile_for("https://openrouter.ai/api/v1", "openai/o3") is OPENROUTER


def test_every_row_can_be_chosen_and_has_a_format_and_a_key_of_its_own() -> None:
    for host, rows in PROFILES.items():
        assert [profile_for(f"https://{host}/v1", wire=row.wire) for row in rows] == list(rows)
        assert len({row.key_variable for row in rows}) == 1
        assert all(row.wire in FORMATS for row in rows)
    names = [row.name for rows in PROFILES.values() for row in rows]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("default", "most", "wanted", "limit"),
    [
        (None, None, None, None),
        (None, None, 5, 5),
        (9, None, None, 9),
        (9, None, 5, 5),
        (None, 4, 5, 4),
        (9, 4, None, 4),
        (None, 4, None, None),
    ],
)
def test_the_limit_on_a_replys_length(
    default: int | None, most: int | None, wanted: int | None, limit: int | None
) -> None:
    profile = msgspec.structs.replace(GENERIC, default_max_tokens=default, max_output_tokens=most)
    settings = ModelSettings(model="m", max_tokens=wanted)
    assert profile.limit(settings) == limit
    assert profile.sampled(settings) == ({} if limit is None else {"max_tokens": limit})


def test_the_usual_limit_leaves_room_for_the_thoughts_that_are_asked_for() -> None:
    assert ANTHROPIC.limit(ModelSettings(model="m", reasoning_tokens=9000)) == 8192 + 9000
    assert ANTHROPIC.limit(ModelSettings(model="m", reasoning_tokens=9000, max_tokens=9500)) == 9500


def test_an_endpoint_that_takes_no_limit_is_sent_none() -> None:
    profile = msgspec.structs.replace(GENERIC, sampling=frozenset({"temperature"}))
    settings = ModelSettings(model="m", max_tokens=5, temperature=0.0, stop=("x",))
    assert profile.limit(settings) is None
    assert profile.sampled(settings) == {"temperature": 0.0}


def test_how_names_go_out() -> None:
    styles = {
        names: msgspec.structs.replace(GENERIC, names=names).name_style
        for names in ("canonical", "encoded", "learn")
    }
    assert styles == {"canonical": "canonical", "encoded": "encoded", "learn": "canonical"}


def test_settings_that_requests_leave_out_are_named() -> None:
    settings = ModelSettings(model="m", temperature=0.0, top_k=4, max_tokens=5, stop=())
    assert left_out(ANTHROPIC, settings) == {"temperature", "top_k"}
    assert left_out(GENERIC, settings) == set()
    assert left_out(ANTHROPIC, ModelSettings(model="m", stop=("x",))) == set()


@pytest.mark.parametrize("url", ["https://openrouter.ai/api/v1", "http://gateway.test/v1"])
def test_the_first_reasoning_models_get_their_instructions_from_the_user_at_every_host(url: str) -> None:
    assert profile_for(url, "openai/o1-mini").system_role == "user"
    assert profile_for(url, "openai/o1").system_role == "system"
