"""Apply a `ToolPolicy` to the calls of a reply, and read what a person has decided about them.

Annotations come from the server, which may lie. So a tool whose annotations are not trusted is judged twice:
with its annotations, and with the defaults of the MCP specification. The stricter result counts.

A person's decision is passed on by the host's code, so its values may be anything. The rules:

- A call that was asked about is made only if the verdict is `approve`, or `change` with usable arguments.
  Everything else is a denial: another word, `None`, a change without arguments, an approval with arguments.
- A decision counts for one call only, and only for the arguments and the tool definition that were shown.
- If decisions about a call contradict each other, the call is denied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.errors import MCPConfigError
from grue.field_checks import shown
from grue.policies import ApprovalDecision, ApprovalQuestion, ToolAnnotations, ToolPolicy, ToolRule, Verdict
from grue.protocol.json_text import digest, strict_text
from grue.protocol.tools.names import MCP_PREFIX, is_built_in, read_arguments
from grue.runtime.safe_text import well_formed

NOT_ALLOWED = "the policy does not allow this tool"
LIMIT_REACHED = "at most {most} calls of this tool are allowed in a turn"

_CACHED = 500
_CACHED_BYTES = 20_000
_digests: dict[bytes, str] = {}

_STRICTNESS: dict[Verdict, int] = {"allow": 0, "ask": 1, "deny": 2}


class ToolHints(Struct, frozen=True, kw_only=True):
    """A tool's annotations. A hint that the server leaves out has the MCP specification's default."""

    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False
    open_world: bool = True


class Terms(Struct, frozen=True, kw_only=True):
    """What a policy says about a tool or a call. `read_only`: the tool is known to change nothing."""

    verdict: Verdict = "allow"
    reason: str = ""
    max_calls: int | None = None
    parallel: bool = False
    read_only: bool = False


def hints_of(annotations: ToolAnnotations | None) -> ToolHints:
    """Return the hints in annotations. A read-only tool counts as idempotent and not destructive."""
    annotations = annotations or ToolAnnotations()
    read_only = bool(annotations.read_only)
    return ToolHints(
        read_only=read_only,
        destructive=not read_only and annotations.destructive is not False,
        idempotent=read_only or annotations.idempotent is True,
        open_world=annotations.open_world is not False,
    )


def terms_of(policy: ToolPolicy, tool: m.ToolDefinition) -> Terms:
    """Return what `policy` says about a tool. A built-in tool is allowed: it acts only within the turn."""
    if is_built_in(tool):
        return Terms()
    declared = _terms(policy, tool, hints_of(tool.annotations))
    if tool.annotations is None or tool.trusted or tool.server in policy.trusted:
        return declared
    return _stricter(declared, _terms(policy, tool, ToolHints()))


def judge(
    policy: ToolPolicy, tools: Iterable[m.ToolDefinition], used: Mapping[str, int]
) -> tuple[tuple[Terms, ...], dict[str, int]]:
    """Return the `Terms` of calls, in order, and `used` plus the calls that are not denied.

    `tools`: the tool of each call. `used`: how many calls were let through, of each tool with a `max_calls`.
    """
    counts = dict(used)
    known: dict[str, Terms] = {}
    judged: list[Terms] = []
    for tool in tools:
        name = tool.name
        terms = known.get(name)
        if terms is None:
            terms = known[name] = terms_of(policy, tool)
        if terms.verdict == "deny":
            terms = Terms(verdict="deny", reason=terms.reason or NOT_ALLOWED)
        elif terms.max_calls is not None:
            if counts.get(name, 0) < terms.max_calls:
                counts[name] = counts.get(name, 0) + 1
            else:
                terms = Terms(verdict="deny", reason=LIMIT_REACHED.format(most=terms.max_calls))
        judged.append(terms)
    return tuple(judged), counts


def definition_digest(tool: m.ToolDefinition) -> str:
    """Return a digest of a tool's definition: an allowed call is not sent if the digest has changed since."""
    parts = (tool.name, tool.description, tool.input_schema, tool.output_schema, tool.annotations)
    try:
        key = msgspec.json.encode(parts)
    except (UnicodeEncodeError, TypeError):  # half a surrogate pair, or a key that is no text
        return digest(msgspec.to_builtins(parts))
    # Keep digests, because a turn and its session both ask for the digest of each tool that is called.
    if (known := _digests.get(key)) is not None:
        return known
    found = digest(msgspec.to_builtins(parts))
    if len(key) <= _CACHED_BYTES:
        if len(_digests) >= _CACHED:
            _digests.clear()
        _digests[key] = found
    return found


