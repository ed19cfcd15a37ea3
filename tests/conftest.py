"""What every test may use."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does: a hang is pytest-timeout's to find.
settings.register_profile("grue", deadline=None)
settings.load_profile("grue")

# A run in the background may have been started with signals ignored, and every program that a test starts
# would inherit that: Ctrl-C could not be tried. Here they mean what they mean to a user.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# What these modules share (a browser, a whole run of the benchmarks) takes seconds to make: with several
# workers, each module stays in one of them.
_ONE_WORKER = (
    "browser/",
    *(f"integration/test_{name}" for name in ("benchmarks", "litellm", "resume_after")),
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and keep it from what is collected.

    It would go through ten thousand tests and their modules again and again and find nothing: that takes a
    third of the time of collecting, and half a second for each `gc.collect()` in a test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-fast-in",
        default="",
        help="Paths, separated by spaces: of the tests in them run only the slow ones. For `make test-all`.",
    )


@pytest.hookimpl(tryfirst=True)  # before xdist reads the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = tuple(str(config.rootpath / path) for path in config.getoption("--without-fast-in").split())
    if done:
        fast = {item for item in items if _is_in(item.path, done) and not item.get_closest_marker("slow")}
        config.hook.pytest_deselected(items=list(fast))
        items[:] = [item for item in items if item not in fast]
    for item in items:
        where = item.path.relative_to(Path(__file__).parent).as_posix()
        if where.startswith(_ONE_WORKER):
            item.add_marker(pytest.mark.xdist_group(where))


def _is_in(path: Path, places: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(place) for place in places)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def zork1() -> Path:
    """The story file of Zork I; skips where it is absent (it is not part of the project)."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "zork1.z3"
    path = Path(os.environ.get("GRUE_ZORK1", default))
    if not path.is_file():
        pytest.skip("no Zork I story file: set GRUE_ZORK1 to the path of zork1.z3")
    return path


@pytest.fixture(autouse=True)
def _every_trace_replays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Replay what a test leaves in its folder: whatever went wrong, the machine decides the same again."""
    made_up = request.node.get_closest_marker("made_up_trace")
    has_folder = "tmp_path" in request.fixturenames and not made_up
    folder = request.getfixturevalue("tmp_path") if has_folder else None
    yield
    if folder is not None:
        from replayed import replay_all

        replay_all(folder)
