"""`Fleet`: call a function, the work, for many cases, on this machine or on a Ray cluster."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict, Unpack

import msgspec
from msgspec import Struct

import grue
from grue.engine.batch import drawn_progress
from grue.errors import FleetError
from grue.field_checks import check_settings
from grue.fleet.attempt import Engine
from grue.fleet.broker import Costs, FleetBudget, Limits, Rate, ServerCap
from grue.fleet.compare import Cell, Comparison, Options, compare, setting_word
from grue.fleet.driver import Driver, Finished, Plan, Tally, Watch
from grue.fleet.folder import STOP, FleetFolder, Manifest, driver_lock
from grue.fleet.identity import Case, fault_of
from grue.fleet.local import LocalEngine, default_workers
from grue.fleet.results import Result, results
from grue.fleet.sweep import Keep, Sweep
from grue.fleet.work import Work, find_work, name_of, refuse_to_start_again
from grue.policies import Batching
from grue.runtime.files import as_path


@contextlib.contextmanager
def shown_progress(watch: Watch | None, *, shown: bool) -> Iterator[Watch | None]:
    """Yield `watch`; if `shown`, a function that draws a progress bar and then calls `watch`, if given."""
    if not shown:
        yield watch
        return
    with drawn_progress() as draw:

        def seen(tally: Tally, running: dict[str, float], costs: Costs) -> None:
            counts = ((tally.failed, "failed"), (tally.given_up, "given up"), (tally.unpaid, "not paid for"))
            described = ["episodes", *(f"{count:,} {what}" for count, what in counts if count)]
            draw(tally.done + tally.given_up + tally.unpaid, tally.total, ", ".join(described))
            if watch is not None:
                watch(tally, running, costs)

        draw(0, None, "episodes")
        yield seen


class FleetOptions(Struct, frozen=True, kw_only=True):
    """Further options of a fleet.

    Attributes:
        episode_timeout_s: Time limit of an episode. An episode that takes longer fails. `None`: no limit.
        keep: What stays on disk: `all`, the files of `failed` episodes, or `results` only.
        servers: The cap on MCP server processes of each machine.
        batching: Send requests through the providers' batch APIs, which are cheaper but may take a day;
            `None`: send each request by itself. The fleet's folder holds the requests, not `Batching.folder`.
        ray: For the engine `ray`: the cluster's address, or `auto` for the cluster that `RAY_ADDRESS` names
            or that runs on this machine. `None`: like `auto`, but if there is no cluster, start one on this
            machine. Not used if the program has called `ray.init`.

    Raises:
        MCPConfigError: A value has a wrong type, or the time limit is not above 0.
    """

    episode_timeout_s: float | None = None
    keep: Keep = "all"
    servers: ServerCap = ServerCap()
    batching: Batching | None = None
    ray: str | None = None

    def __post_init__(self) -> None:
        check_settings(self, above_0=("episode_timeout_s",))


class CompareOptions(TypedDict, total=False):
    """Further arguments of `Fleet.compare`, with the meaning that they have in `compare.Options`."""

    score: str | None
    lower_is_better: bool
    failed_as: float | None
    passing: float | None
    cluster: tuple[str, ...]
    margin: float | None


class Fleet:
    """Plays one or more episodes of each case. An episode that has a result is not played again.

    Args:
        directory: The fleet's folder; made if it does not exist.
        workers: How many episodes are played at one time; 0: one for each core of the machine or Ray cluster.
        engine: `local`: processes of this machine. `ray`: a Ray cluster whose machines see the same folder.
        budget: Limits on the cost of all requests to models together; `None`: no limit.
        rate: How fast requests may be sent; `None`: as fast as the endpoint takes them.
        options: Further options; `None`: their defaults.

    Raises:
        FleetError: An argument is wrong.
        MCPConfigError: `directory` is not a valid path.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        workers: int = 0,
        engine: Literal["local", "ray"] = "local",
        budget: FleetBudget | None = None,
        rate: Rate | None = None,
        options: FleetOptions | None = None,
    ) -> None:
        if not isinstance(workers, int) or workers < 0:
            raise FleetError(f"workers is {workers!r:.60}: give a number above 0, or 0 for all cores.")
        for name, value, kind in (
            ("budget", budget, FleetBudget), ("rate", rate, Rate), ("options", options, FleetOptions),
        ):  # fmt: skip
            if not isinstance(value, kind | None):
                raise FleetError(f"{name}= wants {kind.__name__}(...), not {type(value).__name__}.")
        if not isinstance(directory, str | os.PathLike):
            raise FleetError(f"A fleet wants its folder, Fleet('runs/sums'), not {directory!r:.60}.")
        if engine not in ("local", "ray"):
            raise FleetError(f"There is no engine {engine!r}: write 'local' or 'ray'.")
        if engine == "local" and options is not None and options.ray is not None:
            raise FleetError(
                "A Ray cluster is named, but not used: say --engine ray (in Python engine='ray')."
            )
        # Make the path absolute now, because the program may change the working directory later.
        self.folder = FleetFolder(as_path(directory, "A fleet").absolute())
        self._workers = workers
        self._engine = engine
        self._options = options or FleetOptions()
        budget = budget or FleetBudget()
        if self._options.batching is not None:
            prices = {name: price.in_batches for name, price in budget.prices.items()}
            budget = msgspec.structs.replace(budget, prices=prices)
        self._limits = Limits(budget, rate or Rate(), self._options.servers)

    def map(
        self,
        work: Work | str,
        cases: Iterable[Mapping[str, Any]],
        *,
        repetitions: int = 1,
        version: str | None = None,
        retry: bool = False,
        watch: Watch | None = None,
        progress: bool = False,
    ) -> Finished:
        """Play the episodes of all cases, except those that have a result or were given up. Blocks.

        Args:
            work: The function that plays an episode, or its name as `module:name`.
            cases: The settings of each case; plain JSON values.
            repetitions: How many episodes each case has.
            version: Version of the work; `None`: the version that the work declares.
            retry: Also play the episodes that were given up or whose results cannot be read.
            watch: Called a few times a second with the counts, the running episodes and the costs.
            progress: Show a progress bar on standard error, at a terminal or in a notebook.

        Raises:
            FleetError: The work, a case, the folder or the workers cannot be used, or the program would start
                the fleet again in each worker.
            MissingDependencyError: Ray is not installed, and the engine is `ray`.
        """
        own = getattr(work, "__module__", "") == "__main__"
        refuse_to_start_again(imports_main=own or self._engine == "local")
        settings = _checked(cases)
        if not isinstance(repetitions, int) or repetitions < 1:
            raise FleetError(f"repetitions is {repetitions!r:.60}: give a number, 1 or more.")
        if not isinstance(version, str | None):
            raise FleetError(f"version is {version!r:.60}: give a text, such as '2'.")

        def all_cases() -> Iterable[Case]:
            numbers = range(repetitions)
            return (Case(settings=each, repetition=number) for number in numbers for each in settings)

        plan = self._plan(work if isinstance(work, str) else name_of(work), version, all_cases)
        axes = list(dict.fromkeys(name for each in settings for name in each))
        return self._run(plan, axes, retry=retry, watch=watch, progress=progress)

    def sweep(
        self, sweep: Sweep, *, retry: bool = False, watch: Watch | None = None, progress: bool = False
    ) -> Finished:
        """Do the same as `map` with the work and the cases of a sweep. Blocks.

        The sweep's limits, `workers` and `keep` are not used, only those of this fleet.
        """
        if not isinstance(sweep, Sweep):
            raise FleetError(f"A fleet plays a Sweep, such as read_sweep('sweep.toml'), not {sweep!r:.60}.")
        refuse_to_start_again(imports_main=self._engine == "local")
        plan = self._plan(sweep.work, sweep.version, sweep.all_cases, whole=True)
        return self._run(plan, list(sweep.grid), retry=retry, watch=watch, progress=progress)

    def results(self) -> list[Result]:
        """Return the episodes that are on disk, sorted by id. No episode is played.

        Another program may play episodes of the fleet meanwhile. A result's method `run(directory)` returns
        the folder that holds the trace, if the trace was kept; `directory` is the fleet's folder.

        Raises:
            FleetError: The folder holds no fleet.
        """
        return list(results(self.folder.path))

    def compare(
        self, a: Mapping[str, Any], b: Mapping[str, Any], **how: Unpack[CompareOptions]
    ) -> Comparison:
        """Compare the episodes with the settings `a` and the episodes with the settings `b`, case by case.

        `print` shows the mean scores, their difference with its 95 % interval, whether B is better, and the
        cases that lost and gained most; `changes` has all cases. With fewer than 15 cases, or without numpy
        and scipy, there is no interval, and the sign test decides whether B is better. If the latest `sweep`
        has episodes with these settings, episodes of earlier sweeps are left out. If `map` was called last,
        and its version of the work has such episodes, those of other versions are left out, and so are old
        episodes whose case was played again after one of its files had changed.

        Args:
            a: Settings that the first set has, by name, such as `{"prompt": "plain"}`.
            b: Settings that the second set has.
            **how: `score`, `lower_is_better`, `failed_as`, `passing`, `cluster`, `margin`, as in `Options`.

        Raises:
            FleetError: The folder holds no fleet, or the sets cannot be compared. For example, one is empty,
                no case is in both, or an episode failed and `lower_is_better` is set without `failed_as`.
            MCPConfigError: An option has a wrong type, or `margin` is not above 0.
            MissingDependencyError: `margin` is given for 15 or more cases, and numpy or scipy is missing.
        """
        cells = []
        for name, wanted in (("a", a), ("b", b)):
            if fault := fault_of(wanted):
                raise FleetError(f"{name}= wants settings by name, {{'prompt': 'plain'}}: {fault}.")
            words = {setting: setting_word(value) for setting, value in wanted.items()}
            cells.append(Cell(self.folder.path, words))
        one, other = cells
        return compare(one, other, Options(**how))

    def _plan(
        self, name: str, version: str | None, cases: Callable[[], Iterable[Case]], *, whole: bool = False
    ) -> Plan:
        work = find_work(name)
        return Plan(
            work=work,
            version=version or work.version,
            cases=cases,
            keep=self._options.keep,
            prices=self._limits.budget.prices,
            limited=self._limits.on_requests,
            batching=self._options.batching,
            whole=whole,
        )

    def _run(
        self, plan: Plan, axes: list[str], *, retry: bool, watch: Watch | None, progress: bool
    ) -> Finished:
        with shown_progress(watch, shown=progress) as seen, driver_lock(self.folder):
            (self.folder.path / STOP).unlink(missing_ok=True)  # the file asked an earlier run to stop
            before = ""
            with contextlib.suppress(FleetError):  # the manifest is damaged, and will be written again
                before = self.folder.read_manifest().work
            if before not in ("", plan.work.name):
                raise FleetError(
                    f"The fleet in {self.folder.path} is of another work, {before}, and this one is"
                    f" {plan.work.name}. Nothing of it would count: give this one a folder of its own."
                )
            self.folder.write_manifest(
                Manifest(
                    work=plan.work.name,
                    version=plan.version,
                    total=sum(1 for _ in plan.cases()),
                    axes=axes,
                    budget=self._limits.budget,
                    rate=self._limits.rate,
                    grue=grue.__version__,
                    started=datetime.now(UTC).isoformat(timespec="seconds"),
                )
            )
            self.folder.require_commits()
            with contextlib.closing(self._made()) as engine:
                return Driver(self.folder, plan, engine, seen, retry=retry).run()

    def _made(self) -> Engine:
        timeout_s = self._options.episode_timeout_s
        if self._engine == "ray":
            from grue.fleet.ray_engine import RayEngine

            return RayEngine(
                self.folder, self._limits, self._workers, self._options.ray, episode_timeout_s=timeout_s
            )
        workers = self._workers or default_workers()
        return LocalEngine(self.folder, self._limits, workers, episode_timeout_s=timeout_s)


def _checked(cases: object) -> list[dict[str, Any]]:
    if isinstance(cases, str | bytes | Mapping) or not isinstance(cases, Iterable):
        raise FleetError(f"The cases are a list of dictionaries, and not of type {type(cases).__name__}.")
    found: list[dict[str, Any]] = []
    numbers: dict[bytes, int] = {}
    for number, case in enumerate(cases, start=1):
        try:
            fault = fault_of(case)
            written = b"" if fault else msgspec.json.encode(case, order="deterministic")
        except (TypeError, ValueError, RecursionError) as error:
            fault = f"it cannot be written as JSON: {error}"
        if fault:
            raise FleetError(f"Case {number}: {fault}.")
        digest = hashlib.sha256(written).digest()[:12]
        if numbers.setdefault(digest, number) != number:
            raise FleetError(
                f"Case {number} is the same as case {numbers[digest]}. Leave it out; to play every case"
                " twice, give repetitions=2."
            )
        found.append(dict(case))
    return found
