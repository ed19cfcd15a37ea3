"""Episodes for other programs: tables for SQL and Parquet, samples and trajectories for training.

    fleets, run folders ──▶ rows ──▶ one NDJSON file a table ──▶ DuckDB ──▶ answers of a query
                                     (in a temporary folder)            └─▶ episodes.parquet, ...
                        └─▶ samples.jsonl, or one ATIF file an episode

Rows are written out as they are read, so that memory does not grow with the number of episodes. A trace that
is damaged gives the rows before the damage; it is counted and named, and the others are not affected. DuckDB
comes with the extra `export`.
"""

import re
import shutil
import tempfile
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

import msgspec
from msgspec import Struct, field

from grue import messages as m
from grue.errors import FleetError, MissingDependencyError, TraceError
from grue.fleet.course import Course, read_course
from grue.fleet.folder import MANIFEST, no_fleet
from grue.fleet.results import Result, has_trace, results
from grue.fleet.samples import Origin, Samples, trajectory
from grue.runtime.files import replacing, write_whole
from grue.tracing.marks import read_marks
from grue.tracing.reading import TRACE_FILE
from grue.tracing.tables import CallRow, RequestRow, Row, TurnRow, trace_rows

SAMPLES = "samples.jsonl"
_MOST_NAMED = 5
_LEAST_BUFFER = 16 * 2**20
_WORDS = re.compile(r"\w+")


class EpisodeRow(Struct, kw_only=True):
    """An episode; table `episodes`. Empty columns: it is not of a fleet, or has no result.

    Attributes:
        episode: Id of the episode in its fleet; elsewhere the name of its run folder.
        fleet: The fleet's folder.
        work: The work.
        settings: The settings of its case.
        repetition: Counts the episodes with equal settings, from 0.
        outcome: `scored`, `failed`, `infrastructure`, `unpaid`, `interrupted` or `damaged`.
        scores: The scores by name: the work's, and those that were given since.
        kind: The kind of its failure.
        error: What went wrong.
        attempt: Number of the attempt that counts.
        model: The model that answered last.
        endpoint: The endpoint.
        duration_s: How long it took.
        requests: Requests to the model, as the fleet has charged them.
        tokens: Their tokens.
        money_usd: Their price.
        turns: Turns that were begun.
        tool_calls: Tool calls.
        refused_calls: Calls that were not sent.
        failed_calls: Calls that failed.
        last_turn: How the last turn ended.
        grue: The version of grue that played it.
        trace: Its trace; empty: it has none.
    """

    episode: str
    fleet: str | None = None
    work: str | None = None
    settings: m.JsonObject = {}
    repetition: int = 0
    outcome: str | None = None
    scores: dict[str, float] = {}
    kind: str | None = None
    error: str | None = None
    attempt: int | None = None
    model: str | None = None
    endpoint: str | None = None
    duration_s: float | None = None
    requests: int | None = None
    tokens: int | None = None
    money_usd: float | None = None
    turns: int | None = None
    tool_calls: int | None = None
    refused_calls: int | None = None
    failed_calls: int | None = None
    last_turn: str | None = None
    grue: str | None = None
    trace: str | None = None


TABLES: dict[str, type[Struct]] = {
    "episodes": EpisodeRow,
    "turns": TurnRow,
    "calls": CallRow,
    "requests": RequestRow,
}
_NAMES = {kind: name for name, kind in TABLES.items()}
_TYPES: dict[Any, str] = {
    str: "VARCHAR",
    int: "BIGINT",
    float: "DOUBLE",
    bool: "BOOLEAN",
    m.JsonObject: "JSON",
    msgspec.Raw: "JSON",
    dict[str, float]: "MAP(VARCHAR, DOUBLE)",
}


class Exported(Struct, kw_only=True):
    """What was exported.

    Attributes:
        rows: How many rows each table has; for training, how many samples or trajectories.
        without_trace: Episodes whose trace was not kept, or that have none.
        left_out: Replies without a sample, because the trace does not hold what was sent.
        troubles: The first damaged traces, and what is wrong with them.
        damaged: How many there are.
    """

    rows: dict[str, int] = {}
    without_trace: int = 0
    left_out: int = 0
    damaged: int = 0
    troubles: list[str] = field(default_factory=list)

    def trouble(self, error: TraceError) -> None:
        """Count a damaged trace."""
        self.damaged += 1
        if len(self.troubles) < _MOST_NAMED:
            self.troubles.append(str(error))


def fleet_episodes(fleet: Path) -> Iterator[EpisodeRow]:
    """Yield the episodes of a fleet.

    Raises:
        FleetError: There is no fleet.
    """
    if not (fleet / MANIFEST).is_file():
        raise no_fleet(fleet)
    for result in results(fleet):
        yield _episode(result, fleet)


