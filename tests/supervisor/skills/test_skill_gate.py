"""The gate before all that is read while changed skills are held back: no way around it by what a server lists,
declares or answers by now, or by how a URI is written."""

from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.session.lists import FRESH_FOR
from mcp_nursery.supervisor import MemoryStore, NotApproved, open_supervisor
from mcp_nursery.supervisor.errors import InvalidResult, NurseryError, SkillMismatch
from mcp_nursery.supervisor.gateway import open_gateway
from mcp_nursery.supervisor.skills import MOST_SKILLS, NO_SKILLS, Skill
from mcp_nursery.supervisor.storage.store import StoreUnreadable
from mcp_nursery.supervisor.testing import Life, Refusal

from ...lab.skills import FORMS, GIT, SkillServer, main
from ...lab.specs import spec
from ..gateway.views.test_filters import Client
from .test_skill_pins import EVIL, lab, turned, two
from .test_skills import GUIDE, SKILL, allow

DIRECTORY = "resources/directory/read"
NOTE = "note://today"


def refuse(server: SkillServer, method: str) -> None:
    """Have a server answer this with an error."""

    async def answer(params):
        raise Refusal(-32601, "Method not found")

    server.server.answers[method] = answer


def lists_none(server: SkillServer) -> None:
    server.listed = 0


def has_none(server: SkillServer) -> None:
    server.listed = 0
    refuse(server, "skills/get")


def declares_none(server: SkillServer) -> None:
    del server.server.capabilities["extensions"]


def cannot_list(server: SkillServer) -> None:
    refuse(server, "skills/list")


def lists_many(server: SkillServer) -> None:
    fillers = SkillServer()
    for number in range(MOST_SKILLS):
        fillers.add(f"skill://f{number}", {"SKILL.md": main(f"f{number}")})
    server.entries[:0] = fillers.entries


def lists_pages(server: SkillServer) -> None:
    server.pages = 1
    for number in range(120):
        server.add(f"skill://f{number}", {"SKILL.md": main(f"f{number}")})
    server.entries.append(server.entries.pop(0))


def gives_another(server: SkillServer) -> None:
    server.server.answers["skills/get"] = lambda params: server.answer({"skill": server.entries[1]})
    server.listed = 0


WAYS = [lists_none, has_none, declares_none, cannot_list, lists_many, lists_pages, gives_another]


@asynccontextmanager
async def second_run(change=turned, *, first=None, modern=True, pins="block", **options):
    """A supervisor of a server that has `turned` since its skills were pinned, and the server."""
    store, server = MemoryStore(), first or two().live(Life(modern=modern))
    server.files[NOTE] = "Rain."
    async with open_supervisor([lab(server)], gate=10, state=store, pins="block") as supervisor:
        await supervisor.list_skills()
    change(server)
    server.server.requests.clear()
    async with open_supervisor([lab(server)], gate=10, state=store, pins=pins, approve=allow, **options) as supervisor:
        yield supervisor, server


async def text_for_model(supervisor, uri: str) -> str:
    return (await supervisor.as_toolset().run("read_mcp_resource", {"uri": uri, "server": "lab"})).text


async def check_refused(supervisor, uri: str, error: type[Exception] = NurseryError) -> None:
    """Nobody gets anything of this URI."""
    for read in (
        lambda: supervisor.read_resource(uri, server="lab", refresh=True),
        lambda: supervisor.request("lab", "resources/read", {"uri": uri}),
        lambda: supervisor.read_skill_file(uri, server="lab"),
    ):
        with pytest.raises(error):
            await read()
    assert EVIL not in await text_for_model(supervisor, uri)


# -- the pins say what belongs to a skill -----------------------------------------------------------------------------


