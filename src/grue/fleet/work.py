"""The work of a fleet: a function that plays one episode and returns its score, or scores by name.

The function must be importable, because other processes call it. If the function raises, the episode fails.
But if the machine, the network, a server or the budget is the cause, the episode can be played again.
"""

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, SupportsFloat, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue.config.documents import did_you_mean
from grue.errors import FleetError
from grue.fleet.folder import TRACE, Scores
from grue.fleet.identity import Case, FileDigests, episode_id
from grue.hosts import BUNDLED

# The works that come with grue's own hosts, by the host's short name.
OURS = {name: host.work for name, host in BUNDLED.items() if host.work}


class Episode(Struct, frozen=True, kw_only=True):
    """The episode that the work plays.

    Attributes:
        id: The episode's id; the same in each run of the sweep, and on machines with the same paths.
        folder: This attempt's folder, for the work's files. The fleet's `keep` says whether the files stay.
        repetition: Number of the episode among those with equal settings, from 0.
        interrupted: The folder of the last attempt that was interrupted and has a trace. The work may read
            the folder to resume that attempt, but must not change the folder. `None`: there is no such
            attempt, or requests go through batches (then each attempt begins at the episode's beginning).
    """

    id: str
    folder: Path
    repetition: int = 0
    interrupted: Path | None = None

    @property
    def trace(self) -> Path:
        """The file for the trace of the episode; pass it to `Runner(trace=...)`."""
        return self.folder / TRACE


_MOST_NAME = 1000
_FUNCTION = re.compile(r".+:[^\W\d]\w*", re.DOTALL)

