"""Secrets out of what is shown: every family, and what only looks like one."""

import json
import time
from re import _parser  # how short a match can be; no public name tells

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.pieces import at_once
from mcp_nursery.actors.secrets import MAX_LINE
from mcp_nursery.supervisor import StdioTransport
from mcp_nursery.supervisor.security.redaction import (
    _SHORTEST_KEY,
    MAX_DEPTH,
    MAX_SAID,
    PLAIN,
    Redactor,
    ServerSecrets,
)
from mcp_nursery.supervisor.security.secret_patterns import _IS, KNOWN_KEYS, SECRET_PLACES

from ...lab.linear import stays_linear

LETTERS = "aB3dE5gH7jK9mN1pQ2sT4vW6yZ8bC0fG2hJ4kL6nP8rS0uV2xY4zA6cD8eF0gH2i"
HEX = "0123456789abcdef" * 8
UPPER = LETTERS.upper()

FAMILIES = {
    "aws-access-key": ("AKIA" + UPPER[:16], "AKIA" + UPPER[:12]),
    "aws-bedrock-key": ("ABSK" + LETTERS, "ABSK" + LETTERS[:20]),
    "aws-secret-key": ("SecretAccessKey: " + LETTERS[:40], "my_access: " + LETTERS[:40]),
    "google-api-key": ("AIza" + LETTERS[:35], "AIza" + LETTERS[:20]),
    "google-oauth": ("ya29." + LETTERS, "ya29.short"),
    "azure-key": ("DefaultEndpointsProtocol=https;AccountKey=" + LETTERS + "==", "AccountKey devel"),
    "azure-sas": ("?sv=2024&sig=" + LETTERS + "%3D", "?sig=none"),
    "azure-service-key": (LETTERS[:52] + "JQQJ99" + LETTERS[:26], LETTERS[:52] + "JQQJ99" + LETTERS[:10]),
    "azure-client-secret": ("abc8Q~" + LETTERS[:34], "abcdQ~" + LETTERS[:34]),
    "digitalocean-token": ("dop_v1_" + HEX[:64], "dop_v1_" + HEX[:40]),
    "alibaba-key": ("LTAI" + LETTERS[:20], "LTAIshort"),
    "heroku-key": ("HRKU-" + LETTERS[:36], "HRKU-key"),
    "vault-token": ("hvs." + LETTERS[:30], "hvs.mount"),
    "terraform-token": ("x.atlasv1." + LETTERS, "atlasv1.local"),
    "databricks-token": ("dapi" + HEX[:32], "dapi" + HEX[:20]),
    "supabase-key": ("sbp_" + HEX[:40], "sbp_ref"),
    "cloudflare-key": ("v1.0-" + HEX[:24] + "-" + (HEX * 2)[:146], "v1.0-" + HEX[:24] + "-beta"),
    "fly-token": ("fm2_" + LETTERS, "fm2_radio"),
    "netlify-token": ("nfp_" + LETTERS[:36], "nfp_site"),
    "planetscale-token": ("pscale_tkn_" + LETTERS[:43], "pscale_tkn_x"),
    "pulumi-token": ("pul-" + HEX[:40], "pul-down"),
    "doppler-token": ("dp.pt." + LETTERS[:43], "dp.pt.dev"),
    "github-token": ("ghp_" + LETTERS[:36], "ghp_token"),
    "github-fine-grained-token": ("github_pat_" + LETTERS, "github_pat_docs"),
    "gitlab-token": ("glpat-" + LETTERS[:20], "glpat-docs"),
    "bitbucket-token": ("ATBB" + LETTERS[:32], "ATBB-1"),
    "sourcegraph-token": ("sgp_" + HEX[:40], "sgp_x"),
    "atlassian-token": ("ATATT3" + LETTERS, "ATATT3-1"),
    "anthropic-key": ("sk-ant-api03-" + LETTERS, "sk-ant-docs"),
    "openrouter-key": ("sk-or-v1-" + HEX[:64], "sk-or-v1"),
    "openai-key": ("sk-proj-" + LETTERS, "sk-proj-docs"),
    "openai-legacy-key": ("sk-" + LETTERS[:48], "sk-learn"),
    "huggingface-token": ("hf_" + LETTERS[:34], "hf_hub_download"),
    "groq-key": ("gsk_" + LETTERS[:52], "gsk_client"),
    "replicate-token": ("r8_" + LETTERS[:37], "r8_unorm"),
    "xai-key": ("xai-" + LETTERS, "xai-grok"),
    "perplexity-key": ("pplx-" + LETTERS[:48], "pplx-70b-online"),
    "nvidia-key": ("nvapi-" + LETTERS, "nvapi-docs"),
    "pinecone-key": ("pcsk_" + LETTERS, "pcsk_x"),
    "cerebras-key": ("csk-" + LETTERS[:48].lower(), "csk-docs"),
    "together-key": ("tgp_v1_" + LETTERS[:43], "tgp_v1_x"),
    "jina-key": ("jina_" + HEX[:32] + LETTERS[:28], "jina_" + HEX[:32]),
    "firecrawl-key": ("fc-" + HEX[:32], "fc-" + HEX[:20]),
    "langsmith-key": ("lsv2_pt_" + HEX[:32] + "_" + HEX[:10], "lsv2_pt_x"),
    "tavily-key": ("tvly-dev-" + LETTERS[:32], "tvly-python"),
    "stripe-key": ("sk_live_" + LETTERS[:24], "sk_live_x"),
    "stripe-webhook-secret": ("whsec_" + LETTERS[:32], "whsec_x"),
    "square-token": ("sq0atp-" + LETTERS[:22], "sq0atp-x"),
    "braintree-token": (
        "access_token$production$" + LETTERS[:16].lower() + "$" + HEX[:32],
        "access_token$production$x",
    ),
    "razorpay-key": ("rzp_live_" + LETTERS[:14], "rzp_live_x"),
    "shopify-token": ("shpat_" + HEX[:32], "shpat_x"),
    "slack-token": ("xoxb-1234567890-" + LETTERS[:24], "xoxb-short"),
    "slack-app-token": ("xapp-1-A012-345-" + HEX[:64], "xapp-1"),
    "slack-webhook": ("https://hooks.slack.com/services/T000/B000/" + LETTERS[:24], "hooks.slack.com/services/docs"),
    "discord-webhook": (
        "https://discord.com/api/webhooks/123456789012345678/" + LETTERS[:60],
        "discord.com/api/webhooks/123456789012345678",
    ),
    "discord-token": ("M" + LETTERS[:25] + "." + LETTERS[:6] + "." + LETTERS[:38], "Module.Name12.method"),
    "meta-token": ("EAAC" + LETTERS * 2, "EAAC" + LETTERS),
    "telegram-token": ("123456789:AA" + LETTERS[:33], "123456789:AA"),
    "teams-webhook": ("https://x.webhook.office.com/webhookb2/" + LETTERS, "webhook.office.com/webhookb2/x"),
    "sendgrid-key": ("SG." + LETTERS[:22] + "." + LETTERS[:43], "SG.en.US"),
    "mailgun-key": ("key-" + HEX[:32], "key-value"),
    "mailchimp-key": (HEX[:32] + "-us12", HEX[:30] + "-us12"),
    "brevo-key": ("xkeysib-" + HEX[:64] + "-" + LETTERS[:16], "xkeysib-x"),
    "resend-key": ("re_" + LETTERS[:8] + "_" + LETTERS[:24], "re_compile"),
    "twilio-key": ("SK" + HEX[:32], "SK" + HEX[:20]),
    "npm-token": ("npm_" + LETTERS[:36], "npm_config_registry"),
    "pypi-token": ("pypi-AgEIcHlwaS5vcmc" + LETTERS, "pypi-AgEI"),
    "rubygems-key": ("rubygems_" + HEX[:48], "rubygems_version"),
    "docker-token": ("dckr_pat_" + LETTERS[:27], "dckr_pat_x"),
    "crates-token": ("cio" + LETTERS[:32], "cio" + LETTERS[:20]),
    "nuget-key": ("oy2" + LETTERS[:43].lower(), "oy2" + LETTERS[:20].lower()),
    "artifactory-token": ("AKCp" + LETTERS, "AKCpx"),
    "notion-token": ("ntn_" + LETTERS[:46], "ntn_x"),
    "linear-key": ("lin_api_" + LETTERS[:40], "lin_api_x"),
    "hubspot-token": ("pat-na1-01234567-89ab-cdef-0123-456789abcdef", "pat-na1-office"),
    "figma-token": ("figd_" + LETTERS[:40], "figd_x"),
    "airtable-token": ("pat" + LETTERS[:14] + "." + HEX[:64], "pattern.match"),
    "postman-key": ("PMAK-" + HEX[:24] + "-" + HEX[:34], "PMAK-x"),
    "grafana-token": ("glsa_" + LETTERS[:32] + "_" + HEX[:8], "glsa_x"),
    "sentry-token": ("sntrys_" + LETTERS, "sntrys_x"),
    "newrelic-key": ("NRAK-" + UPPER[:27], "NRAK-X"),
    "age-key": ("AGE-SECRET-KEY-1" + UPPER[:58], "AGE-SECRET-KEY-1"),
    "jwt": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0." + LETTERS[:43], "eyJ.eyJ.x"),
    "private-key": (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4\n" + LETTERS + "\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    ),
    "authorization": ("Authorization: Basic dXNlcjpwYXNz", "author: someone"),
    "cookie": ("Set-Cookie: sid=31d4d96e; Secure", "cookie cutter"),
    "bearer-token": ("got Bearer " + LETTERS[:30], "Bearer authentication"),
    "password": ("postgres://bob:s3cr:et@db.local/main", "postgres://db.local:5432/main"),
    "secret": ("DB_PASSWORD=hunter2", "max_tokens=4096"),
}
"""By the name of the mark: a secret, and a near miss that stays as it is."""


