"""`grue play` at a real terminal: what the screen shows in a turn, and what is left in the end."""

import fcntl
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import bodies, command, environment, faulty, grue, wait_for_body, write_servers
from terminal_program import GrueAtTerminal

from grue.testing.llm_faults import dripping
from grue.testing.llm_server import (
    ScriptedLlmServer,
    completion,
    error_reply,
    silence,
    text_reply,
    tool_calls_reply,
)

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

THINKING = "A gate, a garden, a house: in I go."
ANSWER_TEXT = json.dumps({"thinking": THINKING, "action": "north", "new_objective": None})
ANSWER = text_reply(ANSWER_TEXT)
CALL = tool_calls_reply(("faulty.echo", {"text": "hello"}))
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
SPINNING = re.compile(r"^  [⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] ")


@pytest.fixture
def at_terminal(tmp_path: Path) -> Callable[..., GrueAtTerminal]:
    """Start `grue play` against an endpoint, without tools or with a server that fails as told."""

    def play(
        llm: ScriptedLlmServer, *args: str, flags: tuple[str, ...] | None = None, **terminal: Any
    ) -> Any:
        tools = ["--no-mcp"]
        if flags is not None:
            tools = ["--mcp-config", str(write_servers(tmp_path / "mcp.json", faulty=faulty(*flags)))]
        return GrueAtTerminal(
            *("play", "--base-url", llm.base_url, "--model", "m", "--turns", "3", "--run-dir", "run"),
            *tools,
            *args,
            cwd=tmp_path,
            **terminal,
        )

    return play


def status_rows(rows: list[str]) -> list[str]:
    return [row for row in rows if SPINNING.match(row)]


def assert_left_clean(at: GrueAtTerminal) -> None:
    """Only the story and what was printed after it is left; the cursor is where a prompt belongs."""
    assert status_rows(at.scrolled) == []
    assert not any("^C" in row for row in at.scrolled)
    assert not at.screen.cursor.hidden
    assert at.screen.cursor.x == 0
    assert at.screen.cursor.y == len(at.rows) or len(at.rows) >= at.screen.lines - 1
    assert b"\x1b[?" not in at.sent, "no mode of the terminal is changed, so none has to be restored"


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.slow
def test_an_episode_leaves_the_story_that_a_pipe_gets(tmp_path: Path, columns: int) -> None:
    args = ("play", "--offline", "--seed", "7", "--turns", "14", "--run-dir")
    with GrueAtTerminal(*args, "one", cwd=tmp_path, columns=columns) as at:
        seen = [row for rows in at.frames() for row in status_rows(rows)]
        assert at.ended() == 0
    assert seen, "it has shown what is under way"
    assert_left_clean(at)
    piped = grue(*args, "two", cwd=tmp_path, COLUMNS=str(columns)).stdout
    stories = []
    for rows in (at.scrolled, piped.splitlines()):
        start = next(number for number, row in enumerate(rows) if row.startswith("The House"))
        end = next(number for number, row in enumerate(rows) if row.startswith("turn_limit: "))
        # A call's time moves the breaks of its lines.
        stories.append(re.sub(r"\([0-9.]+m?s\):", ":", "".join("".join(rows[start:end]).split())))
    assert stories[0] == stories[1]
    assert max(map(len, at.scrolled)) <= columns
    assert COLOUR.search(at.sent)


@pytest.mark.slow
def test_a_thinking_model_is_waited_for_in_the_last_row(at_terminal: Callable[..., GrueAtTerminal]) -> None:
    with ScriptedLlmServer([ANSWER, silence()]) as llm, at_terminal(llm, "--turn-timeout", "60") as at:
        rows = at.until_shown("thinking 1 s", "turn 2/3")
        assert rows[-2].startswith("Turn 2 · ")
        assert re.fullmatch(r"  . thinking 1 s · \d\d s left · turn 2/3 · 0/100 points · 15 tokens", rows[-1])
        assert len(status_rows(rows)) == 1
        assert (at.screen.cursor.x, at.screen.cursor.y) == (0, len(rows) - 1)
        at.until_shown("thinking 2 s")
        at.type("\x03")
        assert at.ended() == 130
    assert_left_clean(at)
    [ending] = [row for row in at.scrolled if row.startswith("interrupted: 0 of 100 points")]
    assert " 1 turn, " in ending, "the turn that was given up was not played"
    assert at.scrolled.count("Overgrown Garden") == 1, "what the game showed is not told twice"
    assert any("grue play --resume" in row for row in at.scrolled)


