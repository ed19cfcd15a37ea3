"""What is printed of a story's two windows."""

import pytest

from grue.hosts.zork.games.fernz_player import Screen
from grue.hosts.zork.games.story_text import take_status_line

STATUS = (
    "<top><at 1 1><invert>"
    + " " * 80
    + "<at 1 2>Old Library<at 1 50>Score: 2<at 1 64>Moves: 1<normal><bottom>"
)


def test_the_lower_window_is_the_text_without_commands() -> None:
    assert Screen().read("<reset><size 80 25><bottom>\n<bold>Hall<normal>\nA <<b> here.\n>") == (
        "\nHall\nA <b> here.\n>"
    )


def test_a_status_line_comes_first_and_is_recognised() -> None:
    text, status = take_status_line(Screen().read(f"<italic>Books<normal>.\n{STATUS}\n>"))
    assert text == "Books.\n\n>"
    assert status is not None
    assert (status.location, status.score, status.moves) == ("Old Library", 2, 1)


@pytest.mark.parametrize("row", ["Hall<at 1 60>9:15 AM", "", "   "])
def test_a_first_row_without_a_score_is_left_out(row: str) -> None:
    assert Screen().read(f"<top><at 1 1>{row}<bottom>You wait.\n>") == "You wait.\n>"


def test_a_quotation_over_the_text_is_printed_before_it() -> None:
    quoted = "<split 5><top><at 3 10>It is dark.<at 4 10>-- a grue<bottom><split 1><at 1 1 top>You read."
    assert Screen().read(quoted) == "         It is dark.\n         -- a grue\nYou read."


def test_words_are_written_over_each_other_as_on_a_screen() -> None:
    screen = Screen()
    assert screen.read("<top><at 2 1>abcdef<at 2 3>XY<at 2 8>z\nnext<bottom>") == "abXYef z\nnext\n"
    assert screen.read("<at 5 5>no cursor of the lower window") == "no cursor of the lower window"


def test_the_window_and_its_cursor_are_kept_from_answer_to_answer() -> None:
    screen = Screen()
    assert screen.read("<top><at 2 3>one") == "  one\n"
    assert screen.read(" two<bottom>") == "      two\n"


def test_what_lies_outside_the_screen_is_left_out() -> None:
    assert Screen().read("<top><at 2 255>abc<at 900 1>below<at 3 900>beside<bottom>x") == " " * 254 + "a\nx"
