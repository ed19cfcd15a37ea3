"""Cases without a model: damaged traces, locks, configurations; the commands that read them; games."""

import copy
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from casebook import Case
from damage import damaged, dumps, nested, odd_text, odd_value, with_another_member
from judge import LATE_S, Findings
from msgspec.structs import replace
from typer.testing import CliRunner

from grue import LlmSettings, Runner, TurnRequest
from grue.cli.app import app
from grue.config import tool_lock_file
from grue.config.interpolation import read_env_file
from grue.config.mcp_servers import MCPConfig, to_tool_server
from grue.errors import GameError, MCPError
from grue.hosts.zork.games.commands import sanitise_command
from grue.hosts.zork.games.house import HouseGame
from grue.hosts.zork.games.zmachine import ZMachineGame
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.function_tools import FunctionTools
from grue.tracing.observers.run_folder import RunFolder

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What may not reach a terminal: tabs and line ends may."""

_LOCK = {
    "version": 1,
    "servers": {"tools": {"act": {"description": "Do it.", "inputSchema": {"type": "object"}}}},
}
_TOML = """
[tool.zorkgpt.llm]
base_url = "http://127.0.0.1:1/v1"
model = "hostile"
[tool.zorkgpt.mcp]
enabled = true
config_file = "mcp.json"
max_tool_iterations = 3
tool_call_timeout_seconds = 30
[tool.zorkgpt.budget]
requests = 5
[tool.zorkgpt.retry]
max_retries = 2
"""
_MCP = {
    "mcpServers": {
        "fs": {
            "command": "true",
            "args": ["a", "${HOME}"],
            "env": {"KEY": "value"},
            "envFile": ".env",
            "timeout": 3,
        },
        "far": {"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "Bearer ${HOME}"}},
    }
}
COMMANDS = (
    ("show",), ("show", "--json"), ("stats",), ("stats", "--json"), ("diagram",), ("diagram", "--mermaid"), ("replay",),
    ("html", "--out", "page.html"), ("diff",),
)  # fmt: skip


def prepare(port: int, folder: Path, tools: FunctionTools) -> None:
    """Record the sound trace that the damaged ones are made from."""
    recorder = Recorder()
    with RunFolder(folder / "sound", recorder, episode_id="sound"):
        settings = LlmSettings(base_url=f"http://127.0.0.1:{port}/llm/file-0/v1", model="hostile")
        with Runner(llm=settings, servers={"tools": tools}, recorder=recorder) as runner:
            for _ in range(2):
                runner.run_turn(TurnRequest[str](system="Use the tool.", user="Go on."))
    # The house's own trace, which can be resumed.
    command = ["play", "--offline", "--turns", "2", "--run-dir", str(folder / "house")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output


def run(case: Case, sound: Path, folder: Path, findings: Findings) -> str:
    """Try one damaged file."""
    rng = case.rng("file")
    attack: Callable[..., str] = rng.choice(
        (_trace, _trace, _trace, _resume, _lock, _settings, _settings, _servers, _env)
    )
    started = time.monotonic()
    told = attack(rng, sound, folder, findings)
    findings.elapsed_s = time.monotonic() - started
    return f"{attack.__name__.strip('_')}: {told}"


def _spoilt(rng: Random, data: bytes) -> bytes:
    rows = data.split(b"\n")
    place = rng.randrange(len(rows))
    match rng.randrange(8):
        case 0:
            return damaged(rng, data)
        case 1:
            rows[place] = damaged(rng, rows[place])
        case 2 | 3:
            rows[place] = _other(rng, rows[place])
        case 4:
            rows[place : place + 1] = rng.choice(
                ([], [rows[place]] * 2, [nested(rng)], [rng.randbytes(50)], [b""] * 9)
            )
        case 5:
            other = rng.randrange(len(rows))
            rows[place], rows[other] = rows[other], rows[place]
        case 6:
            return data[: rng.randrange(len(data))]
        case _:
            return rng.choice(
                (b"", b"\x00" * 100, b"\xff\xfe" + data, nested(rng, 100_000), rng.randbytes(300), data * 2)
            )
    return b"\n".join(rows)


def _other(rng: Random, row: bytes) -> bytes:
    try:
        return with_another_member(rng, json.loads(row))
    except ValueError:
        return damaged(rng, row)


def _command(args: list[str], findings: Findings, *, screened: bool = True) -> int:
    result = CliRunner().invoke(app, args)
    what = " ".join(each for each in args[:2])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        findings.add(f"untyped: grue {what}: {type(result.exception).__name__}: {result.exception}"[:400])
    if screened and (found := _CONTROL.search(result.output)):
        findings.add(f"terminal: grue {what} prints {found.group()!r}")
    return result.exit_code


def _trace(rng: Random, sound: Path, folder: Path, findings: Findings) -> str:
    source = sound / rng.choice(("sound", "house")) / "trace.jsonl"
    file = folder / "trace.jsonl"
    file.write_bytes(_spoilt(rng, source.read_bytes()))
    statuses = []
    for command, *options in rng.sample(COMMANDS, 3):
        args = [
            "trace",
            command,
            str(file),
            *[each.replace("page", str(folder / "page")) for each in options],
        ]
        statuses.append(_command(args + [str(source)] * (command == "diff"), findings))
    return f"statuses {statuses}"


def read_commands(trace: Path, findings: Findings) -> None:
    """Read a trace that a hostile turn has left, and look at what would reach a terminal."""
    for command, *options in COMMANDS[:7]:
        if _command(["trace", command, str(trace), *options], findings) not in (0, 1):
            findings.add(f"trace: grue trace {command} refuses the trace of a turn")


def _resume(rng: Random, sound: Path, folder: Path, findings: Findings) -> str:
    run = folder / "run"
    run.mkdir()
    for file in (sound / "house").iterdir():
        if file.is_file():
            (run / file.name).write_bytes(file.read_bytes())
    (run / "result.json").unlink(missing_ok=True)
    trace = run / "trace.jsonl"
    trace.write_bytes(_spoilt(rng, b"\n".join(trace.read_bytes().split(b"\n")[: rng.choice((-1, -4, -9))])))
    return f"status {_command(['play', '--offline', '--turns', '3', '--resume', str(run)], findings)}"


def _typed(findings: Findings, what: str, function: Callable[[], Any]) -> str:
    try:
        function()
    except MCPError as error:
        try:
            str(error).encode()
        except UnicodeEncodeError:
            findings.add(f"unprintable: {what}: {type(error).__name__}")
        return type(error).__name__
    except Exception as error:  # noqa: BLE001 - this is what is searched for
        findings.add(f"untyped: {what}: {type(error).__name__}: {error}"[:400])
        return type(error).__name__
    return "read"


def _lock(rng: Random, sound: Path, folder: Path, findings: Findings) -> str:
    del sound
    file = folder / "mcp_tools.lock"
    file.write_bytes(
        rng.choice((_spoilt(rng, dumps(_LOCK)), with_another_member(rng, _LOCK), dumps(odd_value(rng))))
    )
    return _typed(findings, "a lock", lambda: tool_lock_file.read_tool_lock(file))


def _settings(rng: Random, sound: Path, folder: Path, findings: Findings) -> str:
    del sound
    (folder / "mcp.json").write_bytes(dumps(_MCP))
    (folder / ".env").write_text("KEY=value\n")
    text = _TOML.encode()
    if rng.random() < 0.5:
        odd = rng.choice(
            (
                b"-1",
                b"0",
                b"inf",
                b"nan",
                b'""',
                b"[]",
                b"{}",
                b"true",
                b"9" * 30,
                b"1979-05-27",
                b'"\\ud800"',
                b'"\\u0000"',
                b"[[[]]]" * 9,
            )
        )
        rows = text.split(b"\n")
        place = rng.choice([number for number, row in enumerate(rows) if b"=" in row])
        rows[place] = rows[place].partition(b"=")[0] + b"= " + odd
        text = b"\n".join(rows)
    else:
        text = _spoilt(rng, text)
    file = folder / "pyproject.toml"
    file.write_bytes(text)
    return _typed(findings, "a configuration", lambda: Runner.from_toml(file).close())


def _servers(rng: Random, sound: Path, folder: Path, findings: Findings) -> str:
    del sound
    (folder / ".env").write_bytes(b"KEY=value\n")
    file = folder / "mcp.json"
    document = copy.deepcopy(_MCP)
    file.write_bytes(with_another_member(rng, document) if rng.random() < 0.7 else _spoilt(rng, dumps(_MCP)))

    def read() -> None:
        config = MCPConfig.from_file(file)
        for name in config.mcpServers:
            repr(to_tool_server(name, config.server(name)))

    return _typed(findings, "mcp_config.json", read)


def _env(rng: Random, sound: Path, folder: Path, findings: Findings) -> str:
    del sound
    file = folder / ".env"
    file.write_bytes(damaged(rng, b"KEY=value\nexport OTHER=\"quoted $KEY\"\n# comment\nTHIRD='x'\n" * 3))
    return _typed(findings, "an env file", lambda: read_env_file(file, wanted_by="the attack"))


_INTERPRETER = """#!{python} -I
import os, random, sys, time
rng = random.Random({seed!r})
odd = {odd!r}
os.write(1, b"Welcome.\\n\\n>")
for line in sys.stdin.buffer:
    if line.startswith(b"\\\\sf-"):
        if rng.random() < 0.9:
            os.write(1, b"Speed Factor " + line[3:].strip() + b"\\n>")
        continue
    what = rng.randrange(9)
    if what == 0: os._exit(rng.choice((0, 1)))
    elif what == 1: time.sleep(30)
    elif what == 2: os.write(1, rng.randbytes(3000))
    elif what == 3: os.close(1)
    elif what == 4:
        for _ in range(200): os.write(1, b"x" * 65536)
    else: os.write(1, rng.choice(odd) + b"\\n>")