def test_every_family_is_here():
    """T9: no pattern without a proof."""
    assert set(FAMILIES) == {name for name, _ in KNOWN_KEYS} | {name for name, *_ in SECRET_PLACES}


@pytest.mark.parametrize("name", FAMILIES)
def test_one_positive_and_one_near_miss(name):
    """T9: replaced by `[REDACTED:<name>]`, once and for all; what only looks like it stays."""
    planted, near = FAMILIES[name]
    shown = PLAIN.text(f"before {planted} after")
    assert f"[REDACTED:{name}]" in shown
    assert shown.startswith("before ")
    assert PLAIN.text(shown) == shown
    assert PLAIN.text(f"before {near} after") == f"before {near} after"


FORMS = [
    *(("aws-access-key", prefix + UPPER[:16]) for prefix in ("ASIA", "ABIA", "ACCA", "A3TX")),
    *(("google-api-key", "AQ." + LETTERS[:50]), ("google-oauth", "GOCSPX-" + LETTERS[:28])),
    *(("google-oauth", "1//0" + LETTERS[:40]), ("azure-key", "Endpoint=sb://x/;SharedAccessKey=" + LETTERS[:43] + "=")),
    *(("digitalocean-token", f"do{kind}_v1_" + HEX[:64]) for kind in "or"),
    *(("vault-token", f"hv{kind}." + LETTERS[:30]) for kind in "br"),
    *(("github-token", f"gh{kind}_" + LETTERS[:36]) for kind in "ousr"),
    *(
        ("gitlab-token", f"gl{kind}-" + LETTERS[:20])
        for kind in ("dt", "rt", "rtr", "cbt", "ptt", "ft", "imt", "agent")
    ),
    *(("gitlab-token", f"gl{kind}-" + LETTERS[:20]) for kind in ("oas", "soat", "ffct", "wt")),
    *(("gitlab-token", "GR1348941" + LETTERS[:20]), ("huggingface-token", "api_org_" + LETTERS[:34])),
    *(("openai-key", f"sk-{kind}-" + LETTERS) for kind in ("svcacct", "admin", "None")),
    *(("anthropic-key", f"sk-ant-{kind}-" + LETTERS) for kind in ("admin01", "sid01", "oat01")),
    *(("stripe-key", kind + LETTERS[:24]) for kind in ("rk_live_", "sk_test_", "sk_org_live_", "sk_org_")),
    *(("square-token", "sq0csp-" + LETTERS[:43]), ("square-token", "EAAA" + LETTERS[:60])),
    *(("shopify-token", f"shp{kind}_" + HEX[:32]) for kind in ("ca", "pa", "ss", "ua")),
    *(("slack-token", f"{kind}-1234567890-" + LETTERS[:24]) for kind in ("xoxp", "xoxe.xoxp", "xoxa", "xoxr", "xwfp")),
    *(("slack-webhook", "hooks.slack.com/triggers/T0/1/" + LETTERS[:24]), ("discord-token", "mfa." + LETTERS * 2)),
    *(("mailgun-key", HEX[:32] + "-01234567-89abcdef"), ("linear-key", "lin_oauth_" + HEX[:64])),
    *(("supabase-key", "sb_secret_" + LETTERS[:31]), ("docker-token", "dckr_oat_" + LETTERS[:32])),
    *(("notion-token", "secret_" + LETTERS[:43]), ("sentry-token", "sntryu_" + HEX[:64])),
    *(("grafana-token", "glc_" + LETTERS), ("fly-token", "fm1r_" + LETTERS), ("fly-token", "fm1a_" + LETTERS)),
    *(("planetscale-token", f"pscale_{kind}_" + LETTERS[:43]) for kind in ("pw", "oauth")),
    *(
        ("private-key", f"-----BEGIN {kind}-----\nabc\n-----END {kind}-----")
        for kind in ("OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK", "ENCRYPTED PRIVATE KEY", "PRIVATE KEY")
    ),
    ("private-key", '"private_key": "-----BEGIN PRIVATE KEY-----\\nMII\\n-----END PRIVATE KEY-----\\n"'),
    *(("password", f"{scheme}://me:pa:ss@host/db") for scheme in ("mysql", "mongodb+srv", "redis", "amqp", "https")),
    *(
        ("secret", f"{name}=hunter2")
        for name in ("client_secret", "api_key", "APIKEY", "ACCESS_TOKEN", "Pwd", "passwd")
    ),
]
"""The other forms of a family, by its name."""


