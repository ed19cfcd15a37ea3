"""Fixtures for all tests, and hooks that decide which tests run, in which order and in which worker."""

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
from example_counts import LEAST, count, named_tests, try_enough
from hypothesis import is_hypothesis_test, settings
from hypothesis.strategies import text
from typer.main import get_command
from xdist.scheduler import LoadScopeScheduling

# No deadline for an example, because its time depends on other load on the machine. pytest-timeout finds
# hangs.
settings.register_profile("full", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=10)  # --hypothesis-profile=quick
settings.load_profile("full")

# If pytest runs in the background, SIGINT and SIGHUP may be ignored. Every program that a test starts would
# inherit this, and Ctrl-C could not be tested. So restore the handlers that a user's program has.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# The tests of each of these modules share a browser, a server or an environment, which takes seconds to make.
# So all tests of a module run in the same worker. These modules run first.
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
# The tests of these modules are short: to send them to workers one by one would cost more than to run them.
_SHORT = ("properties/", "unit/")
# But tests of these modules take ten seconds. They begin early, so that no worker ends late because of them.
_LONG_UNITS = ("unit/actors/test_llm_any_reply", "unit/testing/test_plugin")
# The tests of these modules connect to real servers.
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
    """Disable the garbage collector while pytest collects tests, and let it ignore the tests later.

    Otherwise it would search ten thousand tests and their modules again and again. That would take a third of
    the time of collection, and half a second for each `gc.collect()` in a test.
    """
    _rewrite_own_share(session.config)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # What tests import later lives as long. Search it rarely: each time takes an eighth of a second.
        gc.set_threshold(700, 10, 1000)
        gc.enable()


def _rewrite_own_share(config: pytest.Config) -> None:
    """Let each worker rewrite the assertions of its share of the test files that have no rewritten `.pyc`.

    Otherwise pytest would rewrite a file when it imports it first. As all workers import the same file at the
    same time, each worker would rewrite all files, which takes ten seconds of CPU.
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
    return place.rglob("test_*.py")  # nothing if `place` is a file or a single test


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
        help="Leave out the tests that FILE names, but not those by Hypothesis that try more here.",
    )


class _PassedTests:
    """Appends the name of each test to a file as soon as the test has passed."""

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
    # In a fresh clone, Hypothesis makes a list of all characters, which takes two seconds. Make it only once,
    # and not in each worker.
    if not hasattr(session.config, "workerinput"):
        text().validate()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        test = getattr(item, "obj", None)
        if is_hypothesis_test(test) and item.nodeid.partition("[")[0] in named_tests():
            try_enough(test)
    if (list_of_passed := config.getoption("--not-again")) and list_of_passed.is_file():
        passed = frozenset(list_of_passed.read_text(encoding="utf-8").splitlines())
        items[:] = [item for item in items if item.nodeid not in passed or _tries_more(item)]
    if hasattr(config, "workerinput"):
        _mix(items)
        _put_long_first(items)
    seed = config.getoption("--shuffle")
    if seed is not None:
        items[:] = _shuffled(items, Random(seed))


def _tries_more(item: pytest.Item) -> bool:
    """Return whether a test by Hypothesis tries more examples with the profile `full` than with `quick`."""
    test = getattr(item, "obj", None)
    if not is_hypothesis_test(test):
        return False
    return count(test) > LEAST or item.nodeid.partition("[")[0] not in named_tests()


def _spread_over(item: pytest.Item) -> float:
    """Return over which part of all tests those that are like this one are spread."""
    module = _module(item.nodeid)
    if module.startswith(_ONE_WORKER + _LONG_UNITS):
        return 0.5
    return 1.0 if module.startswith(_SHORT) else 0.95


def _mix(items: list[pytest.Item]) -> None:
    """Spread the files of short tests, which compute, evenly between the others, which wait for processes.

    If the waiting tests ran together, the processor would be idle at times. The last tests are short ones, so
    that all workers end at about the same time; what occupies one worker for long begins in the first half.
    The tests of a file stay together, because they share fixtures.
    """
    groups: dict[float, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(_spread_over(item), []).append(item)
    places: dict[Path, float] = {}
    for part, alike in groups.items():
        for number, item in enumerate(alike):
            places.setdefault(item.path, part * number / len(alike))
    items.sort(key=lambda item: places[item.path])


def _put_long_first(items: list[pytest.Item]) -> None:
    """Run the tests that count for coverage first, then the long tests, so that no worker ends late.

    The order also matters for coverage: if an untraced test imported a module first, the lines that run at
    import would count as not covered in this worker.
    """
    covered = {item for item in items if _is_covered(item)}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(
        key=lambda item: (
            item not in covered,
            not _takes_minutes(item),
            item.path not in slow,
        )
    )


def _takes_minutes(item: pytest.Item) -> bool:
    """Return whether a test is one of the longest: its own time limit exceeds the usual one."""
    mark = item.get_closest_marker("timeout")
    return mark is not None and mark.args[0] > float(item.config.getini("timeout"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Stop tracing during tests that do not count for coverage, because it makes Python half as fast."""
    if not item.config.getoption("--covered") or _is_covered(item):
        return (yield)
    with _untraced():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, object, object]:
    """Trace only the import of a test module for coverage, not pytest's collection of its tests.

    All workers import the same modules, so only the first worker traces the imports.
    """
    if not collector.config.getoption("--covered"):
        return (yield)
    worker = getattr(collector.config, "workerinput", {"workerid": "gw0"})["workerid"]
    if isinstance(collector, pytest.Module) and worker == "gw0":
        with suppress(BaseException):  # pytest imports the module again below, and reports the error
            _ = collector.obj
    with _untraced():
        return (yield)


