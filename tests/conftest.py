"""What every test may use."""

import errno
import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from _pytest.assertion import rewrite
from coverage import Coverage
from example_counts import named_tests, try_enough
from hypothesis import is_hypothesis_test, settings
from hypothesis.strategies import text
from typer.main import get_command
from xdist.scheduler import LoadScopeScheduling

# How long an example takes depends on what else the machine does: a hang is pytest-timeout's to find.
settings.register_profile("full", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=10)  # --hypothesis-profile=quick
settings.load_profile("full")

# A run in the background may have been started with signals ignored, and every program that a test starts
# would inherit that: Ctrl-C could not be tried. Here they mean what they mean to a user.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# What these modules share (a browser, a server, an environment) takes seconds to make: with several workers,
# each module stays in one of them. They come first.
_ONE_WORKER = (
    "browser/",
    "integration/test_absent_host",
    "integration/test_benchmarks",
    "integration/test_fleet_measures",
    "integration/test_litellm",
    "integration/test_mcp_protocol",
    "integration/test_official_clients",
    "integration/test_resume_after",
    "integration/test_secrets_everywhere",
    "integration/test_small_model",
    "integration/test_trace_to_test",
    "integration/test_wheel",
)
# The tests of these modules are short: sending each to another worker costs as much as many of them.
_SHORT = ("properties/", "unit/")
# But some of these take ten seconds, which are waited for if they begin last.
_LONG_UNITS = ("unit/actors/test_llm_any_reply", "unit/testing/test_plugin")
# Tests that connect real servers.
_WITH_SERVERS = (
    "integration/",
    "unit/actors/test_mcp_session_contract",
    "unit/cli/",
    "unit/engine/",
    "unit/hosts/",
    "unit/transports/mcp/",
    "unit/testing/",
    "unit/tool_sessions/",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the garbage collector, and keep it from what is collected.

    It would go through ten thousand tests and their modules again and again and find nothing: that takes a
    third of the time of collecting, and half a second for each `gc.collect()` in a test.
    """
    _rewrite_own_share(session.config)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _rewrite_own_share(config: pytest.Config) -> None:
    """Have each worker rewrite the assertions of a part of the test files, where none is on disk.

    pytest does so when it imports a file for the first time. For all files that takes ten seconds of CPU
    in each worker, since all workers import the same file at the same time.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    state = config.stash[rewrite.assertstate_key]
    files = sorted(
        file for place in config.args for file in _test_files(config.invocation_params.dir / place)
    )
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        folder = rewrite.get_cache_dir(file)
        rewritten = folder / (file.name[:-3] + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, rewritten) is None and rewrite.try_makedirs(folder):
            source, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, source, rewritten)


def _test_files(place: Path) -> Iterator[Path]:
    return place.rglob("test_*.py")  # of a file, and of a single test, there is none


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--covered",
        default="",
        help="Paths, separated by spaces: with --cov, count what their tests cover and nothing else. Slow "
        "tests and those by Hypothesis do not count either. What does not count runs without being traced.",
    )
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="Run the test files, and the tests in each of them, in a random order.",
    )
    parser.addoption(
        "--passed", type=Path, metavar="FILE", help="Write the names of the tests that pass to FILE."
    )
    parser.addoption(
        "--not-again",
        type=Path,
        metavar="FILE",
        help="Leave out the tests that FILE names, but not those by Hypothesis, which may try more here.",
    )


class _PassedTests:
    """Writes the name of each test that has passed into a file, as soon as it has."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--passed")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_PassedTests(path))


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    # In a fresh clone Hypothesis lists all characters of UTF-8, for two seconds. Each worker would do it.
    if not hasattr(session.config, "workerinput"):
        text().validate()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        test = getattr(item, "obj", None)
        if is_hypothesis_test(test) and item.nodeid.partition("[")[0] in named_tests():
            try_enough(test)
    if (list_of_passed := config.getoption("--not-again")) and list_of_passed.is_file():
        passed = frozenset(list_of_passed.read_text(encoding="utf-8").splitlines())
        items[:] = [item for item in items if item.nodeid not in passed or _takes_more_time(item)]
    if hasattr(config, "workerinput"):
        _mix(items)
    if config.getoption("--covered"):
        _put_covered_first(items)
    elif hasattr(config, "workerinput"):
        items.sort(key=_begins_late)
    seed = config.getoption("--shuffle")
    if seed is not None:
        items[:] = _shuffled(items, Random(seed))


_LAST_PART = 0.05


def _mix(items: list[pytest.Item]) -> None:
    """Put the files of short tests, which compute, evenly between the others, which wait for processes.

    All of the others together would leave the processor idle at times. At the end come short tests alone, so
    that no worker waits for another one. The tests of a file stay together, because they share what it makes.
    """
    places: dict[Path, float] = {}
    for short, scale in ((True, 1.0), (False, 1.0 - _LAST_PART)):
        alike = [item for item in items if _module(item.nodeid).startswith(_SHORT) is short]
        for number, item in enumerate(alike):
            places.setdefault(item.path, scale * number / len(alike))
    items.sort(key=lambda item: places[item.path])


def _put_covered_first(items: list[pytest.Item]) -> None:
    """Run first the tests that count for coverage, then what takes long, so that no worker ends alone.

    The order matters for coverage too: a module that a test without tracing imports first would count as
    never imported in that worker.
    """
    covered = {item for item in items if _is_covered(item)}
    long = {item.path for item in items if item not in covered and _takes_more_time(item)}
    items.sort(
        key=lambda item: (
            item not in covered,
            not _takes_minutes(item),
            _begins_late(item),
            item.path not in long,
        )
    )


def _takes_minutes(item: pytest.Item) -> bool:
    """Whether a test has more time than others before it counts as hanging: then it is one of the longest."""
    mark = item.get_closest_marker("timeout")
    return mark is not None and mark.args[0] > float(item.config.getini("timeout"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Stop tracing for coverage, which makes Python half as fast, where a test does not count for it."""
    if not item.config.getoption("--covered") or _is_covered(item):
        return (yield)
    with _untraced():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, object, object]:
    """Trace the import of a module for coverage, and not what pytest then does with its tests.

    Every worker imports the same modules, so it is enough if one of them is traced.
    """
    if not collector.config.getoption("--covered"):
        return (yield)
    worker = getattr(collector.config, "workerinput", {"workerid": "gw0"})["workerid"]
    if isinstance(collector, pytest.Module) and worker == "gw0":
        with suppress(BaseException):  # the collector imports it again, and reports what is wrong
            _ = collector.obj
    with _untraced():
        return (yield)