@pytest.mark.parametrize(("name", "planted"), FORMS)
def test_every_form_of_a_family(name, planted):
    """T9: nothing of it is left."""
    shown = PLAIN.text(f"before {planted} after")
    assert f"[REDACTED:{name}]" in shown
    assert not any(
        secret in shown for secret in (planted, LETTERS[:12], UPPER[:12], HEX[:12], "hunter2", "pa:ss", "MII")
    )
    assert PLAIN.text(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sk-ant-" + LETTERS, "[REDACTED:anthropic-key]"),
        ("sk-proj-" + LETTERS, "[REDACTED:openai-key]"),
        ("ANTHROPIC_API_KEY=sk-ant-" + LETTERS, "ANTHROPIC_API_KEY=[REDACTED:anthropic-key]"),
        ('{"password": "a\\"b c", "user": 1}', '{"password": "[REDACTED:secret]", "user": 1}'),
        (r'"{\"api_key\": \"abc def\", 1}"', r'"{\"api_key\": \"[REDACTED:secret]\", 1}"'),
        ("{'clientSecret': 'abc'}", "{'clientSecret': '[REDACTED:secret]'}"),
        ("password = null, token: ${TOKEN}, secret=<yours>", "password = null, token: ${TOKEN}, secret=<yours>"),
        ("PWD=/home/me dbPass=x OLDPWD=/tmp", "PWD=/home/me dbPass=[REDACTED:secret] OLDPWD=/tmp"),
        ("secretary: Ann, tokenizer: bpe, bypass=1", "secretary: Ann, tokenizer: bpe, bypass=1"),
        ("GET /?access_token=abc&page=2", "GET /?access_token=[REDACTED:secret]&page=2"),
        ("https://ghp_" + LETTERS[:36] + "@github.com/x", "https://[REDACTED:github-token]@github.com/x"),
        ("Authorization: Bearer abc\nAccept: */*", "Authorization: [REDACTED:authorization]\nAccept: */*"),
        (
            "-----BEGIN PRIVATE KEY-----\\nMII" + LETTERS,  # cut before its end
            "[REDACTED:private-key]",
        ),
    ],
)
def test_where_secrets_stand(text, shown):
    """T9: longer prefixes first; names keep standing, values go, placeholders stay; and twice is as once."""
    assert PLAIN.text(text) == shown
    assert PLAIN.text(shown) == shown


