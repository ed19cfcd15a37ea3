"""The episode's log for people: the requirements' three examples, and what keeps it one line an event."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_turns import Called, Play, Tape, opened, refused_connection

from grue.errors import TraceError
from grue.hosts.zork.facts import Decided, EpisodeEnded, McpInitFailed
from grue.messages import ConnectFailed, McpDisabled, RunTurn
from grue.policies import FailurePolicy
from grue.tracing.observers.run_folder import EpisodeLog

THINK = "thoughtbox.think"


class LoggedEpisode:
    """An episode whose turns are played by the real turn machine into a log file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "episode.log"
        self._log = EpisodeLog(self.path, episode_id="ep-1")
        self.tape = Tape(self._log)

    def turn(self, turn: int, *replies: Any, **changes: Any) -> None:
        policy = changes.pop("policy", FailurePolicy())
        run = RunTurn(turn=turn, system="s", user="u", servers=("thoughtbox",), policy=policy)
        end = Play(self.tape, run, replies, **changes).end
        action = end.answer["action"]
        self.tape.say(
            Decided(turn=turn, action=action, reasoning="", new_objective=None, kind="answered"),
            turn=turn,
            sender="host",
        )

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()


def thought(text: str, took_s: float) -> list[Called]:
    return [Called(THINK, f'{{"thought": "{text}"}}', content={"nextThoughtNeeded": True}, took_s=took_s)]


def test_example_1_a_puzzle_solved_with_three_thoughts(tmp_path: Path) -> None:
    episode = LoggedEpisode(tmp_path)
    episode.turn(
        47,
        thought("I should explore...", 0.3),
        thought("Based on the puzzle...", 0.2),
        thought("Should use key...", 0.2),
        "unlock door with brass key",
    )
    assert episode.lines() == [
        "[INFO] Turn 47: MCP session started (max 20 iterations)",
        "[INFO] Turn 47 Iteration 1: Agent calling tool thoughtbox.think",
        '[DEBUG] Turn 47 Iteration 1: Tool arguments: {"thought": "I should explore..."}',
        "[INFO] Turn 47 Iteration 1: Tool result received (0.3s)",
        "[INFO] Turn 47 Iteration 2: Agent calling tool thoughtbox.think",
        '[DEBUG] Turn 47 Iteration 2: Tool arguments: {"thought": "Based on the puzzle..."}',
        "[INFO] Turn 47 Iteration 2: Tool result received (0.2s)",
        "[INFO] Turn 47 Iteration 3: Agent calling tool thoughtbox.think",
        '[DEBUG] Turn 47 Iteration 3: Tool arguments: {"thought": "Should use key..."}',
        "[INFO] Turn 47 Iteration 3: Tool result received (0.2s)",
        "[INFO] Turn 47: MCP session complete (3 iterations, 3 tool calls)",
        "[INFO] Turn 47: Agent action: unlock door with brass key",
    ]


def test_example_2_a_timeout_under_the_policy_that_forces(tmp_path: Path) -> None:
    episode = LoggedEpisode(tmp_path)
    batch = [Called(THINK, outcome="timeout", took_s=30.0), Called(THINK), Called(THINK)]
    episode.turn(23, batch, "look", policy=FailurePolicy(after_timeout="force"))
    assert episode.lines() == [
        "[INFO] Turn 23: MCP session started (max 20 iterations)",
        "[INFO] Turn 23 Iteration 1: Agent calling tool thoughtbox.think",
        "[DEBUG] Turn 23 Iteration 1: Tool arguments: {}",
        "[WARNING] Turn 23 Iteration 1: Tool call timeout: thoughtbox.think",
        "[INFO] Turn 23: Skipping remaining tools in batch after timeout",
        "[INFO] Turn 23: Forcing final action after tool timeout",
        "[INFO] Turn 23: MCP session complete (1 iterations, 1 tool calls)",
        "[INFO] Turn 23: Agent action: look",
    ]


