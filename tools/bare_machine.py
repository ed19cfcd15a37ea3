"""Run the README's two commands as on a bare machine: from a fresh clone, with Python and make only.

    bare_machine.py                    `make play` and `make test` with 3.11, then with newer Pythons
    bare_machine.py 3.11 3.13          only with those of these versions that this machine has
    bare_machine.py --oldest FILE      only with the oldest version, and the floors of coverage; lists what
                                       passes in FILE
    bare_machine.py --newest           only with the newest version, if it is not the oldest

The last commit is cloned to a path that contains a space. The environment has only PATH, HOME, LANG and
TMPDIR. PATH holds links to Python, make, sh and the coreutils: there is no ps, no git, no Node. If root runs
this program, it runs the commands as the user `nobody`, who sees neither root's home nor /usr/games, where
Debian installs the interpreter of story files. pip gets the settings of this machine. All of `make test` runs
with the first Python, a part of it (`PART`) with the last, and only `make play` with those between.

Prints a line for each command, and the last lines of a command that fails. Exits with 1 if a command fails or
no Python is found. Versions that this machine lacks do not count as failures.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOBODY = 65534
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PART = (
    '-m "not slow" --hypothesis-profile=quick tests/unit/actors tests/unit/runtime'
    " tests/integration/runtime/processes"
    " tests/integration/test_sync_boundary.py"
)
# Other tests run at the same time: three workers keep the processor as busy as more, and import less.
PART_OF_TEST = ["test", f"TEST={PART}", "WORKERS=3", "EXTRAS=test"]
COREUTILS = """
basename cat chmod cp cut date dd dirname echo env expr false head id install ln ls mkdir mkfifo mktemp mv
nice nohup nproc printf pwd readlink realpath rm rmdir seq sleep sort stat stty tail tee test timeout touch tr
true tty uname uniq wc whoami yes
"""
# A script for a new mount namespace: it hides the home $3, except for Python's folder $1 if it is in there.
HIDE = """
prefix=$1 spare=$2 home=$3; shift 3
[ ! -d /usr/games ] || mount -t tmpfs none /usr/games
mount --bind "$prefix" "$spare"
mount -t tmpfs -o mode=755 none "$home"
case $prefix in "$home"/*) mkdir -p "$prefix"; mount --bind "$spare" "$prefix";; esac
exec "$@"
"""
PLACES = {"PATH": "bin", "HOME": "home", "TMPDIR": "tmp"}
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")


class BareMachine:
    """One version of Python in `folder`, with a PATH, a home and a clone of its own."""

    def __init__(self, folder: Path, version: str, python: Path) -> None:
        self._name, self._clone = f"Python {version}", folder / "a clone"
        for place in ("bin", "home/.config/pip", "tmp", "spare"):
            (folder / place).mkdir(parents=True)
        # The Makefile looks for these two names.
        own = folder / "bin" / ("python3.11" if version == "3.11" else "python3")
        own.symlink_to(python.resolve())
        for name in ("make", "sh", *COREUTILS.split()):
            if found := shutil.which(name):
                (folder / "bin" / name).symlink_to(Path(found).resolve())
        (folder / "home/.config/pip/pip.conf").write_text(_pip_settings(), encoding="utf-8")
        _output("git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(self._clone))
        places = [f"{name}={folder}/{place}" for name, place in PLACES.items()]
        self.passed = folder / "passed"
        self._env = ["env", "-i", "LANG=C.UTF-8", *places]
        if os.geteuid() == 0:
            for each in (folder, *folder.rglob("*")):
                os.chown(each, NOBODY, NOBODY, follow_symlinks=False)
            prefix = _output(str(python), "-c", "import sys; print(sys.base_prefix)")
            mounted = [prefix, f"{folder}/spare", str(Path.home())]
            hidden = ["unshare", "--mount", "sh", "-ec", HIDE, "sh", *mounted]
            self._env = [*hidden, *AS_NOBODY, *self._env]
            if self._run(own.name, "-c", "import ensurepip").returncode:  # some containers must not mount
                self._env = self._env[len(hidden) :]
                print(f"bare machine, {self._name}: what else is installed cannot be hidden here", flush=True)

    def try_it(self, *command: str) -> bool:
        """Run a command in the clone, and print how it ended. Return whether it succeeded."""
        began = time.monotonic()
        done = self._run(*command)
        said = done.stdout.decode(errors="replace").strip().splitlines() or [""]
        passed = [line for line in said if re.search(r"\d passed", line)]  # below it there is the coverage
        told = f"exit status {done.returncode}" if done.returncode else (passed or said)[-1][:90]
        name = f"bare machine, {self._name}, {' '.join(command)[:40]}"
        print(f"{name}: {told}, {time.monotonic() - began:.0f} s", flush=True)
        if done.returncode:
            print(*said[-300:], sep="\n", flush=True)
        return not done.returncode

    def _run(self, *command: str) -> "subprocess.CompletedProcess[bytes]":
        with subprocess.Popen(
            [*self._env, *command],
            cwd=self._clone,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as running:
            try:
                said, _ = running.communicate()
            except BaseException:
                os.killpg(running.pid, signal.SIGKILL)  # make and the processes that it has started
                raise
        return subprocess.CompletedProcess(command, running.returncode, said)


def find(version: str) -> Path | None:
    """Return an interpreter of this version that runs, or `None`."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    # Leave out pyenv's shims: these scripts also exist for versions that are not active.
    path = os.pathsep.join(each for each in os.get_exec_path() if not each.endswith("shims"))
    named = shutil.which(f"python{version}", path=path)
    candidates: list[str | Path] = [
        *([named] if named else []),
        *sorted(versions.glob(f"{version}.*/bin/python3")),
    ]
    return next((Path(each) for each in candidates if _has_pip(each)), None)


def _has_pip(python: str | Path) -> bool:
    return not subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False).returncode


def _pip_settings() -> str:
    """Return a pip.conf with this machine's pip settings, such as the index, from files and variables."""
    listed = _output(sys.executable, "-m", "pip", "config", "list")
    settings = dict(re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    lines = (f"{name} = {value}".replace("\\n", "\n    ") for name, value in settings.items())
    return "\n".join(["[global]", *lines, ""])


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main(arguments: list[str]) -> int:
    """Run the commands with each version, and return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--oldest", type=Path, metavar="FILE")
    parser.add_argument("--newest", action="store_true")
    asked = parser.parse_args(arguments)
    found = {version: python for version in asked.versions if (python := find(version))}
    for version in (version for version in asked.versions if version not in found):
        print(f"bare machine, Python {version}: not on this machine", flush=True)
    failed, first, last = not found, next(iter(found), None), next(reversed(found), None)
    if asked.newest and first == last:
        print("bare machine: no newer Python on this machine", flush=True)
        return failed
    for version, python in found.items():
        if (asked.oldest and version != first) or (asked.newest and version != last):
            continue
        folder = Path(tempfile.mkdtemp(prefix="grue-bare-"))
        try:
            machine = BareMachine(folder, version, python)
            whole = ["test"]
            if asked.oldest:
                whole += [f"OPTIONS=--passed='{machine.passed}'", "COVERAGE=1"]
            tests = [whole] if version == first else [PART_OF_TEST] if version == last else []
            for command in (["play"], *tests):
                failed |= not machine.try_it("make", *command)
            if asked.oldest and machine.passed.exists():
                shutil.copyfile(machine.passed, asked.oldest)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return failed


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