def test_what_is_too_short_for_any_key_is_not_searched():
    """What is shorter than all of them holds only what a `:` or `=` tells to be a secret."""
    widths = {name: _parser.parse(key).getwidth()[0] for name, key in KNOWN_KEYS}
    assert min(widths.values()) == _SHORTEST_KEY, "the shortest key"
    for name, before, it in SECRET_PLACES:
        marked = _IS in before or "://" in before
        assert marked or _parser.parse(before + it).getwidth()[0] >= _SHORTEST_KEY, name
    for sign in (":", "="):
        assert PLAIN.text(f"pwd{sign}hunter2") == f"pwd{sign}[REDACTED:secret]"
    assert Redactor.of(["hunter2"]).text("hunter2") == "[REDACTED:config]"


def test_configured_values():
    """T9: values of the config go wherever they stand, longest first; short ones and marks' own words are left."""
    redactor = Redactor.of(["hunter22", "hunter22-long", 'pa ss"w/1', "true", "12345", "", "secret", "REDACTED"])
    shown = redactor.text('hunter22-long hunter22 pa ss\\"w/1 pa%20ss%22w%2F1 true 12345 secret Hunter22')
    mark = "[REDACTED:config]"
    assert shown == f"{mark} {mark} {mark} {mark} true 12345 secret Hunter22"
    assert redactor.text(shown) == shown
    assert "hunter22" not in repr(redactor)


