"""Questions about tool calls, and the decisions that answer them; plain data.

Come here to write an `approve` callback, or a program that shows parked questions to a person. A decision is
made from its question (`question.approve()`), because it counts only for that call: its name, its arguments
and the tool's definition. The types are part of the messages, and `grue.messages` exports them.
"""

from typing import Literal

from msgspec import Struct


class ApprovalDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person's answer to one question. Make it with a method of the question.

    Attributes:
        call_id: The call that it is about.
        name: Canonical name of the tool.
        arguments_digest: Of the arguments that the person saw.
        definition_digest: Of the tool's definition that the question was about.
        verdict: Make the call, do not make it, or make it with other arguments.
        arguments: The other arguments, for `change`.
        reason: The model reads it if the call is denied.
    """

    call_id: str
    name: str
    arguments_digest: str
    definition_digest: str
    verdict: Literal["approve", "deny", "change"]
    arguments: dict[str, object] | None = None
    reason: str = ""


class ApprovalQuestion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call that is made only if a person approves it.

    Attributes:
        call_id: Id of the call in its turn.
        name: Canonical name of the tool.
        arguments: What the model wants to call it with; untrusted.
        arguments_digest: Identifies the arguments.
        definition_digest: Identifies the tool's definition.
        reason: Why the policy asks; empty if its rule gives no reason.
        description: The server's text about the tool; untrusted.
        input_schema: What the tool takes, for a person who changes the arguments; untrusted. `None`: the
            trace is an old one.
    """

    call_id: str
    name: str
    arguments: dict[str, object]
    arguments_digest: str
    definition_digest: str
    reason: str = ""
    description: str = ""
    input_schema: dict[str, object] | None = None

    def approve(self) -> ApprovalDecision:
        """Return the decision that the call is made as it is."""
        return self._decision("approve")

    def deny(self, reason: str = "") -> ApprovalDecision:
        """Return the decision that the call is not made; the model reads `reason`."""
        return self._decision("deny", reason=reason)

    def change(self, arguments: dict[str, object]) -> ApprovalDecision:
        """Return the decision that the call is made with other arguments; the model reads which.

        The runner does not accept arguments that `input_schema` refuses.
        """
        return self._decision("change", arguments=arguments)

    def _decision(
        self,
        verdict: Literal["approve", "deny", "change"],
        *,
        arguments: dict[str, object] | None = None,
        reason: str = "",
    ) -> ApprovalDecision:
        return ApprovalDecision(
            call_id=self.call_id,
            name=self.name,
            arguments_digest=self.arguments_digest,
            definition_digest=self.definition_digest,
            verdict=verdict,
            arguments=arguments,
            reason=reason,
        )
