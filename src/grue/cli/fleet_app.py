"""The subcommands of `grue fleet` and their options."""

from pathlib import Path
from typing import Any, Literal

import typer

from grue.cli import options as opt
from grue.cli import take_interrupts
from grue.cli.plain_errors import FAILED, USAGE, Commands

_ABOUT = """Run thousands of episodes and compare their results.

A sweep is a TOML file. It names a function of yours, the cases to call it
with, such as questions, and the settings to compare, such as models:

work = "my_code:ask"
grid.model = \\["small", "large"]
cases = \\[{question = "What is 17 + 25?"}, {question = "What is 9 + 8?"}]

For each case and each combination of the settings in grid, there is an
episode: the function is called as ask(case, episode), and returns a score.
The argument case is one dict with the case and the settings, such as
{"model": "small", "question": "What is 17 + 25?"}. To record a trace, pass
episode.trace on, for example as Runner(trace=episode.trace).

A fleet is the folder with the episodes, their traces and their scores. If you
change the sweep and run it again, the folder keeps the earlier episodes too.
The latest sweep is the one that was run last in the folder.
"""

fleet_app = typer.Typer(cls=Commands, help=_ABOUT, no_args_is_help=True)

_DIRECTORY = opt.argument(
    "DIR", "The fleet's folder, such as runs/NAME, which `grue fleet run NAME.toml` makes."
)
_SWEEP = opt.argument(
    "SWEEP.toml",
    "The sweep: a file that names a function, the cases to call it with and the settings to "
    "compare. `grue fleet --help` shows one.",
)
_PLACE = opt.value(
    "DIR", "The fleet's folder, for the episodes.", "runs/SWEEP for SWEEP.toml", names=["--dir"]
)
_WORKERS = opt.value(
    "N", "How many episodes run at the same time.", "workers in SWEEP.toml, else one per core", min=1
)
_ENGINE = typer.Option(
    "local", metavar="local|ray", help="Where episodes run: on this machine, or in a Ray cluster."
)
_RAY = opt.value(
    "auto|ADDRESS",
    "With --engine ray: the address of the cluster; auto: the cluster that runs on this machine.",
    "like auto; if no cluster runs, start one on this machine",
)
_BATCH = opt.flag(
    "--batch",
    "Send the requests through the batch API of OpenAI or Anthropic, at half the price. Answers "
    "may take a day; the command waits for them. Whenever answers have arrived, it calls the function "
    "anew. So the function must make the same requests each time.",
)


@fleet_app.command()
def run(
    sweep: Path = _SWEEP,
    directory: Path | None = _PLACE,
    plan: bool = opt.flag(
        "--plan",
        "Run nothing. Print how many episodes are not done yet and the disk space they need. If ten "
        "or more are done, also print what the others would cost.",
    ),
    workers: int | None = _WORKERS,
    engine: Literal["local", "ray"] = _ENGINE,
    ray: str | None = _RAY,
    batch: bool = _BATCH,
) -> bool:
    """Run the episodes of a sweep that have no result yet. After a stop, the same command continues.

    The result of an episode is what the sweep's function returns, an error of its
    own that it raises, or that it took longer than `episode_timeout_s`. Episodes
    with a result are not run again; to run all again, change `version` in
    SWEEP.toml. While episodes run, the command shows the progress: at a terminal
    in rows that change, else as lines of JSON.

    An episode has no result if its worker process was killed, an MCP server did
    not start, the model could not be reached or did not reply, the API key was
    refused, the account has no credit, the function raised a ConnectionError, or
    the machine failed. Such an episode is tried up to three times. After that,
    only `grue fleet retry` runs it. The exit status is 1 if an episode is left
    without a result.

    If the last 20 attempts all failed in the same way, or the disk is nearly
    full, the command ends early. Mend the cause. If it was an error in your
    function, change `version`; otherwise `grue fleet retry` runs the episodes
    that have no result.

    After Ctrl-C no further episodes are started, and the command ends with
    status 1 when the running ones have ended. A second Ctrl-C cancels them, and a
    third one ends the command at once.
    """
    from grue.cli.fleet import print_plan, run_fleet

    take_interrupts()
    if not plan:
        return run_fleet(sweep, directory, workers=workers, engine=engine, ray=ray, batch=batch)
    print_plan(sweep, directory, workers)
    return True


