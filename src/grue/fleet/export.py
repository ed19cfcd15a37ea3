"""Export episodes to other programs: tables for SQL and Parquet, samples and trajectories for training.

    fleets, run folders ──▶ rows ──▶ one NDJSON file per table ──▶ DuckDB ──▶ answers of a query
                                     (in a temporary folder)              └─▶ episodes.parquet, ...
                        └─▶ samples.jsonl, or one ATIF file per episode

Of a damaged trace, the rows and samples before the damage are exported, but no trajectory. A sample is the
training data of one request. A request gives no sample if the trace does not hold exactly what was sent and
answered, for example because a secret was redacted. ATIF is the interchange format of Harbor, version 1.4.
"""

import contextlib
import itertools
import re
import shutil
import tempfile
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from grue import messages as m
from grue.engine.conversations.recorded_conversation import Talk, TalkReader, talk_reader
from grue.errors import FleetError, MissingDependencyError, TraceError
from grue.fleet.course import Course, read_course
from grue.fleet.results import Result, all_settings, has_trace, results
from grue.protocol.context.history import items_of
from grue.protocol.json_text import strict_object, to_json
from grue.protocol.tools.names import openai_call, openai_tool
from grue.runtime.files import os_errors_as, replacing, write_whole
from grue.runtime.loops.interrupts import defer_interrupts, wait_for
from grue.runtime.trace.format import TRACE_FILE
from grue.runtime.version import __version__
from grue.tracing.marks import place_of_marks, read_marks
from grue.tracing.message_words import summarize
from grue.tracing.reading import EpisodeEnvelope, open_episode
from grue.tracing.tables import CallRow, RequestRow, Row, TurnRow, trace_rows

ATIF = "ATIF-v1.4"


class Sample(Struct, frozen=True, kw_only=True):
    """A request and its reply; a line of `samples.jsonl`."""

    episode: str
    settings: m.JsonObject
    repetition: int
    outcome: str
    reward: float | None  # the chosen score; `None`: the episode lacks it
    turn: int
    request: int
    message: int  # number of the request's message in the trace
    model: str
    # as in chat completions; the field `by` says who wrote the message: `host`, `model`, `tool`, or `grue`
    messages: list[m.JsonObject]
    tools: list[m.JsonObject]
    reply: m.JsonObject
    # one for each of `messages` and for the reply: 1 if the model wrote it in this trace, else 0
    loss_mask: list[int]
    token_ids: tuple[int, ...] | None = None  # the reply's tokens; `None`: not reported
    logprobs: tuple[float, ...] | None = None


# A request that waits for its reply, and its sample's fields; `None`: the trace does not hold what was sent.
_Request: TypeAlias = tuple[m.RequestCompletion, dict[str, Any] | None]


