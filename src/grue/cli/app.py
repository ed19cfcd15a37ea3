"""The commands of `grue` and their options.

A command imports its modules inside the function, so that other commands start quickly. Then it calls
`take_interrupts`: from there on, a Ctrl-C raises KeyboardInterrupt. If a command returns `False`, the exit
status is 1.
"""

from pathlib import Path
from typing import Literal

import typer

from grue import __version__
from grue.cli import options as opt
from grue.cli import take_interrupts
from grue.cli.fleet_app import fleet_app
from grue.cli.plain_errors import FAILED, Commands
from grue.cli.sandbox_app import sandbox_app
from grue.cli.trace_app import chosen_trace, trace_app
from grue.errors import MCPConfigError
from grue.policies import FailurePolicy, Misses, StartAhead, StartWhen

_ABOUT = """Run LLM agents that use MCP tools, and look at what they did.

An episode is one run of an agent: a game, a chat, a task. It consists of
turns. In a turn the model is asked for one answer, such as a move in the
game, and may call tools before it answers. `grue play`, `grue chat` and
`grue run` write an episode into a run folder, by default a new folder in
runs. Its file trace.jsonl, the trace, has every message between agent, model
and MCP servers.

Settings are read from pyproject.toml in the working directory, from the
tables tool.grue.llm, tool.grue.mcp and others; those of `grue run` are in its
AGENT.yaml. API keys are read from the environment, such as
OPENROUTER_API_KEY.

The exit status is 0 if a command succeeds, and 130 if Ctrl-C interrupted it.
If it fails, the status is 2 for most faults of what you typed (the command,
an argument, an option) or of a configuration file, and 1 for all others, such
as a server that cannot be reached. If a command has another status, its help
says so.
"""