def question_about(
    call_id: str,
    tool: m.ToolDefinition,
    arguments: m.JsonObject,
    reason: str = "",
    *,
    show_schema: bool = True,
) -> ApprovalQuestion:
    """Return the question about a call. It has its own copy of the arguments, which the host may modify."""
    return ApprovalQuestion(
        call_id=call_id,
        name=tool.name,
        arguments=msgspec.to_builtins(arguments),
        arguments_digest=digest(arguments),
        definition_digest=definition_digest(tool),
        reason=reason,
        description=tool.description,
        input_schema=msgspec.to_builtins(tool.input_schema) if show_schema else None,
    )


def check_policy(policy: ToolPolicy) -> ToolPolicy:
    """Return the policy, or raise an `MCPConfigError` that names the rule or field that cannot be used."""
    for n, rule in enumerate(policy.rules):
        if fault := _fault(rule):
            raise MCPConfigError.of_value("tool_policy", ("rules", n), f"rule {n + 1}: {fault}.")
    if policy.park_for_s is not None and not policy.park_for_s > 0:
        text = f"park_for_s should be above 0, not {policy.park_for_s}."
        raise MCPConfigError.of_value("tool_policy", ("park_for_s",), text)
    return policy


def _fault(rule: object) -> str:
    if not isinstance(rule, ToolRule):
        return f"write ToolRule(...), not {type(rule).__name__}"
    patterns: object = rule.tools
    if not isinstance(patterns, tuple | list) or not patterns:
        return f"tools should be a tuple of at least one name or pattern, not {patterns!r}"
    if rule.verdict not in _STRICTNESS:
        return f"verdict should be allow, ask or deny, not {rule.verdict!r}"
    if rule.max_calls is not None and rule.max_calls < 0:
        return f"max_calls should be 0 or more, not {shown(rule.max_calls)}"
    return ""


def _terms(policy: ToolPolicy, tool: m.ToolDefinition, hints: ToolHints) -> Terms:
    rule = next((rule for rule in policy.rules if _matches(rule, tool, hints)), ToolRule())
    return Terms(
        verdict=rule.verdict,
        reason=rule.reason,
        max_calls=rule.max_calls,
        parallel=rule.parallel and hints.read_only,
        read_only=hints.read_only,
    )


def _matches(rule: ToolRule, tool: m.ToolDefinition, hints: ToolHints) -> bool:
    return (
        rule.read_only in (None, hints.read_only)
        and rule.destructive in (None, hints.destructive)
        and rule.idempotent in (None, hints.idempotent)
        and rule.open_world in (None, hints.open_world)
        and rule.boxed in (None, tool.boxed)
        and matches_any(tool.name, rule.tools)
    )


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a canonical tool name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


UNMATCHED = ", which matches no tool"