"""


def play(case: Case, folder: Path, findings: Findings) -> str:
    """Play a game that is hostile, and a sound one with hostile commands."""
    rng = case.rng("game")
    house = HouseGame()
    house.reset(seed=rng.randrange(100))
    for _ in range(20):
        _typed(findings, "house", lambda: house.step(sanitise_command(odd_text(rng)) or "look"))
    program = folder / "dfrotz"
    odd = [odd_text(rng).encode("utf-8", "surrogatepass") for _ in range(6)]
    odd += [b"Score: " + b"9" * 5_000 + b"/10 Moves: 1", b"Your score is 1e9 of a possible -1"]
    program.write_text(_INTERPRETER.format(python=sys.executable, seed=case.name, odd=odd))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    story = folder / "story.z3"
    story.write_bytes(
        bytes([rng.choice((3, 5, 8))])
        + rng.randbytes(25)
        + b"\x00\x20"
        + rng.randbytes(rng.choice((40, 70_000)))
    )
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}{os.pathsep}{before}"
    try:
        return _played(rng, story, findings)
    finally:
        os.environ["PATH"] = before


def _played(rng: Random, story: Path, findings: Findings) -> str:
    limit_s = 0.3
    try:
        game = ZMachineGame(story, interpreter="dfrotz")
        game._player = replace(game._player, answer_within_s=limit_s)  # noqa: SLF001
    except GameError as error:
        return f"not played: {error}"[:80]
    told = _typed(findings, "dfrotz", lambda: game.reset(seed=1))
    for _ in range(6):
        started = time.monotonic()
        told = _typed(
            findings, "dfrotz", lambda: game.step(odd_text(rng)[:200].encode("utf-8", "replace").decode())
        )
        elapsed_s = time.monotonic() - started
        findings.elapsed_s = max(findings.elapsed_s, elapsed_s)
        # A step may ask twice: the command, and the score.
        if elapsed_s > 2 * limit_s + 2.0 + LATE_S:
            findings.add(f"late: a game's step took {elapsed_s:.2f} s")
        if told != "read":
            break
    game.close()
    return told
