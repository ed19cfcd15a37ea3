"""An ask by grue, as in `run.py --only ask`: a mailbox's `ask` of an actor, its trace in a file or without.

python grue_ask.py [TRACE_FILE]
"""

import sys
from functools import partial
from pathlib import Path

import anyio
from ask_loop import serve
from messaging import asks_of_an_actor

from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder


def main() -> None:
    recorder = Recorder()
    for path in sys.argv[1:]:
        recorder.add(TraceWriter(Path(path), episode="benchmark"))
    serve(partial(anyio.run, asks_of_an_actor, recorder))


if __name__ == "__main__":
    main()
