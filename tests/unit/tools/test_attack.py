"""`make attack`: the same name is the same case, and what it looks for it finds."""

import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ATTACK = Path(__file__).resolve().parents[3] / "tools" / "attack"
NAMES = ("casebook", "damage", "files", "judge", "replies", "tool_server", "turns")


@pytest.fixture(scope="module")
def attack() -> Iterator[SimpleNamespace]:
    """The modules of the tool, which is a program and not a package."""
    sys.path.insert(0, str(ATTACK))
    # Modules of the tests may have the same names.
    others = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    loaded: dict[str, ModuleType] = {name: __import__(name) for name in NAMES}
    yield SimpleNamespace(**loaded)
    sys.path.remove(str(ATTACK))
    for name in NAMES:
        del sys.modules[name]
    sys.modules.update(others)


def first_steps(attack: Any, name: str) -> bytes:
    """The beginning of what the model's endpoint sends in a case."""
    case = attack.casebook.case_of(name)
    tools = [{"type": "function", "function": {"name": "tools.act", "parameters": {}}}]
    request = {"stream": case.stream, "messages": [{"role": "user", "content": "Go on."}], "tools": tools}
    sound = attack.replies.sound_reply(case, "/v1/chat/completions", request, 0)
    plan = attack.replies.attack(case, sound, request, "/v1/chat/completions", 0)
    sent = [step for step in islice(plan.steps, 3) if isinstance(step, bytes)]
    return plan.attack.encode() + b"".join(sent)[:300]


def test_a_name_is_one_case_and_kinds_differ(attack: Any) -> None:
    drawn = list(islice(attack.casebook.names(7), 300))
    assert drawn == list(islice(attack.casebook.names(7), 300))
    assert {name.partition("-")[0] for name in drawn} == set(attack.casebook.KINDS)
    for name in drawn:
        if name.startswith("reply") and not attack.casebook.case_of(name).big:
            assert first_steps(attack, name) == first_steps(attack, name)
    with pytest.raises(ValueError, match="not the name of a case"):
        attack.casebook.case_of("nonsense-1")


def test_every_attack_upon_a_reply_can_be_made(attack: Any) -> None:
    replies, case = attack.replies, attack.casebook.case_of("stream-1")
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
        for stream in (False, True):
            request = {"stream": stream, "max_tokens": 9, "messages": [], "input": []}
            sound = replies.sound_reply(case, path, request, 0)
            assert replies.head(sound.content_type, len(sound.whole)) in b"".join(replies.served(sound))
            for attack_made in (
                replies.STREAM_ATTACKS if stream else replies.BODY_ATTACKS
            ) + replies.ANY_ATTACKS:
                plan = attack_made(Random(1), sound)
                assert all(isinstance(step, bytes | float | str) for step in islice(plan.steps, 3))


def test_what_is_damaged_is_no_longer_the_same(attack: Any) -> None:
    whole = json.dumps({"a": [1, {"b": "text"}]}).encode()
    for seed in range(200):
        assert attack.damage.damaged(Random(seed), whole) != whole
        assert isinstance(attack.damage.with_another_member(Random(seed), json.loads(whole)), bytes)


@pytest.mark.slow
def test_it_sees_what_is_left_and_what_is_forgotten(attack: Any) -> None:
    findings = attack.judge.Findings()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")

    async def never_awaited() -> None: ...

    with warnings.catch_warnings(), attack.judge.watched(findings):
        child = subprocess.Popen(["sleep", "600"])
        thread.start()
        never_awaited()
        logging.getLogger("asyncio").error("Task exception was never retrieved")
        held = bytearray(80 << 20)
        del held
    stop.set()
    child.kill()
    child.wait()
    told = "\n".join(findings.wrong)
    assert "left behind: process sleep 600" in told
    assert "left behind: thread forgotten" in told
    assert "never awaited" in told
    assert "never retrieved" in told
    assert findings.grown >= 70 << 20


def test_a_call_with_other_arguments_than_the_model_s_is_found(attack: Any) -> None:
    case = attack.casebook.case_of("stream-5")
    really = attack.casebook.arguments(case, 0)
    for call, strict, wrong in (
        (really, True, 0),
        ({**really, "path": really["path"][:-4]}, True, 1),
        ({**really, "path": really["path"][:-4]}, False, 0),
    ):
        findings = attack.judge.Findings()
        attack.turns._judge_calls(case, [call], [{"attack": "cut_stream", "strict": strict}], findings)
        assert len(findings.wrong) == wrong


def test_its_tool_server_is_sound_before_its_phase(attack: Any) -> None:
    case = attack.casebook.case_of("stdio-3")
    asked = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    name, steps = attack.tool_server.drawn(case, asked, 0)
    assert name == ""
    assert json.loads(b"".join(steps)) == {"jsonrpc": "2.0", "id": 1, "result": {}}
