"""A real Langfuse client, exporting over HTTP to a receiver on loopback: what arrives is what happened."""

import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from observed_turns import MODEL, Watched, answer, echoes
from otlp_receiver import OtlpReceiver, Received

from grue.engine.runner import Runner, TurnRequest
from grue.errors import ActorCrashed
from grue.messages import (
    CompletionReceived,
    RequestCompletion,
    RunTurn,
    ToolCalled,
    ToolReturned,
    ToolTimedOut,
    TurnCompleted,
)
from grue.runtime.actor import Actor
from grue.runtime.trace.recorder import Recorder
from grue.tracing.observers.langfuse import LangfuseObserver

langfuse = pytest.importorskip("langfuse", reason="langfuse is not installed: pip install 'grue[langfuse]'")
tracing = pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry: pip install 'grue[otel]'")

DEADLINE_S = 60.0


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


@pytest.fixture
def clients() -> Iterator[Any]:
    """Makes clients for a base URL, each with a key of its own, and ends them and their threads."""
    made = []

    def make(base_url: str, timeout_s: int = int(DEADLINE_S)) -> Any:
        provider = tracing.TracerProvider(shutdown_on_exit=False)
        client = langfuse.Langfuse(
            public_key=f"pk-made-up-{uuid.uuid4().hex}",
            secret_key="sk-made-up",
            base_url=base_url,
            tracer_provider=provider,
            timeout=timeout_s,
        )
        made.append((client, provider))
        return client

    yield make
    for client, provider in made:
        client.shutdown()
        provider.shutdown()


def watch(receiver: OtlpReceiver, clients: Any, replies: list[Any], **given: Any) -> Watched:
    content = given.pop("capture_content", True)
    observer = LangfuseObserver(clients(receiver.url), capture_content=content)
    watched = Watched(replies, observer, **given)
    assert observer.close(DEADLINE_S)
    assert observer.statistics().failed == 0
    return watched


def family(receiver: OtlpReceiver) -> tuple[Received, Received, Received]:
    """The episode, its turn and the turn's tool-calling session, each inside the one before."""
    episode = receiver.one("episode")
    (turn,) = receiver.children(episode)
    (session,) = [span for span in receiver.children(turn) if span.name == "agent-tool-calling-session"]
    return episode, turn, session


@pytest.mark.slow
def test_r7_4_5_a_turn_is_a_tree_of_observations(receiver: OtlpReceiver, clients: Any) -> None:
    replies = [echoes("one", "two"), answer("take lamp")]
    watched = watch(receiver, clients, replies, episode_id="episode-7")

    episode, turn, session = family(receiver)
    assert [span.name for span in receiver.children(session)] == [
        "Agent",
        "mcp-tool-faulty.echo",
        "mcp-tool-faulty.echo",
        "Agent",
    ]
    assert len(receiver.spans) == 7
    kinds = [span.kind for span in (episode, turn, session, *receiver.children(session))]
    assert kinds == ["span", "span", "span", "generation", "tool", "tool", "generation"]
    trace_id = langfuse.Langfuse.create_trace_id(seed="episode-7")
    for span in receiver.spans:
        assert span.trace_id == trace_id
        assert span.attributes["session.id"] == "episode-7"
        assert span.attributes["langfuse.trace.name"] == "The House"
        assert span.status == "UNSET"
    assert turn.name == "turn 1"
    assert turn.attributes["langfuse.observation.output"] == "take lamp"
    assert session.metadata == {
        "mcp_enabled": True,
        "max_iterations": 20,
        "iterations_used": 1,
        "tools_called": 2,
        "final_action": "take lamp",
    }
    assert (turn.start_ns, turn.end_ns) == tuple(
        watched.at_ns(watched.of(kind)[0]) for kind in (RunTurn, TurnCompleted)
    )
    (how,) = {(path, headers["content-encoding"]) for path, headers in receiver.requests}
    assert how == ("/api/public/otel/v1/traces", "gzip")