@contextmanager
def _untraced() -> Iterator[None]:
    # Stop all running `Coverage` objects: in a worker, pytest-cov starts two. Tracing would also make each
    # `+=` of a string copy the whole string, so that a test with 60 MB of text would take ten times as long.
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


def _module(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")


def _shuffled(items: list[pytest.Item], chance: Random) -> list[pytest.Item]:
    """Return the tests in a random order. Those of a file stay together, because they share fixtures."""
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

    xdist 3.8 has the option `--dist loadgroup` for this. It has no effect with pytest 9.2, because xdist
    appends the group to an attribute that pytest no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = _module(nodeid)
        # With `--covered` the tests of a short module do not stay together, because those that count run
        # first; and without `-m "not slow"`, because some of them take long.
        quick = self.config.option.markexpr and not self.config.getoption("--covered")
        short = quick and module.startswith(_SHORT)
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
    """The event loop of asynchronous tests. With `@pytest.mark.virtual_time` it has a virtual clock."""
    if request.node.get_closest_marker("virtual_time") is None:
        return "asyncio"
    from grue.testing.actor_harness import VirtualTimeLoop

    return "asyncio", {"loop_factory": VirtualTimeLoop}


@pytest.fixture(scope="session")
def zork1() -> Path:
    """The story file of Zork I, which is not part of the project. Without it the test is skipped."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "zork1.z3"
    path = Path(os.environ.get("GRUE_ZORK1", default))
    if not path.is_file():
        pytest.skip("no Zork I story file: set GRUE_ZORK1 to the path of zork1.z3")
    return path


@pytest.fixture(autouse=True)
def _levels_of_logs() -> Iterator[None]:
    """Restore log levels after a test: libraries change them, and later tests would see asyncio's logs."""
    loggers = [logging.getLogger(name) for name in (None, "asyncio")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every `os.write` to a file fail as on a full disk. Not every machine has /dev/full."""

    def write(descriptor: int, _: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("grue.runtime.files.os.write", write)


@pytest.fixture(autouse=True, scope="session")
def _no_cache_of_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a temporary folder as grue's cache, so that tests do not write listings into the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRUE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_wait_for_the_disk() -> Iterator[None]:
    """Let `fsync` do nothing: it takes milliseconds, and no test turns the machine off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_tree_of_commands() -> Iterator[None]:
    """Let `CliRunner` build an app's commands only once, not for each call: that takes 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command), raising=False)
        yield


@pytest.fixture(autouse=True, scope="module")
def _slow_imports(request: pytest.FixtureRequest) -> None:
    """Import the libraries that a first turn needs before any time limit in a test begins.

    Importing the MCP SDK takes more than a second of CPU, on a busy machine ten seconds. Without this, a
    worker's first test could exceed its time limit.
    """
    if _module(request.node.nodeid).startswith(_WITH_SERVERS):
        from grue.runtime.loading import load

        for module in ("transports.llm.exchange", "transports.mcp.sdk", "transports.mcp.sdk_http"):
            load(f"grue.{module}")


@pytest.fixture(autouse=True)
def _every_trace_replays(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test, replay the traces in its folder: the turn machine must decide as recorded."""
    made_up = request.node.get_closest_marker("made_up_trace")
    has_folder = "tmp_path" in request.fixturenames and not made_up
    folder = request.getfixturevalue("tmp_path") if has_folder else None
    yield
    if folder is not None:
        from replayed import replay_all

        with _untraced():  # for coverage, only the replay's own tests count
            replay_all(folder)
