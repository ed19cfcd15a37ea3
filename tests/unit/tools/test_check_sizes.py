"""The size check that `make check` runs: what it counts, what it lets pass, what it says."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

SCRIPT = Path(__file__).resolve().parents[3] / "tools" / "check_sizes.py"


def load():
    spec = importlib.util.spec_from_file_location("check_sizes", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_sizes = load()


def measured(source):
    """(name, rule) -> amount, for a module with this source."""
    return {(size.name, size.rule): size.amount for size in check_sizes.measure("m.py", dedent(source))}


def function(lines, name="long"):
    """The source of a function of this many lines."""
    return f"def {name}():\n" + "    pass\n" * (lines - 1)


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "src" / "grue").mkdir(parents=True)
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tools").mkdir()

    def check(*arguments, exceptions=None, **files):
        for name, source in files.items():
            folder = "tests/unit" if name.startswith("test_") else "src/grue"
            (tmp_path / folder / f"{name}.py").write_text(source, encoding="utf-8")
        if exceptions is not None:
            (tmp_path / check_sizes.EXCEPTIONS).write_text(exceptions, encoding="utf-8")
        return check_sizes.main(["--root", str(tmp_path), *arguments])

    return check


# What is counted


def test_docstring_and_decorators_are_not_lines_of_a_function():
    sizes = measured('''
        @decorator(
            1,
        )
        def f(
            a,
        ):
            """One.

            Three.
            """
            # a comment counts

            return a

        class Home:
            async def stay(self): return 1
    ''')
    assert sizes["f", "lines"] == 6
    assert sizes["Home.stay", "lines"] == 1


def test_names_are_qualified_and_inner_functions_measured_by_themselves():
    sizes = measured("""
        class A:
            class B:
                def f(self):
                    def g(x, y):
                        if x:
                            pass
        if True:
            def h(): pass
    """)
    assert {name for name, rule in sizes if rule == "nesting"} == {"A.B.f", "A.B.f.g", "h"}
    assert sizes["A.B.f", "nesting"] == 0
    assert sizes["A.B.f.g", "nesting"] == 1


@pytest.mark.parametrize(
    ("body", "depth"),
    [
        ("pass", 0),
        ("[a for b in c if d]", 0),
        ("if a:\n  pass\nelif b:\n  pass\nelif c:\n  pass\nelse:\n  pass", 1),
        ("if a:\n  pass\nelse:\n  if b:\n    pass", 2),
        ("if a:\n  pass\nelif b:\n  for c in d:\n    pass", 2),
        ("for a in b:\n  while c:\n    with d:\n      try:\n        pass\n      finally:\n        pass", 4),
        ("try:\n  pass\nexcept E:\n  if a:\n    pass", 2),
        ("try:\n  pass\nexcept* E:\n  pass", 1),
        ("match a:\n  case 1:\n    pass\n  case 2:\n    if b:\n      pass", 2),
        ("async with a:\n  async for b in c:\n    pass", 2),
        ("if a:\n  pass\nif b:\n  pass", 1),
    ],
)
def test_nesting(body, depth):
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    assert measured("async def f():\n" + indented)["f", "nesting"] == depth


@given(st.integers(1, 160))
def test_a_function_is_over_exactly_above_its_limit(lines):
    source = "def f():\n" + "    pass\n" * lines
    found = list(check_sizes.breaches(check_sizes.measure("m.py", source), []))
    assert found == ([f"m.py:1 f: {lines + 1} lines (limit 80)"] if lines + 1 > 80 else [])


# What the command says


def test_within_the_limits_it_says_nothing(checkout, capsys):
    assert checkout(a=function(80), test_b=function(80) + "\n" * 1100) == 0
    assert capsys.readouterr().out == ""


def test_each_breach_is_one_line_with_its_place(checkout, capsys):
    deep = (
        "def deep():\n" + "".join(f"{'  ' * depth}while 1:\n" for depth in range(1, 6)) + "            pass\n"
    )
    assert checkout(a="\n\n" + function(91), b=deep, test_c="\n" * 1201) == 1
    assert capsys.readouterr().out.splitlines() == [
        "src/grue/a.py:3 long: 91 lines (limit 80)",
        "src/grue/b.py:1 deep: nesting 5 (limit 4)",
        "tests/unit/test_c.py:1 <module>: 1201 lines (limit 1200)",
    ]


def test_an_exception_with_a_reason_excuses_its_rule_only(checkout, capsys):
    source = (
        function(91)
        + "def deep():\n"
        + "".join(f"{'  ' * depth}while 1:\n" for depth in range(1, 6))
        + "            pass\n"
    )
    listed = "# why\n\nsrc/grue/a.py::long::lines  # a table\n"
    assert checkout(a=source, exceptions=listed) == 1
    assert capsys.readouterr().out == "src/grue/a.py:92 deep: nesting 5 (limit 4)\n"


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["src/grue/a.py::long::lines"], "1 src/grue/a.py::long::lines: no reason given"),
        (["src/grue/a.py::long::lines  #  "], "1 src/grue/a.py::long::lines: no reason given"),
        (["src/grue/a.py::long::lines # r"] * 2, "2 src/grue/a.py::long::lines: already on line 1"),
        (
            ["src/grue/a.py::long::lines # r", "src/grue/a.py::gone::lines # r"],
            "2 src/grue/a.py::gone::lines: no longer needed",
        ),
        (
            ["src/grue/a.py::long::lines # r", "src/grue/a.py::long::nesting # r"],
            "2 src/grue/a.py::long::nesting: no longer needed",
        ),
    ],
)
def test_a_bad_exception_is_itself_a_breach(checkout, capsys, lines, complaint):
    assert checkout(a=function(91), exceptions="\n".join(lines)) == 1
    assert capsys.readouterr().out == f"tools/size_exceptions.txt:{complaint}\n"


def test_longest_shows_six_of_each(checkout, capsys):
    sources = {f"m{length}": function(length, f"f{length}") for length in range(10, 18)}
    assert checkout("--longest", **sources) == 0
    functions, modules = capsys.readouterr().out.split("longest modules:\n")
    assert functions.splitlines() == ["longest functions:"] + [
        f"{length:6}  src/grue/m{length}.py:1 f{length}" for length in range(17, 11, -1)
    ]
    assert [line.split()[0] for line in modules.splitlines()] == ["17", "16", "15", "14", "13", "12"]


def test_what_cannot_be_checked_is_status_2(checkout, capsys):
    assert checkout() == 2
    assert "no Python files under src/grue or tests" in capsys.readouterr().out
    assert checkout(a="def f(:\n") == 2
    assert "a.py:1 cannot be parsed" in capsys.readouterr().out


def test_it_runs_as_a_command_without_site_packages():
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), "--help"],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert "--longest" in done.stdout