def _episode(result: Result, fleet: Path) -> EpisodeRow:
    end = result.end
    row = EpisodeRow(
        episode=result.id,
        fleet=str(fleet),
        work=result.work,
        settings={**result.settings, **result.planned},
        repetition=result.repetition,
        outcome=result.outcome,
        scores=result.scores,
        error=result.error or None,
        attempt=result.attempt or None,
        grue=result.grue or None,
        trace=str(result.run(fleet) / TRACE_FILE) if has_trace(result, fleet) else None,
    )
    if end is not None:
        row.kind, row.model, row.endpoint = end.kind or None, end.model or None, end.endpoint or None
        row.duration_s, row.money_usd = end.duration_s, end.spent.money_usd
        row.requests, row.tokens = end.spent.requests, end.spent.tokens
        _add_course(row, end.course)
    return row


def run_episode(path: Path) -> EpisodeRow:
    """Return the episode of a run folder or a trace file."""
    folder, trace = (path, path / TRACE_FILE) if path.is_dir() else (path.parent, path)
    name = path.absolute().name if path.is_dir() or path.name != TRACE_FILE else path.absolute().parent.name
    marks = {mark.scorer: mark.score for mark in read_marks(folder)}
    row = EpisodeRow(episode=name, trace=str(trace) if trace.is_file() else None, scores=marks)
    _add_course(row, read_course(trace))
    return row


def _add_course(row: EpisodeRow, course: Course | None) -> None:
    if course is not None:
        row.turns, row.tool_calls = course.turns, course.tool_calls
        row.refused_calls, row.failed_calls = course.refused_calls, course.failed_calls
        row.last_turn, row.error = course.outcome or None, row.error or course.error or None
        row.requests = course.requests if row.requests is None else row.requests


# --- Tables ---


def export_tables(episodes: Iterable[EpisodeRow], target: Path) -> Exported:
    """Write the four tables as Parquet files. Files of these names are replaced.

    Args:
        episodes: The episodes.
        target: The folder; made if it is missing.

    Raises:
        FleetError: A file cannot be written.
        MissingDependencyError: DuckDB is not installed.
    """
    _folder(target)
    with _Tables(TABLES) as tables:
        # Views, so that the rows are not held in memory: each is read once.
        done = tables.fill(episodes, "VIEW")
        for name in TABLES:
            place, made = target / f"{name}.parquet", tables.folder / f"{name}.parquet"
            tables.run(f"COPY {name} TO {_quoted(str(made))} (FORMAT parquet, COMPRESSION zstd)")
            try:
                with made.open("rb") as written, replacing(place) as file:
                    shutil.copyfileobj(written, file)
            except OSError as error:
                raise FleetError(f"Cannot write {place}: {error.strerror}.") from error
        return done


