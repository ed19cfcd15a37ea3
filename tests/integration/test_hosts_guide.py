"""The guide to hosts and its example: a host of public names only, which is interrupted and resumed."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commands import environment, grue

from grue import FunctionTools, LlmSettings, Runner
from grue.errors import LLMError
from grue.hosting import (
    Actor,
    Envelope,
    LentConversation,
    LlmFactory,
    Mailbox,
    ModelSettings,
    Note,
    Reply,
    WireProfile,
    read_episode,
)
from grue.messages import (
    CheckToolSupport,
    CompletionReceived,
    OfferTools,
    RequestCompletion,
    ToolCall,
    ToolMessage,
    ToolSupportChecked,
)
from grue.testing.llm_server import ScriptedLlmServer
from grue.tracing.facts import EpisodeResumed

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "note_sorter.py"
GUIDE = DOCS / "guides" / "hosts.md"


@pytest.fixture(scope="module")
def sorter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("note_sorter", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_example_runs_by_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), str(tmp_path / "run")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "garden   water the tomatoes"


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path, sorter: ModuleType) -> None:
    asked: list[str] = []

    def broken(request):
        asked.append(request.messages[-1]["content"])
        if len(asked) == 3:
            raise KeyError("the model is down")
        return sorter.scripted(request)

    with ScriptedLlmServer(broken) as server:
        llm = LlmSettings(base_url=server.base_url, model="m")
        with pytest.raises(LLMError):
            sorter.sort_notes(llm, tmp_path / "run")
        asked_before = len(asked)
        assert sorter.sort_notes(llm, tmp_path / "run") == ["home", "garden", "office", "health"]
    assert asked[asked_before:] == list(sorter.NOTES[2:])
    bodies = [envelope.body for envelope in read_episode(tmp_path / "run").envelopes]
    assert [body.folder for body in bodies if isinstance(body, sorter.Sorted)] == [
        "home",
        "garden",
        "office",
        "health",
    ]
    assert [body.turns for body in bodies if isinstance(body, EpisodeResumed)] == [2]


@pytest.mark.slow
def test_an_answer_that_was_paid_for_is_used(tmp_path: Path, sorter: ModuleType) -> None:
    """Killed between the end of a turn and the host's fact."""
    with ScriptedLlmServer(sorter.scripted) as server:
        llm = LlmSettings(base_url=server.base_url, model="m")
        sorter.sort_notes(llm, tmp_path / "run")
        trace = tmp_path / "run" / "trace.jsonl"
        lines = trace.read_text().splitlines(keepends=True)
        ends = [n for n, line in enumerate(lines) if '"type":"TurnCompleted"' in line]
        trace.write_text("".join(lines[: ends[1] + 1]))
        before = len(server.requests)
        assert sorter.sort_notes(llm, tmp_path / "run") == ["home", "garden", "office", "health"]
        assert len(server.requests) == before + 2


@pytest.mark.slow
def test_its_trace_is_read_where_it_is_not_installed(tmp_path: Path, sorter: ModuleType) -> None:
    with ScriptedLlmServer(sorter.scripted) as server:
        sorter.sort_notes(LlmSettings(base_url=server.base_url, model="m"), tmp_path / "run")
    shown = grue("trace", "show", "run", "--kind", "sorted", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert 'note "pay the rent", folder "home"' in shown.stdout
    stats = json.loads(grue("trace", "stats", "run", "--json", cwd=tmp_path).stdout)
    assert stats["turns"]["outcomes"] == {"answered": 4}
    assert stats["ending"]["reason"] == "done"
    assert "identical" in grue("trace", "replay", "run", cwd=tmp_path).stdout
    log = (tmp_path / "run" / "events.jsonl").read_text()
    assert "notesorter.Sorted: pay the rent -> home" in log


def test_the_guide_shows_the_examples_own_code() -> None:
    shown = re.findall(
        r"<!-- note_sorter.py -->\n```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(shown) == 2
    for code in shown:
        assert code.strip() in EXAMPLE.read_text()


def test_the_guide_names_the_public_modules() -> None:
    named = set(re.findall(r"`(grue[\w.]*)`", GUIDE.read_text().split("## Facts")[0]))
    public = {
        line.split()[0] for line in (DOCS.parent / "tests/unit/public_api.txt").read_text().splitlines()
    }
    assert public <= named


# --- A model of the host's own, on public names only ---


class OwnModel(Actor[Any]):
    """Calls `look` once, and then says what it has read."""

    def __init__(
        self, mailbox: Mailbox[Any], agent: Mailbox[Any], lent: LentConversation | None = None
    ) -> None:
        super().__init__(mailbox)
        self.agent, self.lent = agent, lent

    async def receive(self, envelope: Envelope[Any]) -> None:
        outcome: ToolSupportChecked | CompletionReceived
        match envelope.body:
            case CheckToolSupport():
                outcome = ToolSupportChecked(model="own", endpoint="here", supported=True, by="client")
            case RequestCompletion(request=number) as command if self.lent is not None:
                asked = await self.lent.ask(command)
                said = json.loads(asked.body(ModelSettings(model="own")))["messages"]
                reply = Reply(content=f"{number}: {[each['role'] for each in said]}")
                outcome = await self.lent.answered(command, asked, reply, 0.0)
            case RequestCompletion(request=1, mode=OfferTools(tools=(tool, *_))):
                call = ToolCall(call_id="a", name=tool.name, arguments="{}")
                outcome = CompletionReceived(request=1, tool_calls=(call,))
            case RequestCompletion(request=number, new=(ToolMessage(content=found),)):
                outcome = CompletionReceived(request=number, content=found)
        await self.agent.send(outcome, sender=self.name, cause=envelope.seq)


class OwnModels:
    """Its factory, for conversations too."""

    profile = WireProfile(name="own")
    model = "own"

    def __call__(self, mailbox: Mailbox[Any], agent: Mailbox[Any], _: Note) -> OwnModel:
        return OwnModel(mailbox, agent)

    def lending(self, lent: LentConversation) -> LlmFactory:
        return lambda mailbox, agent, _: OwnModel(mailbox, agent, lent)


def test_a_model_of_the_hosts_own_calls_tools_and_answers() -> None:
    with Runner(llm=OwnModels(), servers={"room": FunctionTools({"look": lambda: "A dark room."})}) as runner:
        outcome = runner.run_turn("Where am I?")
    assert outcome.response == "A dark room."
    assert [call.name for call in outcome.tool_calls] == ["room.look"]


def test_a_model_of_the_hosts_own_goes_on_in_a_conversation() -> None:
    with Runner(llm=OwnModels()) as runner:
        talk = runner.conversation("You are brief.")
        talk.ask("One?")
        assert talk.ask("Two?").response == "1: ['system', 'user', 'assistant', 'user']"
