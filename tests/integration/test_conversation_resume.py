"""A conversation that goes on in another process: from its file, from its trace, at another endpoint."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from media import PNG
from talks import WIRES, changed_prefixes, chatty, runner_for, said_to

from grue import ContextPolicy, Conversation, Recorder, Runner, TraceWriter, TurnRequest
from grue.errors import ConversationError
from grue.messages import HistoryRewritten, RewriteHistory, ThoughtsDropped
from grue.protocol.chat_wire.formats import WireName
from grue.testing.llm_server import (
    ContextWindow,
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    error_reply,
    text_reply,
)
from grue.testing.providers.chat_rules import ProviderRules
from grue.tracing.reading import read_episode


@pytest.fixture
def server() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(chatty) as server:
        yield server


def traced(path: Path) -> tuple[Recorder, TraceWriter]:
    recorder = Recorder(secrets={"code": "open-sesame"})
    writer = TraceWriter(path, episode="talks")
    recorder.add(writer)
    return recorder, writer


def gapped(path: Path, runner: Runner) -> Conversation:
    return Conversation.load(path, runner) if path.exists() else runner.conversation(path=path, name="gap")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.slow
def test_a_conversation_goes_on_from_its_trace_as_if_nothing_had_happened(
    tmp_path: Path, server: ScriptedLlmServer, wire: WireName
) -> None:
    recorder, writer = traced(tmp_path / "trace.jsonl")
    talk = runner_for(server, wire, recorder=recorder).conversation("Answer briefly.", name="talk")
    for number in range(1, 5):
        talk.ask(f"Question {number}?", images=[PNG] if number == 2 else ())
    branch = talk.branch()
    branch.ask("And besides?")
    writer.close()
    for name, asked in (("talk", 9), (None, 11)):
        resumed = Conversation.from_trace(tmp_path / "trace.jsonl", runner_for(server, wire), name=name)
        assert resumed.history == (talk if name else branch).history
        assert len([item for item in resumed.history if hasattr(item, "echo")]) == (5 if name else 6)
        del server.requests[asked:]
    resumed = Conversation.from_trace(tmp_path / "trace.jsonl", runner_for(server, wire), name="talk")
    del server.requests[5:]
    assert resumed.ask("Question 5?").response == "Answer 5."
    assert changed_prefixes(server, wire) == 0


def test_a_conversation_goes_on_from_its_trace_if_a_summary_was_refused_because_of_an_image(
    tmp_path: Path,
) -> None:
    def answer(request: LlmRequest) -> LlmReply:
        said = str(request.messages)
        if "replaced by your summary" in said:
            return error_reply(400, "weird") if "image_url" in said else text_reply("Much was said.")
        return text_reply("seen")

    recorder, writer = traced(tmp_path / "trace.jsonl")
    with ScriptedLlmServer(answer, window=ContextWindow(8000)) as server:
        policy = ContextPolicy(window_tokens=8000, reply_tokens=500)
        talk = runner_for(server, recorder=recorder, context=policy).conversation("Look.", name="talk")
        for number in range(8):
            talk.ask("The troll is still here. " * 160, images=[PNG] if number == 0 else ())
        writer.close()
        bodies = [envelope.body for envelope in read_episode(tmp_path / "trace.jsonl").envelopes]
        assert any(isinstance(body, RewriteHistory) for body in bodies)
        resumed = Conversation.from_trace(tmp_path / "trace.jsonl", runner_for(server), name="talk")
    assert resumed.history == talk.history


def test_a_turn_of_its_own_can_be_continued_too(tmp_path: Path, server: ScriptedLlmServer) -> None:
    recorder, writer = traced(tmp_path / "trace.jsonl")
    runner = runner_for(server, recorder=recorder)
    for text in ("One?", "Two?"):
        runner.run_turn(TurnRequest[str](system="Answer briefly.", user=text))
    writer.close()
    talk = Conversation.from_trace(tmp_path / "trace.jsonl", runner_for(server), name="turn-1")
    talk.ask("And then?")
    assert said_to(server) == ["Answer briefly.", "One?", "Answer 1.", "And then?"]


@pytest.mark.slow
def test_what_a_trace_does_not_hold_is_not_resumed(tmp_path: Path, server: ScriptedLlmServer) -> None:
    recorder, writer = traced(tmp_path / "trace.jsonl")
    runner = runner_for(server, recorder=recorder)
    secret = runner.conversation("Answer briefly.", name="secret")
    secret.ask("Say open-sesame.")
    early = runner_for(server).conversation(path=tmp_path / "talk.jsonl", name="late")
    early.ask("Before the trace?")
    early.close()
    Conversation.load(tmp_path / "talk.jsonl", runner).ask("In it?")
    for asker in (runner, runner_for(server), runner):  # the second one leaves no trace
        with gapped(tmp_path / "gap.jsonl", asker) as talk:
            talk.ask("And now?")
    secret.ask("And what did I say?")
    writer.close()
    for name, why in (
        ("secret", r"a secret was redacted in turn 1 \(RunTurn\)\. Load its saved file"),
        ("late", r"the trace does not hold what was said before turn 2\. Load its saved file"),
        ("gap", r"the trace does not hold what was said before turn 4\. Load its saved file"),
        ("other", r"holds no conversation other\. It holds: secret, late, gap\."),
    ):
        with pytest.raises(ConversationError, match=why):
            Conversation.from_trace(tmp_path / "trace.jsonl", runner, name=name)


@pytest.mark.slow
def test_another_model_is_sent_all_but_the_thoughts_that_it_cannot_read(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    path = tmp_path / "talk.jsonl"
    with runner_for(server, "messages").conversation("Answer briefly.", path=path) as talk:
        for number in range(1, 4):
            talk.ask(f"Question {number}?")
    assert b"Reason 1" in server.requests[-1].raw
    recorder, writer = traced(tmp_path / "trace.jsonl")
    with ScriptedLlmServer(chatty) as another:
        for number, wire in enumerate(("messages", "responses", "chat_completions"), start=4):
            with Conversation.load(path, runner_for(another, wire, model="other", recorder=recorder)) as talk:
                assert talk.ask(f"Question {number}?", tools=False).response == f"Answer {number}."
            assert b"Reason 1" not in another.requests[-1].raw
            assert b"seen 3-a" in another.requests[-1].raw
        assert [request.refused for request in another.requests if request.refused] == []
    writer.close()
    bodies = [envelope.body for envelope in read_episode(tmp_path / "trace.jsonl").envelopes]
    dropped = [body for body in bodies if isinstance(body, ThoughtsDropped)]
    assert [(each.wire, each.model, each.replies) for each in dropped] == [
        ("messages", "other", 4), ("responses", "other", 5), ("chat_completions", "other", 6)
    ]  # fmt: skip
    with Conversation.load(path, runner_for(server, "messages")) as talk:
        talk.ask("Question 7?")
    assert b"Reason 1" in server.requests[-1].raw, "what the other model could not read is still there"


def test_what_was_learned_of_the_endpoint_is_loaded_too(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    with ScriptedLlmServer(chatty, rules=ProviderRules(strict_names=True)) as server:
        with runner_for(server).conversation("Answer briefly.", path=path) as talk:
            talk.ask("Question 1?")
        assert [bool(request.refused) for request in server.requests] == [True, False]
        for number in range(2, 5):
            with Conversation.load(path, runner_for(server)) as talk:
                talk.ask(f"Question {number}?")
        assert [request.refused for request in server.requests[1:] if request.refused] == []
        del server.requests[0]
        assert changed_prefixes(server) == 0


def test_a_schema_that_was_told_beside_tools_is_loaded_too(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    with ScriptedLlmServer(['{"value": 3}', "It was 3."]) as server:
        with runner_for(server).conversation("Answer briefly.", path=path) as talk:
            assert talk.ask("How many?", answer=int).response == 3
            written = talk.history
        with Conversation.load(path, runner_for(server)) as talk:
            assert talk.history == written
            talk.ask("Which number was it?")
        assert "JSON" in server.requests[0].messages[-1]["content"]
        assert changed_prefixes(server) == 0


def test_a_schema_is_told_beside_tools_if_an_earlier_turn_asked_for_it_without(tmp_path: Path) -> None:
    path, trace = tmp_path / "talk.jsonl", tmp_path / "trace.jsonl"
    recorder, writer = traced(trace)
    with ScriptedLlmServer(['{"value": 3}'] * 5) as server:
        with runner_for(server, recorder=recorder).conversation("Be brief.", path=path, name="talk") as talk:
            for number, tools in enumerate((False, True, True)):
                talk.ask(f"Question {number}?", answer=int, tools=tools)
            written = talk.history
        writer.close()
        assert ["JSON" in request.messages[-1]["content"] for request in server.requests] == [
            False, True, False
        ]  # fmt: skip
        for resumed in (
            Conversation.from_trace(trace, runner_for(server)),
            Conversation.load(path, runner_for(server)),
        ):
            with resumed:
                assert resumed.history == written
                resumed.ask("And now?", answer=int)
                assert "JSON" not in server.requests[-1].messages[-1]["content"]
        assert changed_prefixes(server) == 0


def test_an_image_that_the_endpoint_refused_is_dropped_for_good(tmp_path: Path) -> None:
    def blind(request: LlmRequest) -> LlmReply:
        return error_reply(400, "Bad request.") if b"image_url" in request.raw else chatty(request)

    path = tmp_path / "talk.jsonl"
    recorder, writer = traced(tmp_path / "trace.jsonl")
    with ScriptedLlmServer(blind) as server:
        with runner_for(server, recorder=recorder).conversation(path=path, name="talk") as talk:
            talk.ask("What is this?", images=[PNG])
            written = talk.history
        writer.close()
        assert len(server.requests) == 2
        for resumed in (
            Conversation.from_trace(tmp_path / "trace.jsonl", runner_for(server)),
            Conversation.load(path, runner_for(server)),
        ):
            assert resumed.history == written
            assert resumed.ask("And now?").response == "Answer 2."
            assert "not shown: the model's endpoint refused it" in said_to(server)[0]
        assert len(server.requests) == 4
    bodies = [envelope.body for envelope in read_episode(tmp_path / "trace.jsonl").envelopes]
    assert [body.reason for body in bodies if isinstance(body, HistoryRewritten)] == [
        "the endpoint refused a request with images or files"
    ]


KILLED = """
import os, signal, sys
from grue import FunctionTools, LlmSettings, Runner

