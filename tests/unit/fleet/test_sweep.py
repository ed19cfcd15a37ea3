"""A sweep's cases, and what an error in its file says."""

from pathlib import Path

import pytest

from grue.errors import FleetError
from grue.fleet.identity import Case
from grue.fleet.sweep import read_sweep

WHOLE = """
work = "zork"
version = "2"
repetitions = 2
workers = 3
keep = "failed"

[settings]
offline = true

[grid]
mcp = [true, false]
seed = { first = 1, last = 2 }

[[include]]
seed = 9

[[exclude]]
mcp = false
seed = 2

[budget]
money_usd = 5
requests = 100
prices.m = { input = 1.0, output = 2 }

[rate]
requests_per_minute = 60
"""


def sweep(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


def test_the_cases_are_the_grid_with_includes_and_without_excludes(tmp_path: Path) -> None:
    found = read_sweep(sweep(tmp_path, WHOLE))
    cells = [
        {"offline": True, "mcp": True, "seed": 1},
        {"offline": True, "mcp": True, "seed": 2},
        {"offline": True, "mcp": False, "seed": 1},
        {"offline": True, "seed": 9},
    ]
    assert list(found.all_cases()) == [
        Case(settings=cell, repetition=number) for number in (0, 1) for cell in cells
    ]
    assert (found.budget.prices["m"].output, found.rate.requests_per_minute) == (2, 60)


def test_settings_that_belong_together_are_played_with_each_cell_of_the_grid(tmp_path: Path) -> None:
    text = """
work = "agent_loop"
grid.system = ["Be brief.", "Be careful."]

[[cases]]
inputs = ["What is 2 + 2?"]
expected = "4"

[[cases]]
inputs = ["What is 3 + 3?"]
expected = "6"
"""
    found = list(read_sweep(sweep(tmp_path, text)).all_cases())
    assert [(each.settings["system"][3:], each.settings["expected"]) for each in found] == [
        ("brief.", "4"), ("brief.", "6"), ("careful.", "4"), ("careful.", "6"),
    ]  # fmt: skip
    assert all(each.settings["inputs"] == ["What is 2 + 2?"] for each in found[::2])


def test_an_exclude_distinguishes_true_from_1_and_takes_numbers_as_equal(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def play(case, episode): ...\n")
    text = f'work = "{tmp_path}/own.py:play"\ngrid.n = [true, 1, 2, false, 0]\n'
    text += "exclude = [{ n = 1.0 }, { n = false }]\n"
    found = [each.settings["n"] for each in read_sweep(sweep(tmp_path, text)).all_cases()]
    assert list(map(str, found)) == ["True", "2", "0"]


def test_a_sweep_without_a_grid_has_one_case(tmp_path: Path) -> None:
    found = read_sweep(sweep(tmp_path, 'work = "zork"\nsettings.seed = 4\n'))
    assert list(found.all_cases()) == [Case(settings={"seed": 4})]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('work = "zork"\n\nrepetition = 3\n', "line 3: unknown key 'repetition'. Did you mean 'repetitions'"),
        ('work = "zork"\n[budget]\nmoney = 3\n', "line 3: unknown key 'money'. Did you mean 'money_usd'"),
        (
            'work = "zork"\ngrid.seed = { first = 1, last = 9, step = 2 }\n',
            "line 2: unknown key 'step'. Known keys: first, last.$",
        ),
        (
            'work = "zork"\nbudget.prices.m = { inptu = 1, output = 2 }\n',
            "line 2: unknown key 'inptu'. Did you mean 'input'. Known keys: input, output, cached, batch.$",
        ),
        ('work = "zork"\nrepetitions = "x"\n', "line 2: repetitions: expected `int`, got `str`"),
        ('work = "zork"\nrepetitions = 0\n', "line 2: repetitions must be at least 1"),
        ('work = "zork"\nworkers = -1\n', "line 2: workers must be at least 0"),
        ('work = "zork"\nepisode_timeout_s = 0\n', "line 2: episode_timeout_s must be above 0"),
        ('work = "zork"\nkeep = "some"\n', "line 2: keep: invalid enum value 'some'"),
        ('work = "zork"\n[grid]\nseed = []\n', "line 3: the axis 'seed' has no values"),
        (
            'work = "zork"\n[grid]\ngame = ["house"]\nseed = 3\n',
            "line 4: grid.seed: .* give a list of values",
        ),
        ('work = "zork"\n[grid]\nseed = { first = 3 }\n', "line 3: grid.seed: .* missing .* `last`"),
        ('work = "zork"\n[grid]\nseed = [1, 2, 1]\n', "line 3: 'seed' has 1 twice. For more .* repetitions"),
        (
            'work = "zork"\ncases = [{ seed = 1 }]\n[grid]\nseed = [1]\n',
            "an axis of the grid and a setting of",
        ),
        ('work = "zork"\n[[cases]]\nsed = 1\n', "line 3: unknown setting 'sed'"),
        ('work = "zork"\n[grid]\nseed = {first = 1, last = 2000000}\n', "the most are 1,000,000"),
        (
            'work = "zork"\n[grid]\nseed = {first = 1, last = 99999999999999999999}\n',
            "the most are 1,000,000",
        ),
        (
            'work = "zork"\nrepetitions = 600000\n[[include]]\nseed = 1\n[[include]]\nseed = 2\n',
            "the sweep has 1,200,000 episodes; the most are 1,000,000",
        ),
        ("version = 1\n", "missing required field `work`|expected `str"),
        ('\nwork = "zrk"\n', "line 2: work = 'zrk' names no function.* Did you mean 'zork'"),
        ('\nwork = "grue.fleet.zork_work:pley"\n', "line 2: .* no function 'pley'. Did you mean 'play'"),
        ('work = "zork"\n[grid]\nsede = [1]\n', "line 3: unknown setting 'sede'. Did you mean 'seed'"),
        ('work = "zork"\nsettings = { turns = 3, ofline = true }\n', "line 2: unknown setting 'ofline'"),
        ('work = "zork"\n[settings]\nturns = "3"\n', "line 3: turns: expected `int`, got `str`"),
        ('work = "zork"\n[grid]\nseed = [1, "x"]\n', "line 3: seed: expected `int`, got `str`"),
        ('work = "zork"\n[[exclude]]\nsed = 1\n', "line 3: unknown setting 'sed'"),
        ('work = "zork"\n[[exclude]]\n', "line 2: an entry of exclude has no settings"),
        (
            'work = "zork"\n[grid]\nseed = [1, 2]\n[[exclude]]\nmcp = true\n',
            "line 5: exclude names 'mcp', a setting that no case has. The cases have seed.$",
        ),
        ('work = "zork"\n[budget]\nmoney_usd = 3\n', "line 3: money_usd needs the prices of the models"),
        ('work = "zork"\n[budget]\nrequests = -3\n', "line 3: requests is -3"),
        ('work = "zork"\nrate = { concurrency = 0 }\n', "line 2: concurrency is 0: give a number above 0"),
        (
            'work = "zork"\nbudget.money_usd = 3\nbudget.prices.m = { input = -1, output = 2 }\n',
            "line 3: Price.input=-1.0.: a price is a number of USD, 0 or more",
        ),
        ('work = "zork"\n[grid]\nheat = [inf, nan]\n', "line 3: setting 'heat' is inf, which JSON does not"),
        ('work = "zork"\n[settings]\nheat = nan\n', "line 3: setting 'heat' is nan, which JSON does not"),
        ('work = "zork"\nservers = 0\n', "line 2: servers = 0"),
        ("work = \n", "not valid TOML: Invalid value .at line 1, column 8."),
        ('work = "zork"\nsettings.repetitions = 3\nrepetitions = 0\n', "line 3: repetitions must be"),
        ('work = "m:f"\n[grid]\nrequests = [1]\n[budget]\nrequests = -3\n', "line 5: requests is -3"),
        ('work = "m:f"\n[[cases]]\na = 1\n[[cases]]\na = nan\n', "line 5: setting 'a' is nan"),
        ('work = "m:f"\ncases = [\n{ a = 1 },\n{ a = 2, b = nan },\n]\n', "line 4: setting 'b' is nan"),
    ],
)
def test_an_error_names_line_and_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(FleetError, match=words) as caught:
        read_sweep(sweep(tmp_path, text))
    assert "sweep.toml" in str(caught.value)


def test_an_axis_of_very_many_numbers_that_is_refused_is_not_walked_through(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(
        f'work = "zork"\n[grid]\nseed = {{ first = 1, last = {10**15} }}\n'
        f"turns = {{ first = {10**15}, last = 1 }}\n"
    )
    with pytest.raises(FleetError, match="the axis 'turns' has no values"):
        read_sweep(path)
