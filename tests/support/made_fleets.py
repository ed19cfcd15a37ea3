"""Folders of fleets, written without running an episode, with scores that the test chooses."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from grue.fleet.attempt import Job
from grue.fleet.broker import Amount
from grue.fleet.course import Course
from grue.fleet.folder import TRACE, AttemptEnd, CaseFile, EpisodeFolder, FleetFolder, Manifest

Score = Callable[[random.Random, str, int], float | AttemptEnd]
"""Returns the score of an episode, or how it ended, from its prompt and its question."""


@contextmanager
def unread_pipe() -> Iterator[TextIO]:
    """A pipe to write to, whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        yield pipe


def ended(score: float, **fields: Any) -> AttemptEnd:
    """Return the `AttemptEnd` of an attempt with this score."""
    course = Course(turns=2, requests=3, tool_calls=1, outcome="answered")
    plain = {"duration_s": 1.5, "spent": Amount(3, 900, 0.01), "course": course, "model": "m"}
    return AttemptEnd(outcome="scored", scores={"score": score}, **{**plain, **fields})


class Attempted(NamedTuple):
    """How an attempt ended, and whether it became the episode's result."""

    end: AttemptEnd
    committed: bool


def play(job: Job) -> Attempted:
    """Make an attempt in this process, and look into the episode's folder for its commit."""
    folder = EpisodeFolder(job.folder)
    number = max((each for each, _ in folder.attempts()), default=0) + 1
    end, commit = job.make(), folder.commit
    return Attempted(end, commit is not None and commit.attempt == number)


def make_fleet(
    place: Path,
    score: Score,
    *,
    prompts: Sequence[str] = ("short", "long"),
    questions: int = 30,
    repetitions: int = 5,
    seed: int = 1,
    trace: bytes = b"",
) -> FleetFolder:
    """Write a fleet with an episode for each prompt, question and repetition. `seed` is for the scores."""
    fleet, chance = FleetFolder(place), random.Random(seed)
    total = len(prompts) * questions * repetitions
    fleet.write_manifest(Manifest(work="m:ask", total=total, axes=["prompt", "question"]))
    for question in range(questions):
        for prompt in prompts:
            for repetition in range(repetitions):
                folder = fleet.episode(f"{chance.getrandbits(96):024x}")
                planned = {"prompt": prompt, "question": f"Question {question}"}
                add_episode(folder, planned, repetition, score(chance, prompt, question), trace)
    return fleet


def add_episode(
    folder: EpisodeFolder,
    planned: dict[str, Any],
    repetition: int,
    end: float | AttemptEnd,
    trace: bytes = b"",
    version: str = "1",
) -> None:
    """Add one episode. If its attempt was neither scored nor failed, it gets no commit."""
    completed = {**planned, "model": "m", "project": f"hash of {planned['prompt']}"}
    case = CaseFile(work="m:ask", version=version, settings=completed, planned=planned, repetition=repetition)
    attempt = folder.begin(case)
    if trace:
        (attempt / TRACE).write_bytes(trace)
    end = ended(end) if isinstance(end, float) else end
    if end.outcome in ("scored", "failed"):
        folder.make_commit(attempt, end, version="1")
    else:
        folder.end(attempt, end)