def test_example_3_a_retry_that_succeeds_then_one_that_fails(tmp_path: Path) -> None:
    retry = ConnectFailed(server="thoughtbox", attempt=1, failure=refused_connection(), then="retry")
    give_up = ConnectFailed(server="thoughtbox", attempt=2, failure=refused_connection(), then="disable")
    disabled = McpDisabled(server="thoughtbox", reason="Connection refused", newly=True)
    episode = LoggedEpisode(tmp_path)
    episode.turn(15, [Called(THINK), Called(THINK)], "examine mailbox")
    before = len(episode.lines())
    episode.turn(16, "open mailbox", connects={"thoughtbox": [retry, opened(attempt=2)]})
    episode.turn(17, "look", connects={"thoughtbox": [retry, give_up, disabled]})
    assert episode.lines()[before:] == [
        "[WARNING] Turn 16: MCP session connect failed, retrying: Connection refused",
        "[INFO] Turn 16: MCP session retry successful",
        "[INFO] Turn 16: MCP session started (max 20 iterations)",
        "[INFO] Turn 16: MCP session complete (0 iterations, 0 tool calls)",
        "[INFO] Turn 16: Agent action: open mailbox",
        "[WARNING] Turn 17: MCP session connect failed, retrying: Connection refused",
        "[WARNING] Turn 17: MCP retry failed, disabling MCP for episode: Connection refused",
        "[INFO] Turn 17: Continuing without MCP tools",
        "[INFO] Turn 17: Agent action: look",
    ]


def test_failures_and_the_end_have_lines_of_the_same_form(tmp_path: Path) -> None:
    episode = LoggedEpisode(tmp_path)
    episode.turn(
        2, [Called(THINK, outcome="error"), Called("nowhere.go"), Called(THINK, outcome="died")], "look"
    )
    episode.tape.say(EpisodeEnded(reason="died", detail="eaten by a grue", turns=2, score=5))
    lines = episode.lines()
    assert "[WARNING] Turn 2 Iteration 1: Tool call failed: thoughtbox.think - no such thought" in lines
    assert "[WARNING] Turn 2 Iteration 1: Tool call failed: thoughtbox.think - killed by SIGKILL" in lines
    assert "[INFO] Turn 2: Forcing final action after the server's death" in lines
    assert lines[-1] == "[INFO] Turn 2: Episode ended (died, score 5): eaten by a grue"


def test_each_batch_says_once_that_the_rest_is_skipped(tmp_path: Path) -> None:
    episode = LoggedEpisode(tmp_path)
    batch = [Called(THINK, outcome="timeout"), Called(THINK), Called(THINK)]
    episode.turn(4, batch, batch, "look")
    episode.turn(5, batch, "look")
    skips = [line for line in episode.lines() if "Skipping" in line]
    assert skips == [
        "[INFO] Turn 4: Skipping remaining tools in batch after timeout",
        "[INFO] Turn 4: Skipping remaining tools in batch after timeout",
        "[INFO] Turn 5: Skipping remaining tools in batch after timeout",
    ]


@given(text=st.text(st.characters(codec="utf-8"), max_size=60))
def test_untrusted_text_stays_on_its_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    episode = LoggedEpisode(tmp_path_factory.mktemp("run"))
    episode.tape.say(McpInitFailed(error=text), turn=3)
    calls = [Called(THINK, '{"thought": "\\u001b[2J\\n"}'), Called(text), Called(f"thoughtbox.{text}")]
    episode.turn(3, calls, "go " + text, connects={"thoughtbox": [opened("thoughtbox", "think", text)]})
    content = episode.path.read_text()
    assert "\x1b" not in content
    for line in content.removesuffix("\n").split("\n"):
        assert line.isprintable()
        assert re.match(r"\[(INFO|DEBUG|WARNING|ERROR)\] Turn 3( Iteration 1)?: ", line)


def test_long_arguments_are_cut(tmp_path: Path) -> None:
    episode = LoggedEpisode(tmp_path)
    episode.turn(1, thought("x" * 100_000, 0.1), "look")
    longest = max(episode.lines(), key=len)
    assert len(longest) < 2100
    assert longest.endswith("…")


def test_the_file_is_its_owners_only_and_appended_to(tmp_path: Path) -> None:
    for turn in (1, 2):
        LoggedEpisode(tmp_path).tape.say(McpInitFailed(error="x"), turn=turn)
    path = tmp_path / "episode.log"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [line[8:14] for line in path.read_text().splitlines()] == ["Turn 1", "Turn 2"]


def test_a_log_that_cannot_be_made_says_which_and_why(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"episode log .*gone/episode\.log: No such file") as caught:
        EpisodeLog(tmp_path / "gone" / "episode.log")
    assert isinstance(caught.value.__cause__, OSError)


def test_a_full_disk_says_which_and_why(tmp_path: Path, full_disk: None) -> None:
    log = EpisodeLog(tmp_path / "episode.log")
    with pytest.raises(TraceError, match=r"episode log .*episode\.log: No space left on device") as caught:
        Tape(log).say(McpInitFailed(error="x"))
    assert isinstance(caught.value.__cause__, OSError)
    log.close()
    log.close()
