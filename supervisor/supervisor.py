"""The supervisor as its host uses it: tools, calls, servers, events."""

import math
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, final

import trio

from mcp_nursery.actors.argument_checks import check_argument, seconds, seconds_or_none, true_or_false
from mcp_nursery.actors.callbacks import Callbacks, Roots
from mcp_nursery.actors.enums import ListKind, ServerState
from mcp_nursery.actors.errors import ConfigError, NurseryError, UnknownTool
from mcp_nursery.actors.extensions import declares
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.reply import AskPeer, NoticeCallback, ProgressCallback
from mcp_nursery.actors.roots import are_roots
from mcp_nursery.actors.threads import SLOW_THREADS

from .calls.approvals import Approvals
from .calls.attempts import deliver
from .calls.call import Call, Resend, Target
from .calls.fan_out import FanOut, Until, open_fan_out
from .calls.kept_tasks import KeptTasks
from .calls.relayed import RelayedCall, RelayedResult, name_in
from .calls.resource_tools import ResourceTools
from .calls.resources_and_prompts import Completing, PromptGet, ResourceRead
from .calls.search_tools import SearchTools
from .calls.skills import (
    SHOWS_SKILLS,
    get_skill,
    known_skills,
    list_all,
    list_directory,
    list_of,
    read_skill_file,
    read_unless_held,
    relay,
)
from .calls.task_handles import Task, TaskBlock
from .calls.tool_call import ToolCall
from .config.config import Config
from .config.specs import ConfigSource, Given, specs_of
from .decisions.restart_policy import WhenDown
from .decisions.state_machine import LEFT_BY_NOBODY, Snapshot
from .decisions.statistics import CallRecord, SupervisorStatistics, statistics_of
from .decisions.task_records import TaskInfo
from .events import EventStream, Reloaded, ReloadFailed, ResourceUpdates
from .notices import Notice
from .resources import Completion, Prompt, PromptResult, Resource, ResourceResult, ResourceTemplate
from .security.redaction import MAX_SAID
from .servers.keeper_commands import Reconnect, Start, Stop
from .servers.servers import Servers
from .servers.view import ServerView
from .session_notes import SessionNotes
from .skills import Skill
from .spec import ServerSpec
from .status import ServerStatus, server_down
from .stderr import LONGEST_LINE, StderrLines
from .tools.approval_rules import Agreement, Approve
from .tools.pins import DefinitionChange
from .tools.tool import Tool
from .tools.tool_result import ToolResult
from .toolset import Toolset

_TOOLS: Final = frozenset([ListKind.TOOLS])
_RESOURCES: Final = frozenset([ListKind.RESOURCES, ListKind.TEMPLATES])
_PROMPTS: Final = frozenset([ListKind.PROMPTS])
_ON_THE_WAY = frozenset({ServerState.CONNECTING, ServerState.CONNECTED})


