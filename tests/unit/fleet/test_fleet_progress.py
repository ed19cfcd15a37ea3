"""The bar of `Fleet.map(progress=True)`: where it is shown, and that the program's own watch is called."""

import io
import re
import sys

import pytest

from grue.engine import batch
from grue.fleet.broker import Costs
from grue.fleet.driver import Tally
from grue.fleet.fleet import shown_progress


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def followed(*, shown: bool) -> tuple[list[int], str]:
    seen: list[int] = []
    with shown_progress(lambda tally, _running, _costs: seen.append(tally.done), shown=shown) as watch:
        assert watch is not None
        for done in (1, 3):
            watch(Tally(total=3, done=done, failed=1), {}, Costs())
    return seen, str(getattr(sys.stderr, "getvalue", str)())


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("TERM", "xterm")
    seen, written = followed(shown=True)
    assert seen == [1, 3]
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)
    assert "3/3 episodes, 1 failed" in plain
    assert "/100" not in plain


def test_a_notebook_shows_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(batch, "in_notebook", lambda: True)
    seen, written = followed(shown=True)
    assert seen == [1, 3]
    assert written.endswith(f"\r{'█' * 40} 3/3 episodes, 1 failed\n")


def test_a_file_and_a_program_that_does_not_ask_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert followed(shown=True) == ([1, 3], "")
    monkeypatch.setattr(sys, "stderr", Screen())
    assert followed(shown=False) == ([1, 3], "")
    with shown_progress(None, shown=False) as watch:
        assert watch is None
