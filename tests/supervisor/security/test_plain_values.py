"""Which names tell that something is secret, and which values are none under a name that says nothing. Pure."""

import pytest

from mcp_nursery.supervisor.security.secret_values import is_plain, is_secret

TELLING = [
    "PGPASS",
    "USERPASS",
    "dbpass",
    "ROOTPW",
    "MYSQL_PWD",
    "DBPWD",
    "OTP_CODE",
    "otpCode",
    "MFA_CODE",
    "TOTP",
    "PIN_CODE",
    "RECOVERY_CODES",
    "backup-code",
    "LOGIN_CODE",
    "AUTH_HEADER",
    "authHeader",
    "AUTH_BASIC",
    "AUTH_STRING",
    "SSHKEY",
    "GPGKEY",
    "HMAC",
    "SEED_PHRASE",
    "API_KEY",
    "AUTH",
    "SMTP_PASSWD",
    "GH_TOKEN",
]
SAYING_NOTHING = [
    "BYPASS",
    "PROXY_BYPASS",
    "COMPASS",
    "OVERPASS",
    "OLDPWD",
    "COUNTRY_CODE",
    "LANG_CODE",
    "EXIT_CODE",
    "CODE",
    "HEADER",
    "AUTHOR",
    "KEYBOARD",
    "TURKEY",
    "MONKEY",
]
PLAIN = [
    "xterm-256color",
    "tmux-256color",
    "llama3.1:8b",
    "qwen2.5-coder:32b",
    "deepseek-r1:14b",
    "mistral-7b-instruct-v0.3",
    "m5.2xlarge",
    "utf8mb4",
    "ssh-ed25519",
    "arn:aws:iam::123456789012:role/my-role",
    "arn:aws:s3:::my-bucket",
    "arn:aws:lambda:us-east-1:123456789012:function:notes",
    "gpt-4o-mini",
    "claude-sonnet-4-5",
    "nvidia/cuda:12.4.1-base-ubuntu22.04",
    "postgres:16-alpine",
]
LIKE_KEYS = [
    "8f14e45f-ceea-467f",
    "a1b2:c3d4",
    "q7x2-9k4m-x3p8-w5t1",
    "user:hunter",
    "x1-y2-z3-q4",
    "a1b-2c3-d4e",
    "arn:aws:sqs:us-east-1:123456789012:Xk29fQz71LmPw8Rt",
    "256colorX9",
    "ed25519ab12cd",
    "123456789012345",
    "wqzxkvjtpb",
]


@pytest.mark.parametrize("name", TELLING)
def test_a_name_that_tells(name):
    assert is_secret(name, "horse")


@pytest.mark.parametrize("name", SAYING_NOTHING)
def test_a_name_that_says_nothing(name):
    assert not is_secret(name, "horse")


@pytest.mark.parametrize("header", ["Authorization", "X-Api-Key"])
def test_the_name_of_a_header_is_no_secret(header):
    assert not is_secret("AUTH_HEADER", header)


@pytest.mark.parametrize("value", PLAIN)
def test_what_people_write(value):
    assert is_plain(value)


@pytest.mark.parametrize("value", LIKE_KEYS)
def test_what_keys_look_like(value):
    assert not is_plain(value)