def unmatched_patterns(patterns: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns that match no name, for a warning: a misspelt pattern may leave a tool allowed.

    A pattern and its copy with the prefix `mcp.`, which an agent loop adds, count as one.
    """
    known = tuple(names)
    spellings: dict[str, list[str]] = {}
    for pattern in patterns:
        spellings.setdefault(pattern.removeprefix(MCP_PREFIX), []).append(pattern)
    return tuple(
        min(each, key=len)
        for each in spellings.values()
        if not any(matches_any(name, each) for name in known)
    )


def may_match_tools_of(pattern: str, server: str) -> bool:
    """Return whether a pattern may match some tool of a server. Only `False` is certain."""
    literal, own = re.split(r"[*?[]", pattern, maxsplit=1)[0], f"{server}."
    return literal.startswith(own) or own.startswith(literal)


def _stricter(one: Terms, other: Terms) -> Terms:
    limits = [terms.max_calls for terms in (one, other) if terms.max_calls is not None]
    return replace(
        max(one, other, key=lambda terms: _STRICTNESS[terms.verdict]),
        max_calls=min(limits, default=None),
        parallel=one.parallel and other.parallel,
        read_only=one.read_only and other.read_only,
    )


DENIED_BY_PERSON = "the user does not allow it"
UNUSABLE_CHANGE = "the user changed the arguments, but not to usable ones: {fault}"
UNUSABLE_DECISION = "the decision about it cannot be used: it should approve, deny or change the call"
CONTRADICTED = "the decisions about the call contradict each other, so it is denied"
ANOTHER_CALL = "it is about another call, other arguments or another definition of the tool"
ANSWERED = "the call has been decided on already"

Decisions = Mapping[m.CallId, ApprovalDecision]


class Judged(Struct, frozen=True):
    """A decision about a call: why it is `denied` (empty: it is made), or its `changed` arguments."""

    denied: str = ""
    changed: m.JsonObject | None = None


def judged(decision: ApprovalDecision) -> Judged:
    """Return how a person's decision changes the call: it is denied, or gets other arguments, or neither."""
    decision = sound(decision)
    if decision.verdict == "approve":
        return Judged()
    if decision.verdict == "deny":
        return Judged(denied=decision.reason or DENIED_BY_PERSON)
    arguments = read_arguments(strict_text(decision.arguments))
    if isinstance(arguments, str):
        return Judged(denied=UNUSABLE_CHANGE.format(fault=arguments))
    return Judged(changed=arguments)


def sound(decision: ApprovalDecision) -> ApprovalDecision:
    """Return a decision with its own copy of the arguments; a malformed decision becomes a denial."""
    verdict: object = decision.verdict
    reason = well_formed(decision.reason) if isinstance(decision.reason, str) else ""
    if verdict == "approve" and decision.arguments is None:
        return replace(decision, reason=reason)
    if verdict == "deny":
        return replace(decision, reason=reason, arguments=None)
    if verdict == "change" and isinstance(decision.arguments, dict):
        try:
            arguments = msgspec.json.decode(strict_text(decision.arguments))
            return replace(decision, reason=reason, arguments=arguments)
        except (TypeError, ValueError, RecursionError):  # the arguments are not JSON
            pass
    return replace(decision, verdict="deny", reason=UNUSABLE_DECISION, arguments=None)


def own_copies(questions: Iterable[ApprovalQuestion]) -> tuple[ApprovalQuestion, ...]:
    """Return copies that share nothing with `questions`, for code that may change them."""
    copied = msgspec.to_builtins
    return tuple(
        replace(each, arguments=copied(each.arguments), input_schema=copied(each.input_schema))
        for each in questions
    )


def is_about(decision: ApprovalDecision, asked: ApprovalQuestion | ApprovalDecision) -> bool:
    """Return whether a decision is about the tool, the definition and the unchanged arguments of `asked`."""
    fields = ("name", "arguments_digest", "definition_digest")
    return all(getattr(decision, field) == getattr(asked, field) for field in fields)


def settled(
    questions: Iterable[ApprovalQuestion],
    decisions: Iterable[ApprovalDecision],
    before: Decisions | None = None,
) -> tuple[dict[m.CallId, ApprovalDecision], tuple[m.DecisionIgnored, ...]]:
    """Return all decisions that count, also those accepted `before`, and notes on those that are ignored."""
    asked = {question.call_id: question for question in questions}
    accepted = dict(before or {})
    ignored: list[m.DecisionIgnored] = []
    for given in decisions:
        decision, call_id = sound(given), m.CallId(given.call_id)
        known = accepted.get(call_id)
        question = asked.get(call_id) if known is None else known
        if question is None or not is_about(decision, question):
            ignored.append(m.DecisionIgnored(call_id=call_id, reason=ANOTHER_CALL))
        elif known is None:
            accepted[call_id] = decision
        elif known.verdict in ("deny", decision.verdict) and (
            known.verdict == "deny" or known.arguments == decision.arguments
        ):
            ignored.append(m.DecisionIgnored(call_id=call_id, reason=ANSWERED))
        else:
            ignored.append(m.DecisionIgnored(call_id=call_id, reason=CONTRADICTED))
            denial = replace(decision, verdict="deny", reason=CONTRADICTED, arguments=None)
            accepted[call_id] = decision if decision.verdict == "deny" else denial
    return accepted, tuple(ignored)


def read_decisions(given: Iterable[object]) -> tuple[ApprovalDecision, ...]:
    """Return the usable decisions in a program's answers; `TypeError`: an answer is no `ApprovalDecision`."""
    decisions: list[ApprovalDecision] = []
    listed = isinstance(given, Iterable) and not isinstance(given, str)
    for each in given if listed else (given,):
        if not listed or not isinstance(each, ApprovalDecision):
            raise TypeError(f"approve returned {each!r}; it should return a list of decisions, True or False")
        texts = (each.call_id, each.name, each.arguments_digest, each.definition_digest)
        if all(isinstance(text, str) for text in texts):
            decisions.append(sound(each))
    return tuple(decisions)