class Samples:
    """The samples of an episode, in order; iterate only once. The iteration may raise `TraceError`."""

    def __init__(self, trace: Path, row: "EpisodeRow", score: str = "score") -> None:
        self.left_out = 0
        self._trace = trace
        self._row = row
        self._score = score
        self._asked: dict[int, _Request] = {}
        # The model's replies, by `id()`. The dictionary keeps them alive, so that their ids are not reused.
        self._kept: dict[int, m.AssistantReply] = {}
        self._users: set[str] = set()
        self._returned: set[m.CallId] = set()

    def __iter__(self) -> Iterator[Sample]:
        talks = talk_reader(self._trace)
        for envelope in open_episode(self._trace):
            sample = self._see(envelope, talks)
            if sample is not None and not envelope.copied:
                yield sample

    def _see(self, envelope: EpisodeEnvelope, talks: TalkReader) -> Sample | None:
        """Read the next message. If it is a reply and completes a sample, return the sample."""
        body = envelope.body
        # Remove a request only when its reply arrives: a `CompletionRetried`, which comes before
        # the reply, has the request as its cause, too.
        replied = isinstance(body, m.CompletionReceived)
        request = self._asked.pop(envelope.cause or 0, None) if replied else None
        talks.see(envelope)
        match body:
            case m.RunTurn(user=user, user_stub=stub):
                self._users |= {user, stub}
            case m.ToolReturned(call_id=call_id):
                self._returned.add(call_id)
            case m.RequestCompletion():
                self._asked[envelope.seq] = self._request(envelope, body, talks.talks.get(body.conversation))
            case m.DropCompletion():
                # The agent no longer waits for this reply, so the request gives no sample.
                self._asked = {
                    seq: each
                    for seq, each in self._asked.items()
                    if (each[0].conversation, each[0].request) != (body.conversation, body.request)
                }
            case m.CompletionReceived() if request is not None:
                return self._sample(request, envelope, body, talks.talks.get(request[0].conversation))
        return None

    def _request(self, envelope: EpisodeEnvelope, body: m.RequestCompletion, talk: Talk | None) -> _Request:
        offered = body.mode.tools if isinstance(body.mode, m.OfferTools) else ()
        tools = offered if offered is not None or talk is None else talk.tools
        items: tuple[Any, ...] = body.new
        if talk is not None:
            items = items_of(talk.history.entries) + (body.new if body.aside else ())
        if envelope.redacted or (talk is not None and talk.flaw):
            return body, None
        return body, {
            "turn": envelope.turn,
            "message": envelope.seq,
            "messages": [self._message(item) for item in items],
            "tools": [openai_tool(tool) for tool in tools or ()],
            "loss_mask": [*(int(id(item) in self._kept) for item in items), 1],
        }

    def _sample(
        self, asked: _Request, envelope: EpisodeEnvelope, body: m.CompletionReceived, talk: Talk | None
    ) -> Sample | None:
        if talk is not None and talk.history.unread is not None:
            self._kept[id(talk.history.unread)] = talk.history.unread
        _, fields = asked
        if fields is None or envelope.redacted:
            self.left_out += 1
            return None
        reply = m.AssistantReply(content=body.content or body.refusal, tool_calls=body.tool_calls)
        beside = {"reasoning": body.reasoning} if body.reasoning else {}
        tokens = body.tokens or m.ReplyTokens()
        return Sample(
            episode=self._row.episode,
            **_about(self._row, self._score),
            **fields,
            request=body.request,
            model=body.model,
            reply={**self._message(reply), **beside, "finish_reason": body.finish_reason, "by": "model"},
            token_ids=tokens.ids or None,
            logprobs=tokens.logprobs or None,
        )

    def _message(self, item: m.ConversationItem | m.AssistantReply) -> m.JsonObject:
        match item:
            case m.SystemText(text=text):
                return {"role": "system", "content": text, "by": "host"}
            case m.UserText(text=text):
                by = "host" if text in self._users else "grue"
                return {"role": "user", "content": text, **_named(item.attachments), "by": by}
            case m.AssistantText(text=text):
                return {"role": "assistant", "content": text, "by": "host"}
            case m.ToolMessage(call_id=call_id, content=text):
                by = "tool" if call_id in self._returned else "grue"
                said = {"role": "tool", "tool_call_id": call_id, "content": text}
                return {**said, **_named(item.attachments), "by": by}
            case m.AssistantReply():
                by = "model" if id(item) in self._kept else "host"
                calls = [openai_call(call) for call in item.tool_calls]
                called = {"tool_calls": calls} if calls else {}
                return {"role": "assistant", "content": item.content, **called, "by": by}


def _named(attachments: tuple[m.Attachment, ...]) -> m.JsonObject:
    named = [{"kind": each.kind, "mime": each.mime, "bytes": each.bytes} for each in attachments]
    return {"attachments": named} if named else {}


# --- Trajectories ---