@contextmanager
def _untraced() -> Iterator[None]:
    # In a worker there are two: pytest-cov begins with one for a run without workers. A text that grows by
    # `+=` is copied whole each time while Python is traced, so a test of 60 MB takes ten times as long then.
    stopped = []
    while (running := Coverage.current()) is not None:
        running.stop()
        stopped.append(running)
    try:
        yield
    finally:
        for each in reversed(stopped):
            each.start()


def _is_covered(item: pytest.Item) -> bool:
    places = item.config.getoption("--covered").split()
    file = item.nodeid.partition("::")[0]
    return f"{file}/".startswith(tuple(f"{place}/" for place in places)) and not _takes_more_time(item)


def _begins_late(item: pytest.Item) -> bool:
    return not _module(item.nodeid).startswith(_ONE_WORKER + _LONG_UNITS)


def _module(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")


def _shuffled(items: list[pytest.Item], chance: Random) -> list[pytest.Item]:
    """Return the tests in a random order. Those of a file stay together, because they share what it makes."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    groups = [*files.values()]
    chance.shuffle(groups)
    for group in groups:
        chance.shuffle(group)
    return [item for group in groups for item in group]


class _OneWorkerForSome(LoadScopeScheduling):  # type: ignore[misc]  # xdist is not typed
    """Send each test to the next free worker, but the tests of some modules to the same one.

    The option `--dist loadgroup` of xdist 3.8 has no effect with pytest 9.2, which does not read a test's id
    where xdist writes the group.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = _module(nodeid)
        # With coverage, some tests of a short module count and run first, and the others run last.
        short = not self.config.getoption("--covered") and module.startswith(_SHORT)
        together = module.startswith(_ONE_WORKER) or (short and not module.startswith(_LONG_UNITS))
        return module if together else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # keep the order of pytest_collection_modifyitems
    return _OneWorkerForSome(config, log)


def _takes_more_time(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None or is_hypothesis_test(getattr(item, "obj", None))


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, object]]:
    """The event loop of asynchronous tests; with `@pytest.mark.virtual_time`, one with a virtual clock."""
    if request.node.get_closest_marker("virtual_time") is None:
        return "asyncio"
    from grue.testing.actor_harness import VirtualTimeLoop

    return "asyncio", {"loop_factory": VirtualTimeLoop}


@pytest.fixture(scope="session")
def zork1() -> Path:
    """The story file of Zork I; skips where it is absent (it is not part of the project)."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "zork1.z3"
    path = Path(os.environ.get("GRUE_ZORK1", default))
    if not path.is_file():
        pytest.skip("no Zork I story file: set GRUE_ZORK1 to the path of zork1.z3")
    return path


@pytest.fixture(autouse=True)
def _levels_of_logs() -> Iterator[None]:
    """Put the levels back that a library sets for good, so that no other test finds records of asyncio."""
    loggers = [logging.getLogger(name) for name in (None, "asyncio")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no write to a file with `os.write` succeed, as on a full disk. Not every machine has /dev/full."""

    def write(descriptor: int, _: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("grue.runtime.files.os.write", write)


@pytest.fixture(autouse=True, scope="session")
def _no_cache_of_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep listings that tests have seen out of the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRUE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_wait_for_the_disk() -> Iterator[None]:
    """Leave out `fsync`, which takes milliseconds each time: no test turns the machine off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_tree_of_commands() -> Iterator[None]:
    """Have `CliRunner` build the commands of an app once, which takes 20 ms, and not for each call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command), raising=False)
        yield


@pytest.fixture(autouse=True, scope="module")
def _slow_imports(request: pytest.FixtureRequest) -> None:
    """Import the libraries that a first turn needs, before any time limit of a test begins.

    The MCP SDK takes more than a second of CPU to import, on a busy machine ten seconds. The first test of a
    worker that had a time limit would pay for it.
    """
    if _module(request.node.nodeid).startswith(_WITH_SERVERS):
        from grue.runtime.loading import load

        for module in ("transports.llm.exchange", "transports.mcp.sdk", "transports.mcp.sdk_http"):
            load(f"grue.{module}")


@pytest.fixture(autouse=True)
def _every_trace_replays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Replay what a test leaves in its folder: whatever went wrong, the machine decides the same again."""
    made_up = request.node.get_closest_marker("made_up_trace")
    has_folder = "tmp_path" in request.fixturenames and not made_up
    folder = request.getfixturevalue("tmp_path") if has_folder else None
    yield
    if folder is not None:
        from replayed import replay_all

        with _untraced():  # the replay has tests of its own
            replay_all(folder)
