"""Sanitising: whatever a model writes, one plain command or nothing reaches a game."""

import pytest
from case_tables import each_case
from example_counts import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from promises import within

from grue.hosts.zork.games.commands import MAX_LENGTH, sanitise_command


@each_case(
    "text, command",
    [
        ("look", "look"),
        ("  take   the lamp\t", "take the lamp"),
        ("> take lamp", "take lamp"),
        ("> > look", "look"),
        ("`look`", "look"),
        ("**look**", "look"),
        ("*look*", "look"),
        ("_look_", "look"),
        ('"look"', "look"),
        ('""look""', "look"),
        ("'look'", "look"),
        ('"look', "look"),
        ("\u201copen the mailbox\u201d", "open the mailbox"),
        ("take the dog\u2019s bone", "take the dog's bone"),
        ('say "hello"', 'say "hello"'),
        ('say "a" and "b"', 'say "a" and "b"'),
        ("```\nlook\n```", "look"),
        ("```text\ntake lamp\n```", "take lamp"),
        ("```look```", "look"),
        ("- look", "look"),
        ("1. look", "look"),
        ("2) look", "look"),
        ("# look", "look"),
        ("look!", "look"),
        ("\n\nlook\nnorth", "look"),
        ("look\u2028north", "look"),
        ("look\x85north", "look"),
        ("look\rnorth", "look"),
        ("take lamp.", "take lamp"),
        ("n. n. take lamp", "n"),
        ("n.n.e", "n"),
        (". n", "n"),
        ("take lamp; go north", "take lamp"),
        ("north, then south", "north"),
        ("go north and then south", "go north"),
        ("then look", "look"),
        ("strengthen door", "strengthen door"),
        ("ask Mr. Smith about Dr. Who. then go", "ask Mr. Smith about Dr. Who"),
        ("set dial to 3.5", "set dial to 3.5"),
        ("set dial to 4. look", "set dial to 4"),
        ('tell bob, "go north"', 'tell bob, "go north"'),
        ("take lamp, sword", "take lamp, sword"),
        ("\x1b[31mlook\x1b[0m", "look"),
        ("\x1b]0;title\x07look", "look"),
        ("look\x1b", "look"),
        ("lo\x00ok", "lo ok"),
        ("\\help", "help"),
        ("say \\X", "say X"),
        ("\uff3cS", "S"),
        ("caf\u00e9 \U0001f600", "cafe"),
        ("quiet", "quiet"),
        ("look\nsave", "look"),
    ],
)
def test_what_reaches_the_game(text: str, command: str) -> None:
    assert sanitise_command(text) == command


@pytest.mark.parametrize(
    "text", ["", "  \n ", "...", ">", "```\n```", "\\", '""', "\u4f60\u597d", "\x1b[31m", "-", "*"]
)
def test_nothing_playable_is_none(text: str) -> None:
    assert sanitise_command(text) is None


def test_a_long_row_of_marks_takes_no_time() -> None:
    with within(5, "a pattern was tried from each of them"):
        assert sanitise_command("." * 100_000 + "look" + " ." * 50_000) == "look"


@each_case(
    "text",
    [
        "save",
        "SAVE.",
        "restore",
        "restor",
        "restarting",
        "quit the game",
        "q",
        "\\quit",
        "> q",
        '"quit"',
        "(save)",
        "script",
        "unscript",
        "noscript",
        "transcript on",
        "#record",
        "unrecord",
        "replay",
        "save\nlook",
        "ＱＵＩＴ",  # noqa: RUF001 - letters that fold to "QUIT" are the point
    ],
)
def test_commands_to_the_interpreter_are_refused(text: str) -> None:
    assert sanitise_command(text) is None


_MARKS = list("\"'.,;:\\`*_>-#!\x1b\x00")
# An ellipsis, quotation marks, an accent, a ligature, a square letter: they fold to one, two or three marks.
_FOLDING = list(map(chr, (0x2026, 0x2019, 0x201C, 0xE9, 0xFB01, 0x33C2)))
_BREAKS = [" ", "\n", "\u2028", "\x85"]
_SYLLABLES = ["then", "and", "mr.", "3", "1. ", "n", "look", "save", "q", "a" * 50]
_FRAGMENTS = st.lists(st.sampled_from([*_MARKS, *_FOLDING, *_BREAKS, *_SYLLABLES, "\x1b["]), max_size=14).map(
    "".join
)


@settings(max_examples=examples(1000))
@given(st.one_of(st.text(), _FRAGMENTS))
@example('"\'"look"')
@pytest.mark.slow
def test_p2_a_command_is_one_printable_line_that_sanitising_leaves_unchanged(text: str) -> None:
    command = sanitise_command(text)
    if command is not None:
        assert command
        assert command == command.strip()
        assert command.isascii()
        assert command.isprintable()
        assert "\\" not in command
        assert len(command) <= MAX_LENGTH
        assert sanitise_command(command) == command
