"""The commands of `grue` and their options. Each command is implemented in the module of the same name."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from grue import __version__
from grue.cli import take_interrupts
from grue.cli.fleet_app import OtherModel, OtherSystem, OtherUrl, fleet_app
from grue.cli.plain_errors import FAILED, Commands
from grue.cli.sandbox_app import sandbox_app
from grue.cli.trace_app import TraceFile, chosen_trace, trace_app
from grue.errors import MCPConfigError
from grue.policies import Misses, StartAhead, StartWhen

app = typer.Typer(
    name="grue",
    cls=Commands,
    help="Run LLM agents that use MCP tools, and look at what they did.",
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
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Accept the options of `grue` itself."""
    del version


_Interpreter = Annotated[
    str | None,
    typer.Option(
        metavar="dfrotz|fernz",
        help="The program that runs a Z-machine story file.",
        show_default="dfrotz; or fernz, if dfrotz is not installed or leaves out words of the story",
    ),
]
_TurnTimeout = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        metavar="SECONDS",
        help="Time limit of a turn.",
        show_default="1800, or as pyproject.toml says",
    ),
]
_McpConfig = Annotated[
    Path | None,
    typer.Option(
        "--mcp-config",
        help="File that configures the MCP servers.",
        show_default="mcp_config.json, or as pyproject.toml says",
    ),
]
_Start = Annotated[
    Literal[StartWhen, StartAhead] | None,
    typer.Option(
        metavar="WHEN",
        help="When the server of a turn starts:\n\n"
        "before: before the first request to the model.\n\n"
        "beside: at the same time as this request, if the server's tools are known from an earlier start; "
        "otherwise before it.\n\n"
        "beside_if_locked: like beside, if `grue tools --lock` has approved the tools; otherwise before the "
        "request.\n\n"
        "when_called: at the first call of one of its tools, if they are known; otherwise before the "
        "request.\n\n"
        "after_turn: in advance, when the previous turn has ended.\n\n"
        "beside_turn: in advance, during the previous turn.",
        show_default="beside_if_locked, or as pyproject.toml says",
    ),
]
_Pace = Annotated[
    float,
    typer.Option(
        min=0, max=60, metavar="SECONDS", help="How long to wait before each move.", show_default="0"
    ),
]
_Langfuse = Annotated[
    bool,
    typer.Option("--langfuse", help="Send the trace to Langfuse, as set in the variables LANGFUSE_*."),
]
_Offline = Annotated[
    bool, typer.Option("--offline", help="Use a scripted model instead of an LLM; needs no API key.")
]
_Model = Annotated[str | None, typer.Option(help="Name of the model.", show_default="as configured")]
_BaseUrl = Annotated[
    str | None,
    typer.Option(help="URL of the LLM endpoint; most end in /v1.", show_default="as configured"),
]
_Otel = Annotated[
    bool, typer.Option("--otel", help="Send the trace by OpenTelemetry, as set in the variables OTEL_*.")
]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text, one object per line.")]
_Stream = Annotated[bool, typer.Option("--stream", help="Stream the model's replies.")]


@app.command()
def play(
    context: typer.Context,
    game: Annotated[
        str, typer.Option(help="house (the bundled game), or the path of a Z-machine story file.")
    ] = "house",
    interpreter: _Interpreter = None,
    offline: _Offline = False,
    model: _Model = None,
    base_url: _BaseUrl = None,
    mcp_config: Annotated[
        Path | None,
        typer.Option(
            help="File that configures the MCP servers; the first server is used.",
            show_default="as pyproject.toml says, else a bundled server",
        ),
    ] = None,
    no_mcp: Annotated[bool, typer.Option("--no-mcp", help="Play without tools.")] = False,
    turns: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The most turns to play.", show_default="60")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the game.")] = 0,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder for the trace and the logs.", show_default="runs/EPISODE")
    ] = None,
    turn_timeout: _TurnTimeout = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Resume the episode in this run folder, with the options of its first run. --turns can set "
            "a new limit.",
        ),
    ] = None,
    start: _Start = None,
    stream: _Stream = False,
    pace: _Pace = 0.0,
    langfuse: _Langfuse = False,
    otel: _Otel = False,
    quiet: _Quiet = False,
    as_json: _Json = False,
) -> bool:
    """Play an episode of a text adventure with an agent that uses MCP tools."""
    from grue.cli.play import play_episode
    from grue.cli.play_options import PlayOptions

    take_interrupts()
    if resume is not None:
        _refuse_beside_resume(context)
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


