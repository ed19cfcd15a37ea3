"""Make the docs' pictures of `grue play` and `grue chat` from their real output at a terminal.

    python tools/live_pictures.py [FOLDER]        default: docs/pictures

`play-live.svg` shows a running turn, `play-end.svg` the end of an episode, `chat.svg` a chat. `grue` runs in
a real pty. A terminal emulator (pyte) turns its output into a screen, and this module draws the screen as
SVG.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

import pyte
from pyte.screens import Char

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from terminal_program import GrueAtTerminal  # noqa: E402 - it is where the tests have it

from grue.testing.llm_faults import stalled  # noqa: E402
from grue.testing.llm_server import (  # noqa: E402
    LlmReply,
    ScriptedLlmServer,
    completion,
    tool_calls_reply,
)

PICTURES = ROOT / "docs" / "pictures"
LINES = 22

_CELL_W, _CELL_H, _FONT_PX, _MARGIN, _BAR_H = 8.4, 19, 14, 16, 34
_FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_GROUND, _BAR, _TEXT, _TITLE = "#15181d", "#1e2228", "#d5d9df", "#7d8590"
_COLOURS = {
    "default": _TEXT,
    "brightblack": "#828b97",
    "red": "#f0776c",
    "green": "#7fc77a",
    "brown": "#e3b457",
    "cyan": "#6cc5d4",
}
"""By the emulation's names; its yellow is brown, and faint text arrives as bright black."""

_THOUGHT = (
    "The path runs from the gate to the porch, and the sign stands by the well. Whoever writes a sign wants "
    "it read; but a deed is kept indoors, so the porch comes first and the well can wait."
)
_DECISION = {
    "thinking": "The doormat says OH, IT'S YOU. Somebody expected a particular somebody, and I am the only "
    "heir for miles. People who leave such a doormat leave a key beneath it.",
    "action": "look under doormat",
    "new_objective": None,
}


def main(folder: Path) -> None:
    """Make the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, title, screen in (
        ("play-live", "grue play --stream --turn-timeout 90", _a_turn_under_way()),
        ("play-end", "grue play --offline --seed 7", _an_end()),
        ("chat", "grue chat --ask --mcp-config mcp.json", _a_chat()),
    ):
        (folder / f"{name}.svg").write_text(svg(screen, title), encoding="utf-8")


def _a_turn_under_way() -> pyte.Screen:
    """Return the screen while the model is in the middle of a sentence."""
    script = [
        _priced(
            json.dumps({"thinking": "Nobody inherits a gate.", "action": "north", "new_objective": None}),
            904,
            22,
            0.0011,
        ),
        tool_calls_reply(
            (
                "mind.think",
                {"thought": _THOUGHT, "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False},
            )
        ),
        _priced(
            json.dumps({"thinking": "The porch first.", "action": "north", "new_objective": None}),
            2204,
            61,
            0.0031,
        ),
        stalled(_priced(json.dumps(_DECISION), 1, 1, 0.0), after=0.72),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        ScriptedLlmServer(script) as llm,
        GrueAtTerminal(
            *("play", "--base-url", llm.base_url, "--model", "scripted", "--stream"),
            *("--turn-timeout", "90", "--run-dir", "runs/house"),
            cwd=Path(folder),
            columns=80,
            lines=LINES,
        ) as at,
    ):
        at.until_shown("thinking 4 s", "turn 3/60")
        shown = at.sent
        at.type("\x03")
        at.ended()
    return _screen(shown, 80)


def _an_end() -> pyte.Screen:
    """Return the screen after an episode that was won."""
    with (
        tempfile.TemporaryDirectory() as folder,
        GrueAtTerminal(
            *("play", "--offline", "--seed", "7", "--run-dir", "runs/house"),
            cwd=Path(folder),
            columns=108,
            lines=LINES,
        ) as at,
    ):
        at.ended()
        return _screen(at.sent, 108)


def _a_chat() -> pyte.Screen:
    """Return the screen of a chat: a call that was approved, one that was not, and a turn taken back."""
    script = [
        tool_calls_reply(("mcp.notes.read", {"path": "shopping.txt"})),
        _priced("A lamp, a rope and a sword are on the list.", 1204, 22, 0.0011),
        tool_calls_reply(("mcp.notes.write", {"path": "shopping.txt", "text": "lamp, rope"})),
        _priced("I have taken the sword off the list.", 1420, 24, 0.0013),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        ScriptedLlmServer(script) as llm,
    ):
        here = Path(folder)
        (here / "notes_server.py").write_text(_NOTES, encoding="utf-8")
        serve = ["-m", "grue", "mock-server", "--stdio", "notes_server.py:notes"]
        servers = {"notes": {"command": sys.executable, "args": serve}}
        (here / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
        arguments = ("--base-url", llm.base_url, "--model", "scripted", "--mcp-config", "mcp.json")
        with GrueAtTerminal(
            *("chat", "--ask", *arguments, "--run-dir", "runs/shopping"),
            cwd=here,
            columns=96,
            lines=LINES + 1,
            XDG_STATE_HOME=str(here / "state"),
        ) as at:
            at.until_shown("· 0 turns")
            for said, answer in (("What is on my shopping list?", "a"), ("Take the sword off it.", "y")):
                at.type(f"{said}\r")
                # In the row of an earlier question, the answer follows the question.
                at.until(lambda rows: any(row.rstrip().endswith("or why not:") for row in rows))
                at.type(f"{answer}\r")
                at.until(lambda rows: not any("Call it?" in row for row in rows[-3:]))
                at.until_shown("·", " turn" if answer == "a" else "2 turns")
            at.type("/undo\r")
            at.until_shown("What that has done remains")
            at.until_shown("· 1 turn")
            at.type("/co")
            at.until_shown("> /co")
            shown = at.sent
            at.type("\x03\x04")
            at.ended()
    return _screen(shown, 96, LINES + 1)


_NOTES = """
from grue.testing.mock_server import MockServer

