"""Remove secrets from texts about a server: its command line, its standard error, its errors.

A secret is the value of a variable with a name such as `API_KEY` (`protocol/secret_names.py`), an argument
after such a name, or a value that authorises a request. `runtime/redaction.py` finds each in all its encoded
forms.
"""

import shlex
from collections.abc import Mapping

from grue.protocol.secret_names import looks_secret, secrets_in
from grue.runtime.redaction import Redaction


class Redactor:
    """Replaces the secrets of one environment, each by a placeholder with its name."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._redaction = Redaction(secrets_in(environment))

    def text(self, text: str) -> str:
        """Return `text` with secrets replaced."""
        return self._redaction.redact_text(text)

    def command_line(self, command: str, args: tuple[str, ...]) -> str:
        """Return the command as a shell command line, with secrets replaced."""
        return shlex.join(self.words(command, args))

    def words(self, command: str, args: tuple[str, ...]) -> list[str]:
        """Return the command and its arguments, with secrets replaced."""
        shown = [self.text(command)]
        for before, arg in zip((command, *args), args, strict=False):
            flag, equals, _ = arg.partition("=")
            if before.startswith("-") and "=" not in before and looks_secret(before):
                shown.append(_placeholder(before.lstrip("-")))
            elif equals and looks_secret(flag):
                shown.append(f"{flag}={_placeholder(flag.lstrip('-'))}")
            else:
                shown.append(self.text(arg))
        return shown


def _placeholder(name: str) -> str:
    return f"[redacted:{name}]"
