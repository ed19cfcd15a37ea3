"""Play a game with the model of `--offline`, without a server: the test computes the tool results itself."""

import json
from collections.abc import Collection
from typing import Any, NamedTuple

from grue.hosts.servers import think
from grue.hosts.zork.agent import SYSTEM_PROMPT, AgentResponse, playable
from grue.hosts.zork.games.game import Game
from grue.hosts.zork.orchestrator import Memories, Move, context_text
from grue.testing.offline.chat_request import decode_body, read_request
from grue.testing.offline.repertoire import Playbook
from grue.testing.offline.script import Reply, reply

THINK = {
    "type": "function",
    "function": {"name": "think__think", "description": think.DESCRIPTION, "parameters": think.INPUT_SCHEMA},
}


class Played(NamedTuple):
    """The result: last observation, moves, number of deaths, and each turn's replies with tool calls."""

    seen: Any
    moves: list[Move]
    deaths: int
    thinking: list[list[Reply]]


def ask(request: dict[str, Any], playbook: Playbook | None = None) -> Reply:
    """Return the model's reply to a request; assert that the same request gets the same reply again."""
    body = json.dumps(request).encode()
    first = reply(read_request(decode_body(body)), playbook)
    assert reply(read_request(decode_body(body)), playbook) == first
    return first


def history(said: Reply, results: list[Any]) -> list[dict[str, Any]]:
    """Return the messages that a host adds after a reply with tool calls."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in said.calls
    ]
    answers = [
        {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)}
        for call, result in zip(said.calls, results, strict=True)
    ]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *answers]


def decide(user: str, playbook: Playbook | None, tools: bool) -> tuple[dict[str, Any], list[Reply]]:
    """Run one turn's conversation; return the decision, and the replies with tool calls."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": user},
    ]
    request = {"model": "any", "messages": messages} | ({"tools": [THINK]} if tools else {})
    session, thinking = think.Session(), []
    while (said := ask(request, playbook)).calls:
        thinking.append(said)
        results = [think.record_thought(session, json.loads(call.arguments)) for call in said.calls]
        messages += history(said, [{"content": result} for result in results])
    assert said.content is not None
    return json.loads(said.content), thinking


def play(
    game: Game,
    seed: int,
    turns: int,
    playbook: Playbook | None,
    *,
    tools: bool = True,
    fallbacks: Collection[int] = (),
) -> Played:
    """Play at most `turns` turns. Assert that the host can play each decision without a correction.

    In the turns whose numbers are in `fallbacks`, play `look` as if the host had got no answer.
    """
    seen, moves, memories, deaths, thinking = game.reset(seed), [], Memories(), 0, []
    for turn in range(1, turns + 1):
        if seen.done:
            break
        notes = memories.text(seen.location)
        user = context_text(game.name, turn, seen, moves, ["Win."]) + (f"\n\n{notes}" if notes else "")
        decision, rounds = decide(user, playbook, tools)
        response = AgentResponse.model_validate(decision)
        assert playable(response) == response
        thinking.append(rounds)
        command = "look" if turn in fallbacks else response.action
        after = game.step(command)
        gained = None if after.score is None or seen.score is None else after.score - seen.score
        moves.append(Move(command, after.text, seen.location, gained))
        memories.learn(moves[-1], after)
        deaths += after.died
        seen = after
    return Played(seen, moves, deaths, thinking)
