"""The commands of a chat: lines that begin with a slash."""

import difflib
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from grue import messages as m
from grue.cli.chat import lines
from grue.cli.chat.screen import Screen
from grue.cli.chat.talk import Talk
from grue.cli.live_story import CYAN, Line
from grue.cli.saying import GRUE, shown_argument, shown_path
from grue.errors import MCPError
from grue.runtime.safe_text import printable
from grue.tracing.message_words import DIM, GREEN

COMMANDS = {
    "/tools": "[WORD]: list the tools; a whole name shows its schema",
    "/trace": "[TURN]: show the messages of a turn, by default the last",
    "/save": "FILE: write the conversation to a new file, .md to read it, .jsonl to load it",
    "/model": "[NAME]: show the model, or ask another one of the endpoint from now on",
    "/cost": "show what the model has cost so far",
    "/undo": "take back the last turn; what its tool calls have done remains",
    "/help": "show this",
    "/quit": "leave",
}
_KEYS = (
    "Enter sends. Alt-Enter or a backslash before Enter begins a new line. Tab completes commands and"
    " tools. Up and Ctrl-R find what was typed. Ctrl-C stops a turn, Ctrl-D leaves. To send a text that"
    " begins with a slash, type a space before it."
)


class UnknownCommand(MCPError):  # noqa: N818 - a state of the input
    """There is no such command, its argument is missing or wrong, or there is no turn to take back."""


class ChatCommands(Struct):
    """Runs the slash commands of a chat. Relative paths of `/save` begin at `here`."""

    talk: Talk
    screen: Screen
    here: Path

    def run(self, line: str) -> bool:
        """Run a command. Return whether the chat goes on."""
        name, _, rest = line.strip().partition(" ")
        if name == "/quit":
            return False
        if name not in COMMANDS:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise UnknownCommand(f"There is no command {printable(name, 40)}.{meant} /help lists them.")
        run: Callable[[str], None] = getattr(self, name.replace("/", "_"))  # such as `_tools`
        run(rest.strip())
        return True

    def _tools(self, wanted: str) -> None:
        self.screen.show(lines.tool_lines(self.talk.tools(), wanted))

    def _trace(self, wanted: str) -> None:
        turn = wanted or str(self.talk.turn)
        if re.fullmatch(r"\d{1,9}", turn, re.ASCII) is None:
            raise UnknownCommand("Write /trace, or /trace and the number of a turn.")
        from grue.cli.trace import shown_lines

        self.talk.settle()
        if int(turn):
            self.screen.show(Line(text) for text in shown_lines(self.talk.path, turn))
        self.screen.show([Line(f"All of it: {GRUE} trace show {shown_argument(self.talk.path)}", DIM)])

    def _save(self, wanted: str) -> None:
        if not wanted:
            raise UnknownCommand("Write /save and the name of a new file: .md to read it, .jsonl to load it.")
        path = Path(wanted)
        with suppress(RuntimeError):  # this user has no home folder
            path = path.expanduser()
        self.talk.save(self.here / path)
        self.screen.show([Line(f"The conversation is in {shown_path(path)}.", GREEN)])

    def _model(self, wanted: str) -> None:
        talk = self.talk
        if wanted:
            talk.change_model(wanted)
        self.screen.show([Line(printable(f"{talk.model} at {talk.endpoint}"))])

    def _cost(self, _wanted: str) -> None:
        self.screen.show(lines.cost_lines(self.talk.runner.spent, self.talk.runner.budget_spent))

    def _undo(self, _wanted: str) -> None:
        texts = self._texts()
        undone = self.talk.undo()
        if undone is None:
            raise UnknownCommand("There is nothing to take back.")
        gone = [*texts[len(self._texts()) :], "a turn without a text"]
        self.screen.show(lines.undone_lines(gone[0], undone.calls))

    def _texts(self) -> list[str]:
        return [each.text for each in self.talk.conversation.history if isinstance(each, m.UserText)]

    def _help(self, _wanted: str) -> None:
        width = max(map(len, COMMANDS))
        shown = [
            Line(f"  {text}", "", " " * (width + 2), f"{name:{width}}", CYAN)
            for name, text in COMMANDS.items()
        ]
        self.screen.show([*shown, Line(_KEYS, DIM)])
