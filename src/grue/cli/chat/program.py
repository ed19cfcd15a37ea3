"""`grue chat`: the loop that reads the user's input, asks the model, and prints the answer."""

import difflib
import os
import re
import shutil
import sys
from contextlib import ExitStack, chdir, suppress
from pathlib import Path

from grue import messages as m
from grue.cli.chat import lines
from grue.cli.chat.facts import read_chat
from grue.cli.chat.person import LineReader, Person, Reader
from grue.cli.chat.screen import Noticed, PipeScreen, Screen, TerminalScreen
from grue.cli.chat.talk import ChatOptions, Question, Talk, as_started, wire_chat
from grue.cli.live_story import Line
from grue.cli.live_terminal import Terminal
from grue.cli.saying import GRUE, from_here, shown_argument, shown_path
from grue.engine.episode_past import ends_episode
from grue.errors import LLMError, MCPError, MissingDependencyError, TraceError, TurnTimedOut
from grue.hosts.agent_loop import LoopEvent
from grue.runtime.safe_text import printable
from grue.runtime.secrets.redaction import Redaction
from grue.tracing.facts import counted
from grue.tracing.message_words import DIM, GREEN


def chat(options: ChatOptions) -> bool:
    """Chat, and return `False` if a turn or a command has failed, unless at a terminal."""
    here = Path.cwd()
    if options.resume is None:
        return _chat(options, here)
    options = as_started(options, read_chat(options.resume))
    with chdir(options.started_in or Path()):
        return _chat(options, here)


def _chat(options: ChatOptions, here: Path) -> bool:
    redaction = Redaction.of_environment()
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if at_terminal:
        _require_prompt_toolkit()
    wiring = wire_chat(options)
    with ExitStack() as stack:
        screen: Screen = PipeScreen(quiet=options.quiet)
        if at_terminal:
            screen = stack.enter_context(TerminalScreen(Terminal(sys.stdout), redaction))
        for note in wiring.notes:
            screen.tell(lines.notice(note))
        program = ChatProgram(screen, redaction, here)
        with Talk(options, wiring, program.on_event) as talk:
            program.talk, where = talk, from_here(talk.path, here)
            goes_on = Line(f"To go on: {GRUE} chat --resume {shown_argument(where)}", DIM)
            try:
                if wiring.servers:
                    screen.begin(f"starting {printable(', '.join(wiring.servers), 60)}")
                tools = [tool.name for tool in talk.tools()]
                if at_terminal:
                    from grue.cli.chat.prompting import PromptReader, typing_ahead_hidden

                    stack.enter_context(typing_ahead_hidden())
                    program.reader = PromptReader(lambda: tools, program.status, redaction)
                    screen.show(lines.greeting(talk.model, tuple(wiring.servers), scripted=options.offline))
                if options.resume is not None and not options.quiet:
                    turns = counted(len(talk.said), "turn")
                    screen.tell(Line(f"Resuming {shown_path(where)} after {turns}.", DIM))
                for change in talk.changed:
                    screen.tell(lines.notice(f"{change.text}."))
                program.run()
            except BaseException as error:
                # `result.json` says why the chat ended. If writing it fails, `error` is still raised.
                with suppress(TraceError):
                    talk.finish("failed" if isinstance(error, MCPError) else "interrupted")
                if isinstance(error, KeyboardInterrupt) and talk.turn and not options.quiet:
                    screen.tell(goes_on)
                raise
            talk.finish("failed" if program.failed else "ended")
        # Call `learned` after the servers have ended: before, the watched one may still open files.
        if wiring.learned is not None:
            screen.tell(Line(f"The proposed sandbox for {options.learn}:", DIM))
            box, left_out = wiring.learned()
            for row in (*box.splitlines(), *left_out.splitlines()):
                screen.tell(Line(row))
        if not talk.turn and options.resume is None and options.run_dir is None:
            shutil.rmtree(talk.path, ignore_errors=True)  # there is nothing to resume
        elif not options.quiet:
            screen.tell(goes_on)
    return not program.failed or at_terminal


def _require_prompt_toolkit() -> None:
    try:
        import grue.cli.chat.prompting  # noqa: F401 - a missing package is reported before the start
    except ImportError as error:
        raise MissingDependencyError(
            "A chat at a terminal needs prompt_toolkit: pip install 'prompt_toolkit>=3.0.50,<4'."
            " In a pipe it works without."
        ) from error


class UnknownCommand(MCPError):  # noqa: N818 - a state of the input
    """There is no such command, its argument is missing or wrong, or there is no turn to take back."""


