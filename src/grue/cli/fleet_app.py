"""The commands of `grue fleet`; `fleet.py` and `fleet_view.py` implement them."""

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from grue.cli import take_interrupts
from grue.cli.plain_errors import FAILED, Commands, plain_errors

fleet_app = typer.Typer(
    cls=Commands, help="Run thousands of episodes and compare their results.", no_args_is_help=True
)

_Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The fleet's folder.")]
_Sweep = Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="What to do.")]
_Place = Annotated[Path | None, typer.Option("--dir", help="The fleet's folder.", show_default="runs/SWEEP")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_Workers = Annotated[int | None, typer.Option(min=1, help="Episodes at one time.", show_default="all cores")]
_Engine = Annotated[
    str, typer.Option(metavar="local|ray", help="Where episodes run: this machine, or a Ray cluster.")
]
_Ray = Annotated[
    str | None, typer.Option(metavar="auto|ADDRESS", help="The Ray cluster.", show_default="start one")
]


@fleet_app.command()
def run(
    sweep: _Sweep,
    directory: _Place = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what would be done, and start nothing.")
    ] = False,
    workers: _Workers = None,
    engine: _Engine = "local",
    ray: _Ray = None,
) -> None:
    """Run the missing episodes of a sweep. The same command again continues where it stopped."""
    _run(_Chosen(sweep, directory, workers, engine, ray), plan=plan)


@fleet_app.command()
def retry(
    sweep: _Sweep,
    directory: _Place = None,
    workers: _Workers = None,
    engine: _Engine = "local",
    ray: _Ray = None,
) -> None:
    """Go on with a sweep, and try again the episodes that failed three times because a server was missing."""
    _run(_Chosen(sweep, directory, workers, engine, ray), retry=True)


@fleet_app.command()
def status(directory: _Directory, as_json: _Json = False) -> None:
    """Print how many episodes of a fleet are done."""
    with plain_errors():
        from grue.cli.fleet_view import print_status

        take_interrupts()
        print_status(directory, as_json=as_json)


@fleet_app.command()
def table(
    directory: _Directory,
    by: Annotated[
        str | None,
        typer.Option(metavar="SETTING,...", help="A row for each.", show_default="all but seed"),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Print the mean scores of each cell of the grid, with standard error and number of episodes."""
    with plain_errors():
        from grue.cli.fleet_view import print_table

        take_interrupts()
        print_table(directory, None if by is None else by.split(","), as_json=as_json)


@fleet_app.command()
def show(
    directory: _Directory,
    episode: Annotated[str, typer.Argument(metavar="ID", help="The beginning of an episode's id.")],
) -> None:
    """Show an episode: its case, its attempts, its result, and the command that shows its trace."""
    with plain_errors():
        from grue.cli.fleet_view import print_episode

        take_interrupts()
        print_episode(directory, episode)


@fleet_app.command()
def stop(directory: _Directory) -> None:
    """Let a fleet's running episodes end and start no others."""
    with plain_errors():
        from grue.cli.fleet import stop_fleet

        take_interrupts()
        stop_fleet(directory)


class _Chosen(NamedTuple):
    """The options of `run` and `retry`."""

    sweep: Path
    directory: Path | None
    workers: int | None
    engine: str
    ray: str | None


def _run(chosen: _Chosen, *, plan: bool = False, retry: bool = False) -> None:
    with plain_errors():
        from grue.cli.fleet import RunOptions, print_plan, run_fleet

        take_interrupts()
        if chosen.engine not in ("local", "ray"):
            raise typer.BadParameter("write local or ray", param_hint="--engine")
        options = RunOptions(
            sweep=chosen.sweep,
            directory=chosen.directory,
            workers=chosen.workers,
            engine="ray" if chosen.engine == "ray" else "local",
            ray=chosen.ray,
            retry=retry,
        )
        if plan:
            print_plan(options)
        elif not run_fleet(options):
            raise typer.Exit(FAILED)