@final
class Supervisor:
    """The supervisor, which keeps MCP servers running and brings calls to them. Made by `open_supervisor`. One that
    borrows its servers keeps none, and refuses changes to them with a `ConfigError`."""

    def __init__(
        self,
        servers: ServerView,
        resource_tools: ResourceTools,
        search_tools: SearchTools,
        approvals: Approvals,
        source: ConfigSource,
        *,
        tasks: KeptTasks | None,
        open_instance: "Callable[[Servers, str, Approvals, Callbacks | None], AbstractAsyncContextManager[Supervisor]]",
    ) -> None:
        self._servers = servers
        self._resource_tools = resource_tools
        self._search_tools = search_tools
        self._approvals = approvals
        self._source = source
        self._tasks = tasks
        self._open_instance = open_instance

    # -- tools ----------------------------------------------------------------------------------------------------

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The catalogue now, sorted by name: tools of servers that are connected, or may become so by themselves."""
        return self._servers.listed.tools

    def tool(self, name: str, *, server: str | None = None) -> Tool:
        """The tool with this public name.

        Args:
            name: The public name; with `server`, that server's own name of the tool.
            server: The server that has the tool.

        Raises:
            UnknownServer, UnknownTool: There is none of that name now.
        """
        catalogue = self._servers.listed
        tool = catalogue.find(name, server)
        if tool is None:
            if server is not None:
                self._servers.snapshot(server)
            raise UnknownTool(name, server=server, near=catalogue.near(name, server))
        return tool

    async def list_tools(self, server: str | None = None, *, refresh: bool = False) -> tuple[Tool, ...]:
        """The tools, after starting lazy servers and waiting until first attempts are settled. A server that is
        `lazy="cached"` is not started if its tools are cached. Lists that may have changed without an announcement are
        fetched again first: see `refresh_old`.

        Args:
            server: Only this server's.
            refresh: Fetch tools from servers again first, also from those that have to be started for it. A server that
                fails to answer keeps its old ones; so does, at once, one whose circuit breaker is open, or whose last
                lists did not come.

        Raises:
            UnknownServer: No server of that name.
            ServerDown: The server that was named is in a state that only a person ends.
        """
        await self._list(server, _TOOLS, refresh=refresh)
        return self.tools if server is None else tuple(tool for tool in self.tools if tool.server == server)

    async def _list(self, server: str | None, kinds: Collection[ListKind], *, refresh: bool) -> None:
        """Bring lists up to date, as far as possible. See `list_tools`."""
        check_argument("refresh", refresh, true_or_false)
        servers = self._servers
        servers.check_open()
        await servers.update_lists(server, kinds, refresh=refresh)
        if server is not None and (snapshot := servers.snapshot(server).value).state in LEFT_BY_NOBODY:
            raise server_down(snapshot, now=trio.current_time())

    @property
    def unlisted(self) -> tuple[str, ...]:
        """The servers whose offers are not known yet: their first attempt is under way, and nothing of them was cached.
        In the order of configuration."""
        return self._servers.unlisted()

    async def wait_listed(self, server: str) -> None:
        """Wait until a server is not `unlisted`: it is connected, its first attempt has failed, or it was removed.
        Starts no server.

        Raises:
            UnknownServer: No server of that name.
            SupervisorClosed: The block was left.
        """
        await self._servers.wait_listed(server)

    async def refresh_old(self, kind: ListKind, *, server: str | None = None, since: float = math.inf) -> None:
        """Fetch lists of this kind again that may have changed without an announcement: those with `listChanged` false
        and without a `ttlMs`, and those whose `ttlMs` is over. `list_tools` and its like do so, too; this starts no
        server, and waits for none that is not connected.

        A caller waits for 5 seconds at most, callers share one fetch, and no list is fetched more than once a second. A
        list that cannot be fetched stays as it was.

        Args:
            kind: The kind of list.
            server: Only this server's.
            since: The time on Trio's clock from which on a fetch is recent enough, for a caller that was asked for the
                list, and has waited for something else since.
        """
        await trio.lowlevel.checkpoint()
        servers = list(self._servers.snapshots) if server is None else [server]
        await self._servers.refresh_old(servers, [kind], since=since)

    async def find_tool(self, name: str, *, server: str | None = None, when_down: WhenDown | None = None) -> Tool:
        """The tool that a call of this name would go to. Waits for it, and starts servers, as a call does.

        Args:
            name: The public name; with `server`, that server's own name of the tool.
            server: The server that has the tool.
            when_down: As for `call_tool`.

        Raises:
            UnknownServer, UnknownTool: There is none of that name once all first attempts are settled.
            NotApproved: The tool is held back: see `open_supervisor(pins=…)`.
            ServerDown: Its server is in a state in which a call does not wait.
            SupervisorClosed: The block was left.
        """
        found = await Target(ToolCall(Call(name, server=server, when_down=when_down), self._servers)).find()
        assert isinstance(found, Tool)  # as a call of a tool has it
        return found

    async def find_tools(self, query: str, *, server: str | None = None) -> tuple[Tool, ...]:
        """The tools whose names, descriptions, hints and arguments match the query, best first. Only known tools are
        searched: no server is asked.

        Args:
            query: Words for what a tool does, or its name.
            server: Only this server's.

        Raises:
            ConfigError: The SQLite of this Python has no FTS5.
            SupervisorClosed: The block was left.
        """
        self._search_tools.open()
        known = {tool.name for tool in self.tools}
        found = await self._search_tools.search(query)
        return tuple(tool for tool in found if tool.name in known and server in (None, tool.server))

    def as_toolset(self, *, search: bool = False) -> Toolset:
        """The tools as a model's host uses them in its loop; they follow every change of the catalogue.

        Args:
            search: List two tools in place of all: `find_tools`, which gives a model the tools that match its words,
                and `call_tool`, which calls such a tool as if the model had called the tool itself.

        Raises:
            ConfigError: `search` is True, and the SQLite of this Python has no FTS5.
            SupervisorClosed: `search` is True, and the block was left.
        """
        check_argument("search", search, true_or_false)
        if not search:
            return Toolset(self._servers, self._resource_tools)
        self._search_tools.open()
        return Toolset(self._servers, self._search_tools)

    # -- calls ----------------------------------------------------------------------------------------------------

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        when_down: WhenDown | None = None,
        resend: Resend = "safe",
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> ToolResult:
        """Call a tool. The caller's own Trio deadline and cancellation hold as well; the server is notified of both.

        Args:
            name: The public name; with `server`, that server's own name of the tool.
            arguments: A JSON object.
            server: The server that has the tool.
            timeout: Seconds for all of it, waiting for the server included. Default: the server's `call_timeout`,
                then `MCP_TOOL_TIMEOUT` (ms) in the environment, then none.
            idle_timeout: Seconds without progress, from when the call is handed on. Default: none.
            when_down: `"wait"` waits for the server, unless it is in a state that only a person ends; `"fail"` does not
                wait. `"reconnect"`: if the server is `waiting`, its next start begins now; the call waits for that
                attempt, and fails with it. `"hold"` (20 seconds), or a number of seconds: if the server is `waiting`,
                the call is held until it is connected again, for so long at most, and `on_progress` is told of each
                attempt; the next start begins now if the lost connection was stable, else when it is due. Default:
                wait while it is `connecting` or `idle`, fail while it is `waiting`.
            resend: Whether a call whose connection was lost is sent once more: `"safe"` if it was not sent, or the tool
                is read-only or idempotent by hints that are trusted; `"always"`; `"never"`. A call that timed out never
                is.
            on_progress: `async (progress, total, message)`, called in order, before the result.
            meta: Additional `_meta` of the request.

        Raises:
            ValueError: A time, `when_down`, `resend`, `on_progress` or `meta` has a value that is not allowed.
            InvalidArguments: `arguments` is not a JSON object.
            UnknownServer, UnknownTool: There is none of that name once all first attempts are settled.
            NotApproved: The tool is held back: see `open_supervisor(pins=…)`.
            ServerDown, ServerBusy, BreakerOpen: Not sent.
            ConnectionLost, CallTimeout: See their `delivery`.
            ServerError, InvalidResult: The server answered without a valid result; or it asked the host for something
                and was refused, or asked too often.
            SupervisorClosed: The block was left.
        """
        call = Call(
            name,
            arguments,
            server=server,
            timeout=timeout,
            idle_timeout=idle_timeout,
            when_down=when_down,
            resend=resend,
            on_progress=on_progress,
            meta=meta,
        )
        return await deliver(ToolCall(call, self._servers))

    def fan_out(
        self, calls: Iterable[Call], *, until: Until = "all", limit: int | None = None
    ) -> AbstractAsyncContextManager[FanOut]:
        """Make many calls at once; outcomes come as calls finish, and no slow or dead server delays another's.

        ::

            async with supervisor.fan_out([Call("mcp_a_echo", {"n": 1}), Call("mcp_b_echo", {"n": 1})]) as outcomes:
                async for outcome in outcomes: ...

        The iteration ends with the last outcome, or when `until` holds. Then, or when the block is left, calls without
        an outcome are withdrawn, and their servers notified. Errors are outcomes; none is raised.

        Args:
            calls: Each as `call_tool` would be called.
            until: `"all"`, `"first"` (the first success), or how many successes: results without `is_error`.
            limit: How many calls may be under way at once; a call's timeout begins with the call. Default: all of them.

        Raises:
            ValueError: On entering: `until` or `limit` has a value that is not allowed, or a `timeout` is negative.
            SupervisorClosed: The block was left.
        """
        self._servers.check_open()
        return open_fan_out(calls, self._servers, until=until, limit=limit)

    async def gather(self, calls: Iterable[Call], *, limit: int | None = None) -> list[ToolResult | NurseryError]:
        """Make many calls at once. Returns results in the order of the calls, errors in place.

        Args:
            calls: Each as `call_tool` would be called.
            limit: How many may be under way at once. Default: all of them.
        """
        made = list(calls)
        gathered: dict[int, ToolResult | NurseryError] = {}
        async with self.fan_out(made, limit=limit) as outcomes:
            async for outcome in outcomes:
                answer = outcome.result or outcome.error
                assert answer is not None  # an outcome is one or the other
                gathered[outcome.index] = answer
        return [gathered[index] for index in range(len(made))]

    def broadcast(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        until: Until = "all",
        limit: int | None = None,
    ) -> AbstractAsyncContextManager[FanOut]:
        """Call a tool, by the servers' own name of it, on every server that is known to have it. See `fan_out`."""
        parts = self._servers.catalogue.value.parts
        owners = sorted(server for server, part in parts.items() if any(one.tool == tool for one in part.tools))
        return self.fan_out(
            (Call(tool, arguments, server=server, timeout=timeout) for server in owners),
            until=until,
            limit=limit,
        )

    # -- tasks ----------------------------------------------------------------------------------------------------

    @property
    def _kept_tasks(self) -> KeptTasks:
        """The tasks that outlive their callers.

        Raises:
            ConfigError: There can be none here.
        """
        if self._tasks is not None:
            return self._tasks
        raise ConfigError(
            "it borrows its servers, or is another instance of one: the supervisor that keeps them records tasks"
        )

    @property
    def made_tasks(self) -> KeptTasks | None:
        """The tasks that a gateway makes of calls, which outlive it like the rest of the state; None if the supervisor
        borrows its servers."""
        return self._tasks

    async def submit(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        when_down: WhenDown | None = None,
        resend: Resend = "safe",
        meta: Mapping[str, Any] | None = None,
    ) -> Task:
        """Call a tool, and leave the task that its server makes of the call to the supervisor. Returns once the server
        has answered; if with a task, that is recorded in the state by then: after the end of this process, also by
        SIGKILL, `task` of any other with the same state goes on with it. A server that answers with a result gives a
        task that is over, and is not recorded.

        The task goes on when the supervisor is closed; then it waits for the next. Its answers to questions are
        recorded until it is over, its arguments never, its result for an hour.

        Args:
            name: As for `call_tool`.
            arguments: As for `call_tool`.
            server: As for `call_tool`.
            timeout: Seconds until the task is cancelled. Default: the server has its `call_timeout` to answer, and the
                task all the time that it takes.
            when_down: As for `call_tool`, until the server has answered.
            resend: As for `call_tool`.
            meta: As for `call_tool`.

        Raises:
            NurseryError: As for `call_tool`, until the server has answered. Or its task cannot be recorded, and is
                cancelled.
            ConfigError: The servers are borrowed.
        """
        call = Call(name, arguments, server=server, timeout=timeout, when_down=when_down, resend=resend, meta=meta)
        return await self._kept_tasks.start(call)

    def start_task(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        when_down: WhenDown | None = None,
        resend: Resend = "safe",
        meta: Mapping[str, Any] | None = None,
    ) -> TaskBlock:
        """A call as that of `submit`, for as long as a block lasts: a task that is not over when the block is left is
        cancelled. Arguments and errors, on entering, are those of `submit`.

        ::

            async with supervisor.start_task("mcp_reports_build", {"year": 2026}) as task:
                async for info in task.changes(): ...
                result = await task.result()
        """
        call = Call(name, arguments, server=server, timeout=timeout, when_down=when_down, resend=resend, meta=meta)
        return self._kept_tasks.block(call)

    async def tasks(self) -> tuple[TaskInfo, ...]:
        """The recorded tasks, the oldest first: those under way, also of hosts that have ended and of others that share
        the state, and those that finished within the last hour.

        Raises:
            ConfigError: The servers are borrowed.
            SupervisorClosed: The block was left.
            NurseryError: The state cannot be read.
        """
        return await self._kept_tasks.all()

    async def task(self, id: str) -> Task:  # noqa: A002
        """Go on with a recorded task: its server is asked how it is, and questions that nobody has answered go to the
        callbacks of this host. While another host follows it, that host does so; if that host ends, this one takes over
        within ten seconds. The end of a finished task is read from the state.

        Args:
            id: The task's `id`.

        Raises:
            UnknownTask: It is not recorded.
            TaskLost: There is no server of its name here, or it is reached in another way than when it made the task:
                no other server is asked.
            ConfigError: The servers are borrowed.
            SupervisorClosed: The block was left.
            NurseryError: The state cannot be read.
        """
        return await self._kept_tasks.go_on(id)

    # -- resources and prompts ------------------------------------------------------------------------------------

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources now listed by servers whose tools are shown, sorted by URI and server."""
        return self._servers.shown_resources()

    @property
    def resource_templates(self) -> tuple[ResourceTemplate, ...]:
        """The templates of URIs that servers can read now, sorted by template and server."""
        return self._servers.listed.resource_templates

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """The prompts that servers offer now, sorted by name."""
        return self._servers.listed.prompts

    async def list_resources(self, server: str | None = None, *, refresh: bool = False) -> tuple[Resource, ...]:
        """The resources, after starting lazy servers and waiting until first attempts are settled.

        Arguments and errors are those of `list_tools`; a refresh fetches everything that a server lists.
        """
        await self._list(server, _RESOURCES, refresh=refresh)
        return tuple(resource for resource in self.resources if server in (None, resource.server))

    async def list_prompts(self, server: str | None = None, *, refresh: bool = False) -> tuple[Prompt, ...]:
        """The prompts, after starting lazy servers and waiting until first attempts are settled.

        Arguments and errors are those of `list_tools`; a refresh fetches everything that a server lists.
        """
        await self._list(server, _PROMPTS, refresh=refresh)
        return tuple(prompt for prompt in self.prompts if server in (None, prompt.server))

    async def read_resource(
        self,
        uri: str,
        *,
        server: str | None = None,
        timeout: float | None = None,
        when_down: WhenDown | None = None,
        resend: Resend = "safe",
        meta: Mapping[str, Any] | None = None,
        refresh: bool = False,
    ) -> ResourceResult:
        """Read a resource, by its URI as the server writes it.

        A server may state how long the contents stay true: for that time they come from memory, and no server is asked.
        They are read anew after a reconnect, and when the server announces a change of the resource, or of a list.

        Args:
            uri: A URI that a server lists, that matches one of its templates, or of the page of one of its tools, if no
                other server has it, too, nor may have it: first attempts are waited for.
            server: The server to ask, for any URI.
            timeout: As for `call_tool`.
            when_down: As for `call_tool`.
            resend: As for `call_tool`. Reading is safe to repeat: a read whose connection was lost is sent once more.
            meta: Additional `_meta` of the request. With it the server is asked in any case.
            refresh: Ask the server in any case.

        Raises:
            UnknownResource: No server has it, now that all first attempts are settled.
            ContestedResource: Several servers have it, or a server in its first start may have it, too: name the
                server.
            NotApproved: It belongs to a skill that is held back: see `open_supervisor(pins=…)`.
            NurseryError: As for `call_tool`.
        """
        call = Call(uri, server=server, timeout=timeout, when_down=when_down, resend=resend, meta=meta)
        check_argument("refresh", refresh, true_or_false)
        return await read_unless_held(call, self._servers, refresh=refresh)

    async def servers_with(self, uri: str) -> tuple[str, ...]:
        """The servers that list a resource of this URI, have a template that it matches, or a tool whose page it is, in
        the order of configuration. A server that is away has what it listed last. Where there is one, servers with a
        known skill that has the file count as well, and those in their first start with nothing cached.
        Nothing is started or waited for."""
        return tuple(await by_turns(self._servers.claimants_of(uri)))

    @asynccontextmanager
    async def subscribe(self, uri: str, *, server: str | None = None) -> AsyncGenerator[ResourceUpdates, None]:
        """A receive channel of updates of one resource, while the block lasts.

        ::

            async with supervisor.subscribe("note://today") as updates:
                async for update in updates: ...  # read it again

        The subscription outlasts connections: after a loss it is made again, and an update that is not `certain` says
        that the resource may have changed meanwhile. The server is started if it is idle, and is not stopped for
        idleness. A server that offers no subscriptions never sends an update.

        Args:
            uri: As for `read_resource`. Updates of resources under it count as updates of it.
            server: The server that has it.

        Raises:
            UnknownResource: On entering: no server has it, now that all first attempts are settled.
            NurseryError: As for `read_resource`, where its server is in a state that only a person ends.
        """
        servers = self._servers
        found = await Target(ResourceRead(Call(uri, server=server, when_down="wait"), servers)).find()
        servers.request_start(found.server)
        with servers.counter.in_use([found.server]), servers.subscriptions.open(found.server, uri) as updates:
            yield ResourceUpdates(updates)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        when_down: WhenDown | None = None,
        resend: Resend = "safe",
        meta: Mapping[str, Any] | None = None,
    ) -> PromptResult:
        """Have a server fill in a prompt.

        Args:
            name: The public name; with `server`, that server's own name of the prompt.
            arguments: Texts, by the names of the prompt's arguments.
            server: The server that has the prompt.
            timeout: As for `call_tool`.
            when_down: As for `call_tool`.
            resend: As for `call_tool`. This is safe to repeat.
            meta: Additional `_meta` of the request.

        Raises:
            InvalidArguments: `arguments` are not texts by name.
            UnknownPrompt: No server has it, now that all first attempts are settled.
            NurseryError: As for `call_tool`.
        """
        call = Call(name, arguments, server=server, timeout=timeout, when_down=when_down, resend=resend, meta=meta)
        return await deliver(PromptGet(call, self._servers))

    async def complete(
        self,
        ref: Prompt | ResourceTemplate,
        argument: str,
        value: str = "",
        *,
        context: Mapping[str, str] | None = None,
        timeout: float | None = None,
        when_down: WhenDown | None = None,
        resend: Resend = "safe",
        meta: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Ask for completions of an argument's value, while a user types it.

        Args:
            ref: A prompt, or a template, of the catalogue.
            argument: The argument of the prompt, or the variable of the template.
            value: The text typed so far.
            context: Values of other arguments that are known already.
            timeout: As for `call_tool`.
            when_down: As for `call_tool`.
            resend: As for `call_tool`. This is safe to repeat.
            meta: Additional `_meta` of the request.

        Raises:
            InvalidArguments: `context` are not texts by name.
            ServerError: The server completes nothing of this kind, among others.
            NurseryError: As for `call_tool`.
        """
        name = ref.name if isinstance(ref, Prompt) else ref.uri_template
        call = Call(name, server=ref.server, timeout=timeout, when_down=when_down, resend=resend, meta=meta)
        return await deliver(Completing(call, self._servers, ref, argument, value, context))

    # -- skills ---------------------------------------------------------------------------------------------------

    @property
    def skills(self) -> tuple[Skill, ...]:
        """The skills that are known by now, sorted by URI and server: those that `list_skills` and `get_skill` have
        brought, without those that are held back. Names may occur several times, also at one server: the URI and the
        server identify a skill."""
        return known_skills(self._servers)

    async def list_skills(
        self, server: str | None = None, *, refresh: bool = False, timeout: float | None = None
    ) -> tuple[Skill, ...]:
        """The skills that servers list, after starting lazy servers and waiting until first attempts are settled. Only
        servers that declare the extension `io.modelcontextprotocol/skills` are asked, and no file is read.

        A list is asked for again when its `ttlMs` is over, 5 minutes if it has none, after a reconnect, and after a
        notification that a list of the server has changed. A server that does not answer keeps its old one. A list may
        be a part: a server may have further skills, for `get_skill`. Skills that are held back are left out: see
        `open_supervisor(pins=…)`.

        Args:
            server: Only this server's.
            refresh: Ask in any case.
            timeout: Seconds for each page. Default: as for `call_tool`.

        Raises:
            UnknownServer: No server of that name.
            NurseryError: As for `call_tool`, from the server that was named.
        """
        check_argument("refresh", refresh, true_or_false)
        await self._list(server, (), refresh=False)
        if server is None:
            await list_all(self._servers, refresh=refresh, timeout=timeout)
        else:
            await list_of(self._servers, server, refresh=refresh, timeout=timeout)
        return tuple(skill for skill in self.skills if server in (None, skill.server))

    async def get_skill(self, uri: str, *, server: str | None = None, timeout: float | None = None) -> Skill:
        """A skill as its server has the skill now, listed or not.

        Args:
            uri: The URI of its `SKILL.md`.
            server: The server that has the skill. Default: the only server that lists it, else the only server with
                skills.
            timeout: As for `call_tool`.

        Raises:
            ContestedResource: Several servers list it, or may have it: name one.
            UnknownResource: No server has skills, or the one that was named has none.
            InvalidResult: The server's entry for it cannot be used.
            NotApproved: It is held back: see `open_supervisor(pins=…)`.
            NurseryError: As for `call_tool`; a `ServerError` if the server has no such skill.
        """
        return await get_skill(self._servers, uri, server, timeout=timeout)

    async def read_skill_file(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ResourceResult:
        """Read a file of a skill, and verify it: its size and digest, and of `SKILL.md` also the frontmatter, are those
        of each known skill in whose folder it is. A skill that is not known is asked for first. Of a skill without
        `files` only the frontmatter can be verified.

        Args:
            uri: The URI of the file. A reference in a `SKILL.md` begins at `Skill.root`.
            server: The server that has it. Default: the only one that lists a skill with it.
            timeout: As for `call_tool`.

        Raises:
            SkillMismatch: The content differs from the skill's entry, or the skill has no such file.
            ContestedResource: Several servers have it: name one.
            UnknownResource: It belongs to no skill that is known.
            NotApproved: A skill in whose folder it is is held back: see `open_supervisor(pins=…)`.
            NurseryError: As for `call_tool`.
        """
        return await read_skill_file(Call(uri, server=server, timeout=timeout), self._servers)

    async def list_skill_directory(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> tuple[Resource, ...]:
        """The files and folders that a folder of a skill has, without what those have; a folder has the MIME type
        `inode/directory`.

        Args:
            uri: The URI of the folder, without a slash at the end: `Skill.root`, or one below it.
            server: The server that has it. Default: the only one that lists a skill with it.
            timeout: Seconds for each page. Default: as for `call_tool`.

        Raises:
            InvalidArguments: The server lists no folders.
            ContestedResource, UnknownResource: As for `read_skill_file`.
            NurseryError: As for `call_tool`.
        """
        return await list_directory(self._servers, uri, server, timeout=timeout)

    # -- on behalf of clients -------------------------------------------------------------------------------------

    async def request(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        when_down: WhenDown | None = None,
        resend: Resend = "safe",
        meta: Mapping[str, Any] | None = None,
        on_notice: NoticeCallback | None = None,
        on_question: AskPeer | None = None,
        principal: Hashable = None,
        on_unclear: Callable[[], None] | None = None,
        agreed: Agreement | None = None,
        for_models: bool = False,
        follow_tasks: bool | None = None,
        keep_task: Callable[[], bool] | None = None,
    ) -> RelayedResult:
        """Make a request on behalf of a client of the host: any method, raw in both directions.

        Unlike a host's own call it is not validated, named, marked or asked about; its delivery and errors are those of
        a call. A gateway is built on this. Questions of servers reach `on_question` only if the supervisor has
        callbacks for them: without those, servers are not offered to ask.

        Args:
            server: The server to ask.
            method: A method of the protocol, or any other.
            params: The parameters without `_meta`.
            timeout: As for `call_tool`.
            idle_timeout: As for `call_tool`.
            when_down: As for `call_tool`.
            resend: As for `call_tool`. `"safe"`: methods that only read, and tools that are read-only or idempotent by
                hints that are trusted.
            meta: The request's `_meta`. It overrides what we put there ourselves, except the version of the protocol.
                With a `progressToken`, progress is asked for, with a token of ours.
            on_notice: `async (method, params)`, called in order, before the result, with notifications about this
                request: its progress; where each request has a stream (HTTP), all that comes there; elsewhere also logs
                and all others of the server, while all requests of this kind there are one principal's and this is the
                latest.
            on_question: `async (key, method, params) -> result`, called when a server of the handshake era asks for
                elicitation, sampling or roots in the middle of this request, or for something that the protocol does
                not know. It may raise `MCPError`.
            principal: The principal of this request. Over a single stream a server does not say for which request it
                asks: its question goes to the latest, and is refused while requests of several principals are under
                way, or were given up and not answered.
            on_unclear: Called when the server asks without saying for which request, and it may be this one; before any
                client is asked.
            agreed: The agreement to this call, by `agree`, with the arguments that it was given.
            for_models: True: a tool that is for pages alone counts as unknown, as the server declares it by then.
            follow_tasks: True: the server is told that a call may become a task, which is followed to its result, with
                its questions for `on_question`. False: a task is returned as it comes. None: True, unless `meta` says
                what a client can do.
            keep_task: Called if the caller is cancelled while its task is followed. True: the task goes on, recorded as
                one of `submit`, if tasks can be recorded here. Default: it is cancelled.

        Raises:
            ValueError: An option has a value that is not allowed, or `agreed` is for another call.
            InvalidArguments: `params` has no JSON form.
            NotApproved: By the time it can be sent, the tool is not declared as it was agreed to, or its server is
                reached in another way. Or a skill is held back to which what was read belongs.
            UnknownServer: No server of that name.
            NurseryError: As for `call_tool`.
        """
        if for_models not in (True, False):
            check_argument("for_models", for_models, true_or_false)
        if not (follow_tasks is None or type(follow_tasks) is bool):
            check_argument("follow_tasks", follow_tasks, true_or_false)
        name = name_in(method, params or {})
        if agreed is not None and (method, server, name) != ("tools/call", agreed.server, agreed.tool):
            raise ValueError(f"agreed= is for {agreed.server}: tools/call {agreed.tool}, not for this request")
        call = Call(
            name,
            server=server,
            timeout=timeout,
            idle_timeout=idle_timeout,
            when_down=when_down,
            resend=resend,
            meta=meta,
        )
        relayed = RelayedCall(
            call,
            self._servers,
            method,
            params or {},
            on_notice=on_notice,
            on_question=on_question,
            principal=principal,
            on_unclear=on_unclear,
            agreed=agreed,
            for_models=for_models,
            follow_tasks=follow_tasks,
        )
        if (kept := self._tasks) is not None and keep_task is not None:
            relayed.on_given_up = lambda call, task: keep_task() and kept.keep(call, task)
        return await (relay(relayed) if method in SHOWS_SKILLS else deliver(relayed))

    async def agree(
        self, server: str, tool: str, arguments: Mapping[str, Any] | None = None, *, approve: Approve
    ) -> Agreement | None:
        """Have a tool call that is to be a `request` approved, as a model's call is: by the rules that
        `open_supervisor` was given, or else by its `approve`. If it was given neither, approval is left to the client,
        and nothing is asked.

        Args:
            server: The server that has the tool.
            tool: The server's own name of it.
            arguments: The arguments of the call.
            approve: Asked if `open_supervisor` was given rules and no `approve`.

        Returns:
            The agreement, for `request`; None if approval is left to the client.

        Raises:
            InvalidArguments: The arguments have no JSON form: nobody is asked.
            NotApproved: Denied, or the tool is held back.
            UnknownServer, UnknownTool, ServerDown: See `find_tool`.
        """
        if not self._approvals.given:
            return None
        found = await self.find_tool(tool, server=server)
        return await self._approvals.agree_for(found, arguments, self._servers, approve)

    def offers(self, server: str, tool: str, definition: Mapping[str, Any] | None = None) -> bool:
        """True if a server's filters and pins let this tool be used. If there are filters, or changed tools are held
        back, the server has to list it.

        Args:
            server: The server that has the tool.
            tool: The server's own name of it.
            definition: The definition that the server declares just now: if changed tools are held back, it has to be
                the one that was compared.

        Raises:
            UnknownServer: No server of that name.
        """
        return self._servers.offers(server, tool, definition)

    def for_models(self, server: str, tool: str) -> bool:
        """False if a server wants only its pages to call this tool: see `Tool.for_models`. It may be held back, or its
        server be in a state that shows no tools.

        Args:
            server: The server that has the tool.
            tool: The server's own name of it.
        """
        return self._servers.for_models(server, tool)

    def app_tools(self, name: str) -> dict[str, str]:
        """The tools that a page may mean by this name, the own one of its server, as a host that shows pages needs it
        where names have prefixes. Also those that are held back, and those of servers in a state that shows none: they
        stay whose they are.

        Args:
            name: The name of the tool as the page has it.

        Returns:
            The public names, by server. Nothing if a tool of a configured server can have this as its public name.
        """
        return self._servers.app_tools(name)

    def notices(self) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[Notice]]:
        """A receive channel of servers' notifications about no request, raw, while the block lasts: log messages, and
        those that the protocol does not know. Those of a server that has requests made by `request` are about these;
        after a withdrawal they may still be. A reader that falls 1024 or 4 MiB behind loses what follows."""
        return self._servers.registry.notices.open(self._servers.snapshots)

    async def notify(self, server: str, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a server a notification on behalf of a client of the host, as it is: one that the protocol does not
        know. Waits until there is room for it. It is dropped if the server is not connected.

        Raises:
            UnknownServer: No server of that name.
            ConfigError: The servers of this supervisor are borrowed.
            SupervisorClosed: The block was left.
        """
        await self._kept.notify(server, method, params)

    def hello(self, server: str) -> dict[str, Any] | None:
        """The result of `initialize` or `server/discover` when a server was last connected, raw; before its first
        connection in this run, that of an earlier run, if it is cached. None if there is none. It is for the server's
        clients only: use `status` for what is shown or logged.

        Raises:
            UnknownServer: No server of that name.
        """
        return self._servers.snapshot(server).value.own_hello()

    def declares_extension(self, server: str, extension: str) -> bool:
        """True if a server has declared this extension of the protocol in the introduction that `hello` returns; for
        the server's clients, at each request: nothing is copied.

        Raises:
            UnknownServer: No server of that name.
        """
        return declares((self._servers.snapshot(server).value.hello or {}).get("capabilities"), extension)

    def protocol_version(self, server: str) -> str | None:
        """The version of the protocol that a server spoke when it was last connected. None if it never was.

        Raises:
            UnknownServer: No server of that name.
        """
        introduction = self._servers.snapshot(server).value.introduction
        return None if introduction is None else introduction.protocol_version

    def spec(self, server: str) -> ServerSpec:
        """The spec that runs under this name now.

        Raises:
            UnknownServer: No server of that name.
        """
        return self._servers.snapshot(server).value.spec

    @property
    def session_notes(self) -> SessionNotes:
        """The notes of a gateway about its sessions, which outlive it like the rest of the state."""
        return self._servers.settings.store_worker

    def open_instance(
        self, server: str, *, callbacks: Callbacks | None = None
    ) -> "AbstractAsyncContextManager[Supervisor]":
        """One more instance of a server, while the block lasts: a supervisor of it alone, with the settings, approval,
        callbacks, state, trust and pins of this supervisor.

        It keeps the spec that the server has now, has its own restart ladder and events, and ends with this supervisor.
        It is listed in `ServerStatus.instances`, and counted and measured as part of its server. Returns at once: calls
        wait for it.

        Args:
            server: Its name.
            callbacks: The callbacks by which it may ask, in place of those of this supervisor. Of `roots` it only
                counts whether there are any: the folders are this supervisor's.

        Raises:
            UnknownServer: On entering: no server of that name.
            ServerDown: On entering: a person has stopped or disabled the server, or has yet to trust it.
            ConfigError: On entering: this supervisor's servers are borrowed.
            SupervisorClosed: On entering: the block was left.
        """
        return self._open_instance(self._kept, server, self._approvals, callbacks)

    # -- pinned definitions ---------------------------------------------------------------------------------------

    @property
    def definition_changes(self) -> tuple[DefinitionChange, ...]:
        """The tools and skills that differ from what they were at first use, sorted by server and by tool or URI."""
        changes = [change for observable in self._servers.snapshots.values() for change in observable.value.changes]
        return tuple(sorted(changes, key=lambda change: (change.server, change.tool)))

    async def accept_change(self, change: DefinitionChange) -> None:
        """Accept how a tool or a skill has changed: it is pinned as it is after the change, and no longer held back.

        Only the change that was shown is accepted: if it has changed again meanwhile, it still differs.

        Raises:
            UnknownServer: No server of that name.
            NurseryError: It cannot be recorded.
            SupervisorClosed: The block was left.
        """
        await self._kept.accept_change(change)

    # -- servers --------------------------------------------------------------------------------------------------

    @property
    def _kept(self) -> Servers:
        """The servers, for methods that change them.

        Raises:
            ConfigError: They are borrowed.
        """
        if isinstance(self._servers, Servers):
            return self._servers
        raise ConfigError("its servers are borrowed: only the supervisor that keeps them can change them")

    def status(self) -> tuple[ServerStatus, ...]:
        """The status of every server now, in the order they were configured."""
        return self._servers.projection.status()

    def status_of(self, server: str) -> ServerStatus:
        """The status of one server now.

        Raises:
            UnknownServer: No server of that name.
            SupervisorClosed: The block was left.
        """
        self._servers.snapshot(server)
        return self._servers.projection.status_of(server)

    def events(self) -> AbstractAsyncContextManager[EventStream]:
        """A receive channel of everything that happens, while the block lasts.

        It begins with the present state: a `SnapshotEvent` of each server, and `DefinitionsChanged` of one whose tools
        or skills differ from what they were at first use. A reader that falls more than 100 events behind gets
        `Lagged(n)`, and that beginning again.
        """
        return self._servers.events.open()

    @asynccontextmanager
    async def stderr(self, server: str) -> AsyncGenerator[StderrLines, None]:
        """A receive channel of what a server's process writes to standard error, while the block lasts: the last 20
        lines of its latest process, then each line that it writes, and what the next process writes after a restart.
        Secrets are removed. A server without a process has no lines.

        Raises:
            UnknownServer: On entering: no server of that name.
            ConfigError: On entering: its servers are borrowed.
            SupervisorClosed: On entering: the block was left.
        """
        self._servers.snapshot(server)
        with self._kept.stderr.open(server) as lines:
            yield StderrLines(lines, lambda text: self._servers.redactor(server).beginning(text, LONGEST_LINE))

    def redact(self, server: str, text: str, *, longest: int = MAX_SAID) -> str:
        """Remove the secrets of a server, and known kinds of secrets, from a text about it, as they are removed from
        errors, events and standard error: `[REDACTED:<kind>]` takes the place of each.

        Args:
            server: The server; one that is not known has no secrets of its own.
            text: The text.
            longest: Characters of the result at most. The work grows with this number, not with the text.
        """
        return self._servers.redactor(server).beginning(text, longest)

    async def wait_connected(self, server: str, *, patience: float | None = None) -> ServerStatus:
        """Wait until the server is `connected`.

        Args:
            server: Its name.
            patience: Seconds after which a failed attempt is the last; one that is under way is still waited for, and a
                revival that is due later is not. None: whatever is due is waited for.

        Raises:
            UnknownServer: No server of that name.
            ServerDown: It is in a state that only a person ends, or an attempt has failed and `patience` is over.
            ValueError: `patience` is not a number of seconds.
        """
        check_argument("patience", patience, seconds_or_none)
        snapshots, patient = self._servers.snapshot(server), True

        def connected(snapshot: Snapshot) -> Snapshot | None:
            self._servers.check_open()
            late = snapshot.state is ServerState.FAILED and (snapshot.due_at or 0) > until
            if snapshot.abandoned or late or not (patient or snapshot.state in _ON_THE_WAY):
                raise server_down(snapshot, now=trio.current_time())
            self._servers.request_start(server)
            return snapshot if snapshot.state is ServerState.CONNECTED else None

        until = math.inf if patience is None else trio.current_time() + patience
        with trio.move_on_at(until) as limit:
            await snapshots.wait(connected)
        if limit.cancelled_caught:
            patient = False
            await snapshots.wait(connected)
        return self._servers.projection.status_of(server)

    async def reconnect(self, server: str) -> None:
        """Start a server afresh now, whatever its state, and wait for the outcome. Many callers share one attempt.

        Raises:
            UnknownServer: No server of that name.
            ServerDown: The attempt failed.
        """
        command = await self._kept.execute(server, Reconnect())
        self._servers.check_open()
        assert command.outcome is not None
        if command.outcome.state is not ServerState.CONNECTED:
            raise server_down(command.outcome, now=trio.current_time())

    async def start_server(self, server: str) -> None:
        """Start a server afresh, if it neither runs nor is being started. Returns in `connecting`.

        Raises:
            UnknownServer: No server of that name.
        """
        await self._kept.execute(server, Start())

    async def stop_server(self, server: str, *, drain: float = 0.0) -> None:
        """End a server and leave it `stopped`. Returns when everything it owned is closed.

        Args:
            server: Its name.
            drain: Seconds that calls already sent may still take; those not sent fail at once.

        Raises:
            ValueError: `drain` is not a number of seconds.
            UnknownServer: No server of that name.
        """
        check_argument("drain", drain, seconds)
        await self._kept.execute(server, Stop(drain))

    async def add_server(self, spec: ServerSpec) -> None:
        """Keep one more server. Returns in `connecting`, or whatever state its spec begins in.

        Raises:
            ConfigError: There is a server of that name, or a setting cannot work.
            SupervisorClosed: The block was left.
        """
        await trio.lowlevel.checkpoint()
        await self._kept.add(spec)

    async def remove_server(self, server: str, *, drain: float = 0.0) -> None:
        """End a server and forget it. Its tools are gone at once; returns when everything it owned is closed.

        Args:
            server: Its name.
            drain: Seconds that calls already sent may still take; those not sent fail at once.

        Raises:
            ValueError: `drain` is not a number of seconds.
            UnknownServer: No server of that name.
        """
        check_argument("drain", drain, seconds)
        await self._kept.remove(server, drain=drain)

    async def reload(
        self,
        config_or_specs: Given | None = None,
        *,
        restart: bool | Collection[str] = False,
        drain: float = 0.0,
    ) -> Reloaded:
        """Supervise these servers, and no others, from now on.

        A server whose spec is equal to the one it has goes on as it is, with its connection and its calls; it is
        started afresh only if it is `failed` or `needs_auth`, or `blocked` and trusted by now. One whose spec has
        changed begins again by the new one, when its old connection is closed; calls not sent yet go to the new
        connection. One that is not given is removed, also if `add_server` brought it, and a new one is added.

        Specs are compared by value, without `source`, `host` and `extra`, which are only shown. Functions, such as
        computed headers, and server objects are compared by identity. What a spec refers to (variables, files,
        commands) is not part of it: it is looked up at each connect.

        Returns when the old connections are closed, and new or changed servers are in `connecting` or the state their
        spec begins in. It waits for another reload, and for the removal of a server that it names, before it changes
        anything; then it is done as a whole, even if it is cancelled while it waits for old connections. Of concurrent
        commands the later one holds. What a person did to a server that has not changed, such as a stop, stays.

        Args:
            config_or_specs: The result of `load_config`, specs, or a file's path. Default: the files by which servers
                were given the last time, read again; if they were not given by files, the present specs.
            restart: Whether all servers begin again, or the names of those that do, even if unchanged or stopped:
                variables, files and commands that their specs refer to are looked up anew.
            drain: Seconds that calls already sent on connections that end may still take; those not sent are given up
                at once.

        Returns:
            The event with the changes of servers, which all readers get.

        Raises:
            ConfigError: Two servers have one name, a setting cannot work, or a file was found and cannot be used. Then
                nothing has changed, and the event is a `ReloadFailed`.
            ValueError: `restart` is neither True, False nor names, or `drain` is not a number of seconds.
            SupervisorClosed: The block was left.
        """
        check_argument("restart", restart, _all_none_or_names)
        check_argument("drain", drain, seconds)
        kept = self._kept

        async def read() -> Sequence[ServerSpec]:
            found = config_or_specs
            if found is None:
                reader = self._source.reader()
                if reader is None:
                    return kept.specs()
                found = await SLOW_THREADS.run(reader, abandon_on_cancel=True)
            if isinstance(found, Config) and found.errors:
                raise ConfigError("; ".join(found.errors))
            return self._source.with_besides(specs_of(found))

        def applied() -> None:
            if config_or_specs is not None:
                self._source.given = config_or_specs

        try:
            return await kept.reload(read, restart=restart, drain=drain, applied=applied)
        except ConfigError as error:
            self._servers.events.publish(ReloadFailed(str(error), trio.current_time()))
            raise

    async def set_roots(self, roots: Roots) -> None:
        """Give these folders to work in to servers that ask from now on. Connected servers that understand such changes
        are notified at once. A server that was offered no roots when it connected is offered them when it connects
        again, and one whose spec has roots of its own keeps those.

        Args:
            roots: Paths or `file://` URIs, `"cwd"`, or a function that returns them: see `Callbacks.roots`.

        Raises:
            ValueError: `roots` is none of these.
            SupervisorClosed: The block was left.
        """
        check_argument("roots", roots, are_roots)
        await self._kept.set_roots(roots)

    def statistics(self, *, by_tool: bool = True) -> SupervisorStatistics:
        """Figures for debugging and metrics: of all servers, of each, and of each tool that was called.

        Args:
            by_tool: False leaves out the figures of each tool, which take most of the time: about a millisecond for 50
                that were called.

        Raises:
            ValueError: `by_tool` is neither True nor False.
        """
        check_argument("by_tool", by_tool, true_or_false)
        servers, parts = self._servers, self._servers.catalogue.value.parts
        return statistics_of(
            {name: servers.counter.tally(name) for name in servers.snapshots},
            tools={name: [tool.tool for tool in parts[name].tools if tool.name] for name in servers.snapshots},
            connected=sum(one.value.state is ServerState.CONNECTED for one in servers.snapshots.values()),
            router=servers.router.statistics(),
            state=servers.settings.store_worker.statistics(),
            now=trio.current_time(),
            by_tool=by_tool,
        )

    def recent_calls(self, server: str) -> tuple[CallRecord, ...]:
        """The last 100 calls of a server that have their outcome, the latest last. Their arguments are not kept.

        Raises:
            UnknownServer: No server of that name.
        """
        self._servers.snapshot(server)
        return tuple(CallRecord(*each) for each in self._servers.counter.tally(server).recent)


def _all_none_or_names(value: object) -> str | None:
    fits = isinstance(value, bool) or (isinstance(value, Collection) and not isinstance(value, str | bytes))
    return None if fits else "True, False or names of servers"