def look(at):
    print("called", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

runner = Runner(
    llm=LlmSettings(base_url=sys.argv[1], model="scripted", api_key="key"),
    servers={"house": FunctionTools({"look": look})},
)
talk = runner.conversation("Answer briefly.", path=sys.argv[2])
for number in range(1, 4):
    talk.ask(f"Question {number}?")
"""


@pytest.mark.slow
def test_a_process_that_is_killed_in_a_tool_call_leaves_a_conversation_to_go_on_with(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    path = tmp_path / "talk.jsonl"
    command = [sys.executable, "-c", KILLED, server.base_url, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "called\n"), done.stderr
    with path.open("ab") as file:
        file.write(b'{"type":"said","items":[{"ty')  # what a kill in the middle of a write leaves
    with Conversation.load(path, runner_for(server)) as talk:
        assert talk.ask("What happened?").response == "Answer 4."
    results = [message["content"] for message in server.requests[-1].messages if message["role"] == "tool"]
    assert results == ["Error: interrupted; it may have taken effect"] * 2
    assert changed_prefixes(server) == 0
    with Conversation.load(path, runner_for(server)) as talk:
        assert talk.ask("Again?").response == "Answer 5."
    assert changed_prefixes(server) == 0
    assert path.stat().st_mode & 0o777 == 0o600


def batch(
    folder: Path, server: ScriptedLlmServer, questions: list[str], *, trace: str = "", resume_from: str = ""
) -> list[tuple[str, bool]]:
    """Ask each of two saved conversations a question; return the answers and whether they were recalled."""
    runner = runner_for(server, trace=folder / trace if trace else None)
    paths = [folder / f"{number}.jsonl" for number in range(2)]
    with runner:
        talks = [
            Conversation.load(path, runner) if path.exists() else runner.conversation("Be brief.", path=path)
            for path in paths
        ]
        requests = [talk.request(text) for talk, text in zip(talks, questions, strict=True)]
        items = list(runner.map(requests, resume_from=folder / resume_from if resume_from else None))
        for talk in talks:
            talk.close()
    assert [item.error for item in items] == [None, None]
    return [(item.outcome.response, item.recalled) for item in items if item.outcome is not None]


@pytest.mark.slow
def test_a_batch_recalls_turns_of_conversations_where_they_stand_before_or_after_them(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    batch(tmp_path, server, ["One?", "Eins?"])
    batch(tmp_path, server, ["Two?", "Zwei?"])
    before = {path: path.read_bytes() for path in tmp_path.glob("?.jsonl")}
    first = batch(tmp_path, server, ["Three?", "Drei?"], trace="trace.jsonl")
    after = {path: path.read_bytes() for path in before}
    assert first == [("Answer 3.", False)] * 2
    asked = len(server.requests)
    again = batch(tmp_path, server, ["Three?", "Drei?"], resume_from="trace.jsonl")
    assert again == [("Answer 3.", True)] * 2, "the files hold the turns already"
    assert {path: path.read_bytes() for path in before} == after
    for path, content in before.items():
        path.write_bytes(content)
    again = batch(tmp_path, server, ["Three?", "Drei?"], resume_from="trace.jsonl")
    assert again == [("Answer 3.", True)] * 2
    assert len(server.requests) == asked
    with Conversation.load(tmp_path / "0.jsonl", runner_for(server)) as talk:
        said = talk.history
    assert [item.content for item in said if hasattr(item, "call_id")] == [
        "seen 3-a", "seen 3-b"
    ]  # fmt: skip
    assert batch(tmp_path, server, ["Four?", "Vier?"]) == [("Answer 4.", False)] * 2
    assert said_to(server)[-1] in ("Four?", "Vier?")
    assert len(said_to(server)) == 11


def test_a_batch_asks_again_where_the_text_or_what_was_said_before_has_changed(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    batch(tmp_path, server, ["One?", "Eins?"], trace="trace.jsonl")
    (tmp_path / "0.jsonl").unlink()
    again = batch(tmp_path, server, ["Another?", "Eins?"], resume_from="trace.jsonl")
    assert again == [("Answer 1.", False), ("Answer 1.", True)]
    again = batch(tmp_path, server, ["One?", "Eins?"], resume_from="trace.jsonl")
    assert again == [("Answer 2.", False), ("Answer 1.", True)]
