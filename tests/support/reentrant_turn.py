"""A program whose signal handler calls grue while a turn is under way.

    reentrant_turn.py URL WAY LIFETIME WHERE COMMAND ARGS...

WHERE says when the signal comes: when the turn first imports this module, or after so many seconds. WAY is
the function of grue that the handler calls.
"""

import os
import signal
import sys
from types import FrameType
from typing import Any

from grue import LlmSettings, MCPError, Runner, StdioServer, ToolClient, TurnRequest

url, way, keep, where, command, *args = sys.argv[1:]
REQUEST = TurnRequest(system="s", user="call faulty.echo", turn_timeout_s=120)
SERVER = StdioServer(name="faulty", command=command, args=tuple(args))


def runner() -> Runner:
    lives: Any = keep
    return Runner(llm=LlmSettings(base_url=url, model="m"), servers={"faulty": SERVER}, keep=lives)


one, client = runner(), ToolClient({"faulty": SERVER})


def again() -> object:
    match way:
        case "same":
            return one.run_turn(REQUEST).response
        case "other":
            with runner() as other:
                return other.run_turn(REQUEST).response
        case "handle":
            return one.start_turn(REQUEST).result(60).response
        case "map":
            return [item.outcome is not None for item in one.map([REQUEST])]
        case _:
            with client:
                return client.call("faulty.echo", {"text": "hi"}).content


def strike(signum: int, frame: FrameType | None) -> None:
    try:
        print("handler:", again(), flush=True)
    except MCPError as error:
        print("handler:", type(error).__name__, str(error).partition(":")[0], flush=True)


class Striking:
    """An import finder that sends the signal at the first import of the module `where`. It finds nothing."""

    struck = False

    def find_spec(self, name: str, *_: object) -> None:
        if name == where and not self.struck:
            self.struck = True
            os.kill(os.getpid(), signal.SIGALRM)


signal.signal(signal.SIGALRM, strike)
if where[0].isdigit():
    signal.setitimer(signal.ITIMER_REAL, float(where))
else:
    sys.meta_path.insert(0, Striking())  # type: ignore[arg-type]  # it finds nothing
try:
    print("turn:", one.run_turn(REQUEST).response, flush=True)
except MCPError as error:
    print("turn:", type(error).__name__, str(error).partition(":")[0], flush=True)
signal.setitimer(signal.ITIMER_REAL, 0)
one.close()
print("over", flush=True)
