"""Apply each mutant in `mutants.toml`, a small error, to a copy of `src`, and run the test that must fail.

Usage: .venv/bin/python tools/mutants.py [part of a row's name ...]

Prints one line for each mutant. Exits with 1 if the test of a mutant passes (it "lives"), if a row no longer
fits the code, or if one of the tests fails without a mutant.
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
    """A change to the source that breaks a behaviour.

    Attributes:
        name: The behaviour that it breaks, in a few words.
        file: Path of the module, relative to `src/grue`.
        old: The text to replace, which occurs exactly once in the module.
        new: The replacement.
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
                compiled.unlink()  # the next mutant of this module may have the same size and time


def _run_tests(source: Path, tests: list[str]) -> int:
    """Run tests on a copy of `src`. Return pytest's exit status: 1 if a test has failed."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # PYTHONPATH comes before the work tree's own `src`, which the virtual environment adds to `sys.path`.
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False).returncode


def main(parts: list[str]) -> int:
    """Try the rows whose name contains one of `parts`, or all rows. Return the exit status."""
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