@pytest.mark.slow
def test_a_tool_call_shows_its_time_while_it_runs_and_when_it_is_done(
    at_terminal: Callable[..., GrueAtTerminal],
) -> None:
    with (
        ScriptedLlmServer([CALL, ANSWER, silence()]) as llm,
        at_terminal(llm, flags=("--slow-call", "2.5")) as at,
    ):
        rows = at.until_shown("faulty.echo 1 s of 30 s")
        assert rows[-2] == '    {"text": "hello"}', "what was asked of it"
        assert (at.screen.cursor.x, at.screen.cursor.y) == (0, len(rows) - 2)
        assert rows[-3].startswith("Turn 1 · "), "told once it is done"
        rows = at.until_shown("thinking", "turn 2/3")
        assert re.search(
            r'^  faulty\.echo \(\d\.\d\d s\): \{"text": "hello"\}$', "\n".join(rows), re.MULTILINE
        )
        at.program.kill()


@pytest.mark.slow
def test_ctrl_c_in_a_tool_call_says_that_the_sessions_are_closed(
    at_terminal: Callable[..., GrueAtTerminal],
) -> None:
    flags = ("--silent-at", "call", "--ignore-eof")
    with ScriptedLlmServer([CALL]) as llm, at_terminal(llm, flags=flags) as at:
        at.until_shown("faulty.echo")
        at.type("\x03")
        at.until(lambda rows: any("closing faulty" in row for row in status_rows(rows)))
        assert at.ended() == 130
    assert_left_clean(at)
    assert '  faulty.echo (given up): {"text": "hello"}' in at.scrolled


@pytest.mark.slow
def test_the_wait_before_a_retry_is_counted_down(at_terminal: Callable[..., GrueAtTerminal]) -> None:
    def seconds_left(rows: list[str]) -> int:
        shown = re.search(r"asking again in (\d) s", rows[-1]) if rows else None
        return int(shown[1]) if shown else 0

    busy = error_reply(503, "Overloaded; try again.", {"Retry-After": "3"})
    with ScriptedLlmServer([busy, silence()]) as llm, at_terminal(llm) as at:
        rows = at.until_shown("asking again in")
        assert any(row.startswith("  ! the model did not answer (unavailable 503: Overl") for row in rows)
        first = seconds_left(rows)
        at.until(lambda later: 0 < seconds_left(later) < first)
        at.until_shown("thinking, attempt 2")
        at.program.kill()


@pytest.mark.slow
def test_the_models_words_are_shown_as_they_come(at_terminal: Callable[..., GrueAtTerminal]) -> None:
    words = json.dumps({"thinking": "word " * 60, "action": "north", "new_objective": None})
    slow = dripping(text_reply(words), size=80, every_s=0.02)
    with ScriptedLlmServer([slow, silence()]) as llm, at_terminal(llm, "--stream") as at:
        rows = at.until(lambda rows: len(rows) > 1 and rows[-2].startswith("    …") and status_rows(rows))
        assert "word word" in rows[-2]
        assert "thinking" in rows[-1]
        assert max(map(len, rows[-2:])) < 80
        rows = at.until_shown("thinking", "turn 2/3")
        assert not any(row.startswith("    …") for row in rows), "the decision is there; the words are gone"
        at.program.kill()


@pytest.mark.slow
def test_what_it_costs_is_counted(at_terminal: Callable[..., GrueAtTerminal]) -> None:
    usage = {"prompt_tokens": 1200, "completion_tokens": 34, "total_tokens": 1234, "cost": 0.0125}
    priced = completion({"role": "assistant", "content": ANSWER_TEXT}, usage=usage)
    with ScriptedLlmServer([priced, silence()]) as llm, at_terminal(llm) as at:
        at.until_shown("thinking", "1.2k tokens · $0.0125")
        at.program.kill()


