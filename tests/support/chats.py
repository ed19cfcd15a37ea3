"""Chats of `grue chat` in this process, with a scripted model, fake tools and scripted input."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grue.cli.chat.program import ChatProgram
from grue.cli.chat.screen import PipeScreen
from grue.cli.chat.talk import ChatOptions, ChatWiring, Talk
from grue.cli.live_story import Line
from grue.hosts.agent_loop import LoopEvent
from grue.policies import ContextPolicy, ToolPolicy, ToolRule, TurnLimits
from grue.runtime.secrets.redaction import Redaction
from grue.testing.fake_tools import FakeToolServer
from grue.testing.offline import offline_endpoint, reply_in_chat

ASKING = ToolPolicy(rules=(ToolRule(verdict="ask", reason="you wanted to be asked"),))


class KeptScreen(PipeScreen):
    """A screen that stores all output in `lines`, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def end(self, answer: str | None) -> None:
        if answer is not None:
            self.lines.append(answer)

    def show(self, shown: Iterable[Line]) -> None:
        self.lines += [f"{line.lead}{line.text}" for line in shown]

    def tell(self, line: Line) -> None:
        self.show([line])

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class ScriptedReader:
    """A reader with scripted input: `said` has the inputs, `answers` the answers to questions.

    An exception class in a list is raised. `None` among the answers stands for Ctrl-D: the question gets no
    answer, and the next question gets the next item. After the last item, the input has ended.
    """

    def __init__(self, said: Sequence[Any], answers: Sequence[Any] = (), *, asks: bool = True) -> None:
        self.asks = asks
        self.questions: list[tuple[str, str]] = []
        self.forgotten = 0
        self._said, self._answers = [*said], [*answers]

    def read(self) -> str | None:
        return _next(self._said) if self._said else None

    def forget(self) -> None:
        self.forgotten += 1

    def answer(self, question: str, default: str = "") -> str | None:
        self.questions.append((question, default))
        given = _next(self._answers) if self._answers else None
        return default if given == "(default)" else given


def _next(items: list[Any]) -> Any:
    item = items.pop(0)
    if isinstance(item, type) and issubclass(item, BaseException):
        raise item
    return item


def cave() -> FakeToolServer:
    server = FakeToolServer("cave")
    server.answers("look", {"room": "a dark cave"}, description="Look around.\nIt is dark.")
    server.answers("dig", "deeper")
    return server


def wiring(
    server: Any = None, *, policy: ToolPolicy | None = None, limits: TurnLimits | None = None
) -> ChatWiring:
    servers: Any = {"cave": server or cave()}
    return ChatWiring(
        endpoint=offline_endpoint(reply_in_chat),
        servers=servers,
        runner={"tool_policy": policy or ToolPolicy(), "context": ContextPolicy(), "limits": limits},
    )


def talk(folder: Path, *, resume: bool = False, on_event: Any = None, **wired: Any) -> Talk:
    """Return a chat in `folder`, new or resumed."""
    options = ChatOptions(resume=folder) if resume else ChatOptions(run_dir=folder)
    return Talk(options, wiring(**wired), on_event or _ignore)


def _ignore(event: LoopEvent) -> None:
    del event


def run_program(folder: Path, reader: ScriptedReader, **wired: Any) -> tuple[ChatProgram, KeptScreen]:
    """Run a whole chat with the input of `reader`; return the program and its output."""
    screen = KeptScreen()
    program = ChatProgram(screen, Redaction({}), folder.parent)
    program.reader = reader
    with talk(folder, on_event=program.on_event, **wired) as program.talk:
        program.run()
        program.talk.finish("failed" if program.failed else "ended")
    return program, screen