@pytest.mark.parametrize("modern", [True, False], ids=["modern", "handshake"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_file_of_a_pinned_skill_is_held_whatever_its_server_lists_or_declares_now(way, modern, autojump_clock):
    def change(server):
        turned(server)
        way(server)

    async with second_run(change, modern=modern) as (supervisor, _):
        for uri in (GUIDE, SKILL):
            await check_refused(supervisor, uri)


async def test_a_pinned_skill_that_is_as_it_was_is_read_also_if_it_is_not_listed(autojump_clock):
    async with second_run(lists_none) as (supervisor, server):
        for _ in range(2):
            assert (await supervisor.read_resource(GUIDE, server="lab", refresh=True)).full_text == "Commit often.\n"
        assert server.asked.count(f"skills/get {SKILL}") == 1  # true for as long as the list is
        assert (await supervisor.request("lab", "resources/read", {"uri": GUIDE})).result["contents"]


@pytest.mark.parametrize("way", [lists_none, has_none, declares_none])
async def test_what_is_held_is_not_forgotten_by_a_list_or_a_reconnect(way, autojump_clock):
    server = two()
    async with open_supervisor([lab(server)], gate=10, state=MemoryStore(), pins="block", approve=allow) as supervisor:
        await supervisor.list_skills()
        turned(server)
        assert len(await supervisor.list_skills(refresh=True)) == 1
        way(server)
        if way is declares_none:
            await supervisor.reconnect("lab")
            await supervisor.wait_connected("lab")
        await supervisor.list_skills(refresh=True)
        assert [change.tool for change in supervisor.definition_changes] == [SKILL]  # a person can accept it
        await check_refused(supervisor, GUIDE, NurseryError if way is declares_none else NotApproved)


async def test_two_skills_whose_folders_read_alike_are_both_asked_for(autojump_clock):
    server = two().add("skill://Git-Workflow", {"SKILL.md": main("Git-Workflow"), "references/GUIDE.md": "Other.\n"})

    def change(server):
        server.entries[2]["resources"] = "dynamic"
        server.listed = 2

    async with second_run(change, first=server) as (supervisor, _):
        with pytest.raises(NotApproved, match=r"skill://Git-Workflow/SKILL\.md: not approved"):
            await supervisor.read_resource("skill://Git-Workflow/references/GUIDE.md", server="lab")


class Locked(MemoryStore):
    def pinned(self, server, spec):
        raise StoreUnreadable("/state: it cannot be used: a stone")


async def test_while_the_pins_cannot_be_read_nothing_is_that_may_be_of_a_skill(autojump_clock, caplog):
    server = two()
    declares_none(server)
    async with open_supervisor([lab(server)], gate=10, state=Locked(), pins="block") as supervisor:
        with pytest.raises(NotApproved, match="the pins cannot be read"):
            await supervisor.read_resource(GUIDE, server="lab")
        assert "a stone" in caplog.text


@pytest.mark.parametrize("way", [has_none, declares_none])
async def test_what_another_host_has_pinned_is_of_a_skill_here_too(way, autojump_clock):
    store, server, seen = MemoryStore(), two(), two()
    server.files[NOTE] = "Rain."
    turned(server)
    way(server)
    options = {"gate": 10, "state": store, "pins": "block", "approve": allow}
    async with open_supervisor([lab(server)], **options) as supervisor:
        assert (await supervisor.read_resource(NOTE, server="lab")).full_text == "Rain."
        async with open_supervisor([lab(seen)], **options) as other:
            await other.list_skills()
        await trio.sleep(FRESH_FOR + 1)
        await check_refused(supervisor, GUIDE)


# -- what is known is asked for again ---------------------------------------------------------------------------------


@pytest.mark.parametrize("modern", [True, False], ids=["modern", "handshake"])
@pytest.mark.parametrize("how", ["time", "reconnect"])
async def test_a_known_skill_is_asked_for_again_before_its_files_are_read(how, modern, autojump_clock):
    server = two().live(Life(modern=modern))
    async with open_supervisor([lab(server)], gate=10, state=MemoryStore(), pins="block", approve=allow) as supervisor:
        await supervisor.list_skills()
        turned(server)
        if how == "time":
            await trio.sleep(FRESH_FOR + 1)
        else:
            await supervisor.reconnect("lab")
            await supervisor.wait_connected("lab")
        await check_refused(supervisor, GUIDE, NotApproved)


async def test_a_list_that_began_before_a_reconnect_is_not_true_after_it(autojump_clock):
    server = two()
    server.pages = 1
    async with open_supervisor([lab(server)], gate=10, state=MemoryStore(), pins="block") as supervisor:
        await supervisor.list_skills()

        async def turn(params):
            if "cursor" in params and server.files[GUIDE] != EVIL:
                turned(server)
                await supervisor.reconnect("lab")
            return await server._list(params)

        server.server.answers["skills/list"] = turn
        await supervisor.list_skills(refresh=True)
        assert server.files[GUIDE] == EVIL
        with pytest.raises(NotApproved):
            await supervisor.read_resource(GUIDE, server="lab")


async def test_an_instance_of_a_session_has_the_pins_of_the_first(autojump_clock):
    server = two()
    options = {"gate": 10, "state": MemoryStore(), "pins": "block"}
    async with open_supervisor([spec(server.server)], **options) as supervisor:  # nothing of it lasts
        await supervisor.list_skills()
        turned(server)
        async with supervisor.open_instance("lab") as instance:
            with pytest.raises(NotApproved):
                await instance.request("lab", "resources/read", {"uri": GUIDE})


async def test_the_error_says_whether_the_server_was_asked_for_what_is_refused(autojump_clock):
    async with (
        second_run() as (supervisor, server),
        open_gateway(supervisor) as gateway,
        trio.open_nursery() as nursery,
    ):
        client = Client(gateway, nursery, modern=True)

        async def delivery(method: str, uri: str) -> str:
            with pytest.raises(JsonRpcError, match="not approved") as refused:
                await client.ask(method, {"uri": uri})
            return refused.value.data["delivery"]

        assert await delivery("resources/read", GUIDE) == "not_sent"
        assert await delivery("skills/get", SKILL) == "answered"
        server.server.answers["resources/read"] = lambda params: server.answer(
            {"contents": [{"uri": GUIDE, "text": EVIL}]}
        )
        assert await delivery("resources/read", NOTE) == "answered"
        for read, expected in ((supervisor.read_resource, "answered"), (supervisor.read_skill_file, "not_sent")):
            with pytest.raises(NotApproved) as refused:
                await read(NOTE if expected == "answered" else GUIDE, server="lab")
            assert refused.value.delivery == expected


async def test_what_is_accepted_is_what_was_seen_and_not_what_the_server_has_since(autojump_clock):
    server = two()
    async with open_supervisor([lab(server)], gate=10, state=MemoryStore(), pins="block", approve=allow) as supervisor:
        await supervisor.list_skills()
        turned(server, description="harmless")
        await supervisor.list_skills(refresh=True)
        turned(server)
        await supervisor.accept_change(*supervisor.definition_changes)
        await check_refused(supervisor, GUIDE, NotApproved)


# -- spellings --------------------------------------------------------------------------------------------------------

SPELLINGS = [
    "skill://git%2Dworkflow/references/GUIDE.md",
    "SKILL://git-workflow/references/GUIDE.md",
    "skill://GIT-workflow/references/GUIDE.md",
    "skill://git-workflow/references/guide.md",
    "skill://git-workflow%2freferences/GUIDE.md",
    "skill://git-workflow/references%5CGUIDE.md",
    "skill://git-workflow/references/../references/GUIDE.md",
    "skill://x/../git-workflow/references/GUIDE.md",
    "skill://x/%2e%2E/git-workflow/SKILL.md",
    "skill://git-workflow?references/GUIDE.md",
    "skill://git-workflow",
]


@pytest.mark.parametrize("uri", SPELLINGS)
async def test_no_spelling_of_a_uri_is_read_while_its_skill_is_held(uri, autojump_clock):
    async with second_run() as (supervisor, server):
        server.files[uri] = EVIL
        await check_refused(supervisor, uri, NurseryError)


@pytest.mark.parametrize("uri", SPELLINGS[:9])
async def test_no_model_reads_another_spelling_unverified(uri, autojump_clock):
    async with second_run(pins="report") as (supervisor, server):
        server.files[uri] = EVIL
        assert EVIL not in await text_for_model(supervisor, uri)


def test_only_a_uri_of_the_scheme_of_a_skill_can_be_unclear():
    (skill,) = SkillServer().add(GIT, {"SKILL.md": main("git-workflow")}).entries
    known = NO_SKILLS.with_some(
        {SKILL: Skill("lab", SKILL, "", "", {}, None, skill)}, NO_SKILLS.review, 9999, whole=True
    )
    for uri in ("skill://a/../b", "SKILL://a%2fb", "skill://a\\b", "%73kill://./a"):
        assert known.is_unclear(uri)
        assert not NO_SKILLS.is_unclear(uri)
    for uri in ("gitlab://group%2Fproject", "note://a/../b", "skill://a.b/..c/c", "skill://a%20b"):
        assert not known.is_unclear(uri)


# -- lists and folders ------------------------------------------------------------------------------------------------


async def test_lists_and_folders_show_nothing_of_what_is_held(autojump_clock):
    def change(server):
        turned(server)
        server.server.resources |= dict.fromkeys((GUIDE, "SKILL://git-workflow/x", NOTE), server._read)
        server.folders["skill://"] = [{"uri": GIT, "name": EVIL}, {"uri": FORMS, "name": "forms"}]
        server.folders[GIT] = [{"uri": GUIDE, "name": EVIL}]

    async with second_run(change) as (supervisor, _):
        assert len(supervisor.resources) == 3
        with pytest.raises(NotApproved):
            await supervisor.list_skill_directory(GIT, server="lab")
        with pytest.raises(NotApproved):
            await supervisor.request("lab", DIRECTORY, {"uri": GIT})
        above = await supervisor.request("lab", DIRECTORY, {"uri": "skill://"})
        assert [each["uri"] for each in above.result["resources"]] == [FORMS]
        assert [each.uri for each in await supervisor.list_resources()] == [NOTE]
        assert supervisor.resources is supervisor.resources
        listed = await supervisor.request("lab", "resources/list")
        assert [each["uri"] for each in listed.result["resources"]] == [NOTE]
        assert "git-workflow" not in (await supervisor.as_toolset().run("list_mcp_resources", {})).text
        assert await supervisor.servers_with(GUIDE) == ("lab",)  # no other server can take it over
        await supervisor.accept_change(*supervisor.definition_changes)
        assert len(supervisor.resources) == 3
        assert len(await supervisor.list_skill_directory(GIT, server="lab")) == 1


# -- results ----------------------------------------------------------------------------------------------------------

REQUESTS = {
    "skills/list": {},
    "skills/get": {"uri": SKILL},
    "resources/read": {"uri": NOTE},
    DIRECTORY: {"uri": "skill://"},
    "resources/list": {},
}


@pytest.mark.parametrize("method", [*REQUESTS][:4])
async def test_a_result_that_asks_for_input_gives_nothing_beside_it(method, autojump_clock):
    async with second_run() as (supervisor, server):
        members = {"skills": server.entries, "skill": server.entries[0], "contents": [{"uri": GUIDE, "text": EVIL}]}
        asking = {"resultType": "input_required", "inputRequests": {}, "requestState": "x"}
        members["resources"] = [{"uri": GUIDE, "name": EVIL}]
        await supervisor.list_skills()
        server.server.answers[method] = lambda params: server.answer(asking | members)
        relayed = await supervisor.request("lab", method, REQUESTS[method], on_question=lambda *args: None)
        assert relayed.result == asking


@pytest.mark.parametrize("method", [*REQUESTS][:4])
async def test_a_task_is_no_result_while_changes_are_held_back(method, autojump_clock):
    async with second_run() as (supervisor, server):
        await supervisor.list_skills()
        for task in ({"resultType": "task", "taskId": "1"}, {"task": {"taskId": "1"}, "contents": [], "skills": []}):
            server.server.answers[method] = lambda params, task=task: server.answer(task)
            with pytest.raises(InvalidResult, match="is not complete"):
                await supervisor.request("lab", method, REQUESTS[method])


async def test_a_page_with_something_held_has_nothing_beside_its_list(autojump_clock):
    async with second_run() as (supervisor, server):
        page = {"skills": server.entries, "nextCursor": "2", "ttlMs": 0, "cacheScope": "private"}
        server.server.answers["skills/list"] = lambda params: server.answer(page | {"_meta": {"x": EVIL}, "y": EVIL})
        listed = await supervisor.request("lab", "skills/list")
        assert listed.result == page | {"skills": server.entries[1:], "resultType": "complete"}


@pytest.mark.parametrize("pins", ["report", "block"])
async def test_what_is_given_under_another_uri_is_of_its_skill_all_the_same(pins, autojump_clock):
    def change(server):
        turned(server)
        contents = [{"uri": "skill://all", "text": "All."}, {"uri": GUIDE, "text": EVIL}]
        caching = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
        server.server.answers["resources/read"] = lambda params: server.answer({"contents": contents, **caching})

    async with second_run(change, pins=pins) as (supervisor, _):
        if pins == "block":
            await check_refused(supervisor, "skill://all")
        assert "must be read by its own URI" in await text_for_model(supervisor, "skill://all") or pins == "block"
        assert EVIL not in await text_for_model(supervisor, "skill://all")


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pins", ["report", "block"])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("uri", [GUIDE, SKILL])
async def test_a_model_reads_nothing_unverified_before_anybody_has_listed(uri, lazy, pins, autojump_clock):
    server = two()
    server.files |= {SKILL: f"{main('git-workflow')}{EVIL}", GUIDE: EVIL}
    one = lab(server, lazy=lazy)
    async with open_supervisor([one], gate=10, state=MemoryStore(), pins=pins, approve=allow) as supervisor:
        if lazy:
            await supervisor.list_tools()
        assert "SkillMismatch" in await text_for_model(supervisor, uri)


async def test_a_model_reads_no_skill_unverified_that_is_not_listed(autojump_clock):
    server = two()
    server.listed = 0
    server.files[SKILL] = f"{main('git-workflow')}{EVIL}"
    async with open_supervisor([spec(server.server)], gate=10, approve=allow) as supervisor:
        assert "SkillMismatch" in await text_for_model(supervisor, SKILL)
        with pytest.raises(SkillMismatch):
            await supervisor.read_skill_file(SKILL)


# -- cost -------------------------------------------------------------------------------------------------------------


class Counting(MemoryStore):
    asked = 0

    def pinned(self, server, spec):
        self.asked += 1
        return super().pinned(server, spec)


@pytest.mark.parametrize("pins", ["report", "block"])
async def test_the_read_of_another_resource_asks_for_nothing_more(pins, autojump_clock):
    server, store = two(), Counting()
    server.files[NOTE] = "Rain."
    declares_none(server)
    async with open_supervisor([lab(server)], gate=10, state=store, pins=pins) as supervisor:
        for _ in range(3):
            await supervisor.read_resource(NOTE, server="lab", refresh=True)
            await supervisor.request("lab", "resources/read", {"uri": NOTE})
        await supervisor.reconnect("lab")
        await supervisor.read_resource(NOTE, server="lab", refresh=True)
        assert server.asked == [f"resources/read {NOTE}"] * 7
        assert store.asked == 2 * (pins == "block")  # once a connection
