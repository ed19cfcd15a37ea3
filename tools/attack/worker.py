"""Run cases, one a line of standard input, and print what is wrong with each as a line of JSON.

worker.py PORT      PORT is the hostile endpoint's
"""

import faulthandler
import gc
import json
import logging
import os
import sys
import tempfile
from pathlib import Path

import approvals
import files
import fleets
import turns
from casebook import Case, case_of
from judge import Findings, watched

from grue.tool_sessions.function_tools import FunctionTools


def attempt(name: str, port: int, sound: Path) -> dict[str, object]:
    """Run one case and return what is to be told of it."""
    case = case_of(name)
    findings = Findings()
    told = ""
    with tempfile.TemporaryDirectory(prefix="grue-attack-") as folder, watched(findings):
        try:
            told = _run(case, port, sound, Path(folder), findings)
        except Exception as error:
            findings.add(f"untyped: {type(error).__name__}: {error}"[:500])
            if os.environ.get("ATTACK_DEBUG"):
                raise
    return {
        "case": name,
        "told": told,
        "wrong": findings.wrong,
        "grown": findings.grown,
        "elapsed_s": round(findings.elapsed_s, 2),
    }


def _run(case: Case, port: int, sound: Path, folder: Path, findings: Findings) -> str:
    if case.kind == "file":
        return files.run(case, sound, folder, findings)
    if case.kind == "game":
        return files.play(case, folder, findings)
    if case.kind == "approval":
        return approvals.run(case, folder, findings)
    if case.kind == "fleet":
        return fleets.run(case, folder, findings)
    return turns.run(case, port, folder, findings)


def main() -> None:
    """Work until standard input ends."""
    os.environ.pop("COLUMNS", None)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    logging.basicConfig(level=logging.CRITICAL)
    port = int(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="grue-attack-sound-") as sound:
        files.prepare(port, Path(sound), FunctionTools({"act": turns.Executed().act}))
        gc.collect()
        gc.freeze()  # what libraries keep need not be looked at in every case
        print("ready", file=out, flush=True)
        for line in sys.stdin:
            faulthandler.dump_traceback_later(45, exit=False)
            said = attempt(line.strip(), port, Path(sound))
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps(said), file=out, flush=True)


if __name__ == "__main__":
    main()