PEM = "-----BEGIN THING-----\nfirst line of the thing\n  second line of the thing\nend\n"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (PEM, PEM),
        (PEM, json.dumps(PEM)[1:-1]),
        (PEM, " ".join(PEM.split())),
        (PEM, "second line of the thing"),
        ('pä ss"w/1', 'pä ss\\"w/1'),
        ('pä ss"w/1', 'p\\u00e4 ss\\"w/1'),
        ("a/b+c=/==", "a/b%2Bc%3D/%3D%3D"),
        ("a/b+c=/==", "a%2fb%2bc%3d%2f%3d%3d"),
        ("half \udcff a character", "half%20%ED%B3%BF%20a%20character"),
        ("open sesame/now", "open+sesame%2Fnow"),
        ("Opensesame-1", "opensesame-1"),
        ("Open>sesame?", "T3Blbj5zZXNhbWU/"),
        ("Open>sesame?", "T3Blbj5zZXNhbWU_"),
    ],
)
def test_forms_of_a_configured_value(value, said):
    """T9: on one line, in JSON of either kind, in a URL of any kind, in base64, as a host name, and one line of many,
    as a log has them."""
    shown = Redactor.of([value]).text(f"before {said} after")
    assert shown == "before [REDACTED:config] after"


def test_a_form_that_a_mark_holds_is_left():
    """T9: twice is as once, whatever a value looks like in small letters."""
    assert Redactor.of(["CONFIG"]).text("CONFIG and config") == "[REDACTED:config] and config"


def test_short_lines_of_a_value_are_no_secret():
    """T9: a brace, or `end`, is found everywhere."""
    assert Redactor.of([PEM]).text("the end of end") == "the end of end"


def test_what_a_server_says_is_cut_after_its_secrets_are_out():
    """T9: of a text without end the beginning, and no half of a secret at its end."""
    redactor = Redactor.of(["opensesame" * 100])
    assert redactor.said("x" * MAX_SAID) == "x" * MAX_SAID
    for before in (MAX_SAID - 10, MAX_SAID - 500):
        shown = redactor.said("x" * before + "opensesame" * 1000)
        assert len(shown) < MAX_SAID
        assert "opens" not in shown
        assert shown.endswith(f"… ({before + 10_000} characters)")


def test_what_a_transport_was_given():
    """T9: values of environment and headers, also what follows a scheme."""

    class WithHeaders:
        headers = {"Authorization": "Bearer tok-1234", "X-Count": 5}  # noqa: RUF012 - as transports have them

    stdio = Redactor().also_of(StdioTransport("x", env={"KEY": "opensesame", "DEBUG": "1"}))
    assert stdio.text("opensesame 1") == "[REDACTED:config] 1"
    assert Redactor().also_of(WithHeaders()).text("tok-1234") == "[REDACTED:config]"
    assert Redactor().also_of(object()).text("tok-1234") == "tok-1234"

    class Unresolved:
        literals = ("Bearer opensesame",)
        env = {"KEY": "${HOME}/x"}  # noqa: RUF012 - as transports have them

    assert Redactor().also_of(Unresolved()).text("opensesame ${HOME}/x") == "[REDACTED:config] ${HOME}/x"


def test_json_values():
    """T9: every text in them, names too; whatever stands under a secret name; numbers and shape stay."""
    key = "ghp_" + LETTERS[:36]
    value = {"a": [key, 1, None, (True, "x")], key: 2, "token": "abc", "auth_token": {"x": ["y", 3]}, "password": ""}
    assert PLAIN.value(value) == {
        "a": ["[REDACTED:github-token]", 1, None, [True, "x"]],
        "[REDACTED:github-token]": 2,
        "token": "[REDACTED:secret]",
        "auth_token": {"x": ["[REDACTED:secret]", 3]},
        "password": "",
    }


