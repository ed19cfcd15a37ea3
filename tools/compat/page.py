"""Write docs/compatibility.md from the rows."""

import platform
import re
from collections.abc import Iterator, Sequence
from typing import Any

Row = dict[str, Any]

_ABSENT = "not offered"
_FAILED = re.compile(r"(\S+: )?failed")
"""A step that grue could not take. A tool that answers with an error has been called."""

_PATH = re.compile(r"(?<![\w`@:/.])(?:/[\w.@+-]+){2,}")
_STATUS = re.compile(
    r"failed with status (?P<status>\d+): (?P<words>.*?)(?: Try again| Check| Set | Choose|$)"
)

_HEAD = """\
# Compatibility

This page shows which third-party MCP servers and model endpoints work with grue. `make compat` writes it: it
installs each package from its registry, runs it, and uses it as a host does. Each row shows the results of
one run. [Errors of providers](provider-errors.md) lists what grue does with the errors of endpoints.

"""
_SERVERS = """\
## MCP servers
The columns mean:

- *time to boot*: from the start of the process until the server has listed its tools. Over HTTP and SSE the
  process runs already, and the time begins with the connect.
- *one call*: the tool that a `ToolClient` called, the time of the call, and the text of the error if the tool
  answered with one. If no tool was called, the cell says why.
- *turn, new process*, *turn, kept session* and *turn, spare process*: the mean time of two turns in a row, in
  which a scripted model calls the tool. If there is no tool to call, a turn only lists the tools. With a new
  process (`keep="nothing"`) both turns include a boot, with a kept session (`keep="sessions"`) only the
  first. With a spare process (`keep="loop", start="after_turn"`) the first turn includes a boot, and the
  second what is left of the boot that began after the first.
- *left behind*: processes, descriptors and threads that are left after these steps, and files that the
  server has written into its working folder, its home or its temporary folder. *it had to be terminated*: the
  server did not exit when its input was closed, and got a signal.

`mcp<2` in the column *package*: the package needs version 1 of the MCP SDK but does not declare it, so it was
installed with this constraint.

"""
_ENDPOINTS = """\
## Endpoints
Most of the endpoints are mocks, which answer with a fixed text whatever they are asked. *time to boot* is the
time from the start of the process until it listens. The next columns show four turns in each wire format:

- *reply* and *stream*: a reply, and a streamed reply.
- *schema*: an answer with a JSON schema. *kept* means that the answer fits the schema. *ignored, then stated
  in words* means that the first answer did not fit; then grue states the schema in the prompt.
- *tool*: a turn with a tool. *accepted, not called* means that the endpoint accepted the tool, but its reply
  did not call it.

The column after them has three results, one for each setting of the runner in its heading: whether two turns
with a function tool succeeded. This was tried with chat completions only.

"""
_ENDPOINT_COLUMNS = (
    "endpoint",
    "version",
    "time to boot",
    "wire format",
    "reply",
    "stream",
    "schema",
    "tool",
    'turns with `keep="nothing"`, `keep="sessions"`, `start="after_turn"`',
    "left behind",
)


def page(rows: Sequence[Row]) -> str:
    """Return the page."""
    servers = [row for row in rows if row.get("kind") == "Server"]
    endpoints = [row for row in rows if row.get("kind") == "Endpoint" and row.get("registry") != "grue"]
    ours = [row for row in rows if row.get("kind") == "Endpoint" and row.get("registry") == "grue"]
    working = sum("failed" not in row and not any(map(_FAILED.match, _steps(row))) for row in servers)
    dates = sorted({row["tried"] for row in rows})
    tried = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    replying = sum(
        "failed" not in row and any(_replies(row, wire) for wire in row["wires"]) for row in endpoints
    )
    loads = sorted(row["load"] for row in rows)
    counts = (
        f"Tried on {tried} with Python {platform.python_version()} on {rows[0]['cores']} cores: "
        f"{len(servers)} servers, of which {working} worked in every step; {len(endpoints)} endpoints, of "
        f"which {replying} answered on at least one wire format. Other work loaded the machine (with a load "
        f"of {loads[0]:g} to {loads[-1]:g}), so times are upper bounds.\n\n"
    )
    return "".join(
        (
            _HEAD,
            counts,
            _SERVERS,
            *_server_table(servers),
            "\n",
            _ENDPOINTS,
            *_endpoint_table(endpoints),
            "\nThe same steps with the scripted server that comes with grue, which grue's tests use:\n\n",
            *_endpoint_table(ours),
        )
    )


def _steps(row: Row) -> list[str]:
    return [str(row.get(name)) for name in ("listed", "call", "turn", "episode", "ahead")]


def _replies(row: Row, wire: str) -> bool:
    return row["wires"][wire].get("reply") == "ok"


def _server_table(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        "| server | package | version | time to boot | number of tools | one call | turn, new process"
        " | turn, kept session | turn, spare process | left behind |\n"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|\n"
    for row in sorted(rows, key=lambda each: (each["registry"], each["name"])):
        where = " with ".join(
            [f"{row['registry']} `{row['package']}`", *map("`{}`".format, row.get("requires", ()))]
        )
        if "failed" in row:
            yield _line(row["name"], where, row.get("version", ""), f"failed: {row['failed']}", *[""] * 6)
            continue
        boot = f"{row['boot_s']:.2f} s" if "boot_s" in row else row.get("listed", "")
        tools = str(row.get("tools", ""))
        steps = [row.get(name, "") for name in ("call", "turn", "episode", "ahead")]
        if "boot_s" not in row:
            steps = [""] * 4  # each failed for the same reason
        yield _line(row["name"], where, row["version"], boot, tools, *steps, _left(row))


def _endpoint_table(rows: Sequence[Row]) -> Iterator[str]:
    yield _line(*_ENDPOINT_COLUMNS)
    yield "|---|---|---|---|---|---|---|---|---|---|\n"
    for row in rows:
        name = f"{row['name']} ({row['registry']} `{row['package']}`)" if row.get("package") else row["name"]
        if "failed" in row:
            yield _line(name, row.get("version", ""), f"failed: {row['failed']}", *[""] * 7)
            continue
        boot = f"{row['boot_s']:.2f} s" if "boot_s" in row else ""
        lifetimes = ", ".join(row.get(step, "") for step in ("turn", "episode", "ahead"))
        for number, (wire, steps) in enumerate(row["wires"].items()):
            first = (name, row.get("version", ""), boot) if number == 0 else (row["name"], "", "")
            last = (lifetimes, _left(row)) if number == 0 else ("", "")
            told = [_short(steps[step]) for step in ("reply", "stream", "schema", "tool")]
            if set(told) == {_ABSENT}:
                told[1:] = [""] * 3
            yield _line(*first, wire.replace("_", " "), *told, *last)


def _short(told: str) -> str:
    """Return what a step says without the endpoint's address and the advice."""
    found = _STATUS.search(told)
    if found is None:
        return told
    return (
        _ABSENT
        if found["status"] in ("404", "405")
        else f"failed: status {found['status']}: {found['words']}"
    )


def _left(row: Row) -> str:
    files = ", ".join(f"{count} in {place}" for place, count in row.get("files", {}).items())
    left = list(row.get("left", []))
    if row.get("down") in ("terminated", "killed"):
        left.append(f"nothing, but it had to be {row['down']}")
    if files:
        left.append(f"files: {files}")
    return "; ".join(left) or "nothing"


def _line(*cells: str) -> str:
    """Return a row of a table, without the paths of this machine."""
    told = (_PATH.sub("…", str(cell)).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(told)} |\n"
