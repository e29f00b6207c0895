"""What a server is called that is given by its command."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.supervisor.cli.command_names import LONGEST, name_of_command

FOLDER = "/home/ann/weather"

NAMES = {
    "uvx mcp-server-time --local-timezone UTC": "mcp-server-time",
    "uvx mcp-server-time@latest": "mcp-server-time",
    "uvx mcp-server-git==2026.1": "mcp-server-git",
    "uvx mcp-server-git[ssh]>=1": "mcp-server-git",
    "uvx --from git+https://token@github.com/oraios/serena@v1 serena start-mcp-server": "serena",
    "uvx --from awslabs-core --python 3.12 --with boto3 awslabs.core-mcp-server@latest": "awslabs.core-mcp-server",
    "uvx git+https://user:pass@github.com/oraios/serena.git@v1.2": "serena",
    "uv tool run --from P X": "X",
    "uv run X": "X",
    "uv run server.py": "weather",
    "uv run --directory /srv/maps server.py": "maps",
    "uv --directory /srv/maps run server.py": "maps",
    "uv --directory tides run --with mcp mcp run src/server.py:app": "tides",
    "uv run --with mcp[cli] mcp run forecast.py": "forecast",
    "uv run python -m tides.server": "tides",
    "uv run -m tides": "tides",
    "uv run --with=fastmcp fastmcp run -t stdio maps.py:mcp": "maps",
    "uv pip list": "uv",
    "pipx run --spec P mcp-server-time": "mcp-server-time",
    "poetry run maps-server": "maps-server",
    "npx -y @modelcontextprotocol/server-filesystem@2026.8.31 /data": "server-filesystem",
    "npx --yes --package=P X": "X",
    "npx -y -- tavily-mcp@0.2": "tavily-mcp",
    "npx @playwright/mcp@latest --headless": "playwright",
    "npx -y @sentry/mcp-server": "sentry",
    "npx -y github:ann/tides#v1": "tides",
    "npx ann/tides": "tides",
    "npx git@github.com:ann/tides.git": "tides",
    "npx -y ./packages/maps": "maps",
    "npm exec --yes -- @scope/maps": "maps",
    "npm run start": "npm",
    "pnpm dlx maps": "maps",
    "bunx --bun maps@1": "maps",
    "bun run --watch src/index.ts": "weather",
    "bun --cwd /srv/maps index.ts": "maps",
    "bun run start": "bun",
    "node dist/index.js": "weather",
    "node /srv/maps/build/index.js --token s": "maps",
    "node --env-file .env --no-warnings /srv/maps/server.mjs": "maps",
    "/usr/bin/node24 /x/node_modules/@modelcontextprotocol/server-git/dist/index.js": "server-git",
    "/usr/bin/node /x/node_modules/@playwright/mcp/cli.js": "playwright",
    "node forecast.js": "forecast",
    "node -e 1": "node",
    "node": "node",
    "tsx src/main.ts": "weather",
    "python -m mcp_server_time": "mcp_server_time",
    "python3.12 -m tides.mcp.server": "tides",
    "python3 -Im tides": "tides",
    "python3 -X dev -W ignore -um tides.__main__": "tides",
    "python server.py": "weather",
    "/srv/maps/.venv/bin/python /srv/maps/src/maps_server/__main__.py": "maps_server",
    "python -m mcp run tides.py": "tides",
    "python -m server": "server",
    "python -c 1": "python",
    "python -": "python",
    "deno run -A --allow-net=x.example jsr:@scope/maps@1/server": "maps",
    "deno run --config d.json npm:@scope/maps@1": "maps",
    "deno run -RN https://deno.example/x/maps@v1/mod.ts?token=s": "maps",
    "deno task start": "deno",
    "docker run -i --rm -e A=B -v /a:/b ghcr.io/github/github-mcp-server:v1 stdio": "github-mcp-server",
    "docker run -it --rm -eA=B --env C=D mcp/time": "time",
    "docker run --rm -i localhost:5000/maps@sha256:0123": "maps",
    "docker --context far container run --init ann/mcp-server:2": "ann",
    "docker run --brand-new value image": "docker",
    "docker exec -i tides node x.js": "tides",
    "docker compose run x": "docker",
    "podman run -i --rm docker.io/mcp/fetch": "fetch",
    "env -u X TOKEN=s A=b npx -y maps": "maps",
    "env -S 'TOKEN=s npx maps'": "env",
    "bash start.sh": "weather",
    "cmd /c npx -y @scope/maps@1.2": "maps",
    "cmd.exe /C node dist/index.js": "weather",
    "cmd /c": "cmd",
    "cmd /k npx maps": "cmd",
    "bash -lc 'TOKEN=s maps'": "bash",
    "java -Dtoken=s -Xmx1g -jar target/maps.jar": "maps",
    "/srv/maps/.venv/bin/mcp-server": "maps",
    "/bin/some-server.sh -v": "some-server",
    "mcp-server-time": "mcp-server-time",
    "./run": "weather",
    "server": "server",
    "\N{SNOWMAN}": "server",
}


@pytest.mark.parametrize(("command", "name"), NAMES.items(), ids=NAMES)
def test_it_is_called_after_what_runs(command, name):
    words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", command)]
    assert name_of_command(words, FOLDER) == name


LAUNCHERS = {
    "npx": (["npx"], "-y --yes -q --bun", "-p --package --registry", "@scope/tides@1.2"),
    "uvx": (["uvx"], "-q --offline --no-cache", "--from --with --python -p", "tides==1.2"),
    "uv run": (["uv", "run"], "--frozen --no-project", "--with --project --extra", "tides"),
    "node": (["node"], "--no-warnings", "-r --import --env-file", "/srv/tides/dist/index.js"),
    "python": (["python3.12"], "-u -Is", "-W -X", "/srv/tides/server.py"),
    "bun": (["bun", "run"], "--watch --hot", "--cwd", "/srv/tides/index.ts"),
    "deno": (["deno", "run"], "-A -RN --allow-net --no-prompt", "-c --config", "/srv/tides/main.ts"),
    "docker": (["docker", "run"], "-i --rm -it --init", "-e --env -v --name --network -p -u", "ghcr.io/ann/tides:1"),
}
"""How a server called `tides` is started: its launcher, options without and with a value, and what runs."""
SECRET = "s3cr3t"


@st.composite
def options(draw, alone, valued):
    """Options in any order and way, each of whose values holds a secret."""
    words = []
    for option in draw(st.lists(st.sampled_from([*alone.split(), *valued.split()]), max_size=6)):
        value = draw(st.sampled_from(["", "A=", "/x/", "-"])) + SECRET
        if option in alone.split():
            words.append(option)
        else:
            words += draw(st.sampled_from([[option, value], [f"{option}={value}"]]))
    return words


@given(st.data())
def test_options_before_it_change_nothing_and_are_in_no_name(data):
    start, alone, valued, what = LAUNCHERS[data.draw(st.sampled_from(sorted(LAUNCHERS)))]
    command = [*start, *data.draw(options(alone, valued)), what, "--token", SECRET, SECRET]
    assert name_of_command(command, FOLDER) == "tides"


@given(st.data())
def test_nothing_behind_an_option_that_is_not_known_is_in_a_name(data):
    start, alone, valued, what = LAUNCHERS[data.draw(st.sampled_from(sorted(LAUNCHERS)))]
    command = [*start, *data.draw(options(alone, valued)), "--brand-new", SECRET, what]
    assert SECRET not in name_of_command(command, FOLDER)


WORDS = st.one_of(
    st.sampled_from(sorted({word for command in NAMES for word in command.split()})), st.text(min_size=1), st.just("--")
)


@example(["npx", "@/"])
@example(["uvx", "https://[x"])
@example(["docker", "run", ":"])
@example(["mcp"])
@given(st.lists(WORDS, min_size=1, max_size=8))
def test_any_command_has_a_valid_name(command):
    name = name_of_command(command, FOLDER)
    assert re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST - 1}}}", name)
