"""Keep secrets out of what is shown: the command line, a server's stderr, the text of an error.

A secret is a value of 12 characters or more in an environment variable whose name says so, or an argument
that follows such a name.
"""

import shlex
from collections.abc import Mapping

from grue.protocol.secret_names import looks_secret, secrets_in


class Redactor:
    """Replaces the secrets of one environment, each by a placeholder with its name."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        found = {value: name for name, value in secrets_in(environment).items()}
        # The longest first: one that contains another must not leave its remainder behind.
        self._secrets = sorted(found.items(), key=lambda pair: -len(pair[0]))

    def text(self, text: str) -> str:
        """Return `text` without secrets."""
        for value, name in self._secrets:
            text = text.replace(value, _placeholder(name))
        return text

    def command_line(self, command: str, args: tuple[str, ...]) -> str:
        """Return the command as one would type it, without secrets."""
        shown = [command]
        for before, arg in zip((command, *args), args, strict=False):
            flag, equals, _ = arg.partition("=")
            if before.startswith("-") and "=" not in before and looks_secret(before):
                shown.append(_placeholder(before.lstrip("-")))
            elif equals and looks_secret(flag):
                shown.append(f"{flag}={_placeholder(flag.lstrip('-'))}")
            else:
                shown.append(self.text(arg))
        return shlex.join(shown)


def _placeholder(name: str) -> str:
    return f"[redacted:{name}]"
