"""Scenes: functions that record an episode in which a certain thing happens, such as a tool that fails."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from recorded_episodes import CRASH, HANG, RecordedEpisode

from grue import FailurePolicy, TurnLimits
from grue.messages import OpenSession, RequestCompletion, SessionOpened, ToolCalled
from grue.protocol.turn.connection import Disabled
from grue.testing.fake_tools import FakeToolServer
from grue.tracing.reading import EpisodeEnvelope, open_episode

Scene = Callable[[Path], None]


def cave() -> FakeToolServer:
    """Return a server with tools that answer, fail, time out, and kill the server."""
    server = FakeToolServer("cave")
    server.answers("look", {"room": "dark"})
    server.fails("dig", "the spade is broken")
    server.times_out("wait")
    server.dies("burn")
    return server


def hut() -> FakeToolServer:
    server = FakeToolServer("hut")
    server.answers("sit", "comfortable")
    return server


def _calls(*script: object, **policy: str) -> Scene:
    def record(path: Path) -> None:
        servers = {"cave": cave(), "hut": hut()}
        with RecordedEpisode(path, servers, policy=FailurePolicy(**policy)) as episode:  # type: ignore[arg-type]
            episode.turn(*script)
            episode.turn("the next turn")

    return record


def _starts(failures: tuple[int, ...], **policy: object) -> Scene:
    """Return a scene with a turn for each of `failures`: so often the server fails to start before it."""

    def record(path: Path) -> None:
        server = cave()
        with RecordedEpisode(path, {"cave": server}, policy=FailurePolicy(**policy)) as episode:  # type: ignore[arg-type]
            for times in failures:
                server.fails_to_start(times)
                episode.turn(["cave.look"], "done")

    return record


def _cancelled(when: type) -> Scene:
    def record(path: Path) -> None:
        server = cave()
        with RecordedEpisode(path, {"cave": server}) as episode:
            episode.turn("first")
            episode.cancelled_turn(["cave.look"], HANG, when=when)
            server.fails_to_start()
            episode.turn("after it")

    return record


def refused_once() -> Callable[[str], str]:
    refusals = iter([ValueError("too short")])

    def check(text: str) -> str:
        for error in refusals:
            raise error
        return text

    return check


def never(text: str) -> str:
    raise ValueError(f"not {text!r}")


def broken(text: str) -> str:
    raise LookupError("a bug in the host's check")


def _checked(*script: object, check: Callable[[str], str]) -> Scene:
    def record(path: Path) -> None:
        with RecordedEpisode(path, {"cave": cave()}) as episode:
            episode.turn(*script, check=check)
            episode.turn("the next turn")

    return record


def _out_of_time(path: Path) -> None:
    with RecordedEpisode(path, {"cave": cave()}) as episode:
        episode.turn(["cave.look"], HANG, turn_timeout_s=0.2)
        episode.turn("the next turn")


def _given_up(path: Path) -> None:
    with RecordedEpisode(path, {"cave": cave()}) as episode:
        episode.turn("first")
        episode.runner.remember("cave", Disabled("the host has had enough of it"))
        episode.turn("second")


def _crash(path: Path) -> None:
    with RecordedEpisode(path, {"cave": cave()}) as episode:
        episode.turn(["cave.look"], CRASH)
        episode.turn("the next turn")


def _cut_results(path: Path) -> None:
    server = cave()
    with RecordedEpisode(path, {"cave": server}, limits=TurnLimits(max_result_chars=20)) as episode:
        server.answers("look", "x" * 100)
        episode.turn(["cave.look"], ["cave.look"], "done")


SCENES: dict[str, Scene] = {
    "tools": _calls(["cave.look", "hut.sit", "cave.dig"], ["hut.sit"], "done"),
    "rejected": _calls(["nobody.knows", ("cave.look", "{broken"), "cave.look"], "done"),
    "nothing": _calls(None, "done"),
    "late-calls": _calls(None, ["cave.look"], "done"),
    "timeout": _calls(["cave.look", "cave.wait", "cave.look", "hut.sit"], "done"),
    "timeout-continue": _calls(["cave.wait", "cave.look", "hut.sit"], "done", after_timeout="continue"),
    "timeout-force": _calls(["cave.wait", "cave.look"], "done", after_timeout="force"),
    "death": _calls(["cave.burn", "cave.look", "hut.sit"], "done"),
    "death-reconnect": _calls(["cave.burn", "cave.look"], ["cave.look"], "done", after_death="reconnect"),
    "repair": _checked(["cave.look"], "a", "bcd", check=refused_once()),
    "fallback": _checked("a", "b", check=never),
    "broken-check": _checked("a", check=broken),
    "retry": _starts((0, 1, 0)),
    "no-retry": _starts((0, 1), connect_retries=0),
    "disabled": _starts((0, 2, 0)),
    "never-starts": _starts((1, 1)),
    "disabled-at-once": _starts((1, 0), first_connect="disable"),
    "given-up-by-the-host": _given_up,
    "deadline": _out_of_time,
    "model-crash": _crash,
    "cut-results": _cut_results,
    "cancelled-in-start": _cancelled(OpenSession),
    "cancelled-once-open": _cancelled(SessionOpened),
    "cancelled-at-request": _cancelled(RequestCompletion),
    "cancelled-in-call": _cancelled(ToolCalled),
}


def scene(name: str, folder: Path, take: int = 1) -> list[EpisodeEnvelope]:
    """Record a scene in `folder` and return its trace."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{take}.jsonl"
    SCENES[name](path)
    return list(open_episode(path))


def place_of(envelopes: Sequence[EpisodeEnvelope], kind: type, number: int = 0) -> int:
    """Return the index of the first message of a kind, or of a later one (`number`)."""
    return [n for n, envelope in enumerate(envelopes) if isinstance(envelope.body, kind)][number]


def with_body(envelopes: list[EpisodeEnvelope], place: int, body: Any) -> list[EpisodeEnvelope]:
    """Return a copy of the trace with another body at an index."""
    return [*envelopes[:place], replace(envelopes[place], body=body), *envelopes[place + 1 :]]


def with_fields(envelopes: list[EpisodeEnvelope], place: int, **fields: Any) -> list[EpisodeEnvelope]:
    """Return a copy of the trace in which the message at an index has other `fields`."""
    body: Any = envelopes[place].body
    return with_body(envelopes, place, replace(body, **fields))
