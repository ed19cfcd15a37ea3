"""`grue chat`: the loop that reads the user's input, asks the model, and prints the answer."""

import os
import shutil
import sys
from contextlib import ExitStack, chdir, suppress
from pathlib import Path

from grue.cli.chat import lines
from grue.cli.chat.commands import ChatCommands, UnknownCommand
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
from grue.tracing.message_words import DIM


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
                    turns = counted(talk.turns, "turn")
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
        commands = ChatCommands(self.talk, self._screen, self._here)
        while True:
            try:
                text = self.reader.read()
                if text is None:
                    return
                if text.startswith("/"):
                    if not commands.run(text):
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
        parts = [self.talk.model, counted(self.talk.turns, "turn")]
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