@fleet_app.command()
def retry(
    sweep: Path = _SWEEP,
    directory: Path | None = _PLACE,
    workers: int | None = _WORKERS,
    engine: Literal["local", "ray"] = _ENGINE,
    ray: str | None = _RAY,
    batch: bool = _BATCH,
) -> bool:
    """Run those episodes of a sweep that have no result, even if `grue fleet run` has given them up.

    `grue fleet run` gives an episode up after three attempts that ended without a
    result, for example because the API key was refused. Its help lists the
    causes. Any other error of the sweep's function is a result: such an episode
    is not run again. The exit status is 1 if an episode is left without a result.
    At Ctrl-C the command ends as `grue fleet run` does.
    """
    from grue.cli.fleet import run_fleet

    take_interrupts()
    return run_fleet(sweep, directory, workers=workers, engine=engine, ray=ray, batch=batch, retry=True)


_WHERE = typer.Option(
    "",
    metavar="CONDITION",
    help='Fork only turns that meet this condition, such as "tool ~ shop and calls > 3". A '
    "condition is one or more tests NAME OPERATOR VALUE, joined by `and`; VALUE has no quotes. The operators "
    "are =, !=, > and <, and ~ for a regular expression. The names are:\n\n"
    "tool: the name of a tool that the turn called, such as shop.list for the tool list of the server shop. "
    "In traces of `grue chat`, mcp. stands before the names of MCP servers; you may leave it out. One call "
    "that fits is enough; with != no call may have this name.\n\n"
    "error: the text of an error of a tool call. One that fits is enough; with != no error may have this "
    "text.\n\n"
    "calls: how many tool calls the turn made.\n\n"
    "requests: how many requests to the model it made.\n\n"
    "model, system, user, answer: the model's name, the system prompt, the user's text, and the "
    "model's answer.\n\n"
    "turn: the turn's number.\n\n"
    "trace: the path of the trace.\n\n"
    "outcome: how the turn ended (empty if it has not ended), which is one of these:\n\n"
    "answered: the model answered.\n\n"
    "forced: the model answered because grue told it to answer at once.\n\n"
    "degraded: the model answered without the tools of a server that could not be used.\n\n"
    "fallback: your program gave the answer, as no answer of the model could be used.\n\n"
    "failed: the turn ended with an error.\n\n"
    "parked: the turn waits for an approval.",
    show_default="all turns",
)


@fleet_app.command()
def fork(
    folder: Path = opt.argument(
        "TRACES",
        "A folder, such as runs or a run folder, or a trace.jsonl. The turns of all traces in the "
        "folder and its subfolders are forked, except turns that are forks.",
    ),
    where: str = _WHERE,
    model: str | None = opt.OTHER_MODEL,
    base_url: str | None = opt.OTHER_URL,
    system: Path | None = opt.OTHER_SYSTEM,
    settings: list[str] | None = opt.CHANGES,
    misses: Literal["fail", "call"] = typer.Option(
        "fail",
        metavar="fail|call",
        help="What to do about a tool call for which no recorded result is left:\n\n"
        "fail: let the fork fail.\n\n"
        "call: call the tool, with the servers in mcp_config.json, or in config_file under tool.grue.mcp in "
        "pyproject.toml.",
    ),
    repetitions: int = typer.Option(5, min=1, metavar="N", help="How many times to fork each turn."),
    max_requests: int | None = opt.value(
        "N",
        "At most N requests to the model, in all forks together. When N is reached, the remaining "
        "forks are not run; to run them, give the same command with a larger N.",
        "no limit",
        min=1,
    ),
    directory: Path | None = opt.value(
        "DIR",
        "The fleet's folder, for the forks.",
        "runs/NAME-forks; NAME is the name of the folder TRACES, or of the trace.jsonl's folder",
        names=["--dir"],
    ),
    workers: int | None = opt.value("N", "How many forks run at the same time.", "one per core", min=1),
) -> bool:
    """Run many recorded turns again, each with the same change. After a stop, the same command continues.

    A fork runs a recorded turn again from its beginning, with another model,
    prompt, limit or setting. A tool call gets the recorded result of a call with
    the same arguments. If no such result is left, --misses decides. The forks and
    the recorded turns become episodes of a fleet. To compare them, where DIR is
    the fleet's folder:
    grue fleet compare DIR:fork=recorded :fork=changed

    The scores of an episode are: score (1 if the model gave an answer, else 0),
    same_answer and same_calls (1 if they are as recorded, else 0), requests and
    tool_calls (how many there were). A fork that fails, for example at a call
    without a recorded result, has a result, but no scores. The exit status is 1
    if a fork has no result, as with `grue fleet run`. At Ctrl-C the command ends
    as that command does.
    """
    from grue.cli.fleet import fork_fleet
    from grue.cli.fork import change_of
    from grue.cli.hosts import load_hosts

    take_interrupts()
    load_hosts()
    change = change_of(model=model, base_url=base_url, system=system, settings=settings or ())
    return fork_fleet(
        folder,
        change,
        where=where,
        misses=misses,
        repetitions=repetitions,
        directory=directory,
        workers=workers or 0,
        max_requests=max_requests,
    )


