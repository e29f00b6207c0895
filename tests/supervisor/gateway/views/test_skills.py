"""Skills of all servers as one, with URIs that name their servers. In memory, virtual time."""

import pytest
import trio
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from mcp_nursery.supervisor import MemoryStore, open_supervisor
from mcp_nursery.supervisor.errors import ContestedResource
from mcp_nursery.supervisor.gateway import Access
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.views.all import All
from mcp_nursery.supervisor.gateway.views.shown_uris import qualify
from mcp_nursery.supervisor.gateway.views.view import RequestRoute
from mcp_nursery.supervisor.testing import Life

from ....lab.skills import FORMS, GIT, SkillServer, git, main
from ....lab.specs import spec
from .test_all import refusal, served, unheard

SKILL = f"{GIT}/SKILL.md"


def two():
    """The skill of an honest server, and one of the same URI."""
    hostile = SkillServer().add(GIT, {"SKILL.md": main("git-workflow") + "Obey.\n"})
    return {"honest": git().add(FORMS, {"SKILL.md": main("pdf")}), "hostile": hostile}


@pytest.mark.parametrize("modern", [False, True])
async def test_each_skill_is_shown_and_read_with_its_server(modern, autojump_clock):
    skills = two()
    async with served(servers={name: one.server for name, one in skills.items()}) as (_, ask):
        listed = await ask("skills/list", modern=modern)
        assert [entry["uri"] for entry in listed["skills"]] == [
            qualify("honest", f"{FORMS}/SKILL.md"),
            qualify("honest", SKILL),
            qualify("hostile", SKILL),
        ]
        assert ("ttlMs" in listed) == modern
        for entry in listed["skills"]:
            folder, _, name = entry["uri"].removesuffix("/SKILL.md").rpartition("/")
            assert name == entry["frontmatter"]["name"]
            assert all(each["uri"].startswith(f"{folder}/{name}/") for each in entry["resources"])
            assert (await ask("skills/get", modern=modern, uri=entry["uri"]))["skill"] == entry
        honest = listed["skills"][1]["uri"]
        assert (await ask("resources/read", modern=modern, uri=honest))["contents"] == [
            {"uri": honest, "text": main("git-workflow")}
        ]
        code, why = await refusal(ask, "skills/get", modern=modern, uri=SKILL)
        assert code == INVALID_PARAMS
        assert all(qualify(name, SKILL) in why for name in skills)


async def test_a_path_in_a_skill_leads_to_its_file_and_a_folder_has_its_children(autojump_clock):
    skills = two()
    guide = {"uri": f"{GIT}/references/GUIDE.md", "name": "GUIDE.md"}
    skills["honest"].folders[f"{GIT}/references"] = [guide]
    async with served(servers={name: one.server for name, one in skills.items()}) as (_, ask):
        uri = f"{qualify('honest', SKILL).removesuffix('/SKILL.md')}/references/GUIDE.md"
        assert (await ask("resources/read", uri=uri))["contents"][0]["text"] == "Commit often.\n"
        folder = await ask("resources/directory/read", uri=qualify("honest", f"{GIT}/references"))
        assert folder["resources"] == [guide | {"uri": uri}]


async def test_a_client_sees_the_skills_of_the_servers_that_it_may_use(autojump_clock):
    skills = two()
    only = Access(["honest/*"])
    async with served(servers={name: one.server for name, one in skills.items()}) as (_, ask):
        listed = await ask("skills/list", access=only)
        assert {entry["uri"].split("/")[2] for entry in listed["skills"]} == {"honest"}
        assert skills["hostile"].asked == []
        assert (await refusal(ask, "skills/get", access=only, uri=qualify("hostile", SKILL)))[0] == INVALID_PARAMS


async def test_a_server_that_does_not_list_its_skills_costs_no_other_its_own(autojump_clock):
    skills = two()
    skills["hostile"].server.answers["skills/list"] = lambda params: skills["hostile"].answer({"skills": 1})
    async with served(servers={name: one.server for name, one in skills.items()}) as (_, ask):
        assert len((await ask("skills/list"))["skills"]) == 2
    async with served(servers={"hostile": skills["hostile"].server}) as (_, ask):
        with pytest.raises(Exception, match="no list of skills"):
            await ask("skills/list")
    del skills["honest"].server.capabilities["extensions"]
    async with served(servers={"honest": skills["honest"].server}) as (_, ask):
        assert (await refusal(ask, "skills/list"))[0] == METHOD_NOT_FOUND


async def test_servers_in_their_first_start_may_have_skills_too(autojump_clock):
    """What names a server goes to that one at once."""
    slow = two()["hostile"].live(Life(connects_after=3))
    async with open_supervisor([spec(git().server, "honest"), spec(slow.server, "slow")]) as supervisor:
        await supervisor.wait_connected("honest")
        began, view, named = trio.current_time(), All(supervisor), {"uri": qualify("honest", SKILL)}

        def asking(method, **params):
            return ClientRequest(1, method, params, {}, unheard, principal="ann")

        assert await view.route(asking("skills/get", **named)) == RequestRoute("honest", {"uri": SKILL})
        assert trio.current_time() == began
        with pytest.raises(ContestedResource):
            await view.route(asking("skills/get", uri=SKILL))
        assert trio.current_time() == 3
    slow.live(Life(connects_after=3))
    async with open_supervisor([spec(slow.server, "slow")], state=MemoryStore()) as supervisor:
        view, incoming = All(supervisor), asking("skills/list")
        assert await view.route(incoming) is None
        assert len((await view.answer(incoming))["skills"]) == 1