@pytest.mark.slow
def test_a_generation_has_model_usage_cost_and_what_was_sent(receiver: OtlpReceiver, clients: Any) -> None:
    watched = watch(receiver, clients, [echoes("one"), answer()])

    first, last = sorted(receiver.named("Agent"), key=lambda span: span.start_ns)
    for span in (first, last):
        assert span.attributes["langfuse.observation.model.name"] == MODEL
        assert span.json("langfuse.observation.usage_details") == {
            "input": 40,
            "output": 10,
            "input_cached_tokens": 60,
            "output_reasoning_tokens": 30,
        }
        assert span.json("langfuse.observation.cost_details") == {"total": 0.0025}
    (call,) = watched.of(CompletionReceived)[0].body.tool_calls
    assert first.json("langfuse.observation.input") == [
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": "Go on."},
    ]
    (wanted,) = first.json("langfuse.observation.output")["tool_calls"]
    assert wanted["function"] == {"name": "faulty.echo", "arguments": call.arguments}
    *before, told = last.json("langfuse.observation.input")
    assert before == [
        *first.json("langfuse.observation.input"),
        first.json("langfuse.observation.output"),
    ]
    assert (told["role"], told["tool_call_id"]) == ("tool", call.call_id)
    assert last.json("langfuse.observation.output") == {"role": "assistant", "content": "done"}
    assert [(span.start_ns, span.end_ns) for span in (first, last)] == [
        (watched.at_ns(asked), watched.at_ns(got))
        for asked, got in zip(watched.of(RequestCompletion), watched.of(CompletionReceived), strict=True)
    ]


def test_p31_a_tool_observation_has_arguments_result_and_times(receiver: OtlpReceiver, clients: Any) -> None:
    watched = watch(receiver, clients, [echoes("one"), answer()])

    span = receiver.one("mcp-tool-faulty.echo")
    called, returned = watched.of(ToolCalled)[0], watched.of(ToolReturned)[0]
    assert span.json("langfuse.observation.input") == {"text": "one"}
    assert span.json("langfuse.observation.output") == returned.body.result.to_dict()
    assert span.metadata == {
        "tool_name": "faulty.echo",
        "server_name": "faulty",
        "timeout_seconds": 10.0,
        "iteration": 1,
        "is_error": False,
        "duration_ms": round(returned.body.duration_s * 1000, 3),
    }
    assert (span.start_ns, span.end_ns) == (watched.at_ns(called), watched.at_ns(returned))


@pytest.mark.slow
def test_a_timeout_is_an_error_and_what_it_skips_a_warning(receiver: OtlpReceiver, clients: Any) -> None:
    replies = [echoes("one", "two", "three"), answer()]
    watched = watch(receiver, clients, replies, flags=("--silent-at", "call"), call_s=0.2)

    _, turn, session = family(receiver)
    (timed_out,) = receiver.named("mcp-tool-faulty.echo")  # the others were never sent
    assert timed_out.attributes["langfuse.observation.level"] == "ERROR"
    assert timed_out.attributes["langfuse.observation.status_message"] == "Tool call timed out after 0.2s"
    assert timed_out.status == "ERROR"
    assert timed_out.metadata["is_error"] is True
    assert timed_out.end_ns == watched.at_ns(watched.of(ToolTimedOut)[0])
    assert timed_out.duration_s >= 0.2
    skipped = receiver.named("tool_skipped")
    assert [span.parent_id for span in skipped] == [session.span_id] * 2
    for span in skipped:
        assert (span.kind, span.duration_s) == ("span", 0.0)
        assert span.metadata["tool_name"] == "faulty.echo"
        assert span.attributes["langfuse.observation.level"] == "WARNING"
        assert "timed out" in span.attributes["langfuse.observation.status_message"]
    assert session.metadata["tools_called"] == 1
    assert "langfuse.observation.level" not in turn.attributes


@pytest.mark.slow
def test_a_dead_server_ends_its_call_and_the_turn_goes_on(receiver: OtlpReceiver, clients: Any) -> None:
    watch(receiver, clients, [echoes("one"), answer("look")], flags=("--kill-at", "call"))

    _, turn, session = family(receiver)
    (died,) = receiver.named("mcp-tool-faulty.echo")
    assert died.attributes["langfuse.observation.level"] == "ERROR"
    assert "SIGKILL" in died.attributes["langfuse.observation.status_message"]
    assert receiver.one("final_forced").metadata == {"reason": "server_died", "iterations": 1}
    assert session.metadata["final_action"] == "look"
    assert turn.metadata["kind"] == "forced"


@pytest.mark.slow
def test_a_crash_ends_what_it_cut_off(receiver: OtlpReceiver, clients: Any) -> None:
    class Broken(Actor[Any]):
        async def receive(self, envelope: Any) -> None:
            raise LookupError("a bug")

    observer = LangfuseObserver(clients(receiver.url))
    recorder = Recorder()
    recorder.add(observer)
    runner = Runner(llm=lambda mailbox, agent, note: Broken(mailbox), recorder=recorder)
    with pytest.raises(ActorCrashed):
        runner.run_turn(TurnRequest(system="Use the tool.", user="Go on."))
    assert observer.close(DEADLINE_S)

    episode = receiver.one("episode")
    (turn,) = receiver.children(episode)
    generation, crash = sorted(receiver.children(turn), key=lambda span: span.name)[:2]
    assert (generation.name, generation.attributes["langfuse.observation.level"]) == ("Agent", "WARNING")
    assert (crash.name, crash.metadata) == ("actor_failed", {"actor": "llm"})
    status = turn.attributes["langfuse.observation.status_message"]
    assert status.startswith("llm: LookupError: a bug (in test_a_crash_ends_what_it_cut_off")
    assert turn.status == "ERROR"
    assert generation.end_ns <= turn.end_ns <= episode.end_ns