@fleet_app.command()
def status(directory: Path = _DIRECTORY, as_json: bool = opt.JSON) -> None:
    """Print how many episodes of a fleet's latest sweep are done. The sweep may still be running.

    The latest sweep is the one that was run last in this folder. The command also
    prints what all runs in this folder have cost so far.
    """
    from grue.cli.fleet_view import print_status

    take_interrupts()
    print_status(directory, as_json=as_json)


def _by(what: str, most: str) -> Any:
    return opt.value(
        "SETTING,...",
        f"{what} for each combination of values of these settings or keys of a case, such as model,question.",
        "all settings and keys that differ between episodes, except seed; fewer of them if they "
        f"would make more than {most}",
    )


@fleet_app.command()
def table(
    directory: Path = _DIRECTORY,
    by: str | None = _by("Print a row", "24 rows, unless with --json"),
    every: bool = opt.flag("--all", "Also count episodes that are not in the latest sweep."),
    as_json: bool = opt.JSON,
) -> None:
    """Print a table of mean scores and standard errors, by settings and keys of cases (see --by).

    Only episodes of the latest sweep count: the sweep that was run last in this
    folder. Episodes that failed or have no result are not in the table; lines
    below it count them. Each row names one of its episodes, for
    `grue fleet show`.
    """
    from grue.cli.fleet_view import print_table

    take_interrupts()
    print_table(directory, None if by is None else by.split(","), as_json=as_json, every=every)


def _pass(otherwise: str) -> Any:
    return opt.value(
        "SCORE",
        "An episode passes if it has this score or a better one.",
        f"1, with --lower-is-better 0. If any score is below 0 or above 1: {otherwise}",
        names=["--pass"],
        callback=opt.finite,
    )


_PASS = _pass("all scores pass")
_FAILED_AS = opt.value(
    "SCORE",
    "The score to use for an episode in which the sweep's function has failed.",
    "0; with --lower-is-better, you have to give one if an episode has failed",
    callback=opt.finite,
)
_LOWER_IS_BETTER = opt.flag("--lower-is-better", "Smaller scores are better.")
_CELL = opt.argument(
    "A",
    "A fleet's folder, for the episodes of its latest sweep; or FOLDER:SETTING=VALUE,... for those "
    "with these settings, such as runs/sums:model=small. If the latest sweep has no such episodes, "
    "those of earlier sweeps count.",
)


