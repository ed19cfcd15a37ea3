"""Options and arguments that several commands have."""

from collections.abc import Sequence
from typing import Any

import typer

from grue.field_checks import is_usable

FILE_OF_SERVERS = 'JSON file with the MCP servers, in the form {"mcpServers": ...}.'
CONFIGURED = "config_file under tool.grue.mcp in pyproject.toml, else mcp_config.json"
OR_BUNDLED = (
    f"{CONFIGURED}. With enabled = false under tool.grue.mcp, or if the file does not exist and enabled is "
    "not set, a server that comes with grue is used instead"
)
_LLM = "under tool.grue.llm in pyproject.toml, else"
DEFAULT_MODEL, DEFAULT_URL = "anthropic/claude-haiku-5.5", "https://openrouter.ai/api/v1"


def flag(name: str, text: str, *short: str) -> Any:
    """Return an option without a value, such as `--open`: `False` if it is not given."""
    return typer.Option(False, name, *short, help=text)


def value(
    metavar: str, text: str, default: str | bool = True, names: Sequence[str] = (), **rules: Any
) -> Any:
    """Return an option with a value; `None`: it is not given. `default`: what holds then, for the help."""
    return typer.Option(None, *names, metavar=metavar, help=text, show_default=default, **rules)


def argument(metavar: str, text: str, default: str | None = None) -> Any:
    """Return an argument. `default`: what holds if it is absent, for the help; `None`: it is required."""
    if default is None:
        return typer.Argument(..., metavar=metavar, help=text)
    return typer.Argument(None, metavar=metavar, help=text, show_default=default)


def mcp_config(default: str, text: str = FILE_OF_SERVERS) -> Any:
    """Return the option `--mcp-config`. `text`: its help."""
    return value("FILE", text, default, names=["--mcp-config"])


MCP_CONFIG = mcp_config(OR_BUNDLED)
MCP_CONFIG_FILE = mcp_config(CONFIGURED)  # for commands that change the file, or need a server by URL


def finite(number: float | None) -> float | None:
    """Return an option's number; refuse `nan`, and numbers whose absolute value is 9e18 or more."""
    if number is not None and not is_usable(abs(number), above_0=False):
        raise typer.BadParameter(f"{number:g} is not a usable number: give a finite one below 9e18")
    return number


def turn_timeout(then: str) -> Any:
    """Return the option `--turn-timeout`. `then`: what happens to a turn that takes longer."""
    return value(
        "SECONDS",
        f"Time limit of each turn. {then}",
        f"turn_timeout_seconds {_LLM} 1800",
        min=0.1,
        callback=finite,
    )


def run_folder(written: str) -> Any:
    """Return the option `--run-dir`. `written`: the rest of a sentence about the files that are written."""
    return value(
        "FOLDER", f"Run folder: where {written} It must not have a trace.jsonl yet.", "a new folder in runs"
    )


def resume(what: str, also: str, but: str = "") -> Any:
    """Return the option `--resume`. `also`: options that may be given. `but`: which are not as started."""
    return value(
        "RUN",
        f"Go on with the {what} in this run folder. The options above --resume are those that it was "
        f"started with{but}. The options below it are not kept. You can give only {also}.",
    )


def out(default: str, condition: str = "") -> Any:
    """Return the option `--out`. `condition`: what the help adds, such as `; it must not exist yet`."""
    return value("FILE", f"The file to write{condition}.", default, names=["--out", "-o"])


LANGFUSE = flag(
    "--langfuse",
    "Also send the trace to Langfuse. If LANGFUSE_PUBLIC_KEY or LANGFUSE_SECRET_KEY is not set in the "
    "environment, nothing is sent. Needs the package langfuse.",
)
OTEL = flag(
    "--otel",
    "Also send the trace by OpenTelemetry, to the URL in the environment, such as in "
    "OTEL_EXPORTER_OTLP_ENDPOINT; without a URL nothing is sent. Needs OpenTelemetry's SDK and its OTLP "
    "exporter for HTTP; if one is absent, the error says how to install it.",
)


def offline(also: str = "") -> Any:
    """Return the option `--offline`. `also`: what the help adds."""
    return flag("--offline", f"Use a script in place of an LLM; needs no API key.{also}")


def model(default: str) -> Any:
    """Return the option `--model`."""
    return value("NAME", "Name of the model.", default)


def base_url(default: str) -> Any:
    """Return the option `--base-url`."""
    return value("URL", "URL of the LLM endpoint; most end in /v1.", default)


OFFLINE = offline()
MODEL = model(f"agent_model {_LLM} {DEFAULT_MODEL}")
BASE_URL = base_url(f"client_base_url {_LLM} {DEFAULT_URL}")
DOCTOR_MODEL = model(f"agent_model {_LLM} as said above, else {DEFAULT_MODEL}")
DOCTOR_URL = base_url(f"client_base_url {_LLM} as said above, else {DEFAULT_URL}")
STREAM = flag("--stream", "Request the model's replies as streams, and show their text while it arrives.")
QUIET = flag("--quiet", "Print only how it ended, where the trace is, and how to go on.", "-q")
JSON_LINES = flag("--json", "Print JSON instead of text, one object per line.")
JSON = flag("--json", "Print JSON instead of text.")
OPEN_PAGE = flag("--open", "Open the page in a browser.")

TRACE_FILE = argument(
    "TRACE",
    "A trace.jsonl, or the run folder that holds it.",
    "the latest in runs and the working directory, other than a failed fork",
)


def turn_number(taken: str) -> Any:
    """Return the option `--turn`. `taken`: how the help's sentence about the chosen turn ends."""
    return value(
        "N",
        "Number of the turn. If several turns have this number (a turn was tried again, say), the last "
        f"one is {taken}",
        "the only turn of the trace; required if it has several",
        min=1,
    )


OTHER_MODEL = value("NAME", "Ask this model instead.", "the recorded one")
OTHER_URL = value("URL", "Use the LLM endpoint at this URL instead.", "the recorded one")
OTHER_SYSTEM = value("FILE", "Use the system prompt in this file instead.", "the recorded one")
CHANGES = value(
    "KEY=VALUE",
    "Change a setting of the model, such as llm.temperature=0, or a limit or policy of the turn, "
    "such as max_tool_iterations=5; repeatable. --set llm.x=0 prints the names of all settings of the "
    "model, and --set x=0 those of all limits and policies.",
    names=["--set"],
)
