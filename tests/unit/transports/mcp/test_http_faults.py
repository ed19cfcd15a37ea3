"""What a refusal for want of credentials says follows what the server sent."""

import shlex

from case_tables import each_case

from grue.transports.mcp.http_faults import challenge_scheme, login_fault, offers_login, status_fault

LOGIN = 'Bearer error="invalid_token", resource_metadata="https://x/.well-known/oauth-protected-resource"'


@each_case(
    "challenge, scheme, login",
    [
        (LOGIN, "Bearer", True),
        ("bearer", "bearer", False),
        ('Basic realm="resource_metadata"', "Basic", False),
        ("Digest, Basic", "Digest", False),
        ("", "", False),
        ("=?<script>", "", False),
        ("x" * 500, "", False),
    ],
)
def test_the_kind_of_credentials_is_read(challenge: str, scheme: str, login: bool) -> None:
    assert challenge_scheme(challenge) == scheme
    assert offers_login(challenge) is login


@each_case(
    "challenge, says",
    [
        (LOGIN, "run: grue login SERVER"),
        (LOGIN, "in Python, add `auth=OAuth()` to the `HttpServer`"),
        ("Basic realm=x", '"Authorization": "Basic ${CREDENTIALS}"'),
        ("Bearer", '"Authorization": "Bearer ${TOKEN}"'),
        ("", "Check the credentials under `headers`"),
    ],
)
def test_without_auth_the_remedy_follows_the_server(challenge: str, says: str) -> None:
    fault = status_fault(401, challenge=challenge)
    assert fault.cause == "the server does not accept the credentials (HTTP 401 Unauthorized)"
    assert says in (fault.remedy or "")


@each_case(
    "challenge, had_token, needs_login, remedy",
    [
        (LOGIN, False, True, "Run: grue login far"),
        (
            "",
            False,
            True,
            "Run: grue login far. If it has no OAuth, set the key that it wants under `headers`",
        ),
        ("Bearer", False, True, "Run: grue login far. If it has no OAuth"),
        ("Basic", False, False, "It asks for credentials of the kind Basic"),
        ("Basic", True, True, "Run: grue login far"),
    ],
)
def test_with_auth_a_login_is_named_where_it_can_help(
    challenge: str, had_token: bool, needs_login: bool, remedy: str
) -> None:
    fault = login_fault("far", 401, scope=None, had_token=had_token, challenge=challenge)
    assert fault.needs_login is needs_login
    assert (fault.remedy or "").startswith(remedy)
    assert fault.ends_session


def test_wanted_scopes_are_in_the_command() -> None:
    fault = login_fault("far", 403, scope="read write", had_token=True)
    assert fault.remedy == "Run: grue login far --scope 'read write'"


def test_a_shell_runs_nothing_of_the_scopes_that_a_server_wants() -> None:
    fault = login_fault("far", 403, scope="$(reboot) `reboot` 'x'", had_token=True)
    words = shlex.split((fault.remedy or "").removeprefix("Run: "))
    assert words == ["grue", "login", "far", "--scope", "$(reboot) `reboot` 'x'"]
    assert "--scope '$(reboot) `reboot` " in (fault.remedy or "")
