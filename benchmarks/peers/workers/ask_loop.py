"""What every worker of the messaging part does: for each line, so many asks, and what one of them took.

    PYTHON WORKER.py

A line on standard input is the number of asks; the answer is a line of JSON, `us` an ask and `peak_mb`. Asker
and asked are in one process, one question at a time; the answer is the question.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

# Behind everything else: nothing of ours may hide a module of the framework's.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from memory import peak_mb


def serve(asks: Callable[[int], float]) -> None:
    """Answer each line with what `asks(count)` returns, the microseconds of one ask."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps({"us": asks(int(line)), "peak_mb": peak_mb()}) + "\n")
        sys.stdout.flush()
