"""What Langfuse's client is told, by a stand-in for it; the real one is in the integration tests."""

import uuid
from contextlib import nullcontext
from typing import Any

import pytest
from eventful_episode import NOTES, record_episode
from langfuse_stand_in import StandIn
from recorded_turns import STARTED_AT, Called, Play, Tape
from whole_turn import record_turn

from golden import check_golden
from grue.errors import MissingDependencyError
from grue.hosts.skill_agent.facts import RunStarted
from grue.hosts.zork.facts import EpisodeEnded
from grue.messages import RunTurn, Usage
from grue.tracing.observers import langfuse
from grue.tracing.observers.langfuse import LangfuseObserver, require_langfuse, usage_details
from grue.tracing.observers.span_sink import CONTENT_LIMIT

DEADLINE_S = 60.0


def play(*replies: Any, **given: Any) -> StandIn:
    client = StandIn()
    observer = LangfuseObserver(client, session_id="s1", **given)
    run = RunTurn(turn=3, system="You play.", user="A house.", servers=("thoughtbox",), fallback="look")
    tape = Tape(observer)
    Play(tape, run, list(replies))
    tape.say(EpisodeEnded(reason="failed", detail="the game is gone", turns=3), turn=3)
    assert observer.close(DEADLINE_S)
    assert observer.statistics().failed == 0
    return client


def test_a_callers_client_is_told_everything_and_flushed_never_shut_down() -> None:
    client = play([Called("thoughtbox.think", '{"thought": "hm"}', content={"n": 1})], "take lamp")
    assert client.tree() == [
        ("client", "episode"),
        ("episode", "turn 3"),
        ("turn 3", "agent-tool-calling-session"),
        ("agent-tool-calling-session", "Agent"),
        ("agent-tool-calling-session", "mcp-tool-thoughtbox.think"),
        ("agent-tool-calling-session", "Agent"),
    ]
    kinds = [told.given["as_type"] for told in client.log if told.what == "start"]
    assert kinds == ["span", "span", "span", "generation", "tool", "generation"]
    assert client.ended() == [
        "Agent",
        "mcp-tool-thoughtbox.think",
        "Agent",
        "agent-tool-calling-session",
        "turn 3",
        "episode",
    ]
    assert client.beginning("episode")["trace_context"] == {"trace_id": "trace of s1"}
    assert client.flushed.is_set()
    assert not client.shut_down.is_set()


def test_ends_have_the_times_of_the_trace() -> None:
    client = play([Called("thoughtbox.think", took_s=0.2)], "take lamp")
    (ended,) = [told for told in client.log if told[:2] == ("end", "mcp-tool-thoughtbox.think")]
    assert ended.given["end_time"] == int(STARTED_AT * 1e9) + 200_000_000


@pytest.mark.parametrize(("capture", "name"), [(False, "grue"), (True, "Pay Ada.")])
def test_a_title_that_quotes_the_task_names_the_trace_with_content_only(
    monkeypatch: pytest.MonkeyPatch, capture: bool, name: str
) -> None:
    given: list[str] = []
    monkeypatch.setattr(
        langfuse, "_propagation", lambda _, trace_name: given.append(trace_name) or nullcontext
    )
    observer = LangfuseObserver(StandIn(), capture_content=capture)
    Tape(observer).say(RunStarted(episode_id="e", task="Pay Ada."), turn=0)
    assert observer.close(DEADLINE_S)
    assert given == [name]


@pytest.mark.parametrize(
    ("outcome", "content", "status"),
    [
        ("error", "oh", "no such thought"),
        ("timeout", None, "Tool call timed out after 30s"),
        ("died", None, "Tool call failed: killed by SIGKILL"),
    ],
)
def test_a_call_that_failed_is_an_error_with_its_words(outcome: str, content: Any, status: str) -> None:
    client = play([Called("thoughtbox.think", outcome=outcome, content=content)], "look")
    tool = client.ending("mcp-tool-thoughtbox.think")
    assert (tool["level"], tool["status_message"]) == ("ERROR", status)
    assert tool["metadata"] == {"is_error": True, "duration_ms": 200.0}
    assert tool["output"] == {"error": status, "content": content}


def test_without_content_an_error_is_only_its_kind() -> None:
    called = Called("thoughtbox.think", '{"thought": "plugh"}', "error", content="xyzzy")
    client = play([called], "take lamp", capture_content=False)
    tool = client.ending("mcp-tool-thoughtbox.think")
    assert (tool["level"], tool["status_message"]) == ("ERROR", "tool_error")
    assert "final_action" not in client.ending("agent-tool-calling-session")["metadata"]
    for content in ("plugh", "xyzzy", "no such thought", "take lamp", "A house", "the game is gone"):
        assert content not in repr(client.log)


