"""The scenarios of the suite: what the two revisions of the specification require of a client, and what they do not."""

_OF_BOTH = (
    "tools_call",
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/basic-cimd",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/scope-step-up",
    "auth/scope-retry-limit",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/pre-registration",
)

REQUIRED = {
    "2025-11-25": ("initialize", "elicitation-sep1034-client-defaults", "sse-retry", *_OF_BOTH),
    "2026-07-28": (
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        *_OF_BOTH,
        "auth/resource-mismatch",
        "auth/offline-access-scope",
        "auth/offline-access-not-supported",
        "auth/authorization-server-migration",
        "auth/iss-supported",
        "auth/iss-not-advertised",
        "auth/iss-supported-missing",
        "auth/iss-wrong-issuer",
        "auth/iss-unexpected",
        "auth/iss-normalized",
        "auth/metadata-issuer-mismatch",
    ),
}
"""What the suite requires for each revision."""

OPTIONAL = (
    "json-schema-2020-12-preservation",
    "auth/client-credentials-jwt",
    "auth/client-credentials-basic",
    "auth/enterprise-managed-authorization",
    "auth/dpop",
    "auth/dpop-nonce",
    "auth/wif-jwt-bearer",
    "sep-2640-client-no-prefetch",
    "sep-2640-client-verify-digest",
    "sep-2640-client-verify-frontmatter",
    "sep-2640-client-verify-size",
)
"""What it runs for both and does not require."""

ALL = tuple((revision, name) for revision, names in REQUIRED.items() for name in (*names, *OPTIONAL))

NOT_YET: dict[str, str] = {}
"""Scenarios that are not passed, and what they wait for."""


def table() -> str:
    """What is passed, as the documentation has it."""
    rows = ["| Scenario | 2025-11-25 | 2026-07-28 |", "|---|---|---|"]
    for name in dict.fromkeys(name for _, name in ALL):
        verdict = "not yet" if name in NOT_YET else "passed"
        optional = ", optional" if name in OPTIONAL else ""
        cells = [verdict + optional if (revision, name) in ALL else "" for revision in REQUIRED]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"