app = typer.Typer(
    name="grue",
    cls=Commands,
    help=_ABOUT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(trace_app, name="trace")
app.add_typer(fleet_app, name="fleet")
app.add_typer(sandbox_app, name="sandbox")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"grue {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Accept the options of `grue` itself."""


_START = opt.value(
    "WHEN",
    "When the MCP server starts. Each turn has a server process of its own.\n\n"
    "before: before the turn's first request to the model.\n\n"
    "beside: at the same time as that request, if the server's tools are known from an earlier start, "
    "in this run or another; otherwise the same as `before`.\n\n"
    "beside_if_locked: the same as `beside`, if `grue tools --lock` has approved the tools; otherwise "
    "the same as `before`.\n\n"
    "when_called: when the model calls one of the server's tools, if they are known from an earlier "
    "start; otherwise the same as `before`.\n\n"
    "after_turn: as soon as the previous turn has ended, so that the server may be ready when its turn "
    "begins.\n\n"
    "beside_turn: still earlier, while the previous turn waits for the model. The server may then miss "
    "what the previous turn's tool calls change.\n\n"
    "If the server's entry in mcp_config.json has a key `start`, that key holds in place of the first four "
    "values.\n\n"
    "after_turn and beside_turn apply from the second turn on; the first turn starts the server as the key "
    "says, or else as the default below. They have no effect if the key is when_called, and are refused if "
    "the default is when_called.",
    "start under tool.grue.mcp in pyproject.toml, else beside_if_locked",
)
_SERVER_BY_URL = opt.argument("SERVER", "Name of a server with a URL in mcp_config.json.")
_GAME = typer.Option(
    "house",
    metavar="GAME",
    help="house (a game that comes with grue), or the path of a Z-machine story file, such as zork1.z5.",
)
_INTERPRETER = opt.value(
    "dfrotz|fernz",
    "The program that runs a story file.",
    "the installed one; of both, dfrotz, unless only fernz prints all of the story's text",
)
_GAME_SERVERS = opt.mcp_config(
    "with `enabled = true` under tool.grue.mcp in pyproject.toml: the config_file there, or mcp_config.json; "
    "with `enabled = false`: no server; otherwise a server that comes with grue",
    f"{opt.FILE_OF_SERVERS} Only the first server is used.",
)
_TURNS = opt.value(
    "N",
    "End the episode after this many turns. A turn is one move. With --resume, the turns "
    "already played count too.",
    "60; with --resume, as in the last run",
    min=1,
)
_PACE = typer.Option(
    0.0,
    min=0,
    max=60,
    metavar="SECONDS",
    help="Wait this long before each move, so that you can watch.",
    show_default="0",
)


@app.command()
def play(
    context: typer.Context,
    game: str = _GAME,
    interpreter: Literal["dfrotz", "fernz"] | None = _INTERPRETER,
    offline: bool = opt.OFFLINE,
    model: str | None = opt.MODEL,
    base_url: str | None = opt.BASE_URL,
    mcp_config: Path | None = _GAME_SERVERS,
    no_mcp: bool = opt.flag("--no-mcp", "Play without tools."),
    turns: int | None = _TURNS,
    seed: int = typer.Option(0, metavar="N", help="Random seed of the game."),
    run_dir: Path | None = opt.run_folder("the trace, the logs and the result are written."),
    turn_timeout: float | None = opt.turn_timeout(
        "A turn that takes longer ends without an answer, and the move is `look`. "
        f"{FailurePolicy().fallbacks_before_stop} such turns in a row end the episode."
    ),
    resume: Path | None = opt.resume(
        "episode", "--turns, --turn-timeout and the options below", "; --turns is as in the last run"
    ),
    start: Literal[StartWhen, StartAhead] | None = _START,
    stream: bool = opt.STREAM,
    pace: float = _PACE,
    langfuse: bool = opt.LANGFUSE,
    otel: bool = opt.OTEL,
    quiet: bool = opt.QUIET,
    as_json: bool = opt.JSON_LINES,
) -> bool:
    """Play a text adventure with an agent that uses MCP tools.

    An episode is one game. In each turn the model reads what the game says, may
    call tools, and decides on one move. The exit status is 0 even if the game is
    not won; it is 1 if an error ends the episode, or if three turns in a row, or
    all turns, end without a usable answer. To watch an episode without an API
    key:
    grue play --offline --pace 1
    """
    from grue.cli.episode_options import PlayOptions
    from grue.cli.play import play_episode

    take_interrupts()
    _refuse_both("--no-mcp", "--mcp-config", both=no_mcp and mcp_config is not None)
    _refuse_both("--quiet", "--json", both=quiet and as_json)
    _refuse_beside_resume(context, resume)
    options = PlayOptions(
        game=game,
        interpreter=interpreter,
        offline=offline,
        model=model,
        base_url=base_url,
        mcp_config=mcp_config,
        mcp=not no_mcp,
        turns=turns or 0,
        seed=seed,
        run_dir=run_dir,
        turn_timeout_s=turn_timeout,
        resume=resume,
        start=start,
        stream=stream,
        pace_s=pace,
        langfuse=langfuse,
        otel=otel,
        output="quiet" if quiet else "json" if as_json else "live",
    )
    return play_episode(options).succeeded


def _refuse_both(first: str, second: str, *, both: bool) -> None:
    if both:
        raise MCPConfigError(f"{first} and {second} contradict each other: remove one of them.")


_WITH_RESUME = "resume turns turn_timeout quiet as_json start stream pace langfuse otel"


def _refuse_beside_resume(context: typer.Context, run: Path | None) -> None:
    given = [
        str(parameter.metavar) if parameter.param_type_name == "argument" else parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in _WITH_RESUME.split()
        and getattr(context.get_parameter_source(str(parameter.name)), "name", "") == "COMMANDLINE"
    ]
    if run is not None and given:
        raise MCPConfigError(f"--resume uses the options of the first run: remove {', '.join(given)}.")


@app.command()
def init(
    folder: Path = typer.Argument(
        Path(),
        metavar="FOLDER",
        help="The project's folder. If it does not exist, it is made.",
        show_default="the working directory",
    ),
    sources: list[Path] | None = opt.value(
        "FILE",
        "Copy the MCP servers from this configuration file of Claude, Cursor or another program "
        "into mcp_config.json, with variables in place of what may be an API key; repeatable. If "
        "mcp_config.json exists already, the entries to add to it are printed instead.",
        "grue looks for the files of these programs. At a terminal it asks for each file "
        "with servers whether to copy them; in a pipe it copies none, and prints a `grue init --from` "
        "command for each such file",
        names=["--from"],
    ),
) -> None:
    """Write a small agent program, its test and mcp_config.json. No existing file is changed.

    The program, agent.py, asks a model a question. The model may use the tools
    of the MCP servers in mcp_config.json. If no API key for OpenRouter is set and
    Ollama on this machine has a model, agent.py names that; otherwise it names
    one of OpenRouter. The test, test_agent.py, needs no network and no API key.
    The command prints what was written, and what to do next.
    """
    from grue.cli.init import start_project

    take_interrupts()
    start_project(folder, sources or ())


_SOURCE = opt.argument(
    "SOURCE",
    "What to add:\n\n"
    "server.py: a program of yours, in Python or JavaScript.\n\n"
    "npm:PACKAGE, pypi:PACKAGE, oci:IMAGE: a package, run with npx, uvx or docker.\n\n"
    "notes.mcpb: an MCP bundle, in a file.\n\n"
    "server.json: a description of a server in the MCP registry's format: a file, or a URL from which "
    "it is downloaded.\n\n"
    "NAMESPACE/NAME: a server in an MCP registry.\n\n"
    "URL: the address of a running server; give --use remote too.\n\n"
    "To choose a version, write npm:PACKAGE@VERSION, pypi:PACKAGE==VERSION, oci:IMAGE:TAG or "
    "NAMESPACE/NAME@VERSION.",
)
_ARGUMENTS = opt.argument(
    "ARGUMENTS",
    "Arguments for the server's program, after --, such as -- ./docs. Only for programs of "
    "yours and npm:, pypi: and oci:.",
    "none; for npm:, pypi: and oci: you are asked at a terminal",
)
_USE = opt.value(
    "KIND",
    "How to run the server, if SOURCE offers several ways:\n\n"
    "npm, pypi, oci: as a package.\n\n"
    "mcpb: as a bundle, which is downloaded.\n\n"
    "remote: connect to its URL.",
    "the first package or bundle that SOURCE names; if it names none, its URL",
    names=["--use"],
)


@app.command()
def add(
    source: str = _SOURCE,
    arguments: list[str] | None = _ARGUMENTS,
    name: str | None = opt.value("NAME", "The server's name in mcp_config.json.", "made from SOURCE"),
    values: list[str] | None = opt.value(
        "NAME=VALUE",
        "A value that the server needs, such as folder=./docs; repeatable. The NAMEs are in the "
        "server's description (in the registry, server.json or the bundle). The command fails if a "
        "required value is missing, and prints its NAME.",
        "at a terminal you are asked for each value; with --yes, the description's default values are used",
        names=["--set"],
    ),
    kind: Literal["npm", "pypi", "oci", "mcpb", "remote"] | None = _USE,
    sha256: str | None = opt.value(
        "HEX",
        "The SHA-256 digest that the bundle must have; refused for any other SOURCE.",
        "the one in server.json or the registry; for a .mcpb file on this machine, none",
    ),
    registry: str | None = opt.value(
        "URL",
        "The MCP registry in which to look up NAMESPACE/NAME. Required for such a SOURCE, if "
        "pyproject.toml names none.",
        "registry under tool.grue.mcp in pyproject.toml",
    ),
    mcp_config: Path | None = opt.MCP_CONFIG_FILE,
    yes: bool = opt.flag(
        "--yes", "Do not ask: start the server and approve its tools. Needed in a pipe.", "-y"
    ),
) -> bool:
    """Add an MCP server to mcp_config.json.

    The command shows what would run and asks whether to go on. Then it writes the
    entry, starts the server and approves its tools, as `grue tools --lock` does.
    If a tool changes later, grue reports it. The approved tools are listed in
    mcp_tools.lock.

    If an environment variable that a server's description requires is not set,
    the command writes the entry, but does not start the server. If
    mcp_config.json has other servers but no mcp_tools.lock, it approves no tools.
    In both cases it prints what to do. If it cannot start the server, the entry
    remains, and the exit status is 1.

    If a server's description asks for an API key, mcp_config.json gets the name
    of an environment variable, such as ${API_KEY}. An optional key whose variable
    is not set is left out. In a URL, or in ARGUMENTS of a program of your own,
    write such a name in place of a key ('${API_KEY}'), because the key itself
    would be stored there. ARGUMENTS of a package cannot have such a name.

    One of ARGUMENTS that is the path of an existing file or folder becomes
    absolute; for a package, only if it has a slash: write ./docs, not docs. If
    this machine can enforce sandboxes, a program that is not your own runs in one
    (see grue sandbox). An OCI image runs in its own container.
    """
    from grue.cli.add import Adding, add_server

    take_interrupts()
    adding = Adding(
        source=source,
        arguments=arguments,
        name=name,
        values=tuple(values or ()),
        kind=kind,
        sha256=sha256,
        registry=registry,
        mcp_config=mcp_config,
        yes=yes,
    )
    return add_server(adding)


@app.command()
def remove(
    server: str = opt.argument("SERVER", "The server's name in mcp_config.json."),
    mcp_config: Path | None = opt.MCP_CONFIG_FILE,
) -> None:
    """Remove an MCP server from mcp_config.json.

    The command also removes the server's tools from mcp_tools.lock, the list of
    approved tools, and deletes the server's folders in mcp_bundles and
    mcp_packages, which `grue add` makes for downloads.
    """
    from grue.cli.add import remove_server

    take_interrupts()
    remove_server(server, mcp_config)


@app.command()
def chat(
    context: typer.Context,
    offline: bool = opt.offline(
        " If you type 'call TOOL {\"x\": 1}', the script calls this tool with these arguments and "
        "repeats the result."
    ),
    model: str | None = opt.MODEL,
    base_url: str | None = opt.BASE_URL,
    mcp_config: Path | None = opt.mcp_config(
        f"{opt.CONFIGURED}. With enabled = false under tool.grue.mcp, the chat has no server. "
        "If the file does not exist and enabled is not set, the chat has one that comes with grue"
    ),
    no_mcp: bool = opt.flag("--no-mcp", "Chat without tools."),
    system: str | None = opt.value("TEXT", "The system prompt.", "a short one, which asks for brevity"),
    ask: bool = opt.flag(
        "--ask", "Ask you before each tool call whether to make it. In a pipe, no call is made."
    ),
    run_dir: Path | None = opt.run_folder("the trace, the logs and the conversation are written."),
    turn_timeout: float | None = opt.turn_timeout("A turn that takes longer fails, and the chat goes on."),
    resume: Path | None = opt.resume(
        "chat", "--turn-timeout and --quiet", ", but a model chosen by /model is kept"
    ),
    quiet: bool = opt.flag(
        "--quiet", "In a pipe, print only answers, errors, and the output of commands.", "-q"
    ),
    learn: str | None = opt.value(
        "SERVER",
        "Run this server without a sandbox, and watch what it reads, writes and connects to. At the "
        'end, print the setting "sandbox" that would have allowed this, for mcp_config.json. Needs Linux '
        "5.9 or later.",
    ),
) -> bool:
    """Chat with a model that can use MCP tools. In a pipe, it answers the input line by line.

    At a terminal, type /help for the commands of the chat. A turn is one input
    with the model's answer. In a pipe, the exit status is 1 if an input has no
    answer, or if a command such as /save fails; a mistyped one does not count. To
    ask one question from the command line:
    echo "What is on my list?" | grue chat
    """
    from grue.cli.chat.program import chat as run_chat
    from grue.cli.chat.talk import INSTRUCTIONS, ChatOptions

    take_interrupts()
    _refuse_both("--no-mcp", "--mcp-config", both=no_mcp and mcp_config is not None)
    _refuse_beside_resume(context, resume)
    options = ChatOptions(
        offline=offline,
        model=model,
        base_url=base_url,
        mcp_config=mcp_config,
        mcp=not no_mcp,
        instructions=INSTRUCTIONS if system is None else system,
        ask=ask,
        run_dir=run_dir,
        turn_timeout_s=turn_timeout,
        resume=resume,
        quiet=quiet,
        learn=learn,
    )
    return run_chat(options)


_AGENT = opt.argument(
    "AGENT.yaml",
    "The file that describes the agent. A single argument that does not end in .yaml or .yml is the TASK.",
    "agent.yaml",
)
_TASK = opt.argument("TASK", 'What to do, such as "Sort the invoices."', "task in AGENT.yaml")


@app.command()
def run(
    context: typer.Context,
    agent: str | None = _AGENT,
    task: str | None = _TASK,
    offline: bool = opt.offline(" The script can do only the task of the example."),
    model: str | None = opt.model(f"model.name in AGENT.yaml, else {opt.DEFAULT_MODEL}"),
    base_url: str | None = opt.base_url(f"model.base_url in AGENT.yaml, else {opt.DEFAULT_URL}"),
    run_dir: Path | None = opt.run_folder("the trace, the logs and full results of MCP tools are written."),
    resume: Path | None = opt.resume("task", "the options below"),
    stream: bool = opt.STREAM,
    langfuse: bool = opt.LANGFUSE,
    otel: bool = opt.OTEL,
    quiet: bool = opt.flag(
        "--quiet",
        "Print only the answer. How the run ended, and where the trace is, go to standard error.",
        "-q",
    ),
    as_json: bool = opt.JSON_LINES,
) -> None:
    """Run a task with an agent whose model writes its next steps, such as tool calls, as JSON.

    AGENT.yaml names the model, the MCP servers, the skills and the limits. To
    see an example without an API key, use grue run --offline: if there is no
    agent.yaml, it writes one into the folder weekly-report and runs it.

    The exit status is 0 if the task is done, 3 if an action waits for your
    approval (grue run --resume RUN asks you, at a terminal), 4 if a limit was
    reached, and 1 after any other end.
    """
    from grue.cli.run import STATUSES, RunOptions, run_task

    take_interrupts()
    _refuse_both("--quiet", "--json", both=quiet and as_json)
    _refuse_beside_resume(context, resume)
    if agent is not None and task is None and not agent.endswith((".yaml", ".yml")):
        agent, task = None, agent
    options = RunOptions(
        agent=None if agent is None else Path(agent),
        task=task or "",
        offline=offline,
        model=model,
        base_url=base_url,
        run_dir=run_dir,
        resume=resume,
        stream=stream,
        langfuse=langfuse,
        otel=otel,
        output="quiet" if quiet else "json" if as_json else "live",
    )
    status = STATUSES.get(run_task(options).reason, FAILED)
    if status:
        raise typer.Exit(status)


_AT = opt.value(
    "N",
    "Number of the first message that is not taken from the trace; `grue trace show` prints "
    "the numbers. A fork can begin at a request to the model (RequestCompletion), at the tool calls of "
    "a reply (CallTools), or before your program checks an answer (CheckAnswer). If message N is "
    "none of these, the fork begins at the nearest of them before N.",
    "the first message of the turn; with --tool-result: the CallTools message of the "
    "first call whose result is replaced",
)
_TOOL_RESULT = opt.value(
    "CALL=FILE",
    "Use the content of FILE as the result of the recorded call with the id CALL; repeatable. A "
    "file whose name ends in .json may hold any JSON value. Any other file is a text. `grue trace show "
    "--whole` prints the ids.",
)
_OTHER_TOOLS = opt.value(
    "FILE",
    "For each server of the turn that this file names, offer the model the tools in the file. Other "
    "servers keep the recorded ones. The file is an mcp_tools.listing.json, which `grue tools --lock` writes "
    "beside mcp_tools.lock, or an edited copy of it. `--tools lock` takes the "
    "mcp_tools.listing.json beside the mcp_config.json of this folder.",
    "the recorded ones",
)


@app.command()
def fork(
    trace: Path | None = opt.TRACE_FILE,
    turn: int | None = opt.turn_number("forked; with --at M, the one with message M."),
    at: int | None = _AT,
    model: str | None = opt.OTHER_MODEL,
    base_url: str | None = opt.OTHER_URL,
    system: Path | None = opt.OTHER_SYSTEM,
    settings: list[str] | None = opt.CHANGES,
    tool_result: list[str] | None = _TOOL_RESULT,
    tools: Path | None = _OTHER_TOOLS,
    misses: Misses = typer.Option(
        "fail",
        metavar="fail|call|ask",
        help="What to do about a tool call for which no recorded result is left:\n\n"
        "fail: let the fork fail.\n\n"
        "call: call the tool.\n\n"
        "ask: ask you at the terminal whether to call it; without a terminal, let the fork fail.\n\n"
        "With call and ask, the file of --mcp-config has to have all servers of the turn.",
    ),
    mcp_config: Path | None = opt.mcp_config(
        opt.OR_BUNDLED, f"With --misses call or ask: {opt.FILE_OF_SERVERS}"
    ),
    run_dir: Path | None = opt.run_folder("the trace of the fork is written."),
) -> None:
    """Run a recorded turn again, with another model, prompt, limit, tool or result.

    The turn is run again from its first message, or from a later one: see --at.
    Earlier messages are taken from the trace. A tool call that the
    recorded turn has made too, with the same arguments, gets the recorded result,
    and no tool runs. If no such result is left, --misses decides. The command
    prints the answer, and commands that compare the fork with the recorded turn.
    """
    from grue.cli.fork import change_of, fork_turn
    from grue.cli.hosts import load_hosts

    take_interrupts()
    load_hosts()
    file = chosen_trace(trace)
    change = change_of(
        model=model,
        base_url=base_url,
        system=system,
        settings=settings or (),
        tool_results=tool_result or (),
        tools=tools,
    )
    fork_turn(file, change, turn=turn, at=at, misses=misses, mcp_config=mcp_config, run_dir=run_dir)


@app.command()
def runs(
    folder: Path | None = opt.argument(
        "FOLDER",
        "A folder that holds run folders or trace files.",
        "runs and the working directory; with --html or --open only runs",
    ),
    html: bool = opt.flag(
        "--html", "Instead, write index.html into FOLDER, and an HTML page beside each trace."
    ),
    open_browser: bool = opt.flag("--open", "Like --html, and open index.html in a browser."),
) -> None:
    """List the recorded episodes in a folder, newest first.

    Each line has a run folder or trace file, when the trace was last written, and
    usually how the episode ended. If the folder has a subfolder called runs, the
    episodes in there are listed too. Those of a fleet are not: see `grue fleet`.
    """
    from grue.cli.hosts import load_hosts
    from grue.cli.runs import RUNS, list_runs, write_runs

    take_interrupts()
    load_hosts()
    if html or open_browser:
        write_runs(folder or RUNS, open_browser)
    else:
        list_runs(folder)


@app.command()
def tools(
    server: str | None = opt.argument("SERVER", "Name of a server: list only its tools.", "all servers"),
    mcp_config: Path | None = opt.MCP_CONFIG,
    as_json: bool = opt.JSON,
    lock: bool = opt.flag(
        "--lock",
        "Approve the listed tools: write their digests into mcp_tools.lock and their definitions "
        "into mcp_tools.listing.json, beside mcp_config.json or the FILE of --mcp-config. Servers that "
        "this file no longer has, or disables, are removed from both. If a tool changes later, grue reports "
        "it.",
    ),
) -> bool:
    """List the tools of the configured MCP servers, with their arguments.

    Each server is started, or contacted if it has a URL. The exit status is 1 if
    one of them fails.
    """
    from grue.cli.tools import list_tools

    take_interrupts()
    return list_tools(server, mcp_config, as_json=as_json, lock=lock)


@app.command()
def skills(
    agent: Path = typer.Argument(
        Path("agent.yaml"), metavar="AGENT.yaml", help="The file that describes the agent, as for `grue run`."
    ),
    approve: bool = opt.flag(
        "--approve", "Approve the listed skills: write their digests into mcp_skills.lock, beside AGENT.yaml."
    ),
) -> bool:
    """List the skills that the MCP servers in AGENT.yaml offer, and whether you have approved them.

    A skill is a text with instructions for the model. Of the skills that servers
    offer, `grue run` uses only those that you have approved. The servers are
    those under skills.servers in AGENT.yaml. The exit status is 1 if a skill is
    not approved or cannot be used.
    """
    from grue.cli.skills import list_served_skills

    take_interrupts()
    return list_served_skills(agent, approve=approve)


@app.command()
def call(
    name: str = opt.argument(
        "SERVER.TOOL", "The tool, such as files.read_file; `grue tools` lists the names."
    ),
    arguments: str | None = opt.argument(
        "JSON", 'The tool\'s arguments as a JSON object, such as \'{"path": "notes.txt"}\'.', "none"
    ),
    arg: list[str] | None = opt.value(
        "NAME=VALUE",
        "An argument of the tool, such as path=notes.txt; repeatable. If the tool expects another "
        'type than a string, write VALUE as JSON, such as limit=10 or \'tags=\\["a", "b"]\'. If the '
        "argument JSON has NAME too, the VALUE given here is used.",
    ),
    mcp_config: Path | None = opt.MCP_CONFIG,
    timeout: float | None = opt.value(
        "SECONDS",
        "Time limit of the call, without the server's start. A smaller one in the server's entry in "
        "mcp_config.json counts instead.",
        "tool_call_timeout_seconds under tool.grue.mcp in pyproject.toml, else 30",
        min=0.1,
        callback=opt.finite,
    ),
    as_json: bool = opt.JSON,
) -> bool:
    """Call a tool of an MCP server and print its result. The exit status is 1 if the call fails."""
    from grue.cli.call import call_tool

    take_interrupts()
    return call_tool(name, arguments, arg or (), mcp_config, timeout_s=timeout, as_json=as_json)


@app.command()
def login(
    server: str = _SERVER_BY_URL,
    mcp_config: Path | None = opt.MCP_CONFIG_FILE,
    scope: str | None = opt.value(
        "SCOPES",
        'OAuth scopes to request besides those that the server asks for, such as "read write".',
        "scope under auth in the server's entry in mcp_config.json, else none",
    ),
    browser: bool = typer.Option(True, help="Open the address in a browser, or only print it."),
) -> None:
    """Log in to an MCP server that has a URL.

    The command prints an address, and at a terminal on a machine with a screen it
    opens the address in a browser. It waits up to five minutes until you have
    logged in there. Then it stores the OAuth tokens, and prints where they are.
    """
    from grue.cli.login import login as log_in

    take_interrupts()
    log_in(server, mcp_config, scope=scope, browser=browser)


@app.command()
def logout(server: str = _SERVER_BY_URL, mcp_config: Path | None = opt.MCP_CONFIG_FILE) -> None:
    """Delete the stored OAuth tokens of an MCP server, and revoke them if its authorization server can."""
    from grue.cli.login import logout as log_out

    take_interrupts()
    log_out(server, mcp_config)


@app.command()
def doctor(
    mcp_config: Path | None = opt.MCP_CONFIG,
    model: str | None = opt.DOCTOR_MODEL,
    base_url: str | None = opt.DOCTOR_URL,
    no_network: bool = opt.flag(
        "--no-network", "Do not contact the LLM endpoint, nor MCP servers that have a URL."
    ),
) -> bool:
    """Check the installation, the MCP servers and the model. Print what is wrong and how to fix it.

    Each server is started, or contacted if it has a URL. The model and each of
    its fallback models get a few small requests. A reply has at most 400 tokens.
    The exit status is 1 if something is wrong.

    If you give neither --model nor --base-url, and pyproject.toml has nothing
    under tool.grue.llm, the model is the first that a .py file in the working
    directory names in the form LlmSettings(base_url="...", model="..."). Files
    test_*.py are not read. If no file names one, and there is no API key for the
    default model, no model is checked.
    """
    from grue.cli.doctor import examine

    take_interrupts()
    return examine(mcp_config, network=not no_network, base_url=base_url, model=model)


@app.command(name="mock-server")
def mock_server(
    target: str | None = opt.argument(
        "MODULE:NAME",
        "A grue.testing.mock_server.MockServer in your code, such as my_servers:shop or shop.py:server.",
        "a server that comes with grue and has every feature",
    ),
    stdio: bool = opt.flag("--stdio", "Serve one client over standard input and output."),
    http: int | None = opt.value(
        "PORT",
        "Serve over HTTP on this port of 127.0.0.1 and print the URL; 0: a free port.",
        min=0,
        max=65535,
    ),
    sse: bool = opt.flag(
        "--sse", "With --http: use the older transport, HTTP+SSE, in place of Streamable HTTP."
    ),
    without: list[str] | None = opt.value(
        "FEATURE",
        "Leave out a feature: tools, resources, templates, subscriptions, prompts, completions or "
        "logging; repeatable.",
    ),
    page_size: int | None = opt.value(
        "N",
        "The largest number of items in one answer to tools/list and similar requests.",
        "no limit",
        min=1,
    ),
    era: Literal["initialize", "stateless", "both"] = typer.Option(
        "both",
        metavar="initialize|stateless|both",
        help="Which revisions of MCP the server speaks:\n\n"
        "initialize: those in which a client first sends the request `initialize`.\n\n"
        "stateless: 2026-07-28, which has no such request.\n\n"
        "both: all of these.",
    ),
) -> None:
    """Run an MCP server that follows the specification, to test MCP clients.

    One of --stdio and --http is required. With --stdio the command ends when the
    client closes standard input, with --http at Ctrl-C. The options --without,
    --page-size and --era are for the server that comes with grue, not for
    MODULE:NAME.
    """
    from grue.cli.mock_server import serve

    take_interrupts()
    if stdio == (http is not None):
        raise MCPConfigError("Choose one: --stdio, or --http PORT (0 for a free port).")
    if sse and stdio:
        raise MCPConfigError("--sse is a transport of --http PORT: leave out --stdio or --sse.")
    options = {"without": without or (), "page_size": page_size, "era": era}
    serve(target, options, port=http, transport="sse" if sse else "http")
