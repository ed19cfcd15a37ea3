"""A company's identity provider on loopback: it exchanges identity tokens for identity assertions."""

import base64
import contextlib
import json
import secrets
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


class IdentityProvider:
    """The identity provider. Tests set and read its attributes.

    Attributes:
        url: The URL that is also its issuer.
        persons: The person of each identity token.
        issued: The issued assertions with their claims; the authorization server accepts these.
        asked: The fields of each token exchange.
        authorized: The header `Authorization` of each token exchange.
        fails_with: If not 0, the status with which each exchange fails.
        issues: The type of the tokens that it issues.
        named: The issuer in its metadata; `None`: `url`.
        token_endpoint: The token endpoint in its metadata; `None`: its real one.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.persons: dict[str, str] = {}
        self.issued: dict[str, dict[str, str]] = {}
        self.asked: list[dict[str, str]] = []
        self.authorized: list[str] = []
        self.fresh()

    def fresh(self) -> None:
        """Reset all attributes to their defaults."""
        self.fails_with = 0
        self.issues = _ID_JAG
        self.named: str | None = None
        self.token_endpoint: str | None = None
        for kept in (self.persons, self.issued, self.asked, self.authorized):
            kept.clear()

    def log_in(self, person: str) -> str:
        """Return an identity token of a person: a JWT without a valid signature, which nobody checks."""
        claims = json.dumps({"iss": self.url, "sub": person, "jti": secrets.token_hex(8)})
        token = ".".join(
            base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in ("{}", claims)
        )
        token += ".signature"
        self.persons[token] = person
        return token

    def metadata(self) -> dict[str, object]:
        endpoint = self.token_endpoint or f"{self.url}/token"
        return {"issuer": self.named or self.url, "token_endpoint": endpoint}

    def exchange(self, fields: dict[str, str], authorized: str) -> tuple[int, dict[str, str]]:
        """Exchange an identity token for an assertion; return the status and the body of the answer."""
        self.asked.append(fields)
        self.authorized.append(authorized)
        if self.fails_with:
            return self.fails_with, {"error": "temporarily_unavailable"}
        person = self.persons.get(fields["subject_token"])
        if person is None:
            return 400, {"error": "invalid_grant", "error_description": "the token has expired"}
        assertion = f"assertion-{secrets.token_hex(16)}"
        self.issued[assertion] = {"sub": person, "aud": fields["audience"], "resource": fields["resource"]}
        return 200, {"access_token": assertion, "issued_token_type": self.issues, "token_type": "N_A"}


@contextlib.contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """Run an identity provider."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        provider = IdentityProvider(f"http://127.0.0.1:{server.server_port}")
        _Handler.provider = provider
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    provider: IdentityProvider

    def do_GET(self) -> None:
        known = self.path == "/.well-known/openid-configuration"
        self._answer(200 if known else 404, self.provider.metadata() if known else {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        fields = {name: values[0] for name, values in parse_qs(body).items()}
        self._answer(*self.provider.exchange(fields, self.headers.get("authorization", "")))

    def _answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""
