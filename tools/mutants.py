"""Break the behaviour in `mutants.toml` row by row, each in a copy of `src`, and run the test that must fail.

Usage: .venv/bin/python tools/mutants.py [part of a row's name ...]

Prints one line for each row. Ends with status 1 if a mutant lives, if a row no longer fits the code, or if
one of the tests fails without a mutant.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Mutant:
    """One broken behaviour.

    Attributes:
        name: What it breaks, in a few words.
        file: The module, relative to `src/grue`.
        old: Text that occurs in it exactly once.
        new: What takes its place.
        test: Id of the test that must fail.
    """

    name: str
    file: str
    old: str
    new: str
    test: str

    def verdict(self, copy: Path) -> str:
        """Apply the mutant to a copy of `src`, run its test, and undo it. Return "dies", or what is wrong."""
        module = copy / "grue" / self.file
        written = module.read_text()
        if written.count(self.old) != 1:
            return f"does not fit: {self.file} has its text {written.count(self.old)} times"
        before = module.stat()
        module.write_text(written.replace(self.old, self.new))
        try:
            return {0: "LIVES", 1: "dies"}.get(_run_tests(copy, [self.test]), "its test cannot be run")
        finally:
            module.write_text(written)
            os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
            for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*"):
                compiled.unlink()  # it may have the size and the time of the next mutant of this module


def _run_tests(source: Path, tests: list[str]) -> int:
    """Run tests on a copy of `src`. Return pytest's exit status: 1 if a test has failed."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # Before the work tree's own src, which the virtual environment adds behind it.
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False).returncode


def main(parts: list[str]) -> int:
    """Try the rows whose name has one of `parts` in it; all, if there are none. Return the exit status."""
    rows = [Mutant(**row) for row in tomllib.loads(TABLE.read_text())["mutant"]]
    rows = [row for row in rows if not parts or any(part in row.name for part in parts)]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy)
        if _run_tests(copy, sorted({row.test for row in rows})):
            print("A test of these rows fails, or is not there, without a mutant.")
            return 1
        alive = 0
        for row in rows:
            verdict = row.verdict(copy)
            alive += verdict != "dies"
            print(f"{verdict:5}  {row.name}", flush=True)
    print(f"{len(rows) - alive} of {len(rows)} die.")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