def test_a_value_nested_without_end():
    """T9: a hostile server's nesting neither overflows the stack nor hides anything."""
    value: object = "ghp_" + LETTERS[:36]
    for _ in range(900):
        value = [value]
    shown = json.dumps(PLAIN.value(value))
    assert shown.count("[") == MAX_DEPTH
    assert "ghp_" not in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        *("eyJ", "://a:", "://a:b@", "a1", "-----BEGIN PRIVATE KEY-----", "password=", 'password="', 'token=\\"'),
        *("token_", "MNO", "-", " ", "sk-", "authorization:", "1", "The quick brown fox. ", "token" + " " * 50),
        "[REDACTED:",
    ],
)
def test_it_takes_time_linear_in_the_text(unit):
    """T9: four times the text, about four times the time; quadratic patterns would take sixteen."""
    assert stays_linear(PLAIN.text, unit, sizes=(20_000, 80_000), factor=9, slack=0.02)


@pytest.mark.parametrize(
    "value",
    [
        "password: hunter22",
        ["x", {"password": "hunter22", "list": ["token=abcdef123456", 1, None]}, ("a", "b")],
        {"opensesame": {"secret": ["deep", {"a": 5}]}},
        "x" * 10_000 + " password: hunter22 " + "opensesame",
        5,
    ],
)
def test_in_pieces_it_is_the_same(value):
    redactor = Redactor.of(["opensesame"])
    assert at_once(redactor.value_in_pieces(value)) == redactor.value(value)
    if isinstance(value, str):
        assert at_once(redactor.said_in_pieces(value)) == redactor.said(value)


@pytest.mark.parametrize("length", [MAX_SAID, MAX_SAID + 1])
def test_what_is_long_is_looked_at_for_one_kind_of_secret_after_the_other(length):
    text = ("opensesame " * MAX_SAID)[:length]
    redactor = Redactor.of(["opensesame"])
    assert at_once(redactor.said_in_pieces(text)) == redactor.said(text)
    assert sum(1 for _ in redactor.said_in_pieces(text)) > 20


def test_what_is_nested_deeply_in_pieces():
    value = []
    for _ in range(MAX_DEPTH + 2):
        value = [value]
    assert at_once(Redactor().value_in_pieces(value)) == Redactor().value(value)


@pytest.mark.parametrize("quoted", [str, json.dumps, str.lower, lambda value: "\n".join((value[:100], value))])
def test_a_long_value_is_found_as_a_short_one_is(quoted):
    long, short = LETTERS * 40, "opensesame"
    redactor = Redactor.of([long, f"{long}{short}", short])
    shown = redactor.text(f"{quoted(long)} and {quoted(long + short)} and {short}")
    assert (long[100:] in shown, long[100:].lower() in shown, short in shown) == (False, False, False)
    assert redactor.text(shown) == shown


def test_to_know_another_long_token_takes_no_time_to_speak_of():
    """Each renewal tells two of them, between two turns of the loop."""
    redactor = Redactor()
    began = time.process_time()
    for number in range(40):
        redactor = redactor.also([f"{number}{LETTERS * 120}"])
    assert time.process_time() - began < 2


@given(st.integers(0, 13_000), st.integers(1, 3_000), st.integers(0, 20_000), st.integers(8, 9_000))
def test_the_beginning_of_a_text_has_no_part_of_a_secret_and_takes_no_more_than_it_needs(before, longest, after, size):
    secret = "Zq7v" * (size // 4)
    text = "." * before + secret + "-" * after
    shown = Redactor.of([secret]).beginning(text, longest)
    assert len(shown) <= longest
    assert "Zq7v" not in shown
    whole = Redactor.of([secret]).text(text)
    assert whole.startswith(shown)
    if len(text) <= longest + 10_000:
        assert shown == whole[:longest]


class CutFirst(str):
    """A text that is cut before anything else is done with it."""

    __slots__ = ()

    def replace(self, *_):
        raise AssertionError("all of it was read")


LONG = Redactor.of(["a long value " * 30])


@pytest.mark.parametrize("shown", [lambda text: LONG.beginning(text, 12), ServerSecrets(LONG).hide_line])
def test_the_beginning_of_a_long_text_is_found_without_the_rest(shown):
    beginning = shown(CutFirst("word " * 100_000))
    assert beginning.rstrip("…") == ("word " * 400)[: len(beginning.rstrip("…"))]
    assert 12 <= len(beginning) <= MAX_LINE + 1