@fleet_app.command()
def compare(
    a: str = _CELL,
    b: str = opt.argument(
        "B", "In the same form as A. Without a folder, such as :model=large, the folder of A is used."
    ),
    score: str | None = opt.value(
        "NAME",
        "Name of the score to compare.",
        "score, if the episodes have a score of this name; else their only score",
    ),
    fail_if_worse: float | None = opt.value(
        "LOSS",
        "For CI jobs: let the exit status say whether B's mean score is worse than A's by LOSS, "
        "such as 0.05, or more. Needs numpy and scipy. The exit status is:\n\n"
        "0: no, the interval rules out such a loss.\n\n"
        "1: yes, and the interval does not contain 0.\n\n"
        "2: not certain; or there is no interval, or an error occurred.",
        callback=opt.finite,
    ),
    passing: float | None = _pass("the chances to pass are not compared"),
    failed_as: float | None = _FAILED_AS,
    cluster: str | None = opt.value(
        "SETTING,...",
        "Treat cases with the same values of these settings as dependent on each other, such as "
        "questions about one document: --cluster document. The interval then needs 15 such groups.",
        "all cases are independent",
    ),
    lower_is_better: bool = _LOWER_IS_BETTER,
    every: bool = opt.flag("--all", "List all cases whose scores differ, not only those that differ most."),
    as_json: bool = opt.JSON,
) -> None:
    """Compare two sets of episodes: is B better than A, is it worse, or is it too close to tell?

    A and B differ in a setting, such as model. Episodes that agree in all else,
    such as question and seed, are compared as one case. For each case, the score
    of A is subtracted from that of B. Cases that only A or only B has are left
    out.

    The command prints the mean of these differences with its 95 % confidence
    interval. The interval needs numpy and scipy, and at least 15 cases. Without
    it, a sign test decides whether A or B is better. The command also compares
    costs, such as tokens and seconds, and names the cases that differ most.

    If each case was run N times (repetitions in SWEEP.toml), its scores are
    averaged. Two more figures are compared: pass@N, the chance that at least one
    of N runs passes, and pass^N, the chance that all N pass. --pass says which
    scores pass.
    """
    from grue.cli.fleet_view import print_comparison
    from grue.errors import FleetError, MCPConfigError
    from grue.fleet.compare import Options

    take_interrupts()
    if fail_if_worse is not None and not fail_if_worse > 0:
        raise typer.BadParameter("give a loss above 0", param_hint="--fail-if-worse")
    try:
        options = Options(
            score=score,
            lower_is_better=lower_is_better,
            failed_as=failed_as,
            passing=passing,
            cluster=tuple(cluster.split(",")) if cluster else (),
            margin=fail_if_worse,
        )
        worse = print_comparison(a, b, options, as_json=as_json, show_all=every)
    except FleetError as error:
        if fail_if_worse is None:
            raise
        raise MCPConfigError(str(error)) from error  # its exit status is 2: 1 would mean that B is worse
    if worse is not False:
        raise typer.Exit(FAILED if worse else USAGE)


@fleet_app.command()
def score(
    directory: Path = _DIRECTORY,
    scorers: str = opt.argument(
        "SCORER",
        "MODULE:FUNCTION: a function of yours. It gets a grue.fleet.FinishedEpisode, and "
        "returns a number: the score, which is called FUNCTION.\n\n"
        "FILE.toml: a file with a table scorer.NAME for each score to compute. The table has one "
        "of the keys regex, schema, judge and function. The first three score the answer of the "
        "episode's last turn.\n\n"
        "regex: a regular expression such as '\\[0-9]'. The score is 1 if it is found in the answer, "
        "else 0.\n\n"
        'schema: a JSON Schema, such as {type = "object"}. The score is 1 if the answer is JSON '
        "that fits it, else 0.\n\n"
        "judge: a question about the answer, such as 'Is the answer polite?'. A model gives a number "
        "from 0 (not at all) to 1 (fully). The keys model and base_url choose this model; without "
        "them, the model of `grue chat` is asked.\n\n"
        "function: a MODULE:FUNCTION.",
    ),
    again: bool = opt.flag("--again", "Also score episodes that have these scores already."),
) -> bool:
    """Give all finished episodes of a fleet further scores, computed from their traces.

    No episode runs again. The scores are stored in the folder. Episodes whose
    trace is missing are left out. The exit status is 1 if an episode with a trace
    could not be scored.
    """
    from grue.cli.fleet import score_episodes

    take_interrupts()
    return score_episodes(directory, scorers, again=again)


