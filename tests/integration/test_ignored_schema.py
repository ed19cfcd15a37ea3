"""An endpoint that accepts a schema and ignores it: what the model is told then, on each wire."""

import json

import pytest

from grue import LlmSettings, Runner, TurnRequest
from grue.engine.answers import AnswerSpec
from grue.messages import SchemaIgnored
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply

SPEC = AnswerSpec(
    json.loads,
    schema={"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
)
STATED = "It has to match this JSON Schema:"


def careless(request: LlmRequest) -> LlmReply:
    """Keep to the schema only if the prompt states it."""
    told = STATED in json.dumps(request.body)
    return text_reply('{"action": "look"}' if told else "I look around.")


@pytest.mark.parametrize("wire", list(FORMATS))
def test_the_repair_states_the_schema_and_later_prompts_do_at_once(wire: WireName) -> None:
    bodies: list[object] = []
    with ScriptedLlmServer(careless) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="scripted", wire=wire, api_key="sk-made-up")
        with Runner(llm=settings) as runner:
            runner.recorder.add(lambda envelope, _line: bodies.append(envelope.body))
            outcomes = [runner.run_turn(TurnRequest(system="s", user="u", answer=SPEC)) for _ in range(2)]
        stated = [json.dumps(request.body).count(STATED) for request in llm.requests]
    assert [outcome.response for outcome in outcomes] == [{"action": "look"}] * 2
    assert [outcome.requests for outcome in outcomes] == [2, 1]
    assert stated[0] == 0
    assert stated[1] >= 1
    assert stated[2] == 1
    assert sum(isinstance(body, SchemaIgnored) for body in bodies) == 1
