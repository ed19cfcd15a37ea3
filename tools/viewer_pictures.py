"""Make the docs' pictures of the trace viewer from real traces, in a real browser.

    python tools/viewer_pictures.py [FOLDER]        default: docs/pictures

One trace is an episode of the House, played offline by the command line. The other has failures: real turns
with servers of `grue.testing` that hang, die and refuse calls. Playwright must be installed. The browser is
`chromium` on the path, or the program that GRUE_CHROMIUM names.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Page, sync_playwright

from grue import TurnLimits, __version__
from grue.engine.runner import Runner, TurnRequest
from grue.errors import MCPError
from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted, Observed
from grue.hosts.zork.games.catalogue import open_game
from grue.protocol.retry import RetryPolicy
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder
from grue.testing.llm_server import (
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    error_reply,
    text_reply,
    tool_calls_reply,
)
from grue.tool_sessions.server_specs import StdioServer
from grue.tracing.viewer import write_comparison, write_html
from grue.transports.llm.endpoint import LlmSettings

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
MOST_BYTES = 200_000
MODEL_THINKS_S = 0.12


class Scene(NamedTuple):
    """A turn: the faults of the second server, the model's replies, and the move that the host makes."""

    flags: tuple[str, ...]
    replies: tuple[LlmReply, ...]
    command: str


def _thought(text: str) -> tuple[str, dict[str, object]]:
    return "mind.think", {"thought": text, "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}


def _echo(text: str) -> tuple[str, dict[str, object]]:
    return "notes.echo", {"text": text}


SCENES = (
    Scene(
        ("--slow-call", "0.03"),
        (tool_calls_reply(_thought("A gate, a garden, a house: in."), _echo("gate")), text_reply("north")),
        "north",
    ),
    Scene(
        ("--slow-call", "0.05"),
        (
            error_reply(503, "The model is overloaded; try again."),
            tool_calls_reply(_thought("The porch is next."), _echo("roses"), _echo("porch")),
            text_reply("north"),
        ),
        "north",
    ),
    Scene(
        ("--silent-at", "call"),
        (
            tool_calls_reply(
                _thought("Ask the notes about the door."), _echo("door"), _echo("key"), _echo("lock")
            ),
            text_reply("open door"),
        ),
        "open door",
    ),
    Scene(("--slow-call", "0.02"), (tool_calls_reply(("notes.fail", {})), text_reply("north")), "north"),
    Scene(
        ("--kill-at", "call", "--stderr", "out of ink"),
        (
            tool_calls_reply(_thought("What is in the hall?"), _echo("hall"), _echo("clock")),
            text_reply("examine clock"),
        ),
        "examine clock",
    ),
    Scene((), (text_reply("north"),), "north"),
    Scene(("--exit-at", "initialize", "--stderr", "no such notebook"), (), "look"),
)


def main(folder: Path) -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory() as made:
        house, faulty, both = Path(made, "house.html"), Path(made, "faulty.html"), Path(made, "both.html")
        house_trace = _house_trace(Path(made), seed=7)
        write_html(house_trace, house, title="The House, played offline")
        write_comparison(house_trace, _house_trace(Path(made), seed=8), both)
        write_html(_faulty_trace(Path(made)), faulty, title="An episode in which things go wrong")
        folder.mkdir(parents=True, exist_ok=True)
        with _browser() as open_page:
            for name, page, scheme, size, steps in (
                ("light", house, "light", (1240, 800), _thinking_turn),
                ("request", house, "light", (1240, 690), _request),
                ("dark", faulty, "dark", (1240, 720), _third_turn),
                ("detail", faulty, "light", (1240, 690), _dead_server),
                ("plot", house, "light", (1240, 480), _plot),
                ("compare", both, "light", (1240, 690), _compare),
                ("narrow", faulty, "dark", (360, 720), _narrow),
            ):
                with open_page(page, scheme, size) as shown:
                    steps(shown)
                    _take(shown, folder / f"trace-viewer-{name}.png")


def _third_turn(page: Page) -> None:
    page.get_by_role("tab", name="Messages").click()
    page.get_by_role("listbox", name="Turns").get_by_role("option").filter(has_text="timeout").click()


def _thinking_turn(page: Page) -> None:
    page.get_by_label("Order of the turns").select_option("longest")
    page.get_by_role("listbox", name="Turns").get_by_role("option").filter(has_text="open teapot").click()
    page.locator(".passage.call summary").first.click()


def _request(page: Page) -> None:
    _thinking_turn(page)
    page.keyboard.press("j")
    page.locator(".passage.reply [data-request]").nth(1).click()


def _plot(page: Page) -> None:
    page.get_by_role("tab", name="Plot").click()
    page.locator("svg.plot").focus()
    page.keyboard.press("End")


def _compare(page: Page) -> None:
    page.keyboard.press("n")
    page.keyboard.press("n")


def _dead_server(page: Page) -> None:
    page.get_by_role("tab", name="Messages").click()
    page.get_by_role("listbox", name="Turns").get_by_role("option").filter(has_text="died").click()
    page.get_by_role("link", name="ServerDied").click()


def _narrow(page: Page) -> None:
    page.get_by_role("button", name="Failures").click()


def _take(page: Page, target: Path) -> None:
    page.screenshot(path=target, animations="disabled", caret="hide")
    size = target.stat().st_size
    print(f"{target.name}: {size} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"{target} is larger than {MOST_BYTES} bytes")


@contextmanager
def _browser() -> Iterator[Callable[..., Any]]:
    executable = os.environ.get("GRUE_CHROMIUM") or shutil.which("chromium")
    if executable is None:
        raise SystemExit("There is no chromium on the path; name one by GRUE_CHROMIUM.")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=executable, args=sandbox) as browser,
    ):

        @contextmanager
        def open_page(file: Path, scheme: Any, size: tuple[int, int]) -> Iterator[Page]:
            viewport: Any = {"width": size[0], "height": size[1]}
            with browser.new_page(viewport=viewport, color_scheme=scheme) as page:
                page.goto(file.as_uri())
                page.locator("html[data-ready]").wait_for()
                yield page

        yield open_page