def test_long_content_is_cut_wherever_it_stands() -> None:
    long = "x" * (CONTENT_LIMIT + 5)
    client = play([Called("thoughtbox.think", f'{{"thought": "{long}"}}', content=long)], long)
    for given in (client.beginning("mcp-tool-thoughtbox.think"), client.ending("mcp-tool-thoughtbox.think")):
        (text,) = (given[part] for part in ("input", "output") if part in given)
        assert len(text) < CONTENT_LIMIT + 50
        assert "… [cut: " in text
    assert max(len(repr(entry)) for entry in client.log) < 2 * CONTENT_LIMIT


def test_the_episodes_end_is_judged() -> None:
    client = play("take lamp")
    episode = client.ending("episode")
    assert (episode["level"], episode["status_message"]) == ("ERROR", "the game is gone")
    assert episode["metadata"]["reason"] == "failed"


def test_usage_is_in_classes_that_do_not_overlap() -> None:
    usage = Usage(input_tokens=100, cached_tokens=60, output_tokens=40, reasoning_tokens=30)
    details = usage_details(usage)
    assert details == {
        "input": 40,
        "input_cached_tokens": 60,
        "output": 10,
        "output_reasoning_tokens": 30,
    }
    assert sum(details.values()) == 140
    assert usage_details(Usage()) == {"input": 0, "output": 0}


def test_without_the_package_there_is_one_warning_and_a_normal_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langfuse, "find_spec", lambda name: None)
    warnings: list[str] = []
    observer = LangfuseObserver(warn=warnings.append)
    tape = Tape(observer)
    end = Play(tape, RunTurn(turn=1, system="You play.", user="A house."), ["take lamp"]).end
    assert end.answer == {"action": "take lamp"}
    assert (observer.client, observer.statistics().taken) == (None, 0)
    assert warnings == [
        "Langfuse is not installed: pip install 'langfuse>=5,<6'. The episode continues without it."
    ]
    with pytest.raises(MissingDependencyError, match=r"pip install 'langfuse>=5,<6'"):
        require_langfuse()


def test_without_keys_there_is_one_warning_and_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langfuse, "find_spec", lambda name: object())
    for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    warnings: list[str] = []
    assert LangfuseObserver(warn=warnings.append).client is None
    assert warnings == ["Nothing is sent to Langfuse: LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY not set."]


@pytest.mark.parametrize("capture_content", [True, False])
def test_everything_that_can_happen_has_its_observation(capture_content: bool) -> None:
    client = StandIn()
    observer = LangfuseObserver(client, capture_content=capture_content)
    record_episode(Tape(observer))
    assert observer.close(DEADLINE_S)
    assert observer.statistics().failed == 0
    spans = ["episode", "turn 3", "agent-tool-calling-session", "Agent", "mcp-tool-a.t", "Agent"]
    assert [name for _, name in client.tree() if name not in NOTES] == spans
    assert [name for _, name in client.tree() if name in NOTES] == NOTES
    assert sorted(client.ended()) == sorted([*spans, *NOTES])
    retried = client.beginning("completion_retried")
    words = "busy" if capture_content else "unavailable"
    assert (retried["level"], retried["status_message"]) == ("WARNING", words)
    assert client.beginning("tool_skipped")["metadata"]["tool_name"] == "a.t"
    assert client.ending("turn 3")["metadata"]["kind"] == "failed"
    first, second = [told.given for told in client.log if told[:2] == ("update", "Agent")]
    assert (first["model"], first["cost_details"]) == ("m-2-0601", {"total": 0.5})
    assert second["level"] == "ERROR"


@pytest.mark.slow
def test_a_client_of_the_environment_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langfuse", reason="langfuse is not installed: pip install 'grue[langfuse]'")
    from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", f"pk-made-up-{uuid.uuid4().hex}")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-made-up")
    monkeypatch.setenv("LANGFUSE_BASE_URL", "http://127.0.0.1:9")
    observer = LangfuseObserver()
    assert observer.close()
    assert isinstance(get_tracer_provider(), ProxyTracerProvider)
    observer.client.shutdown()
    observer.client._resources.tracer_provider.shutdown()


def test_an_environment_that_makes_no_client_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langfuse", reason="langfuse is not installed: pip install 'grue[langfuse]'")
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", f"pk-made-up-{uuid.uuid4().hex}")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-made-up")
    monkeypatch.setenv("LANGFUSE_SAMPLE_RATE", "2")
    warnings: list[str] = []
    assert LangfuseObserver(warn=warnings.append).client is None
    (warning,) = warnings
    assert warning.startswith("Nothing is sent to Langfuse: no client could be created: Sample rate")


def test_the_observations_are_those_of_the_golden_file() -> None:
    client = StandIn()
    observer = LangfuseObserver(client, session_id="s1")
    record_turn(observer)
    assert observer.close(DEADLINE_S)
    assert observer.statistics().failed == 0
    said = [[told.what, told.whose, told.given] for told in client.log]
    check_golden("spans_langfuse.json", said)
    root = client.ending("episode")
    assert (root["input"], root["output"], root.get("level")) == ("A house.", {"action": "take lamp"}, None)
