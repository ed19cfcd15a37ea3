"""Print which tests run lines of a module, as measured by coverage.

First measure, which writes `.coverage`. Then name modules; without a name, this prints for each module the
test file that runs most of it:

python -m pytest -q -n 4 --cov=grue --cov-report= --cov-context=test tests/unit
python tools/tests_of.py src/grue/protocol/tools/calls.py
python tools/tests_of.py
"""

import sys
from collections import Counter
from pathlib import Path

from coverage import Coverage, CoverageData


def tests_of(data: CoverageData, module: str) -> Counter[str]:
    """Return how many lines of a module each test ran. Lines that run at its import do not count."""
    lines: Counter[str] = Counter()
    for contexts in data.contexts_by_lineno(module).values():
        lines.update({context.partition("|")[0] for context in contexts if context})
    return lines


def main(modules: list[str]) -> None:
    """Print the tests of these modules; without `modules`, the test file that runs most of each module."""
    coverage = Coverage()
    coverage.load()
    data = coverage.get_data()
    measured = sorted(data.measured_files())
    for module in measured if not modules else [str(Path(name).resolve()) for name in modules]:
        tests = tests_of(data, module)
        if modules:
            for test, count in tests.most_common():
                print(f"{count:5} {test}")
            continue
        files: Counter[str] = Counter()
        for test, count in tests.items():
            files[test.partition("::")[0]] = max(files[test.partition("::")[0]], count)
        best = files.most_common(1)
        shown = module.partition("src/")[2] or module
        print(f"{shown:<60} {best[0][0] if best else '-'}")


if __name__ == "__main__":
    main(sys.argv[1:])
