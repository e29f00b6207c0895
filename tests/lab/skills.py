"""A scripted server with skills, whose entries and files a test may change at any time."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import trio
from attrs import define, field

from mcp_nursery.actors.extensions import SKILLS
from mcp_nursery.supervisor.testing import Life, Refusal, ScriptedServer

MAIN = "---\nname: {name}\ndescription: {description}\n---\n\n# {name}\n"
GIT = "skill://git-workflow"
FORMS = "skill://acme/pdf"


def main(name: str, description: str = "It helps") -> str:
    """The text of a `SKILL.md`."""
    return MAIN.format(name=name, description=description)


def entry(root: str, files: Mapping[str, str | bytes], **frontmatter: Any) -> dict[str, Any]:
    """The entry of a skill in this folder with these files, by path."""
    return {
        "uri": f"{root}/SKILL.md",
        "frontmatter": {"name": root.rpartition("/")[2], "description": "It helps", **frontmatter},
        "resources": [resource(f"{root}/{path}", content) for path, content in files.items()],
    }


def resource(uri: str, content: str | bytes) -> dict[str, Any]:
    """A file in the entry of a skill."""
    raw = content.encode() if isinstance(content, str) else content
    return {"uri": uri, "digest": f"sha256:{sha256(raw).hexdigest()}", "size": len(raw)}


@define
class SkillServer:
    """A server whose skills are in `entries`, and whose files are in `files`, by URI."""

    entries: list[dict[str, Any]] = field(factory=list)
    files: dict[str, str | bytes] = field(factory=dict)
    pages: int = 1000
    """Entries of a page."""
    folders: dict[str, list[dict[str, Any]]] = field(factory=dict)
    """The children of folders, by URI."""
    listed: int | None = None
    """The number of entries that are listed; None: all."""
    endless: bool = False
    """True if each page names another, with the entries of the first."""
    server: ScriptedServer = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.live(Life(modern=True))

    def live(self, *lives: Life) -> "SkillServer":
        """Take other lives."""
        self.server = ScriptedServer(*lives, resources={"{+uri}": self._read})
        self.server.capabilities["extensions"] = {SKILLS: {"directoryRead": True}}
        self.server.answers.update(
            {"skills/list": self._list, "skills/get": self._get, "resources/directory/read": self._folder}
        )
        return self

    def add(self, root: str, files: Mapping[str, str | bytes], **frontmatter: Any) -> "SkillServer":
        """Offer a skill."""
        self.entries.append(entry(root, files, **frontmatter))
        self.files.update({f"{root}/{path}": content for path, content in files.items()})
        return self

    @property
    def asked(self) -> list[str]:
        """The requests so far: each as the method and its URI."""
        return [f"{method} {params.get('uri', '')}".rstrip() for _, method, params in self.server.requests]

    async def _list(self, params: dict[str, Any]) -> object:
        await trio.lowlevel.checkpoint()
        entries, at = self.entries[: self.listed], int(params.get("cursor", 0))
        more = {"nextCursor": str(at + self.pages)} if self.endless or at + self.pages < len(entries) else {}
        at = at % len(entries) if self.endless else at
        return {"skills": entries[at : at + self.pages], "ttlMs": 0, "cacheScope": "private", **more}

    async def _get(self, params: dict[str, Any]) -> object:
        await trio.lowlevel.checkpoint()
        for each in self.entries:
            if each["uri"] == params["uri"]:
                return {"skill": each, "ttlMs": 0, "cacheScope": "private"}
        raise Refusal(-32602, "no such skill")

    async def answer(self, result: dict[str, Any]) -> object:
        """Answer with this."""
        await trio.lowlevel.checkpoint()
        return result

    async def _folder(self, params: dict[str, Any]) -> object:
        await trio.lowlevel.checkpoint()
        if params["uri"] not in self.folders:
            raise Refusal(-32602, "no such folder")
        return {"resources": self.folders[params["uri"]]}

    async def _read(self, params: dict[str, Any]) -> object:
        await trio.lowlevel.checkpoint()
        return self.files[params["uri"]]


def git() -> SkillServer:
    """A server with one skill."""
    return SkillServer().add(GIT, {"SKILL.md": main("git-workflow"), "references/GUIDE.md": "Commit often.\n"})
