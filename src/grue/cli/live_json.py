"""The output of `grue play --json`: the episode as JSON, one object per line."""

import json
from typing import Any, TextIO

import msgspec
from msgspec import structs

from grue import messages as m
from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted, Observed
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeResumed

_LEFT_OUT = ("settings", "conditions")
"""Fields with the episode's options, which the reader of these lines already knows. Changes are printed."""


class JsonLines:
    """Print the episode as JSON, one object a line: `episode` or `resumed`, each `turn`, then `end`.

    Args:
        out: Where to print.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._turn: dict[str, object] = {}

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Print what is complete with this envelope."""
        del line
        match envelope.body:
            case EpisodeStarted() as started:
                fields = {
                    key: value for key, value in structs.asdict(started).items() if key not in _LEFT_OUT
                }
                self._print({"type": "episode", **fields})
            case EpisodeResumed() as resumed:
                fields = {k: v for k, v in msgspec.to_builtins(resumed).items() if k not in _LEFT_OUT}
                self._print({**fields, "type": "resumed"})
            case Observed() as seen:
                self._finish_turn(seen)
                self._turn = {
                    "type": "turn",
                    "turn": seen.turn,
                    "location": seen.location,
                    "score": seen.score,
                }
            case m.TurnCompleted() as end:
                self._turn["tool_calls"] = [
                    {"name": call.name, "arguments": call.arguments, "settlement": call.settlement}
                    for call in end.tool_calls
                ]
            case Decided() as decided:
                self._turn |= {
                    "action": decided.action,
                    "reasoning": decided.reasoning,
                    "kind": decided.kind,
                    "reason": decided.reason,
                }
            case EpisodeEnded() as ended:
                self._print({"type": "end", **structs.asdict(ended)})

    def _finish_turn(self, after: Observed) -> None:
        if "action" in self._turn:
            self._print({**self._turn, "reply": after.text, "score_after": after.score})

    def _print(self, entry: dict[str, object]) -> None:
        self._out.write(f"{json.dumps(entry)}\n")
        self._out.flush()
