"""What processes wrote to stderr before they failed, as they wrote it, and which line of it is shown."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.decisions.error_line import find_cause, way_out
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.specs import spec

TAILS = {
    "npx, no such package": (
        """npm warn Unknown user config "nodedir". This will stop working in the next major version of npm.
npm error code E404
npm error 404 Not Found - GET https://registry.npmjs.org/@modelcontextprotocol%2fserver-nonexistent-xyz
npm error 404
npm error 404  The requested resource '@modelcontextprotocol/server-nonexistent-xyz@*' could not be found or you do \
not have permission to access it.
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git url.
npm error A complete log of this run can be found in: /root/.npm/_logs/2026-11-22T17_59_12_721Z-debug-0.log""",
        "npm error code E404: 404 Not Found - GET "
        "https://registry.npmjs.org/@modelcontextprotocol%2fserver-nonexistent-xyz",
    ),
    "npm, no such script": (
        """npm error Missing script: "nothing"
npm error
npm error To see a list of scripts, run:
npm error   npm run
npm error A complete log of this run can be found in: /root/.npm/_logs/2026-11-22T17_59_17_958Z-debug-0.log""",
        'npm error: Missing script: "nothing"',
    ),
    "npm, no package.json, an older version": (
        """npm ERR! code ENOENT
npm ERR! syscall open
npm ERR! path /tmp/package.json
npm ERR! errno -2
npm ERR! enoent Could not read package.json: Error: ENOENT: no such file or directory, open '/tmp/package.json'
npm ERR! enoent

npm ERR! A complete log of this run can be found in: /root/.npm/_logs/x.log""",
        "npm error code ENOENT: enoent Could not read package.json: Error: ENOENT: no such file or directory, "
        "open '/tmp/package.json'",
    ),
    "npm, what it ran failed": (
        """/app/server.js:3
throw new Error("TOKEN is not set")
^

Error: TOKEN is not set
    at Object.<anonymous> (/app/server.js:3:7)

Node.js v20.20.2
npm error Lifecycle script `start` failed with error:
npm error code 1
npm error path /app""",
        "Error: TOKEN is not set",
    ),
    "Node, thrown": (
        """[eval]:1
throw new Error("DATABASE_URL is not set")
^

Error: DATABASE_URL is not set
    at [eval]:1:7
    at runScriptInThisContext (node:internal/vm:209:10)
    at node:internal/main/eval_string:51:3

Node.js v20.20.2""",
        "Error: DATABASE_URL is not set",
    ),
    "Node, no such file": (
        """node:internal/modules/cjs/loader:1210
  throw err;
  ^

Error: Cannot find module '/app/missing.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1207:15)
    at node:internal/main/run_main_module:28:49 {
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}

Node.js v20.20.2""",
        "Error: Cannot find module '/app/missing.js'",
    ),
    "Node, no such package": (
        """node:internal/modules/esm/resolve:873
  throw new ERR_MODULE_NOT_FOUND(packageName, fileURLToPath(base), null);
        ^

Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'nope' imported from /app/[eval1]
    at packageResolve (node:internal/modules/esm/resolve:873:9)
    at #cachedDefaultResolve (node:internal/modules/esm/loader:657:25) {
  code: 'ERR_MODULE_NOT_FOUND'
}

Node.js v20.20.2""",
        "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'nope' imported from /app/[eval1]",
    ),
    "Python, a traceback": (
        """Traceback (most recent call last):
  File "<string>", line 3, in <module>
  File "/lib/python3.11/json/decoder.py", line 353, in raw_decode
    obj, end = self.scan_once(s, idx)
               ^^^^^^^^^^^^^^^^^^^^^^
json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)""",
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
    "Python, one exception from another": (
        """Traceback (most recent call last):
  File "<string>", line 2, in <module>
ZeroDivisionError: division by zero

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "<string>", line 4, in <module>
RuntimeError: no database""",
        "RuntimeError: no database",
    ),
    "Python, an exception group": (
        """  + Exception Group Traceback (most recent call last):
  |   File "/app/server.py", line 8, in <module>
  |     anyio.run(main)
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/app/server.py", line 4, in main
    |     raise ValueError("TOKEN is not set")
    | ValueError: TOKEN is not set
    +------------------------------------""",
        "ValueError: TOKEN is not set",
    ),
    "pydantic": (
        """Traceback (most recent call last):
  File "/app/server.py", line 9, in <module>
    Settings()
pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings
api_key
  Field required [type=missing, input_value={}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.11/v/missing""",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings api_key "
        "Field required [type=missing, input_value={}, input_type=dict]",
    ),
    "Python, no such module": (
        "/usr/bin/python3: No module named mcp_server_none",
        "/usr/bin/python3: No module named mcp_server_none",
    ),
    "argparse": (
        "usage: srv [-h] --token TOKEN\nsrv: error: the following arguments are required: --token",
        "srv: error: the following arguments are required: --token",
    ),
    "an error, then the usage": ("Error: missing API key\nUsage: srv --key K", "Error: missing API key"),
    "usage alone": (
        "Usage: mcp-server-filesystem [allowed-directory] [additional-directories...]\nNote: Allowed directories can "
        "be provided via:\n  1. Command-line arguments",
        "Usage: mcp-server-filesystem [allowed-directory] [additional-directories...]",
    ),
    "dash": ("sh: 1: foo-server: not found", "sh: 1: foo-server: not found"),
    "bash": ("bash: line 1: foo-server: command not found", "bash: line 1: foo-server: command not found"),
    "uv, no such package": (
        """error: No solution found when resolving tool dependencies
  cause: Because mcp-none was not found in the package registry and you require mcp-none, we can conclude that your \
requirements are unsatisfiable.""",
        "error: No solution found when resolving tool dependencies cause: Because mcp-none was not found in the "
        "package registry and you require mcp-none, we can conclude that your requirements are unsatisfiable.",
    ),
    "Rust": (
        "thread 'main' panicked at src/main.rs:5:9:\nTOKEN is missing\nnote: run with `RUST_BACKTRACE=1` environment "
        "variable to display a backtrace",
        "thread 'main' panicked at src/main.rs:5:9: TOKEN is missing",
    ),
    "docker": (
        "docker: Error response from daemon: pull access denied for mcp/none, repository does not exist.\n\n"
        "Run 'docker run --help' for more information",
        "docker: Error response from daemon: pull access denied for mcp/none, repository does not exist.",
    ),
    "a banner after the error": (
        "ERROR: port 8080 is already in use\nThank you for using Server Pro!\n=================",
        "ERROR: port 8080 is already in use",
    ),
    "a warning after the error": (
        "2026-11-22 17:59:12 ERROR could not open the index\n2026-11-22 17:59:12 WARNING cache not found, using none",
        "2026-11-22 17:59:12 ERROR could not open the index",
    ),
    "no error at all": ("starting\nloading the model, 45 %\n", "loading the model, 45 %"),
    "nothing": ("\n  \n---\n", None),
}


@pytest.mark.parametrize(("tail", "line"), TAILS.values(), ids=TAILS)
def test_the_line_that_says_why(tail, line):
    assert find_cause(tail) == line


@pytest.mark.parametrize("tail", TAILS)
def test_an_old_line_says_why_only_if_it_looks_like_an_error(tail):
    text, line = TAILS[tail]
    assert find_cause(text, recent=False) == (None if tail == "no error at all" else line)


@example(["Traceback (most recent call last):", "RuntimeError: no database", "npm ERR! syscall open"])
@given(st.lists(st.sampled_from([line for tail, _ in TAILS.values() for line in tail.splitlines()]), max_size=20))
def test_it_is_one_line_and_made_of_what_was_said(lines):
    found = find_cause("\n".join(lines))
    if found is not None:
        assert found == " ".join(found.split())
        said = " ".join("\n".join(lines).replace("ERR!", "error").split())
        assert all(word in said for word in found.replace(":", " ").split())
    else:
        assert not any("Error:" in line for line in lines if not line.startswith("npm"))


UNKNOWN_AUTHORITY = [
    "urllib.error.URLError: <urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get "
    "local issuer certificate (_ssl.c:1006)>",
    "[cause]: Error: unable to verify the first certificate",
    "npm error code SELF_SIGNED_CERT_IN_CHAIN",
    "error: invalid peer certificate: UnknownIssuer",
    "tls: failed to verify certificate: x509: certificate signed by unknown authority",
]


@pytest.mark.parametrize("cause", UNKNOWN_AUTHORITY)
async def test_an_unknown_authority_comes_with_the_variables_that_name_it(cause, autojump_clock):
    async with open_supervisor([spec(ScriptedServer(Life(dies_after=0, stderr=cause)))], gate=1) as supervisor:
        error = supervisor.status()[0].error
    assert cause in error
    assert error.endswith("or NODE_EXTRA_CA_CERTS (Node), in env or in the host's environment")


@pytest.mark.parametrize("cause", ["certificate verify failed: certificate has expired", "Error: no database", ""])
def test_there_is_no_advice_about_other_causes(cause):
    assert way_out(cause) is None


@given(st.text())
def test_it_never_fails(text):
    find_cause(text)
