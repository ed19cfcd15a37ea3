"""Fill the examples of docs/what-you-see.md with the program's real output.

    python tools/refresh_what_you_see.py            # write the examples
    python tools/refresh_what_you_see.py --check    # exit with 1 if the examples are out of date

The examples are between `<!-- play:begin -->` and `<!-- play:end -->` (and the same for `trace`). Times,
process ids and the name of the run folder differ from run to run, and so does the place at which a line of a
trace is cut. If nothing else differs, the page is not changed.
"""

import os
import re
import subprocess
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100
CUT = "…"
GRUE = (sys.executable, "-m", "grue")
THE_PUZZLE = "\n> dial "
A_TOOL_TURN = 13

_VARYING = (
    (re.compile(r"^ *(\d+) +\d+\.\d{3} +", re.MULTILINE), r"\1 TIME "),
    (re.compile(r"\d+\.\d (ms|s)\b"), "TIME"),
    (re.compile(r"\bpid \d+"), "PID"),
    (re.compile(r"\b\d{8}-\d{6}-\d+"), "EPISODE"),
    (re.compile(r" +"), " "),
    # At the end of a line: its sandbox, which some machines lack, or the beginning of a time.
    (re.compile(r"\. Sa\w*…$", re.MULTILINE), ""),
    (re.compile(r"\d[\d.]* ?m?…$", re.MULTILINE), CUT),
)
_TRACE_LINE = re.compile(r"\d+ TIME ")


def main(arguments: list[str]) -> int:
    """Write or check the examples, and return the exit status."""
    readme = ROOT / "docs" / "what-you-see.md"
    now = readme.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        fresh = filled(now, play=play_excerpt(Path(folder)), trace=trace_excerpt(Path(folder)))
    if same(fresh, now):
        return 0
    if "--check" in arguments:
        print("docs/what-you-see.md is out of date; run: python tools/refresh_what_you_see.py")
        return 1
    readme.write_text(fresh, encoding="utf-8")
    return 0


def filled(readme: str, **blocks: str) -> str:
    """Return the page with each of `blocks` put between its markers, as a code block."""
    for name, text in blocks.items():
        marked = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        block = f"```\n{text}\n```\n".replace("\\", r"\\")
        readme, count = marked.subn(rf"\g<1>{block}\g<2>", readme)
        if count != 1:
            raise SystemExit(f"docs/what-you-see.md has {count} blocks called {name}; one is wanted.")
    return readme


def same(fresh: str, now: str) -> bool:
    """Return whether two pages differ only in what differs from run to run, such as times."""
    for pattern, placeholder in _VARYING:
        fresh, now = pattern.sub(placeholder, fresh), pattern.sub(placeholder, now)
    lines = zip_longest(fresh.splitlines(), now.splitlines(), fillvalue="")
    return all(one == other or _begins(one, other) or _begins(other, one) for one, other in lines)


def _begins(one: str, other: str) -> bool:
    """Return whether `one` is a cut line of a trace, and `other` the same line, cut later or not at all."""
    return bool(_TRACE_LINE.match(one)) and one.endswith(CUT) and other.startswith(one[:-1])


def play_excerpt(folder: Path) -> str:
    """Play as `make play` does; return the output of the first turns, of the puzzle's turn, and the end."""
    turns = re.split(r"\n\n(?=Turn \d+ · )", printed(*recipe(), cwd=folder).rstrip("\n"))
    opening = turns[0].splitlines()[:3]
    puzzle = next(turn for turn in turns if THE_PUZZLE in turn)
    end = turns[-1].splitlines()[-6:]
    return "\n".join(
        ["$ make play", *opening, CUT, turns[1], "", turns[2], CUT, puzzle, CUT, *end],
    )


def trace_excerpt(folder: Path) -> str:
    """Return what `grue trace show` prints for the played episode: the turn with one tool call."""
    (episode,) = (folder / "runs").iterdir()
    lines = printed("trace", "show", f"runs/{episode.name}", "--width", str(WIDTH), cwd=folder).splitlines()
    first = lines.index(f"── Turn {A_TOOL_TURN} ──")
    end = lines.index("", first)
    return "\n".join([lines[1], *lines[first:end]])


def recipe() -> list[str]:
    """Return the arguments that `make play` gives to `grue`."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    defaults = dict(re.findall(r"^(\w+) \?= (.*)$", makefile, re.MULTILINE))
    command = re.search(r"/grue (play .*)", makefile)
    assert command is not None, "make play runs grue play"
    return re.sub(r"\$\((\w+)\)", lambda m: defaults[m[1]], command[1]).split()


def printed(*arguments: str, cwd: Path) -> str:
    """Return what `grue` prints into a pipe if a terminal has 80 columns."""
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [*GRUE, *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
