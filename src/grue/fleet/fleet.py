"""`Fleet`: run a work for many cases, on this machine or on a Ray cluster."""

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

import grue
from grue.errors import FleetError
from grue.fleet.broker import FleetBudget, Limits, Rate
from grue.fleet.driver import Driver, Finished, Plan, Tally
from grue.fleet.engine import Costs, Engine
from grue.fleet.folder import MANIFEST, DriverLock, FleetFolder
from grue.fleet.identity import Case
from grue.fleet.local import LocalEngine, default_workers
from grue.fleet.main_program import refuse_to_start_again
from grue.fleet.results import Result, results
from grue.fleet.server_places import ServerCap
from grue.fleet.sweep import Keep, Sweep
from grue.fleet.work import Work, find_work, name_of
from grue.policies import Batching
from grue.protocol.turn.prices import Price

FORMAT = 1
Watch = Callable[[Tally, dict[str, float], Costs], None]


class Manifest(Struct, frozen=True, kw_only=True):
    """A description of the fleet; `fleet.json`. It is for displays: the commits say what is done."""

    format: int = FORMAT
    work: str = ""
    version: str = "1"
    total: int = 0
    axes: list[str] = []
    budget: FleetBudget = FleetBudget()
    rate: Rate = Rate()
    grue: str = ""
    started: str = ""


class FleetOptions(Struct, frozen=True, kw_only=True):
    """Further options of a fleet.

    Attributes:
        episode_timeout_s: Time limit of an episode; `None`: none. An episode that takes longer has failed.
        keep: What stays on disk: everything, the files of failed episodes, or results only.
        servers: The cap on server processes of each machine.
        batching: Ask the models by the providers' batches, which answer within a day and cost half; `None`:
            ask at once. `Batching.folder` is not used: what waits is in the fleet's folder.
        ray: Address of the Ray cluster, or `auto` for the one of this machine; `None`: start one here.
    """

    episode_timeout_s: float | None = None
    keep: Keep = "all"
    servers: ServerCap = ServerCap()
    batching: Batching | None = None
    ray: str | None = None


class Fleet:
    """Runs a work for many cases. What is done already is not done again.

    Args:
        directory: The fleet's folder; made if it does not exist.
        workers: Episodes at one time; 0: as many as the machine has cores.
        engine: `local`: processes of this machine. `ray`: a Ray cluster whose machines see the same folder.
        budget: What all requests to models may cost together; `None`: no limit.
        rate: How fast requests may be sent; `None`: as fast as the endpoint takes them.
        options: Further options.

    Raises:
        FleetError: A value is wrong.
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
        if workers < 0:
            raise FleetError(f"workers is {workers}: give a number above 0, or 0 for all cores.")
        if engine not in ("local", "ray"):
            raise FleetError(f"There is no engine {engine!r}: write 'local' or 'ray'.")
        # Absolute from the start: what any code does with the working directory changes no path of the fleet.
        self.folder = FleetFolder(Path(directory).absolute())
        self._workers = workers
        self._engine = engine
        self._options = options or FleetOptions()
        self._limits = Limits(budget or FleetBudget(), rate or Rate(), self._options.servers)

    def map(
        self,
        work: Work | str,
        cases: Iterable[Mapping[str, Any]],
        *,
        repetitions: int = 1,
        version: str | None = None,
        retry: bool = False,
        watch: Watch | None = None,
    ) -> Finished:
        """Do the work for each case that is not done yet. Blocks.

        Args:
            work: The function, or its name as `module:name`.
            cases: The settings of each case; plain JSON values.
            repetitions: Episodes of each case.
            version: Version of the work; `None`: the one that it declares.
            retry: Try again what was given up.
            watch: Called with the counts about five times a second.

        Raises:
            FleetError: The work, a case or the folder cannot be used, or another driver has the folder. Or
                the program would start the fleet again in each worker that imports it.
            MissingDependencyError: Ray is not installed, and the engine is `ray`.
        """
        own = getattr(work, "__module__", "") == "__main__"
        refuse_to_start_again(imports_main=own or self._engine == "local")
        settings = [dict(case) for case in cases]

        def all_cases() -> Iterable[Case]:
            for repetition in range(repetitions):
                for each in settings:
                    yield Case(settings=each, repetition=repetition)

        known = find_work(work if isinstance(work, str) else name_of(work))
        axes = list(dict.fromkeys(name for each in settings for name in each))
        plan = Plan(
            work=known,
            version=version or known.version,
            cases=all_cases,
            keep=self._options.keep,
            prices=self._prices,
            batching=self._options.batching,
        )
        return self._run(plan, axes, retry=retry, watch=watch)

    def sweep(self, sweep: Sweep, *, retry: bool = False, watch: Watch | None = None) -> Finished:
        """Run the missing episodes of a sweep. Blocks. Raises what `map` raises."""
        refuse_to_start_again(imports_main=self._engine == "local")
        known = find_work(sweep.work)
        plan = Plan(
            work=known,
            version=sweep.version or known.version,
            cases=sweep.cases,
            keep=self._options.keep,
            prices=self._prices,
            batching=self._options.batching,
        )
        return self._run(plan, list(sweep.grid), retry=retry, watch=watch)

    def results(self) -> list[Result]:
        """Return the episodes that are on disk, by id. Nothing is played; other programs may play meanwhile.

        Each has `settings`, `repetition`, `outcome` and `scores` by name, also those of `grue fleet score`.
        `end` says what it has cost and how long it took, and `run(folder)` is the folder with its trace.

        Raises:
            FleetError: There is no fleet in the folder.
        """
        if not (self.folder.path / MANIFEST).is_file():
            raise FleetError(f"There is no fleet in {self.folder.path}: it has no {MANIFEST}.")
        return list(results(self.folder.path))

    @property
    def _prices(self) -> dict[str, Price]:
        prices = self._limits.budget.prices
        if self._options.batching is None:
            return prices
        return {name: price.in_batches for name, price in prices.items()}

    def _run(self, plan: Plan, axes: list[str], *, retry: bool, watch: Watch | None) -> Finished:
        with DriverLock(self.folder):
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
            engine = self._made()
            try:

                def seen(tally: Tally, running: dict[str, float]) -> None:
                    if watch is not None:
                        watch(tally, running, engine.costs())

                return Driver(self.folder, plan, engine, seen, retry=retry).run()
            finally:
                engine.close()

    def _made(self) -> Engine:
        """Make the engine that the options name."""
        timeout_s = self._options.episode_timeout_s
        if self._engine == "ray":
            from grue.fleet.ray_engine import RayEngine

            return RayEngine(
                self.folder, self._limits, self._workers, self._options.ray, episode_timeout_s=timeout_s
            )
        workers = self._workers or default_workers()
        return LocalEngine(self.folder, self._limits, workers, episode_timeout_s=timeout_s)
