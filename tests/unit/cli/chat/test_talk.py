"""A chat without a terminal: what it keeps, what it takes back, and how it goes on."""

import json
from pathlib import Path

import pytest
from chats import talk

from grue import Conversation, LlmSettings, Runner
from grue.cli.chat.facts import EpisodeStarted, ModelChanged, TakenBack, UserSaid
from grue.errors import ConversationError, TraceError
from grue.messages import UserText
from grue.testing.actor_harness import TraceWatch

CALL = "call mcp.cave.look {}"
RECALL = "what did I say?"


def users_texts(conversation: Conversation) -> list[str]:
    return [each.text for each in conversation.history if isinstance(each, UserText)]


def test_a_chat_is_in_its_run_folder(tmp_path: Path) -> None:
    with talk(tmp_path / "run") as chat:
        assert [tool.name for tool in chat.tools()] == ["mcp.cave.look", "mcp.cave.dig"]
        assert chat.say(CALL) == 'The tool says: {"room":"a dark cave"} (scripted)'
        assert chat.say(RECALL).splitlines()[1:] == [f"- {CALL}"]
        assert (len(chat.said), chat.turn, chat.runner.spent.requests) == (2, 2, 3)
        chat.finish("ended")
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (written["reason"], written["turns"], written["requests"]) == ("ended", 2, 3)
    watch = TraceWatch.of(tmp_path / "run")
    watch.in_order(EpisodeStarted, UserSaid, UserSaid)
    assert watch.happened(EpisodeStarted).servers == ("cave",)
    assert {(path.stat().st_mode & 0o777) for path in (tmp_path / "run").iterdir()} == {0o600}


@pytest.mark.slow
def test_a_turn_that_is_taken_back_is_unknown_and_its_calls_are_named(tmp_path: Path) -> None:
    with talk(tmp_path / "run") as chat:
        chat.say("first")
        chat.say(CALL)
        undone = chat.undo()
        assert undone is not None
        assert (undone.turn, undone.calls) == (2, ("mcp.cave.look",))
        assert chat.say(RECALL).splitlines()[1:] == ["- first"]
        assert chat.turn == 3, "a number is not used twice"
        assert chat.undo() is not None
        assert chat.undo() is not None
        assert chat.undo() is None
        assert len(chat.said) == 0
        assert users_texts(chat.loop.conversation) == []
    watch = TraceWatch.of(tmp_path / "run")
    assert [each.turn for each in watch.bodies(TakenBack)] == [2, 3, 1]
    assert watch.bodies(TakenBack)[0].severity() == "warn"


@pytest.mark.slow
def test_a_resumed_chat_knows_what_was_said_and_takes_back_turns_of_the_earlier_run(tmp_path: Path) -> None:
    with talk(tmp_path / "run") as chat:
        chat.say("first")
        chat.say("wrong")
        chat.undo()
        chat.say(CALL)
        requests = chat.runner.spent.requests
    with talk(tmp_path / "run", resume=True) as chat:
        assert (len(chat.said), chat.turn, chat.changed) == (2, 3, ())
        assert chat.runner.spent.requests == requests
        assert chat.say(RECALL).splitlines()[1:] == ["- first", f"- {CALL}"]
        chat.undo()
        undone = chat.undo()
        assert undone is not None
        assert (undone.turn, undone.calls) == (3, ("mcp.cave.look",))
        assert chat.say(RECALL).splitlines()[1:] == ["- first"]


def test_another_model_is_asked_in_the_same_sessions(tmp_path: Path) -> None:
    with talk(tmp_path / "run") as chat:
        chat.say("first")
        chat.change_model("another")
        assert chat.model == "another"
        assert chat.say(RECALL).splitlines()[1:] == ["- first"]
    watch = TraceWatch.of(tmp_path / "run")
    assert watch.happened(ModelChanged).summary() == "grue-offline-script -> another"
    with talk(tmp_path / "run", resume=True) as chat:
        assert [change.what for change in chat.changed] == ["model"], "the command says which model to ask"


def test_a_chat_is_saved_to_be_read_and_to_be_loaded(tmp_path: Path) -> None:
    with talk(tmp_path / "run") as chat:
        chat.say(CALL)
        chat.save(tmp_path / "chat.md")
        chat.save(tmp_path / "chat.jsonl")
        assert chat.loop.conversation.path == tmp_path / "run" / "conversation.jsonl", (
            "it goes on where it was"
        )
        for name in ("chat.md", "chat.jsonl"):
            with pytest.raises(ConversationError):
                chat.save(tmp_path / name)
    text = (tmp_path / "chat.md").read_text()
    assert "## User\n\ncall mcp.cave.look {}" in text
    assert "- called `mcp.cave.look` with `{}`" in text
    runner = Runner(llm=LlmSettings(base_url="http://offline.invalid/v1", model="m", api_key=""))
    with Conversation.load(tmp_path / "chat.jsonl", runner) as loaded:
        assert users_texts(loaded) == [CALL]


def test_a_chat_whose_file_was_damaged_says_so_and_can_be_saved(tmp_path: Path) -> None:
    with talk(tmp_path / "run") as chat:
        chat.say("first")
        (tmp_path / "run" / "conversation.jsonl").write_text("damaged")
        with pytest.raises(ConversationError, match="is not a saved conversation"):
            chat.change_model("another")
        with pytest.raises(ConversationError, match="/save writes what was said"):
            chat.say("second")
        chat.save(tmp_path / "chat.md")
    assert "first" in (tmp_path / "chat.md").read_text()


def test_only_a_chat_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="Cannot read"):
        talk(tmp_path / "nowhere", resume=True)
    with talk(tmp_path / "run"), pytest.raises(TraceError):
        talk(tmp_path / "run", resume=True)