Complete: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
Work: TypeAlias = Callable[[dict[str, Any], Episode], float | Mapping[str, float]]
W = TypeVar("W", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")


class KnownWork(Struct, frozen=True, kw_only=True):
    """An imported work, with what the decorator `work` declares about it."""

    name: str  # `module:name` or `/path/of/file.py:name`
    function: Work
    version: str = "1"
    files: tuple[str, ...] = ("game_file", "tool_lock", "mcp_config")
    scores: tuple[str, ...] = ()
    settings: type[Struct] | None = None
    complete: Complete | None = None

    def completed(self, case: Case) -> Case:
        """Return a case with the settings that `complete` adds; raises `FleetError` for a wrong setting."""
        if self.settings is not None:
            wrong = wrong_setting(self.settings, case.settings)
            if wrong is not None:
                raise FleetError(f"The case {msgspec.json.encode(case.settings).decode()}: {wrong[1]}")
            kinds = _kinds(self.settings)
            listed = {name: _listed(value, kinds[name]) for name, value in case.settings.items()}
            case = replace(case, settings=listed)
        if self.complete is None:
            return case
        return replace(case, settings=self.complete(case.settings))

    def identified(
        self, planned: Case, version: str, digests: FileDigests
    ) -> tuple[Case, dict[str, str], str]:
        """Return the completed case, the digests of its files, and the id of its episode."""
        case = self.completed(planned)
        files = digests.of(case, self.files)
        return case, files, episode_id(self.name, version, case, files)


_caches: list[Callable[[], None]] = []


def cached_in_a_run(function: Callable[P, T]) -> Callable[P, T]:
    """Cache the results of a function that `complete` calls for each case; `forget_cached` clears them."""
    cached = functools.lru_cache(maxsize=16)(function)
    _caches.append(cached.cache_clear)
    return cast("Callable[P, T]", cached)


def forget_cached() -> None:
    """Clear the caches of `cached_in_a_run`: files that an earlier run has read may have changed since."""
    for clear in _caches:
        clear()


@functools.cache
def _kinds(declared: type[Struct]) -> dict[str, Any]:
    return {each.encode_name: each.type for each in msgspec.structs.fields(declared)}


def _listed(value: object, kind: object) -> Any:
    return [value] if isinstance(value, str) and kind == list[str] else value


def wrong_setting(declared: type[Struct], settings: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the name of the first setting that is unknown or of a wrong type, and its fault, or `None`."""
    kinds = _kinds(declared)
    for name, value in settings.items():
        if name not in kinds:
            meant = did_you_mean(name, kinds) or f" Settings: {', '.join(kinds)}."
            return name, f"unknown setting {name!r}.{meant}"
        try:
            msgspec.convert(_listed(value, kinds[name]), kinds[name])
        except msgspec.ValidationError as error:
            said = str(error)
            return name, f"{name}: {said[0].lower()}{said[1:]}."
    return None


def work(
    *,
    version: str = "1",
    files: tuple[str, ...] | None = None,
    scores: tuple[str, ...] = (),
    settings: type[Struct] | None = None,
    complete: Complete | None = None,
) -> Callable[[W], W]:
    """Return a decorator that declares what a work takes and returns; without it, the defaults hold.

    Args:
        version: Version of the work. Change it when the work changes: then all episodes are played again.
        files: Names of settings whose values are paths of files, or lists of paths. Their content belongs to
            the episode's identity. `None`: `game_file`, `tool_lock` and `mcp_config`.
        scores: The names of the scores that the work returns. If it returns other names, or not all of them,
            the episode fails. Empty: any names.
        settings: A msgspec `Struct` with the settings that the work takes, to find a wrong one early.
        complete: Gets a case's settings, and returns them together with those that the work would otherwise
            read elsewhere, such as the model in a configuration file. All belong to the episode's identity.
    """

    def declare(function: W) -> W:
        declared = {"version": version, "scores": scores, "settings": settings, "complete": complete}
        function.__fleet_work__ = declared | ({} if files is None else {"files": files})  # type: ignore[attr-defined]
        return function

    return declare


def name_of(function: Work) -> str:
    """Return the name by which other processes import a function; raises `FleetError` if they cannot."""
    name = getattr(function, "__qualname__", "")
    if not name.isidentifier():
        raise FleetError(
            f"{name or function!r} cannot be called by another process: define the work at the top of a"
            " module."
        )
    module = function.__module__
    if module != "__main__":
        return f"{module}:{name}"
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        raise FleetError(f"{name} is defined in an interactive session: put the work into a file.")
    return f"{Path(file).resolve()}:{name}"


def find_work(name: str) -> KnownWork:
    """Import a work: `module:function`, `/path/file.py:function`, or a host's name. Raises `FleetError`."""
    full = OURS.get(name, name)
    if not _FUNCTION.fullmatch(full):
        written = f"write module:function, or one of {', '.join(OURS)}.{did_you_mean(name, OURS)}"
        raise FleetError(f"work = {name!r} names no function: {written}")
    function = find_function(full)
    if inspect.iscoroutinefunction(function):
        raise FleetError(f"The work {name} is an async function: write `def`, and call asyncio.run in it.")
    return KnownWork(name=full, function=function, **getattr(function, "__fleet_work__", {}))


def find_function(name: str) -> Any:
    """Import a function: `module:function` or `/path/file.py:function`. Raises `FleetError`."""
    if not _FUNCTION.fullmatch(name):
        raise FleetError(f"{name!r} names no function: write module:function.")
    place, _, attribute = name.rpartition(":")
    module = _from_file(Path(place)) if place.endswith(".py") else _imported(place, name)
    function = getattr(module, attribute, None)
    if not callable(function):
        meant = did_you_mean(attribute, (each for each in vars(module) if not each.startswith("_")))
        raise FleetError(f"{place} has no function {attribute!r}.{meant}")
    return function


def _imported(module: str, name: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        what = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        how = f" Modules are looked for in the working directory, {Path.cwd()}." if missing else ""
        raise FleetError(f"Cannot import the work {name!r}: {what}.{how}") from error


def _from_file(path: Path) -> Any:
    # Use a hash of the path: two folders may each have a file with this name.
    place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]
    module_name = f"{WORK_MODULE}{path.stem}_{place}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FleetError(f"There is no file {path} with the work.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise FleetError(f"Cannot import the work {path}: {type(error).__name__}: {error}.") from error
    return module


def contains(answer: str, expected: str | float) -> bool:
    """Return whether an answer contains the expected number (17 is not in 117) or text (ignoring case)."""
    said = str(expected).strip().casefold()
    if isinstance(expected, str):
        return said in answer.casefold()
    written = re.escape(said.removesuffix(".0")) + r"(\.0)?" if said.endswith(".0") else re.escape(said)
    return re.search(rf"(?<![\d.-]){written}(?!\d|\.\d)", answer.casefold()) is not None


def plain_text(text: str, most: int = 200) -> str:
    """Return the first `most` characters, lone surrogates escaped. Calls no method of a subclass of `str`."""
    return str.encode(str.__getitem__(text, slice(most)), "utf-8", "backslashreplace").decode()


def finite(value: object) -> float | None:
    """Convert a number, also one of numpy, or a `bool` to a float; `None`: `value` is not a finite number."""
    try:
        number = float(value) if isinstance(value, SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError, RuntimeError):  # an array, a tensor, too large a number
        return None
    return number if math.isfinite(number) else None


def as_scores(returned: object, names: tuple[str, ...]) -> Scores:
    """Turn the result of a work into scores by name; raises `ValueError` for wrong values or names."""
    by_name: dict[Any, Any] = dict(returned) if isinstance(returned, Mapping) else {"score": returned}
    found: Scores = {}
    for name, value in by_name.items():
        number = finite(value)
        if not isinstance(name, str) or number is None:
            raise ValueError(f"the work returned {value!r:.100} as {name!r:.100}; a score is a finite number")
        found[plain_text(name, _MOST_NAME)] = number
    if names and set(by_name) != set(names):
        raise ValueError(f"the work returned {list(by_name)!r:.1000}, but declares {sorted(names)}")
    return found


# --- A program that its own workers would start again ---


WORK_MODULE = "_grue_work_"  # the prefix of the name under which a work's file is imported as a module
_IMPORTED_AGAIN = ("__mp_main__", WORK_MODULE)
# Names by which a program may find out that a worker imports it.
_TELLING_APART = frozenset(
    {"__name__", "parent_process", "current_process", "environ", "getenv", "getpid", "getppid"}
)


def refuse_to_start_again(*, imports_main: bool) -> None:
    """Raise `FleetError` if importing the program starts its fleet. `imports_main`: workers import it."""
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    # Workers do not import a package's `__main__.py`.
    imports_main = imports_main and not (spec is not None and str(spec.name).endswith("__main__"))
    for frame in _running_modules(inspect.currentframe()):
        file = frame.f_globals.get("__file__")
        if file is None:
            continue
        again = str(frame.f_globals.get("__name__", "")).startswith(_IMPORTED_AGAIN)
        imported = imports_main and frame.f_globals is vars(main)
        if again or (imported and not _is_guarded(Path(file), frame.f_lineno)):
            raise FleetError(
                f"{file}, line {frame.f_lineno}: the program starts its fleet whenever it is imported, and"
                " each worker imports it. Put this line, and what it needs, under"
                ' `if __name__ == "__main__":`.'
            )


def _running_modules(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the stack in which the top-level code of a module is running."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            yield frame
        frame = frame.f_back


def _is_guarded(path: Path, line: int) -> bool:
    """Return `True` if an `if` on a name in `_TELLING_APART` may guard `line`, or `path` is unreadable."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    before = (statement for statement in tree.body if statement.lineno <= line)
    tests = (node.test for statement in before for node in ast.walk(statement) if isinstance(node, ast.If))
    names = (getattr(node, "id", getattr(node, "attr", "")) for test in tests for node in ast.walk(test))
    return not _TELLING_APART.isdisjoint(names)
