"""A program that would start its fleet again in each worker is refused; one that has a guard is not."""

import subprocess
from pathlib import Path

import pytest
from commands import python

_WORK = "def work(case, episode):\n    return 1.0\n\n"
_START = 'Fleet("fleet", workers=1).map(work, [{}], version="2")'
_IMPORTS = "import sys\nfrom grue.fleet import Fleet\n\n"


def run(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    program = folder / "program.py"
    program.write_text(text)
    return python(str(program), cwd=folder)


@pytest.mark.slow
def test_a_program_without_a_guard_gets_one_sentence_and_starts_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, f"{_IMPORTS}{_WORK}def start():\n    return {_START}\n\nprint(start())\n")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    said = done.stderr.splitlines()[-1]
    assert "program.py, line 10: the program starts its fleet whenever it is imported" in said
    assert 'under `if __name__ == "__main__":`.' in said
    assert not (tmp_path / "fleet").exists()


# Each starts the fleet from a text that it executes as its own main program, so that no process is needed.
_HARNESS = """
import runpy, sys
from grue.errors import FleetError
from grue.fleet import fleet
fleet.Fleet._run = lambda self, plan, axes, **how: print("started")
for path in sys.argv[1:]:
    try:
        runpy.run_path(path, run_name="__main__")
    except FleetError as error:
        print("refused" if "whenever it is imported" in str(error) else error)
"""


@pytest.mark.slow
def test_what_counts_as_a_guard(tmp_path: Path) -> None:
    work = "import math\nwork = 'math:floor'\n"
    programs = {
        f"if __name__ == '__main__':\n    {_START}\n": "started",
        f"def main():\n    {_START}\n\nif __name__ == '__main__':\n    main()\n": "started",
        f"try:\n    if '__main__' == __name__:\n        {_START}\nfinally:\n    pass\n": "started",
        f"if __name__ != '__main__':\n    sys.exit()\n{_START}\n": "started",
        f"import multiprocessing\nif multiprocessing.parent_process() is None:\n    {_START}\n": "started",
        f"if len(sys.argv) > 0:\n    {_START}\n": "refused",
        f"for _ in range(1):\n    {_START}\nif __name__ == '__main__':\n    pass\n": "refused",
    }
    paths = []
    for number, text in enumerate(programs):
        paths.append(tmp_path / f"program{number}.py")
        paths[-1].write_text(_IMPORTS + work + text)
    done = python("-c", _HARNESS, *map(str, paths), cwd=tmp_path)
    assert done.stdout.split() == list(programs.values()), done.stderr


@pytest.mark.parametrize("name", ["__mp_main__", "_grue_work_program"])
def test_a_program_that_is_imported_for_a_worker_is_refused_whatever_it_says(
    tmp_path: Path, name: str
) -> None:
    import runpy

    from grue.errors import FleetError

    program = tmp_path / "program.py"
    program.write_text(f"{_IMPORTS}{_WORK}if __name__:\n    {_START}\n")
    with pytest.raises(FleetError, match="line 8: the program starts its fleet"):
        runpy.run_path(str(program), run_name=name)
    assert not (tmp_path / "fleet").exists()