_SCORE = typer.Option(
    "score", "--score", metavar="NAME", help="Name of the score by which an episode passes; see --pass."
)


@fleet_app.command()
def failures(
    directory: Path = _DIRECTORY,
    score: str = _SCORE,
    passing: float | None = _PASS,
    lower_is_better: bool = _LOWER_IS_BETTER,
    every: bool = opt.flag("--all", "List all episodes of each group, not only three."),
    as_json: bool = opt.JSON,
) -> None:
    """Group the failed episodes by what went wrong, and print commands that show them.

    An episode has failed if the sweep's function raised an error or took too
    long, if the score does not pass, or if the episode has begun and has no
    result. For example, an episode has no result if the model could not be
    reached, or while it is still running.
    Only episodes of the latest sweep count: the sweep that was run last in this
    folder.
    """
    from grue.cli.fleet_view import print_failures

    take_interrupts()
    print_failures(
        directory, score=score, passing=passing, lower_is_better=lower_is_better, as_json=as_json, every=every
    )


@fleet_app.command()
def report(
    directory: Path = _DIRECTORY,
    score: str = _SCORE,
    passing: float | None = _PASS,
    failed_as: float | None = _FAILED_AS,
    lower_is_better: bool = _LOWER_IS_BETTER,
    by: str | None = _by("Show the scores", "12 combinations"),
    out: Path | None = opt.out("DIR/report.html", "; an existing report is replaced"),
    open_browser: bool = opt.OPEN_PAGE,
) -> None:
    """Write an HTML page about the latest sweep: costs, cases, failures, episodes, scores by settings.

    The latest sweep is the one that was run last in this folder. The page is
    one file and works offline.
    """
    from grue.cli.saying import say_page
    from grue.fleet.report import REPORT, write_report
    from grue.tracing.facts import counted

    take_interrupts()
    page = out or directory / REPORT
    count = write_report(
        directory,
        page,
        score=score,
        passing=passing,
        lower_is_better=lower_is_better,
        failed_as=failed_as,
        by=None if by is None else by.split(","),
    )
    say_page(page, open_browser, f": {counted(count, 'episode')}")


@fleet_app.command()
def export(
    directory: Path = _DIRECTORY,
    form: Literal["parquet", "samples", "atif"] = typer.Option(
        "parquet",
        "--as",
        metavar="parquet|samples|atif",
        help="parquet: the tables episodes, turns, calls and requests, as Parquet files. Needs the "
        "package duckdb.\n\n"
        "samples: JSON Lines for training, one line per reply of the model.\n\n"
        "atif: one trajectory per episode, in Harbor's format ATIF.",
    ),
    out: Path | None = opt.value(
        "FOLDER",
        "The folder to write into. Files with the same names are replaced.",
        "DIR/export",
        names=["--out", "-o"],
    ),
    score: str = typer.Option(
        "score", metavar="NAME", help="Name of the score that becomes the reward in samples and atif."
    ),
) -> None:
    """Export all episodes of all sweeps of a fleet, in a format for other programs."""
    from grue.cli.fleet_view import export_fleet

    take_interrupts()
    export_fleet(directory, out, form, score)


@fleet_app.command()
def show(
    directory: Path = _DIRECTORY,
    episode: str = opt.argument(
        "ID",
        "The id of an episode, or its first characters; `grue fleet table` and `grue fleet "
        "compare` print ids.",
    ),
) -> None:
    """Show an episode: its settings, how each attempt ended, and commands that show its traces."""
    from grue.cli.fleet_view import print_episode

    take_interrupts()
    print_episode(directory, episode)


@fleet_app.command()
def stop(directory: Path = _DIRECTORY) -> None:
    """Stop a fleet: let its running episodes end, and start no others.

    A second `grue fleet stop` cancels the running episodes. To go on, give the
    command again that ran the fleet, such as `grue fleet run`.
    """
    from grue.cli.fleet import stop_fleet

    take_interrupts()
    stop_fleet(directory)