class Answer(Struct, frozen=True, kw_only=True):
    """The answer of a query: the names of its columns, its rows, and what was read for it."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    read: Exported


def query(sql: str, episodes: Iterable[EpisodeRow], exported: Sequence[Path] = ()) -> Answer:
    """Ask the tables `episodes`, `turns`, `calls` and `requests`. Only those that the query names are filled.

    Args:
        sql: The query, in DuckDB's SQL.
        episodes: The episodes.
        exported: Folders that `export_tables` has written; their rows are added.

    Raises:
        FleetError: The query is wrong; the text is DuckDB's.
        MissingDependencyError: DuckDB is not installed.
    """
    named = set(_WORDS.findall(sql.lower()))
    wanted = {name: kind for name, kind in TABLES.items() if name in named}
    with _Tables(wanted) as tables:
        read = tables.fill(episodes if wanted else ())
        for folder in exported:
            for name in wanted:
                written = _quoted(str(folder / f"{name}.parquet"))
                tables.run(f"INSERT INTO {name} BY NAME SELECT * FROM {written}")  # noqa: S608 - quoted
        columns, rows = tables.run(sql)
        return Answer(columns=columns, rows=rows, read=read)


class _Tables:
    """A database in memory with some of the tables, for as long as it is entered."""

    def __init__(self, wanted: dict[str, type[Struct]]) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise MissingDependencyError("SQL and Parquet need DuckDB: pip install 'duckdb>=1.2'") from error
        self._error: type[Exception] = duckdb.Error
        self._wanted = wanted
        self._place = tempfile.TemporaryDirectory(prefix="grue-tables-")
        self.folder = Path(self._place.name)
        self._database = duckdb.connect()

    def __enter__(self) -> Self:
        # What does not fit into memory goes here, and not into the working directory.
        self.run(f"SET temp_directory = {_quoted(self._place.name)}")
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._place.cleanup()

    def fill(self, episodes: Iterable[EpisodeRow], kind: Literal["TABLE", "VIEW"] = "TABLE") -> Exported:
        """Read the episodes into the tables."""
        done = Exported(rows=dict.fromkeys(self._wanted, 0))
        paths = {name: self.folder / f"{name}.ndjson" for name in self._wanted}
        longest = 0
        try:
            files: dict[str, BinaryIO] = {name: path.open("wb") for name, path in paths.items()}
            try:
                for row in _rows(episodes, set(self._wanted), done):
                    name, line = _NAMES[type(row)], msgspec.json.encode(row)
                    files[name].write(line + b"\n")
                    done.rows[name] += 1
                    longest = max(longest, len(line))
            finally:
                for file in files.values():
                    file.close()
        except OSError as error:
            raise FleetError(f"Cannot write into {self.folder}: {error.strerror}.") from error
        size = max(_LEAST_BUFFER, 2 * longest)
        for name, path in paths.items():
            columns = ", ".join(f"'{column}': '{type_}'" for column, type_ in _columns(TABLES[name]))
            self.run(
                f"CREATE {kind} {name} AS SELECT * FROM read_json({_quoted(str(path))},"  # noqa: S608 - quoted
                f" format = 'newline_delimited', maximum_object_size = {size}, columns = {{{columns}}})"
            )
        return done

    def run(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        try:
            answer = self._database.execute(sql)
            return [column[0] for column in answer.description or ()], answer.fetchall()
        except self._error as error:
            raise FleetError(f"DuckDB says: {error}") from error


def _rows(episodes: Iterable[EpisodeRow], wanted: set[str], done: Exported) -> Iterator[EpisodeRow | Row]:
    for episode in episodes:
        if "episodes" in wanted:
            yield episode
        if not wanted - {"episodes"}:
            continue
        if episode.trace is None:
            done.without_trace += 1
            continue
        try:
            for row in trace_rows(Path(episode.trace), episode.episode):
                if _NAMES[type(row)] in wanted:
                    yield row
        except TraceError as error:
            done.trouble(error)


def _columns(table: type[Struct]) -> Iterator[tuple[str, str]]:
    for name, hint in typing.get_type_hints(table).items():
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        yield name, next(_TYPES[kind] for kind in kinds if kind is not type(None))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _folder(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FleetError(f"Cannot make the folder {target}: {error.strerror}.") from error


# --- Training ---


def export_samples(episodes: Iterable[EpisodeRow], target: Path, *, score: str = "score") -> Exported:
    """Write one record for each request of the episodes into `samples.jsonl`, which is replaced.

    Args:
        episodes: The episodes. One without a trace has no samples.
        target: The folder; made if it is missing.
        score: The score that is the reward.

    Raises:
        FleetError: The file cannot be written.
    """
    done = Exported(rows={"samples": 0})
    _folder(target)
    try:
        with replacing(target / SAMPLES) as file:
            for trace, origin in _played(episodes, score, done):
                _write_samples(file, Samples(trace, origin), done)
    except OSError as error:
        raise FleetError(f"Cannot write {target / SAMPLES}: {error.strerror}.") from error
    return done


def _write_samples(file: BinaryIO, samples: Samples, done: Exported) -> None:
    try:
        for sample in samples:
            file.write(msgspec.json.encode(sample) + b"\n")
            done.rows["samples"] += 1
    except TraceError as error:
        done.trouble(error)
    done.left_out += samples.left_out


def export_trajectories(episodes: Iterable[EpisodeRow], target: Path, *, score: str = "score") -> Exported:
    """Write each episode as `ID.json` in ATIF; what `export_samples` says holds here too.

    Raises:
        FleetError: A file cannot be written.
    """
    done = Exported(rows={"trajectories": 0})
    _folder(target)
    for trace, origin in _played(episodes, score, done):
        try:
            written = msgspec.json.encode(trajectory(trace, origin))
            write_whole(target / f"{origin.episode}.json", written)
            done.rows["trajectories"] += 1
        except TraceError as error:
            done.trouble(error)
        except OSError as error:
            raise FleetError(f"Cannot write into {target}: {error.strerror}.") from error
    return done


def _played(episodes: Iterable[EpisodeRow], score: str, done: Exported) -> Iterator[tuple[Path, Origin]]:
    for row in episodes:
        if row.trace is None:
            done.without_trace += 1
            continue
        yield (
            Path(row.trace),
            Origin(
                episode=row.episode,
                settings=row.settings,
                repetition=row.repetition,
                outcome=row.outcome or "",
                reward=row.scores.get(score),
            ),
        )