@pytest.mark.slow
def test_an_error_is_said_below_the_story(at_terminal: Callable[..., GrueAtTerminal]) -> None:
    refused = error_reply(401, "No such key.")
    with ScriptedLlmServer([ANSWER, refused]) as llm, at_terminal(llm) as at:
        assert at.ended() == 1
    assert_left_clean(at)
    assert any(row.startswith("grue: ") for row in at.rows)


@pytest.mark.slow
def test_an_episode_that_goes_on_says_so_and_shows_its_turns(
    at_terminal: Callable[..., GrueAtTerminal], tmp_path: Path
) -> None:
    with ScriptedLlmServer([ANSWER, silence(), silence()]) as llm:
        with at_terminal(llm) as at:
            at.until_shown("thinking", "turn 2/3")
            os.kill(at.program.pid, signal.SIGKILL)
            at.ended()
        with GrueAtTerminal("play", "--resume", "run", cwd=tmp_path) as at:
            at.until_shown("thinking", "turn 2/3")
            assert any(row.startswith("Resuming ") for row in at.scrolled)
            at.program.kill()


@pytest.mark.slow
def test_a_window_may_change_its_size(at_terminal: Callable[..., GrueAtTerminal]) -> None:
    # A frame for the old size may be on its way when the window changes. The terminal then breaks its line,
    # whatever the program does, so some tries may fail.
    with ScriptedLlmServer(lambda _: silence()) as llm:
        assert any(_changes_its_size(at_terminal(llm, "--run-dir", f"run-{n}", columns=80)) for n in range(6))


def _changes_its_size(at: GrueAtTerminal) -> bool:
    """Change the size four times; return whether there was one status row each time."""

    def fits(rows: list[str], most: int) -> bool:
        return bool(rows and SPINNING.match(rows[-1])) and len(rows[-1]) < most

    with at:
        at.until_shown("thinking", "0/100 points")
        for columns in (40, 30, 100, 60):
            # Right after a frame: the next one, for the new size, is a tenth of a second away.
            printed = len(at.sent)
            at.until(lambda _rows, before=printed: len(at.sent) > before)
            at.resize(columns, 24)
            printed = len(at.sent)
            rows = at.until(
                lambda rows, most=columns, before=printed: len(at.sent) > before and fits(rows, most)
            )
            if len(status_rows(rows)) != 1:
                return False
        assert "0/100 points" in rows[-1], "what there is room for is back"
        at.type("\x03")
        assert at.ended() == 130
    assert_left_clean(at)
    return True


@pytest.mark.slow
def test_narrow_terminals_get_what_matters_most(at_terminal: Callable[..., GrueAtTerminal]) -> None:
    with ScriptedLlmServer([ANSWER, silence()]) as llm, at_terminal(llm, columns=40) as at:
        rows = at.until_shown("thinking 1 s", "turn 2/3")
        assert re.fullmatch(r"  . thinking 1 s · turn 2/3", rows[-1])
        assert max(map(len, rows)) <= 40
        at.program.kill()


@pytest.mark.slow
def test_no_color_leaves_the_status_line_and_takes_the_colours(
    at_terminal: Callable[..., GrueAtTerminal],
) -> None:
    with ScriptedLlmServer([ANSWER, silence()]) as llm, at_terminal(llm, NO_COLOR="1") as at:
        at.until_shown("thinking", "turn 2/3")
        assert not COLOUR.search(at.sent)
        at.program.kill()


@pytest.mark.slow
def test_a_dumb_terminal_gets_plain_lines(at_terminal: Callable[..., GrueAtTerminal]) -> None:
    with ScriptedLlmServer([ANSWER] * 3) as llm, at_terminal(llm, TERM="dumb") as at:
        assert at.ended() == 0
    assert b"\x1b" not in at.sent
    assert b"\r" not in at.sent.replace(b"\r\n", b"")
    assert any(row.startswith("turn_limit: ") for row in at.rows)