notes = MockServer("notes")

@notes.tool()
def read(path: str) -> str:
    return "lamp, rope, sword"

@notes.tool()
def write(path: str, text: str) -> str:
    return "written"
"""


def _priced(content: str, sent: int, written: int, cost: float) -> LlmReply:
    usage = {"prompt_tokens": sent, "completion_tokens": written, "cost": cost}
    return completion({"role": "assistant", "content": content}, usage=usage)


def _screen(printed: bytes, columns: int, lines: int = LINES) -> pyte.Screen:
    screen = pyte.Screen(columns, lines)
    # pyte does not support faint text: show it in grey.
    pyte.ByteStream(screen).feed(printed.replace(b"\x1b[2m", b"\x1b[90m"))
    return screen


def svg(screen: pyte.Screen, title: str) -> str:
    """Return the screen as an SVG of a window with a title. Text is drawn as text, not as paths."""
    rows = [[screen.buffer[y][x] for x in range(screen.columns)] for y in range(screen.lines)]
    while not "".join(cell.data for cell in rows[-1]).strip():
        rows.pop()
    width = round(screen.columns * _CELL_W + 2 * _MARGIN)
    height = len(rows) * _CELL_H + _BAR_H + 2 * _MARGIN
    body = [piece for y, row in enumerate(rows) for piece in _row(row, y)]
    dots = [
        f'<circle cx="{20 + 18 * n}" cy="{_BAR_H / 2:g}" r="5.5" fill="{fill}"/>'
        for n, fill in enumerate(("#e0645a", "#e0b04a", "#64b363"))
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
            f' height="{height}" xml:space="preserve" font-family="{_FONTS}" font-size="{_FONT_PX}">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="9" fill="{_GROUND}"/>',
            f'<path d="M0 {_BAR_H}V9a9 9 0 0 1 9-9h{width - 18}a9 9 0 0 1 9 9v{_BAR_H - 9}z" fill="{_BAR}"/>',
            *dots,
            f'<text x="{width / 2:g}" y="{_BAR_H / 2 + 5:g}" fill="{_TITLE}" text-anchor="middle">'
            f"{escape(title)}</text>",
            *body,
            "</svg>\n",
        ]
    )


def _row(row: list[Char], y: int) -> Iterator[str]:
    """Yield a row as pieces of one style. Each has a fixed position and length, so any font fits."""
    x = 0
    for (colour, bold), cells in groupby(row, key=lambda cell: (cell.fg, cell.bold)):
        text = "".join(cell.data for cell in cells)
        shown = text.strip()
        if shown:
            left = _MARGIN + (x + len(text) - len(text.lstrip())) * _CELL_W
            weight = ' font-weight="bold"' if bold else ""
            yield (
                f'<text x="{left:.1f}" y="{_BAR_H + _MARGIN + y * _CELL_H + _FONT_PX}"'
                f' textLength="{len(shown) * _CELL_W:.1f}" fill="{_COLOURS[colour]}"{weight}>'
                f"{escape(shown)}</text>"
            )
        x += len(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
