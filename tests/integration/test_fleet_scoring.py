"""Scores that are given after playing: each kind of scorer, in real workers, on traces of a script."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grue.cli.app import app
from grue.fleet.results import results
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("fleet")]

SWEEP = """
work = "agent_loop"
[settings]
offline = true
mcp = false
[grid]
inputs = [["what did I say"], ["Where is the lamp?"]]
"""

SCORERS = """
[scorer.says]
regex = "(?i)script that stands in"
[scorer.names_the_model]
regex = "{model}"
[scorer.shape]
schema = { type = "object" }
[scorer.length]
function = "own_scorers:length"
version = "2"
"""

OWN = """
import threading

from grue.fleet import FinishedEpisode

def length(finished: FinishedEpisode) -> tuple[float, str]:
    return len(finished.answer), f"{finished.question!r} has {len(finished.answer)} characters"

def odd(finished):
    if "lamp" in finished.question:
        raise SystemExit("no")
    return 1, None

def wrong(finished):
    return "much"

def hangs(finished):
    threading.Event().wait()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "scorers.toml").write_text(SCORERS)
    (tmp_path / "own_scorers.py").write_text(OWN)
    run("fleet", "run", "sweep.toml")
    yield tmp_path
    import sys

    sys.modules.pop("own_scorers", None)


def run(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == status, done.output
    return done.output


def marks(project: Path) -> list[dict[str, Any]]:
    return [each.scores for each in results(project / "runs" / "sweep")]


@pytest.mark.slow
def test_every_kind_scores_finished_episodes_and_only_once(project: Path) -> None:
    commits = {path: path.read_bytes() for path in project.rglob("commit.json")}
    assert "2 of 2 episodes scored" in run("fleet", "score", "runs/sweep", "scorers.toml")
    for scores in marks(project):
        assert scores["shape"] == 0.0
        assert scores["names_the_model"] == 0.0
        assert scores["length"] == scores["length@2"] > 0
    assert {path: path.read_bytes() for path in commits} == commits
    again = run("fleet", "score", "runs/sweep", "scorers.toml")
    assert "0 of 0 episodes scored; 2 had a score" in again
    table = run("fleet", "table", "runs/sweep")
    assert table.splitlines()[0].split()[:2] == ["inputs", "requests"], "without `expected` there is no score"
    assert "length" in table
    assert "@" not in table


@pytest.mark.slow
def test_a_new_version_scores_again_and_the_old_scores_stay(project: Path) -> None:
    run("fleet", "score", "runs/sweep", "own_scorers:length")
    (project / "scorers.toml").write_text(SCORERS)
    run("fleet", "score", "runs/sweep", "scorers.toml")
    assert all({"length@1", "length@2"} <= scores.keys() for scores in marks(project))


@pytest.mark.slow
def test_what_a_scorer_raises_concerns_its_own_episode(project: Path) -> None:
    said = run("fleet", "score", "runs/sweep", "own_scorers:odd", status=1)
    assert "1 of 2 episodes scored" in said
    assert "odd: SystemExit: no" in said
    assert sum("odd" in scores for scores in marks(project)) == 1
    given = [mark for each in results(project / "runs" / "sweep") for mark in each.marks]
    assert [mark.reason for mark in given] == [""], "and not the word None"
    (project / "late.toml").write_text('timeout_s = 0.5\nscorer.hangs.function = "own_scorers:hangs"\n')
    assert "the scorers did not end within 0.5 s" in run(
        "fleet", "score", "runs/sweep", "late.toml", status=1
    )
    assert "a score is a finite number" in run("fleet", "score", "runs/sweep", "own_scorers:wrong", status=1)


@pytest.mark.parametrize(
    ("scorers", "said"),
    [
        ("[scorer.a]\nregex = '('", "The scorer 'a'"),
        ("[scorer.a]\n", "give one of function, regex, schema, judge; it has none"),
        ("[scorer.a]\nregex = 'x'\njudge = 'y'", "it has regex, judge"),
        ("[scorer.'a/b']\nregex = 'x'", "use letters, digits"),
        ("[scorer.human]\nregex = 'x'", "the scores that people give have this name"),
        ("[scorer.a]\nregex = 'x'\nversion = '../1'", "use letters, digits"),
        ("[scorer.a]\nschema = { type = 'thing' }", "no JSON Schema"),
        ("[scorer.a]\nschema = { '$ref' = 'http://127.0.0.1:9/x' }", "retrieving it failed"),
        ("[scorer.a]\nschema = 'none.json'", "cannot read the schema none.json"),
        ("[scorer.a]\nschema = 'sweep.toml'", "JSON is malformed"),
        ("[scorer.a]\nschema = 'number.json'", "no JSON Schema: 5"),
        ("[scorer.a]\njudge = 'x'\nmax_tokens = 0", "max_tokens is 0: give a number above 0"),
        ("workers = -1\n[scorer.a]\nregex = 'x'", "workers is -1"),
        ("timeout_s = 0\n[scorer.a]\nregex = 'x'", "timeout_s is 0"),
        ("[scorer.a]\nfunction = 'own_scorers:nothing'", "has no function 'nothing'"),
        ("[scorer.a]\nreg = 'x'", "unknown field `reg`"),
        ("[scorer]\n", "has no scorer"),
        ("[scorer", "not valid TOML"),
    ],
)
@pytest.mark.slow
def test_a_wrong_scorer_is_found_before_anything_starts(project: Path, scorers: str, said: str) -> None:
    (project / "wrong.toml").write_text(scorers)
    (project / "number.json").write_text("5")
    assert said in run("fleet", "score", "runs/sweep", "wrong.toml", status=1)


@pytest.mark.slow
def test_a_judge_is_asked_once_for_each_answer_within_its_own_budget(project: Path) -> None:
    asked: list[str] = []

    def judge(request: LlmRequest) -> LlmReply:
        asked.append(str(request.messages))
        return text_reply(json.dumps({"reason": "<b>fine</b>", "score": 0.5}))

    with ScriptedLlmServer(judge) as server:
        table = (
            f"[scorer.polite]\njudge = 'Is it polite?'\nmodel = 'm'\nbase_url = '{server.base_url}'\n"
            "[budget]\nrequests = {most}\n"
        )
        (project / "judge.toml").write_text(table.replace("{most}", "1"))
        said = run("fleet", "score", "runs/sweep", "judge.toml", status=1)
        assert "the budget has refused a request; it counts all runs of scorers here" in said
        assert len(asked) == 1
        (project / "judge.toml").write_text(table.replace("{most}", "5"))
        run("fleet", "score", "runs/sweep", "judge.toml")
        assert len(asked) == 2
        run("fleet", "score", "runs/sweep", "judge.toml", "--again")
        assert len(asked) == 2
    assert [scores["polite"] for scores in marks(project)] == [0.5, 0.5]
    assert "Is it polite?" in asked[0]
    assert (
        not (project / "runs" / "sweep" / "ledger.jsonl").exists()
        or "polite" not in (project / "runs" / "sweep" / "ledger.jsonl").read_text()
    )


@pytest.mark.slow
def test_the_scorers_reason_groups_failures(project: Path) -> None:
    run("fleet", "score", "runs/sweep", "scorers.toml")
    said = run("fleet", "failures", "runs/sweep", "--score", "shape")
    assert "2 x the scorer says why: the answer is not JSON" in said
    command = next(line for line in said.splitlines() if "grue trace show" in line).split()[1:]
    assert "Turn 1" in run(*command)