class ChatProgram:
    """The loop of a chat. Set `talk` before `run`. Relative paths of `/save` begin at `here`."""

    def __init__(self, screen: Screen, redaction: Redaction, here: Path) -> None:
        self.talk: Talk
        asks = sys.stdin.isatty() and sys.stdout.isatty()
        self.reader: Reader = LineReader(sys.stdin.buffer, asks=asks)
        self.failed = False  # whether a turn or a command has failed; `UnknownCommand` does not count
        self._screen = screen
        self._here = here
        self._person = Person(lambda: self.reader, screen, redaction)

    def run(self) -> None:
        """Read and answer until `/quit`, the end of the input or, in a pipe, an error that ends the chat."""
        while True:
            try:
                text = self.reader.read()
                if text is None:
                    return
                if text.startswith("/"):
                    if not self._run_command(text):
                        return
                elif text.strip():
                    self._say(text.strip())
            except KeyboardInterrupt:
                if not self.reader.asks:
                    raise
                self._screen.end(None)
                self._screen.tell(Line("(Ctrl-D or /quit leaves.)", DIM))
            except MCPError as error:
                # A mistyped command does not change the exit status.
                self.failed |= not isinstance(error, UnknownCommand)
                self._screen.end(None)
                self._screen.tell(lines.complaint(_text_of(error)))
                if self._is_final(error):
                    return

    def on_event(self, event: LoopEvent | Noticed | Question) -> None:
        """Print an event of a turn; if it is a question, ask the user."""
        if not isinstance(event, Question):
            self._screen.on_event(event)
            return
        asked = event.asked
        if isinstance(asked, tuple):
            event.answer([self._person.decide(call) for call in asked])
        else:
            event.answer(self._person.fill_in(asked))
        self._screen.begin()

    def status(self) -> str:
        """Return the text of the row below the prompt."""
        cost = self.talk.runner.spent.usage.cost_usd
        parts = [self.talk.model, counted(len(self.talk.said), "turn")]
        if cost is not None:
            parts.append(f"${cost:.4f}")
        return " · ".join(parts)

    def _say(self, text: str) -> None:
        self._screen.begin()
        try:
            answer = self.talk.say(text)
        except KeyboardInterrupt:
            if not self.reader.asks:
                raise
            self._screen.end(None)
            stopped = "Stopped. What was said is kept; a tool call that was under way may have taken effect."
            self._screen.tell(lines.notice(stopped))
        else:
            self._screen.end(answer)

    def _run_command(self, line: str) -> bool:
        """Run a line that begins with a slash. Return whether the chat goes on."""
        name, _, rest = line.strip().partition(" ")
        if name == "/quit":
            return False
        if name not in lines.COMMANDS:
            near = difflib.get_close_matches(name, lines.COMMANDS, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise UnknownCommand(f"There is no command {printable(name, 40)}.{meant} /help lists them.")
        getattr(self, name.replace("/", "_"))(rest.strip())  # such as `_tools`
        return True

    def _tools(self, wanted: str) -> None:
        self._screen.show(lines.tool_lines(self.talk.tools(), wanted))

    def _trace(self, wanted: str) -> None:
        turn = wanted or str(self.talk.turn)
        if re.fullmatch(r"\d{1,9}", turn, re.ASCII) is None:
            raise UnknownCommand("Write /trace, or /trace and the number of a turn.")
        from grue.cli.trace import shown_lines

        self.talk.settle()
        if int(turn):
            self._screen.show(Line(text) for text in shown_lines(self.talk.path, turn))
        self._screen.show([Line(f"All of it: {GRUE} trace show {shown_argument(self.talk.path)}", DIM)])

    def _save(self, wanted: str) -> None:
        if not wanted:
            raise UnknownCommand("Write /save and the name of a new file: .md to read it, .jsonl to load it.")
        path = Path(wanted)
        with suppress(RuntimeError):  # this user has no home folder
            path = path.expanduser()
        self.talk.save(self._here / path)
        self._screen.show([Line(f"The conversation is in {shown_path(path)}.", GREEN)])

    def _model(self, wanted: str) -> None:
        talk = self.talk
        if wanted:
            talk.change_model(wanted)
        self._screen.show([Line(printable(f"{talk.model} at {talk.endpoint}"))])

    def _cost(self, _wanted: str) -> None:
        self._screen.show(lines.cost_lines(self.talk.runner.spent, self.talk.runner.budget_spent))

    def _undo(self, _wanted: str) -> None:
        texts = self._texts()
        undone = self.talk.undo()
        if undone is None:
            raise UnknownCommand("There is nothing to take back.")
        gone = [*texts[len(self._texts()) :], "a turn without a text"]
        self._screen.show(lines.undone_lines(gone[0], undone.calls))

    def _texts(self) -> list[str]:
        return [each.text for each in self.talk.loop.conversation.history if isinstance(each, m.UserText)]

    def _help(self, _wanted: str) -> None:
        self._screen.show(lines.help_lines())

    def _is_final(self, error: MCPError) -> bool:
        # After some errors, such as a refused API key, all further lines of a pipe would fail too.
        answered = bool(self.talk.runner.spent.requests)
        return not self.reader.asks and isinstance(error, LLMError) and ends_episode(error, answered=answered)


def _text_of(error: MCPError) -> str:
    if not isinstance(error, TurnTimedOut):
        return str(error)
    # The second line of this error names the settings of a program that uses grue as a library.
    what, *_ = str(error).splitlines()
    option = "If it needs longer, raise --turn-timeout, which can also be given with --resume"
    return f"{what}\n{option}; in pyproject.toml it is turn_timeout_seconds under [tool.grue.llm]."