_WITH_RESUME = (
    "resume",
    "turns",
    "turn_timeout",
    "quiet",
    "as_json",
    "start",
    "stream",
    "pace",
    "langfuse",
    "otel",
)


def _refuse_beside_resume(context: typer.Context) -> None:
    """Refuse options that the first run has recorded, because the resumed run uses their recorded values."""
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in _WITH_RESUME
        and getattr(context.get_parameter_source(str(parameter.name)), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise MCPConfigError(f"--resume uses the options of the first run: remove {', '.join(given)}.")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The project's folder.")] = Path(),
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Copy the MCP servers from a configuration file of Claude, Cursor or another program; "
            "repeatable.",
        ),
    ] = None,
) -> None:
    """Write a small program, its test and mcp_config.json; existing files are kept."""
    from grue.cli.init import start_project

    take_interrupts()
    start_project(folder, sources or ())


@app.command()
def add(
    source: Annotated[
        str,
        typer.Argument(
            help="A program of yours (server.py), a server.json (file or URL), an .mcpb bundle, npm:PACKAGE, "
            "pypi:PACKAGE, oci:IMAGE, the URL of a server (with --use remote), or the name of a server in an "
            "MCP registry."
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Arguments of the server's program, after --.",
            show_default="none; for npm:, pypi: and oci: you are asked for them",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The server's name in mcp_config.json.", show_default="made from the source"),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A value that the server's description asks for; repeatable."
        ),
    ] = None,
    kind: Annotated[
        Literal["npm", "pypi", "oci", "mcpb", "remote"] | None,
        typer.Option(
            "--use",
            help="How to run the server, if the source offers several ways; remote: connect to its URL.",
            show_default="the first that works on this machine",
        ),
    ] = None,
    sha256: Annotated[str | None, typer.Option(help="The SHA-256 that the bundle must have.")] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="If the source is a server's name: the URL of the MCP registry to look it up in. Needed if "
            "pyproject.toml names none.",
            show_default="as pyproject.toml says",
        ),
    ] = None,
    mcp_config: _McpConfig = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask: start the server and approve its tools.")
    ] = False,
) -> bool:
    """Add an MCP server to mcp_config.json.

    Shows the command that would run, asks you, starts the server and approves
    its tools. API keys are not written into the file, only the names of their
    environment variables, such as ${API_KEY}. A program that is not your own
    runs in a sandbox (see grue sandbox), if this machine can enforce one.
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
    server: Annotated[str, typer.Argument(help="The server's name in mcp_config.json.")],
    mcp_config: _McpConfig = None,
) -> None:
    """Remove an MCP server from mcp_config.json, with its approved tools and its downloaded files."""
    from grue.cli.add import remove_server

    take_interrupts()
    remove_server(server, mcp_config)


@app.command()
def chat(
    context: typer.Context,
    offline: _Offline = False,
    model: _Model = None,
    base_url: _BaseUrl = None,
    mcp_config: _McpConfig = None,
    no_mcp: Annotated[bool, typer.Option("--no-mcp", help="Chat without tools.")] = False,
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The system prompt.", show_default="tells the model to be brief"),
    ] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Ask you before each tool call.")] = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder for trace, logs and conversation.", show_default="runs/CHAT")
    ] = None,
    turn_timeout: _TurnTimeout = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Continue the chat in this run folder.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="In a pipe: print only answers and errors.")
    ] = False,
    learn: Annotated[
        str | None,
        typer.Option(
            metavar="SERVER",
            help="Run this server without a sandbox, and at the end print the sandbox that it needs.",
        ),
    ] = None,
) -> bool:
    """Chat with an agent that has MCP tools. In a pipe, each line of the input gets an answer."""
    from grue.cli.chat.options import INSTRUCTIONS, ChatOptions
    from grue.cli.chat.program import chat as run_chat

    take_interrupts()
    if resume is not None:
        _refuse_beside_resume(context)
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


@app.command()
def run(
    context: typer.Context,
    agent: Annotated[
        str | None, typer.Argument(metavar="AGENT.yaml", help="The agent's file.", show_default="agent.yaml")
    ] = None,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="The task.", show_default="the one in AGENT.yaml")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Use a scripted model, which can do only the bundled example.")
    ] = False,
    model: _Model = None,
    base_url: _BaseUrl = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder for trace, logs and artifacts.", show_default="runs/RUN")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Continue the run in this run folder.")
    ] = None,
    stream: _Stream = False,
    langfuse: _Langfuse = False,
    otel: _Otel = False,
    quiet: _Quiet = False,
    as_json: _Json = False,
) -> None:
    """Run a task with an agent that plans its actions as JSON and carries them out one by one.

    AGENT.yaml names the model, the servers, the skills and the limits. If there
    is no agent.yaml, --offline writes an example and runs it.
    """
    from grue.cli.run import STATUSES, RunOptions, run_task

    take_interrupts()
    if resume is not None:
        _refuse_beside_resume(context)
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


@app.command()
def fork(
    trace: TraceFile = None,
    turn: Annotated[
        int | None, typer.Option(help="Number of the turn.", show_default="the only turn of the trace")
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="MESSAGE",
            help="Number of the first message that is not repeated; `grue trace show` prints the numbers. If "
            "the turn cannot go on from there, fewer messages are repeated.",
            show_default="the first of the turn",
        ),
    ] = None,
    model: OtherModel = None,
    base_url: OtherUrl = None,
    system: OtherSystem = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting of the model, such as llm.temperature=0, or a limit or policy of the "
            "turn, such as max_tool_iterations=5; repeatable.",
        ),
    ] = None,
    tool_result: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL=FILE",
            help="Give the recorded call with this id the result in this file; repeatable. `grue trace show "
            "--whole` prints the ids.",
        ),
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Offer the tools in this file instead, such as an mcp_tools.listing.json, which `grue tools "
            "--lock` writes. `lock`: this project's mcp_tools.listing.json.",
            show_default="the recorded ones",
        ),
    ] = None,
    misses: Annotated[
        Misses,
        typer.Option(
            help="What to do about a call that has no recorded result:\n\n"
            "fail: let the fork fail.\n\n"
            "call: call the tool.\n\n"
            "ask: call the tool, if you agree."
        ),
    ] = "fail",
    mcp_config: _McpConfig = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder for the fork's trace.", show_default="runs/RUN-fork")
    ] = None,
) -> None:
    """Repeat a recorded turn up to a message, and go on with another model, prompt, limit, tool or result.

    The messages before the one that --at names are repeated from the trace.
    From there on, the model is asked again. If it makes a tool call that the
    recorded turn has made too, with the same arguments, the call gets the
    recorded result, and no tool runs. For other calls, see --misses. To compare
    the fork with the recorded turn, use `grue trace diff`.
    """
    from grue.cli.fork import ForkOptions, fork_turn
    from grue.cli.hosts import load_hosts

    take_interrupts()
    load_hosts()
    options = ForkOptions(
        trace=chosen_trace(trace),
        turn=turn,
        at=at,
        model=model,
        base_url=base_url,
        system=system,
        settings=settings or (),
        tool_results=tool_result or (),
        tools=tools,
        misses=misses,
        mcp_config=mcp_config,
        run_dir=run_dir,
    )
    fork_turn(options)


@app.command()
def runs(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A folder with episodes.",
            show_default="runs and the working directory; with --html or --open only runs",
        ),
    ] = Path("runs"),
    html: Annotated[
        bool,
        typer.Option(
            "--html",
            help="Write an HTML index into the folder (if you name none, into runs), and a page beside each "
            "trace.",
        ),
    ] = False,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Write the HTML index and open it in a browser.")
    ] = False,
) -> None:
    """List the recorded episodes in a folder, newest first.

    If the folder has a subfolder called runs, the episodes in there are listed
    too.
    """
    from grue.cli.hosts import load_hosts
    from grue.cli.runs import list_runs, write_runs

    take_interrupts()
    if html or open_browser:
        load_hosts()
        write_runs(folder, open_browser)
    else:
        list_runs(folder)


@app.command()
def tools(
    server: Annotated[str | None, typer.Argument(help="Only this server.", show_default="all")] = None,
    mcp_config: _McpConfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tools as one JSON object.")] = False,
    lock: Annotated[
        bool, typer.Option("--lock", help="Approve the listed tools: write them into mcp_tools.lock.")
    ] = False,
) -> bool:
    """List the tools of the configured MCP servers, or of the bundled server if none is configured."""
    from grue.cli.tools import list_tools

    take_interrupts()
    return list_tools(server, mcp_config, as_json=as_json, lock=lock)


@app.command()
def skills(
    agent: Annotated[Path, typer.Argument(metavar="AGENT.yaml", help="The agent's file.")] = Path(
        "agent.yaml"
    ),
    approve: Annotated[
        bool, typer.Option("--approve", help="Approve the listed skills: write mcp_skills.lock.")
    ] = False,
) -> bool:
    """List the skills that the MCP servers of an agent offer, and whether they are approved."""
    from grue.cli.skills import list_served_skills

    take_interrupts()
    return list_served_skills(agent, approve=approve)


@app.command()
def call(
    name: Annotated[str, typer.Argument(metavar="SERVER.TOOL", help="The tool's name.")],
    arguments: Annotated[
        str | None,
        typer.Argument(metavar="JSON", help="The arguments, as a JSON object.", show_default="none"),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="One argument, such as path=notes.txt or limit=10; repeatable. It is added to those in "
            "JSON, or replaces the one of the same name.",
        ),
    ] = None,
    mcp_config: _McpConfig = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="Time limit of the call.",
            show_default="30, or as pyproject.toml says",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> bool:
    """Call a tool of an MCP server and print its result. The exit status is 1 if the call fails."""
    from grue.cli.call import call_tool

    take_interrupts()
    return call_tool(name, arguments, arg or (), mcp_config, timeout_s=timeout, as_json=as_json)


@app.command()
def login(
    server: Annotated[str, typer.Argument(help="Name of a server that has a URL.")],
    mcp_config: _McpConfig = None,
    scope: Annotated[
        str | None,
        typer.Option(
            help="OAuth scopes to ask for besides those that the server names, separated by spaces.",
            show_default="none",
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the address in a browser, if there is one.")] = True,
) -> None:
    """Log in to an MCP server that has a URL: print the address to open, wait, and store the tokens."""
    from grue.cli.login import login as log_in

    take_interrupts()
    log_in(server, mcp_config, scope=scope, browser=browser)


@app.command()
def logout(
    server: Annotated[str, typer.Argument(help="Name of a server that has a URL.")],
    mcp_config: _McpConfig = None,
) -> None:
    """Delete the stored tokens of an MCP server, and revoke them if its authorization server can."""
    from grue.cli.login import logout as log_out

    take_interrupts()
    log_out(server, mcp_config)


@app.command()
def doctor(
    mcp_config: _McpConfig = None,
    model: Annotated[
        str | None, typer.Option(help="The model to check.", show_default="as configured")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="URL of the endpoint to check.", show_default="as configured")
    ] = None,
    no_network: Annotated[
        bool,
        typer.Option("--no-network", help="Do not contact the LLM endpoint, nor servers that have a URL."),
    ] = False,
) -> bool:
    """Check the installation, the MCP servers and the model; print what is wrong and how to fix it."""
    from grue.cli.doctor import examine

    take_interrupts()
    return examine(mcp_config, network=not no_network, base_url=base_url, model=model)


@app.command(name="mock-server")
def mock_server(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:NAME",
            help="A MockServer in your code, as MODULE:NAME or FILE.py:NAME.",
            show_default="a bundled server with every feature",
        ),
    ] = None,
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve over standard input and output.")] = False,
    http: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve over HTTP on this port of 127.0.0.1; 0: a free port.",
        ),
    ] = None,
    sse: Annotated[
        bool, typer.Option("--sse", help="With --http: use the older transport, HTTP+SSE.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FEATURE",
            help="Leave out a feature: tools, resources, templates, subscriptions, prompts, completions or "
            "logging; repeatable.",
        ),
    ] = None,
    page_size: Annotated[
        int | None,
        typer.Option(min=1, help="Most items in a page of a list.", show_default="all in one page"),
    ] = None,
    era: Annotated[
        str,
        typer.Option(
            metavar="initialize|stateless|both",
            help="The revisions of the protocol to speak:\n\n"
            "initialize: those in which a client first sends the request `initialize`.\n\n"
            "stateless: 2026-07-28, which has no such request.\n\n"
            "both: all of these.",
        ),
    ] = "both",
) -> None:
    """Run an MCP server that follows the specification, to test MCP clients.

    Say how it is reached: --stdio or --http PORT. Exactly one of the two is
    required.
    """
    from grue.cli.mock_server import serve

    take_interrupts()
    if stdio == (http is not None):
        raise MCPConfigError("Choose one: --stdio, or --http PORT (0 for a free port).")
    options = {"without": without or (), "page_size": page_size, "era": era}
    serve(target, options, port=http, transport="sse" if sse else "http")