class _Trajectory(Struct):
    """Builds a trajectory in ATIF from the messages of a trace, which it takes one after another."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    usage: m.Usage = m.Usage()
    system: str | None = None
    model: str = ""
    calls: dict[tuple[int, m.CallId], dict[str, Any]] = field(default_factory=dict)  # by turn and call id

    def add(self, envelope: EpisodeEnvelope, source: str, message: str, **more: Any) -> dict[str, Any]:
        step = {
            "step_id": len(self.steps) + 1,
            "timestamp": datetime.fromtimestamp(envelope.at, UTC).isoformat(),
            "source": source,
            "message": message,
            **more,
            "extra": {"turn": envelope.turn, "trace_message": envelope.seq}
            | ({"copied": True} if envelope.copied else {}),
        }
        self.steps.append(step)
        return step

    def take(self, envelope: EpisodeEnvelope) -> None:
        match envelope.body:
            case m.RunTurn(resumed=None, turn=turn, system=system, user=user):
                # Turns of several batches (`Runner.map`) can have the same number, and their calls the same
                # ids. So forget the calls of the earlier turn.
                self.calls = {key: step for key, step in self.calls.items() if key[0] != turn}
                if system != self.system:
                    self.system = system
                    self.add(envelope, "system", system)
                self.add(envelope, "user", user)
            case m.RequestCompletion(aside=False, request=number, new=new) if number > 1:
                for item in new:
                    if isinstance(item, m.UserText):
                        self.add(envelope, "user", item.text)
            case m.HistoryRewritten(reason=said):
                self.add(envelope, "system", f"The history was rewritten: {said}")
            case m.RewriteHistory():
                self.add(envelope, "system", f"The history was rewritten: {summarize(envelope.body)}")
            case m.CompletionReceived() as reply:
                self.reply(envelope, reply)
            case m.TurnCompleted() | m.TurnFailed() | m.TurnParked() as end:
                for record in end.tool_calls:
                    self.observe(end.turn, record)

    def reply(self, envelope: EpisodeEnvelope, reply: m.CompletionReceived) -> None:
        usage, tokens = reply.usage, reply.tokens or m.ReplyTokens()
        if not envelope.copied:
            self.usage += usage
        self.model = reply.model or self.model
        metrics = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": usage.cost_usd,
            "completion_token_ids": list(tokens.ids) or None,
            "logprobs": list(tokens.logprobs) or None,
        }
        calls = [
            {
                "tool_call_id": call.call_id,
                "function_name": call.name,
                "arguments": strict_object(call.arguments) or {},
            }
            for call in reply.tool_calls
        ]
        more: dict[str, Any] = {"model_name": reply.model or None, "reasoning_content": reply.reasoning}
        more |= {"tool_calls": calls or None, "metrics": None if envelope.copied else _present(metrics)}
        step = self.add(envelope, "agent", reply.content or reply.refusal or "", **_present(more))
        self.calls |= {(envelope.turn, call.call_id): step for call in reply.tool_calls}

    def observe(self, turn: int, record: m.ToolCallRecord) -> None:
        # Record each result once: a turn that was parked reports its calls again when it ends.
        step = self.calls.pop((turn, record.call_id), None)
        if step is not None:
            content = msgspec.json.encode(record.result.to_dict()).decode()
            observed = step.setdefault("observation", {"results": []})
            observed["results"].append({"source_call_id": record.call_id, "content": content})


def trajectory(trace: Path, row: "EpisodeRow", score: str = "score") -> dict[str, Any]:
    """Return an episode as a trajectory in ATIF; raises `TraceError` if the trace cannot be read."""
    found = _Trajectory()
    for envelope in open_episode(trace):
        found.take(envelope)
    totals = {
        "total_prompt_tokens": found.usage.input_tokens,
        "total_completion_tokens": found.usage.output_tokens,
        "total_cached_tokens": found.usage.cached_tokens,
        "total_cost_usd": found.usage.cost_usd,
        "total_steps": len(found.steps),
    }
    return {
        "schema_version": ATIF,
        "session_id": row.episode,
        "agent": _present({"name": "grue", "version": __version__, "model_name": found.model or None}),
        "steps": found.steps,
        "final_metrics": _present(totals),
        "extra": _about(row, score),
    }


def _about(row: "EpisodeRow", score: str) -> dict[str, Any]:
    return {
        "settings": row.settings,
        "repetition": row.repetition,
        "outcome": row.outcome or "",
        "reward": row.scores.get(score),
    }


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


SAMPLES = "samples.jsonl"
_MOST_NAMED = 5
_LEAST_BUFFER = 16 * 2**20
_WORDS = re.compile(r"\w+")


class EpisodeRow(Struct, kw_only=True):
    """A row of the table `episodes`. Most unknown values are null, such as `work` outside of a fleet."""

    episode: str  # id in the fleet; elsewhere the name of the run folder or of a trace file
    fleet: str | None = None
    work: str | None = None
    settings: m.JsonObject = {}
    repetition: int = 0
    outcome: str | None = None
    scores: dict[str, float] = {}  # the work's scores, and scores that were given later
    kind: str | None = None
    error: str | None = None
    attempt: int | None = None
    model: str | None = None  # the model that answered last
    endpoint: str | None = None
    duration_s: float | None = None
    requests: int | None = None  # the fleet's count, or else that of the trace
    tokens: int | None = None
    money_usd: float | None = None
    turns: int | None = None
    tool_calls: int | None = None
    refused_calls: int | None = None
    failed_calls: int | None = None
    last_turn: str | None = None
    grue: str | None = None  # the version of grue that played the episode
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
    """The counts of an export."""

    rows: dict[str, int] = {}  # by table; for training data, by the key `samples` or `trajectories`
    without_trace: int = 0
    left_out: int = 0  # replies without a sample; the module's docstring says why
    damaged: int = 0
    troubles: list[str] = field(default_factory=list)  # errors of the first few damaged traces

    @contextlib.contextmanager
    def counted_damage(self) -> Iterator[None]:
        """Count a damaged trace if the block raises a `TraceError`, and suppress the error."""
        try:
            yield
        except TraceError as error:
            self.damaged += 1
            if len(self.troubles) < _MOST_NAMED:
                self.troubles.append(str(error))


def fleet_episodes(fleet: Path) -> Iterator[EpisodeRow]:
    """Yield the episodes of a fleet; raises `FleetError` if the folder is not a fleet's."""
    for result in results(fleet):
        end = result.end
        row = EpisodeRow(
            episode=result.id,
            fleet=str(fleet),
            work=result.work,
            settings=all_settings(result),
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
        yield row


def run_episode(path: Path) -> EpisodeRow:
    """Return the row for the episode in a run folder or a trace file."""
    trace = path / TRACE_FILE if path.is_dir() else path
    folder, attempt = place_of_marks(trace)
    name = path.absolute().name if path.is_dir() or path.name != TRACE_FILE else path.absolute().parent.name
    marks = tuple(mark for mark in read_marks(folder) if mark.attempt in (0, attempt))
    by_name = Result(id=name, outcome="scored", marks=marks).scores
    scores = {name: score for name, score in by_name.items() if "@" not in name}
    row = EpisodeRow(episode=name, trace=str(trace) if trace.is_file() else None, scores=scores)
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
    """Write the tables as Parquet files into the folder `target`. Needs DuckDB; may raise `FleetError`."""
    _folder(target)
    with _Tables(TABLES) as tables:
        # Use views, so that the rows are not held in memory. Each view is read only once.
        done = tables.fill(episodes, "VIEW")
        for name in TABLES:
            place, made = target / f"{name}.parquet", tables.folder / f"{name}.parquet"
            tables.run(f"COPY {name} TO {_quoted(str(made))} (FORMAT parquet, COMPRESSION zstd)")
            with (
                os_errors_as(FleetError, f"write {place}"),
                made.open("rb") as written,
                replacing(place) as file,
            ):
                shutil.copyfileobj(written, file)
        return done


class Answer(Struct, frozen=True, kw_only=True):
    """The result of a query. `read` counts the rows from episodes, not those from exported folders."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    read: Exported


def query(sql: str, episodes: Iterable[EpisodeRow], exported: Sequence[Path] = ()) -> Answer:
    """Run a query on `TABLES`, made from `episodes` and from the folders `exported`. Needs DuckDB.

    Raises `FleetError` if DuckDB refuses the query, for example.
    """
    wanted = {name: kind for name, kind in TABLES.items() if name in _WORDS.findall(sql.lower())}
    with _Tables(wanted) as tables:
        read = tables.fill(episodes if wanted else ())
        for folder, name in itertools.product(exported, wanted):
            written = _quoted(str(folder / f"{name}.parquet"))
            tables.run(f"INSERT INTO {name} BY NAME SELECT * FROM {written}")  # noqa: S608 - the path is quoted
        columns, rows = tables.run(sql)
        return Answer(columns=_told_apart(columns), rows=rows, read=read)


def _told_apart(columns: Iterable[str]) -> list[str]:
    """Return names of columns without repetitions: `a`, `a` becomes `a`, `a_1`, as in DuckDB's subqueries."""
    names: dict[str, None] = {}
    for column in columns:
        others = (f"{column}_{number}" for number in itertools.count(1))
        names[next(each for each in itertools.chain((column,), others) if each not in names)] = None
    return list(names)


class _Tables(contextlib.ExitStack):
    """A DuckDB database in memory with the wanted tables."""

    def __init__(self, wanted: dict[str, type[Struct]]) -> None:
        super().__init__()
        try:
            import duckdb
        except ImportError as error:
            raise MissingDependencyError("SQL and Parquet need DuckDB: pip install 'duckdb>=1.2'") from error
        self._error: type[Exception] = duckdb.Error
        self._wanted = wanted
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="grue-tables-")))
        self._database = self.enter_context(duckdb.connect())
        # By default, DuckDB writes data that does not fit into memory into the working directory.
        self.run(f"SET temp_directory = {_quoted(str(self.folder))}")

    def fill(self, episodes: Iterable[EpisodeRow], kind: Literal["TABLE", "VIEW"] = "TABLE") -> Exported:
        done = Exported(rows=dict.fromkeys(self._wanted, 0))
        paths = {name: self.folder / f"{name}.ndjson" for name in self._wanted}
        longest = 0
        with os_errors_as(FleetError, f"write into {self.folder}"), contextlib.ExitStack() as stack:
            files = {name: stack.enter_context(path.open("wb")) for name, path in paths.items()}
            for row in _rows(episodes, set(self._wanted), done):
                name, line = _NAMES[type(row)], to_json(msgspec.structs.asdict(row))
                files[name].write(line + b"\n")
                done.rows[name] += 1
                longest = max(longest, len(line))
        size = max(_LEAST_BUFFER, 2 * longest)
        for name, path in paths.items():
            columns = ", ".join(f"'{column}': '{type_}'" for column, type_ in _columns(TABLES[name]))
            self.run(
                f"CREATE {kind} {name} AS SELECT * FROM read_json({_quoted(str(path))},"  # noqa: S608 - the path is quoted
                f" format = 'newline_delimited', maximum_object_size = {size}, columns = {{{columns}}})"
            )
        return done

    def run(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        # In the main thread, a Ctrl-C would be a `RuntimeError` of DuckDB, or would not end the statement.
        # Ctrl-C is deferred, because in the middle of `submit` it would leave the statement running.
        with defer_interrupts(), ThreadPoolExecutor(1) as thread:
            answer = thread.submit(self._fetch, sql)
            try:
                wait_for(answer)
                return answer.result()
            except self._error as error:
                raise FleetError(f"DuckDB says: {error}") from error
            finally:
                while not answer.done():
                    self._database.interrupt()
                    wait([answer], 0.05)

    def _fetch(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        answer = self._database.execute(sql)
        if answer is None:
            raise FleetError("The query has no statement.")
        return [column[0] for column in answer.description or ()], answer.fetchall()


def _rows(episodes: Iterable[EpisodeRow], wanted: set[str], done: Exported) -> Iterator[EpisodeRow | Row]:
    for episode in episodes:
        if "episodes" in wanted:
            yield episode
        if not wanted - {"episodes"}:
            continue
        if episode.trace is None:
            done.without_trace += 1
            continue
        with done.counted_damage():
            for row in trace_rows(Path(episode.trace), episode.episode):
                if _NAMES[type(row)] in wanted:
                    yield row


def _columns(table: type[Struct]) -> Iterator[tuple[str, str]]:
    for name, hint in typing.get_type_hints(table).items():
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        yield name, next(_TYPES[kind] for kind in kinds if kind is not type(None))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _folder(target: Path) -> None:
    with os_errors_as(FleetError, f"make the folder {target}"):
        target.mkdir(parents=True, exist_ok=True)


# --- Training data ---


def export_samples(episodes: Iterable[EpisodeRow], target: Path, *, score: str = "score") -> Exported:
    """Write the samples, with `score` as reward, into `samples.jsonl` in `target`; may raise `FleetError`."""
    done = Exported(rows={"samples": 0})
    _folder(target)
    with os_errors_as(FleetError, f"write {target / SAMPLES}"), replacing(target / SAMPLES) as file:
        for trace, row in _with_traces(episodes, done):
            samples = Samples(trace, row, score)
            with done.counted_damage():
                for sample in samples:
                    file.write(msgspec.json.encode(sample) + b"\n")
                    done.rows["samples"] += 1
            done.left_out += samples.left_out
    return done


def export_trajectories(episodes: Iterable[EpisodeRow], target: Path, *, score: str = "score") -> Exported:
    """Write each episode with a readable trace into `target` as `ID.json` in ATIF, with `score` as reward."""
    done = Exported(rows={"trajectories": 0})
    _folder(target)
    for trace, row in _with_traces(episodes, done):
        with os_errors_as(FleetError, f"write into {target}"), done.counted_damage():
            written = msgspec.json.encode(trajectory(trace, row, score))
            write_whole(target / f"{row.episode}.json", written)
            done.rows["trajectories"] += 1
    return done


def _with_traces(episodes: Iterable[EpisodeRow], done: Exported) -> Iterator[tuple[Path, EpisodeRow]]:
    for row in episodes:
        if row.trace is None:
            done.without_trace += 1
        else:
            yield Path(row.trace), row