def _house_trace(folder: Path, seed: int) -> Path:
    run = folder / f"house-{seed}"
    command = (
        sys.executable,
        "-m",
        "grue",
        "play",
        "--offline",
        "--quiet",
        "--seed",
        str(seed),
        "--run-dir",
        str(run),
    )
    subprocess.run(command, check=False, cwd=folder, stdout=subprocess.DEVNULL)
    return run


def _faulty_trace(folder: Path) -> Path:
    path = folder / "trace.jsonl"
    recorder = Recorder()
    writer = TraceWriter(path, episode="the-notebook")
    recorder.add(writer)
    try:
        _play(recorder)
    finally:
        writer.close()
    return path


def _play(recorder: Recorder) -> None:
    game = open_game("house")
    seen = game.reset(7)
    start = EpisodeStarted(
        episode_id="the-notebook", game=game.name, game_hash="", seed=7, model="scripted", scripted=True,
        servers=("mind", "notes"), max_turns=len(SCENES), version=__version__,
    )  # fmt: skip
    recorder.record(start, sender="host")
    for turn, scene in enumerate(SCENES, start=1):
        seen_by_model = Observed(turn=turn, text=seen.text, location=seen.location, score=seen.score)
        recorder.record(seen_by_model, sender="host", turn=turn)
        failed = _turn(recorder, turn, scene, seen.text)
        decided = Decided(
            turn=turn, action=scene.command, reasoning="", new_objective=None,
            kind="fallback" if failed else "answered", reason=failed,
        )  # fmt: skip
        recorder.record(decided, sender="host", turn=turn)
        seen = game.step(scene.command)
    game.close()
    end = EpisodeEnded(reason="failed", detail="a server could not be started", turns=len(SCENES))
    recorder.record(end, sender="host", turn=len(SCENES))


def _turn(recorder: Recorder, turn: int, scene: Scene, text: str) -> str:
    replies = iter(scene.replies)

    def answer(request: LlmRequest) -> LlmReply:
        # Reply as slowly as a real model, so that the pictures show the time that a reply takes.
        time.sleep(MODEL_THINKS_S * (1 + len(request.messages) % 3))
        return next(replies)

    with ScriptedLlmServer(answer) as llm:
        runner = Runner(
            llm=LlmSettings(
                base_url=llm.base_url,
                model="scripted",
                retry=RetryPolicy(initial_delay_s=0.25, jitter_factor=0),
            ),
            servers={
                "mind": _server("mind", "grue.hosts.servers.think"),
                "notes": _server("notes", "grue.testing.faulty_server", *scene.flags),
            },
            limits=TurnLimits(tool_call_timeout_s=0.8),
            process_limits=ProcessLimits(exit_grace_s=0.2, term_grace_s=0.2),
            recorder=recorder,
        )
        try:
            with runner:
                runner.run_turn(TurnRequest(system="You play a text adventure.", user=text, turn=turn))
        except MCPError as error:
            return str(error).splitlines()[0]
    return ""


def _server(name: str, module: str, *flags: str) -> StdioServer:
    # Give the command without its path: failures quote it, and pictures should not show this machine's paths.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return StdioServer(name=name, command="python", args=("-m", module, *flags), env={"PATH": path})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