@pytest.mark.slow
def test_without_content_only_names_sizes_and_usage_leave_the_process(
    receiver: OtlpReceiver, clients: Any
) -> None:
    replies = [echoes("plugh-argument"), answer("xyzzy-answer")]
    watch(receiver, clients, replies, capture_content=False)

    everything = repr(receiver.spans)
    for content in ("plugh", "xyzzy", "Use the tool", "Go on"):
        assert content not in everything
    tool = receiver.one("mcp-tool-faulty.echo")
    assert tool.metadata["input_chars"] == len('{"text":"plugh-argument"}')
    assert tool.metadata["output_chars"] > 0
    (first, _) = receiver.named("Agent")
    assert first.json("langfuse.observation.usage_details")["input"] == 40


@pytest.fixture(params=["refused", "hangs"])
def dead_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "hangs":
        with OtlpReceiver(hang=True) as receiver:
            yield receiver.url
    else:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        yield f"http://127.0.0.1:{port}"


def test_p32_a_dead_backend_changes_no_message_of_a_turn(dead_backend: str, clients: Any) -> None:
    def replies() -> list[Any]:
        return [echoes("one", "two"), answer("take lamp")]

    alone = Watched(replies())
    client = clients(dead_backend, timeout_s=1)
    observer = LangfuseObserver(client)
    watched = Watched(replies(), observer)
    assert observer.close(DEADLINE_S)
    assert watched.told() == alone.told()
    assert watched.outcome.response == alone.outcome.response == "take lamp"
    assert observer.statistics().failed == 0


def test_p32_no_call_of_the_client_is_made_in_the_turns_threads(clients: Any) -> None:
    """So that nothing it does, however long it takes, can hold up a turn."""

    class Witness:
        def __init__(self) -> None:
            self.threads: set[str] = set()
            self.may_go_on = threading.Event()

        def __getattr__(self, name: str) -> Any:
            self.threads.add(threading.current_thread().name)
            assert self.may_go_on.wait(DEADLINE_S)
            return lambda *args, **fields: self

    witness = Witness()
    observer = LangfuseObserver(witness)
    watched = Watched([echoes("one"), answer("take lamp")], observer)
    assert watched.outcome.response == "take lamp"  # while the client has not answered one call
    assert observer.statistics().waiting > 0
    witness.may_go_on.set()
    assert observer.close(DEADLINE_S)
    assert witness.threads == {"grue-langfuse"}


FROM_THE_ENVIRONMENT = """
import sys
from observed_turns import Watched, answer, echoes
from opentelemetry import trace
from grue.tracing.observers.langfuse import LangfuseObserver

if __name__ == "__main__":
    observer = LangfuseObserver()
    watched = Watched([echoes("one"), answer("take lamp")], observer)
    assert watched.outcome.response == "take lamp"
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
"""


def run_from_the_environment(**environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LANGFUSE_", "OTEL_"))}
    path = os.pathsep.join(each for each in sys.path if each)
    return subprocess.run(
        [sys.executable, "-c", FROM_THE_ENVIRONMENT],
        env={**kept, **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


KEYS = {"LANGFUSE_PUBLIC_KEY": "pk-made-up", "LANGFUSE_SECRET_KEY": "sk-made-up"}


@pytest.mark.slow
def test_a_client_of_the_environment_sends_by_the_end_of_the_program(receiver: OtlpReceiver) -> None:
    done = run_from_the_environment(**KEYS, LANGFUSE_BASE_URL=receiver.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(receiver.spans) == 6
    _, headers = receiver.requests[0]
    assert headers["authorization"].startswith("Basic ")
    assert headers["x-langfuse-ingestion-version"] == "4"


@pytest.mark.slow
def test_missing_keys_are_one_warning() -> None:
    done = run_from_the_environment(LANGFUSE_PUBLIC_KEY="pk-made-up")
    assert done.returncode == 0
    assert done.stderr == "Nothing is sent to Langfuse: LANGFUSE_SECRET_KEY not set.\n"


@pytest.mark.slow
def test_a_dead_backend_is_one_warning(dead_backend: str) -> None:
    done = run_from_the_environment(**KEYS, LANGFUSE_BASE_URL=dead_backend)
    assert done.returncode == 0
    (warning,) = done.stderr.splitlines()
    assert "langfuse" in warning.lower()
    assert "made-up" not in warning
