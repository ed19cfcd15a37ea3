"""Read a sweep, a TOML file that says which work to do for which cases; and estimate its size on disk."""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.config.documents import Document, KeyPath, did_you_mean, parse_toml, problem_of, read_config_text
from grue.errors import FleetError, MCPConfigError
from grue.fleet.broker import Amount, FleetBudget, Rate, ServerCap
from grue.fleet.folder import FleetFolder
from grue.fleet.identity import Case, FileDigests, fault_of
from grue.fleet.work import find_work, forget_cached, wrong_setting
from grue.protocol.turn.prices import Price
from grue.runtime.files import as_path

MOST_CASES = 1_000_000

Keep: TypeAlias = Literal["all", "failed", "results"]


class Span(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An axis of whole numbers: from `first` up to and including `last`."""

    first: int
    last: int


class Sweep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a sweep's file.

    Attributes:
        work: The function that plays an episode: `module:name`, `/path/file.py:name`, or one of grue's hosts.
        version: Version of the work; a new version makes new episodes. `None`: as the work declares.
        grid: The names of settings, each with its values: a list, or `{first = 0, last = 39}`.
        cases: Groups of settings that belong together, such as a question and its expected answer. Each group
            is played with each combination of the values in `grid`.
        settings: Settings of all cases; the values in `grid`, `cases` and `include` take precedence.
        include: Further cases. Each has the common `settings` too, but is not combined with `grid`.
        exclude: Groups of settings; a case that has all settings of at least one group is left out.
        repetitions: How many episodes each case has.
        workers: How many episodes are played at one time; 0: one for each core of the machine or Ray cluster.
        servers: The most MCP server processes of a machine at one time; `None`: no cap.
        servers_an_episode: The most MCP server processes that an episode needs at one time.
        episode_timeout_s: Time limit of an episode; `None`: no limit.
        keep: What stays on disk: `all`, the files of `failed` episodes, or `results` only.
    """

    work: str
    version: str | None = None
    grid: dict[str, list[Any] | Span] = {}
    cases: list[m.JsonObject] = []
    settings: m.JsonObject = {}
    include: list[m.JsonObject] = []
    exclude: list[m.JsonObject] = []
    repetitions: int = 1
    budget: FleetBudget = FleetBudget()
    rate: Rate = Rate()
    workers: int = 0
    servers: int | None = None
    servers_an_episode: int = 1
    episode_timeout_s: float | None = None
    keep: Keep = "all"

    @property
    def cap(self) -> ServerCap:
        """`servers` and `servers_an_episode` as a `ServerCap`."""
        return ServerCap(at_once=self.servers, an_episode=self.servers_an_episode)

    def all_cases(self) -> Iterator[Case]:
        """Yield the cases: first all cases of the first repetition, then those of the second, and so on."""
        # Yield one case at a time: a list of a million cases would fill the driver's memory.
        for repetition in range(self.repetitions):
            yield from (Case(settings=each, repetition=repetition) for each in self._settings())

    def models(self) -> set[str]:
        """Return the models that the sweep names, even those of excluded cases."""
        axis = self.grid.get("model", [])
        named = [
            *(() if isinstance(axis, Span) else axis),
            *(each.get("model") for each in (self.settings, *self.cases, *self.include)),
        ]
        return {model for model in named if isinstance(model, str)}

    def _settings(self) -> Iterator[m.JsonObject]:
        axes = {name: _values(axis) for name, axis in self.grid.items()}
        grid = (
            {**dict(zip(axes, values, strict=True)), **case}
            for *values, case in itertools.product(*axes.values(), self.cases or [{}])
        )
        for cell in itertools.chain(grid if axes or self.cases else (), self.include):
            case = {**self.settings, **cell}
            if not any(_has(case, leave_out) for leave_out in self.exclude):
                yield case
        if not axes and not self.cases and not self.include:
            yield dict(self.settings)


# The tables with fixed keys, by their places as msgspec's errors write them.
_TABLES: dict[str, type[Struct]] = {
    "": Sweep,
    "grid[...]": Span,
    "budget": FleetBudget,
    "budget.prices[...]": Price,
    "rate": Rate,
}


def read_sweep(path: Path) -> Sweep:
    """Read a sweep from a TOML file, and check it.

    Raises:
        MCPConfigError: The file is missing or cannot be read as text.
        FleetError: The file is not TOML, or a key or a value is wrong; the text usually names line and key.
    """
    path = as_path(path, "read_sweep()")
    text = read_config_text(path, if_missing=f"There is no sweep {path}. Name a TOML file.")
    try:
        file = _File(parse_toml(text, path), text)
    except MCPConfigError as error:
        raise FleetError(str(error)) from error
    try:
        sweep = msgspec.convert(file.document.value, Sweep)
    except msgspec.ValidationError as error:
        raise _of_msgspec(file, error) from error
    except (FleetError, MCPConfigError) as error:  # raised by the check of a limit or a price
        key = str(re.split(r"\W", str(error).removeprefix("Price("))[0])
        table = ("rate",) if key in Rate.__struct_fields__ else ("budget",)
        raise file.error((*table, key), str(error)) from error
    _check(sweep, file)
    _check_work(sweep, file)
    _check_excluded(sweep, file)
    return sweep


class _File(NamedTuple):
    document: Document
    text: str

    def error(self, keys: KeyPath, said: str) -> FleetError:
        """Return an error that names the file and the line of a key; no line if the key cannot be found."""
        line = self._line(keys)
        return FleetError(f"{self.document.path}{f', line {line}' if line else ''}: {said}")

    def _line(self, keys: KeyPath) -> int | None:
        first = self.document.line(keys)
        if first is None or keys in self.document.lines:
            return first
        # The key is in an inline table: return the first line from there on that sets a key of this name.
        key = re.compile(rf"""(\s*|[^#]*[{{,]\s*)(\w+\s*\.\s*)*["']?{re.escape(str(keys[-1]))}["']?\s*=""")
        lines = enumerate(self.text.split("\n")[first - 1 :], first)
        return next((number for number, line in lines if key.match(line)), first)


def _groups(sweep: Sweep) -> Iterator[tuple[KeyPath, m.JsonObject]]:
    for axis, values in sweep.grid.items():
        yield from ((("grid",), {axis: value}) for value in _values(values))
    yield ("settings",), sweep.settings
    for name in ("cases", "include", "exclude"):
        yield from (((name, number), each) for number, each in enumerate(getattr(sweep, name)))


def _check(sweep: Sweep, file: _File) -> None:
    for name, least in (("repetitions", 1), ("workers", 0)):
        if getattr(sweep, name) < least:
            raise file.error((name,), f"{name} must be at least {least}.")
    if sweep.episode_timeout_s is not None and not 0 < sweep.episode_timeout_s < float("inf"):
        raise file.error(("episode_timeout_s",), "episode_timeout_s must be above 0.")
    try:
        sweep.cap  # noqa: B018 - `ServerCap` checks its values when it is made
    except FleetError as error:
        raise file.error(("servers",), str(error)) from error
    size = len(sweep.cases) or int(bool(sweep.grid) or not sweep.include)
    for name, axis in sweep.grid.items():
        if not _values(axis):
            raise file.error(("grid", name), f"the axis {name!r} has no values.")
        size *= axis.last - axis.first + 1 if isinstance(axis, Span) else len(axis)
    size = sweep.repetitions * (size + len(sweep.include))
    if size > MOST_CASES:
        raise FleetError(
            f"{file.document.path}: the sweep has {size:,} episodes; the most are {MOST_CASES:,}."
        )
    for place, group in _groups(sweep):
        for name, value in group.items():
            fault = fault_of({name: value})
            if fault:
                raise file.error((*place, name), f"{fault.removeprefix('its ')}.")
    for name, axis in sweep.grid.items():
        _refuse_repeated(file, ("grid", name), () if isinstance(axis, Span) else axis)
    _refuse_repeated(file, ("cases",), sweep.cases)
    _refuse_repeated(file, ("include",), sweep.include)
    for number, case in enumerate(sweep.cases):
        both = next((name for name in case if name in sweep.grid), None)
        if both is not None:
            raise file.error(
                ("cases", number, both), f"{both!r} is an axis of the grid and a setting of a case."
            )


def _refuse_repeated(file: _File, keys: KeyPath, values: Sequence[Any]) -> None:
    seen: set[bytes] = set()
    for value in values:
        written = msgspec.json.encode(value, order="deterministic")
        if written in seen:
            said = f"{keys[-1]!r} has {written.decode():.60} twice. For more episodes, raise repetitions."
            raise file.error(keys, said)
        seen.add(written)


def _check_work(sweep: Sweep, file: _File) -> None:
    try:
        declared = find_work(sweep.work).settings
    except FleetError as error:
        raise file.error(("work",), str(error)) from error
    if declared is None:
        return
    for place, settings in _groups(sweep):
        wrong = wrong_setting(declared, settings)
        if wrong is not None:
            name, said = wrong
            raise file.error((*place, name), said)


def _check_excluded(sweep: Sweep, file: _File) -> None:
    if {} in sweep.exclude:
        raise file.error(
            ("exclude", sweep.exclude.index({})),
            "an entry of exclude has no settings, so it would exclude all cases.",
        )
    there = dict.fromkeys([*sweep.settings, *sweep.grid])
    there |= dict.fromkeys(name for case in (*sweep.cases, *sweep.include) for name in case)
    named = (
        (("exclude", number, name), name) for number, group in enumerate(sweep.exclude) for name in group
    )
    for keys, name in (each for each in named if each[1] not in there):
        had = f" The cases have {', '.join(there)}." if there else ""
        raise file.error(keys, f"exclude names {name!r}, a setting that no case has.{had}")


def _has(case: m.JsonObject, settings: m.JsonObject) -> bool:
    """Return whether a case has all of `settings`. 1 equals 1.0, but not `True`."""
    return all(
        name in case and case[name] == value and isinstance(case[name], bool) is isinstance(value, bool)
        for name, value in settings.items()
    )


def _values(axis: Sequence[Any] | Span) -> Sequence[Any]:
    return range(axis.first, axis.last + 1) if isinstance(axis, Span) else axis


def _wrong_axis(document: dict[str, Any]) -> str:
    for name, axis in document["grid"].items():
        try:
            msgspec.convert(axis, list[Any] | Span)
        except msgspec.ValidationError:
            return str(name)
    return ""


def _of_msgspec(file: _File, error: msgspec.ValidationError) -> FleetError:
    keys, said = problem_of(error)
    where = str(error).partition(" - at `$")[2].strip(".`")
    unknown = re.search(r"contains unknown field `([^`]*)`", said)
    if unknown:
        key, known = unknown[1], _TABLES[where].__struct_fields__
        meant = did_you_mean(key, known)
        return file.error((*keys, key), f"unknown key {key!r}.{meant} Known keys: {', '.join(known)}.")
    if where == "grid[...]":
        name = _wrong_axis(file.document.value)
        example = "give a list of values, or { first = 0, last = 9 }"
        return file.error(("grid", name), f"grid.{name}: {said[0].lower()}{said[1:]}: {example}.")
    return file.error(keys, f"{f'{where}: ' if where else ''}{said[0].lower()}{said[1:]}.")


# --- An estimate of a sweep's size, and its cost so far ---

SAMPLE = 10  # how many episodes have to be done before size and cost are estimated from them
# The assumed sizes of a turn, of an episode of unknown length, and of an episode without its trace.
_TURN_BYTES = 16_000
_EPISODE_BYTES = 100_000
_RESULT_BYTES = 3_000


class PlannedWork(Struct, frozen=True, kw_only=True):
    """The number and estimated size on disk of a sweep's missing episodes, and the cost of finished ones."""

    work: str
    total: int
    missing: int
    bytes_needed: float
    spent: Amount


def read_plan(sweep: Sweep, place: Path) -> PlannedWork:
    """Count a sweep's episodes, and estimate the size of those missing in `place`; raises `FleetError`."""
    work, folder, digests = find_work(sweep.work), FleetFolder(place), FileDigests()
    forget_cached()
    total = missing = sized = 0
    size, assumed, spent = 0, 0.0, Amount()
    for planned in sweep.all_cases():
        total += 1
        case, _, id_ = work.identified(planned, sweep.version or work.version, digests)
        commit = folder.episode(id_).usable_commit
        if commit is None:
            missing += 1
            turns = case.settings.get("turns")
            played = turns * _TURN_BYTES if isinstance(turns, int) else _EPISODE_BYTES
            assumed += played if sweep.keep == "all" else _RESULT_BYTES
            continue
        spent += commit.end.spent
        if commit.trace_bytes is not None:
            sized += 1
            size += commit.trace_bytes
    measured = sweep.keep == "all" and sized >= SAMPLE
    needed = 1.3 * size / sized * missing if measured else assumed
    return PlannedWork(work=work.name, total=total, missing=missing, bytes_needed=needed, spent=spent)