@pytest.mark.slow
def test_a_terminal_without_unicode_gets_what_it_can_show(at_terminal: Callable[..., GrueAtTerminal]) -> None:
    with ScriptedLlmServer([ANSWER, silence()]) as llm, at_terminal(llm, PYTHONIOENCODING="ascii") as at:
        rows = at.until_shown("thinking", "turn 2/3")
        assert re.match(r"  [|/\\-] thinking", rows[-1])
        at.program.kill()


@pytest.mark.slow
def test_a_stopped_terminal_holds_no_turn_up(
    at_terminal: Callable[..., GrueAtTerminal], tmp_path: Path
) -> None:
    """Ctrl-S: all turns are played while nothing can be printed; Ctrl-Q: all of them are printed."""
    with ScriptedLlmServer([ANSWER] * 3) as llm:
        with at_terminal(llm) as at:
            at.type("\x13")
            wait_for_body(tmp_path / "run", "EpisodeEnded")
            assert at.program.poll() is None
            at.type("\x11")
            assert at.ended() == 0
        assert len(llm.requests) == 3
    assert_left_clean(at)
    assert [row.split(" · ")[0] for row in at.scrolled if row.startswith("Turn ")] == [
        "Turn 1",
        "Turn 2",
        "Turn 3",
    ]


@pytest.mark.slow
def test_ctrl_c_leaves_a_stopped_terminal(at_terminal: Callable[..., GrueAtTerminal], tmp_path: Path) -> None:
    with ScriptedLlmServer([ANSWER, silence()]) as llm, at_terminal(llm) as at:
        at.until_shown("thinking", "turn 2/3")
        at.type("\x13")
        at.type("\x03")
        assert at.ended() == 130
    assert_left_clean(at)


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_the_view_and_not_the_episode(tmp_path: Path) -> None:
    with ScriptedLlmServer([ANSWER] * 3) as llm:
        program = subprocess.Popen(
            command(
                "play",
                "--base-url",
                llm.base_url,
                "--model",
                "m",
                "--no-mcp",
                "--turns",
                "3",
                "--run-dir",
                "run",
            ),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        program.stdout.close()
        _, complaint = program.communicate(timeout=150)
        assert program.returncode == 1, "what it had to say in the end could not be said"
        assert len(llm.requests) == 3
    assert "Traceback" not in complaint
    (end,) = bodies(tmp_path / "run", "EpisodeEnded")
    assert end["reason"] == "turn_limit"


@pytest.mark.slow
def test_a_slow_reader_of_a_pipe_gets_everything_and_holds_no_turn_up(tmp_path: Path) -> None:
    long = text_reply(json.dumps({"thinking": "word " * 50, "action": "look", "new_objective": None}))
    args = ("play", "--no-mcp", "--model", "m", "--turns", "20", "--run-dir", "run")
    with ScriptedLlmServer([long] * 20) as llm:
        whole_command = command(*args, "--base-url", llm.base_url)
        pipe = subprocess.PIPE
        with subprocess.Popen(
            whole_command, cwd=tmp_path, env=environment(), stdout=pipe, text=True
        ) as program:
            assert program.stdout is not None
            pipe_bytes = fcntl.fcntl(program.stdout, fcntl.F_SETPIPE_SZ, 4096)
            # Nothing is read before the end; it is more than the pipe holds.
            wait_for_body(tmp_path / "run", "EpisodeEnded")
            out, _ = program.communicate(timeout=150)
    assert program.returncode == 0
    assert len(out) > pipe_bytes
    assert "\x1b" not in out
    assert out.count("\n> look\n") == 20


@pytest.mark.slow
def test_a_signal_that_kills_leaves_a_terminal_that_works(
    at_terminal: Callable[..., GrueAtTerminal],
) -> None:
    with ScriptedLlmServer([silence()]) as llm, at_terminal(llm) as at:
        at.until_shown("thinking")
        os.kill(at.program.pid, signal.SIGKILL)
        assert at.ended() == -signal.SIGKILL
    assert not at.screen.cursor.hidden
    assert at.screen.cursor.x == 0
    assert b"\x1b[?" not in at.sent
