"""An object of the thread, as callers of any kind have it."""

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.records import evolve

from ..calls.call import Call
from ..calls.task_handles import Task, TaskBlock, TaskFacts
from ..decisions.task_records import TaskInfo
from ..resources import Prompt, Resource, ResourceTemplate
from ..skills import Skill
from ..supervisor import Supervisor
from ..tools.pins import DefinitionChange
from .callbacks import CallbackWrap
from .trio_thread import TrioThread

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ThreadProxy:
    """An object of the thread, as its caller has it. `wrap` wraps the caller's callbacks."""

    def __init__(self, thread: TrioThread, there: Any, wrap: CallbackWrap) -> None:
        self._thread = thread
        self._there = there
        self._wrap = wrap

    def _bound(self, method: Callable[..., R], args: tuple[Any, ...], options: Mapping[str, Any]) -> Callable[[], R]:
        """The method of the object with these arguments, whose callbacks are the caller's."""
        crossed = {name: self._given(value) for name, value in options.items()}
        return partial(method, self._there, *map(self._given, args), **crossed)

    def _given(self, value: Any) -> Any:
        """The argument; a function is wrapped as a callback."""
        return self._wrap(value) if callable(value) else value

    def _crossed(self, call: Call) -> Call:
        """A call whose callback is the caller's."""
        return call if call.on_progress is None else evolve(call, on_progress=self._wrap(call.on_progress))


def moment(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A plain method: it takes a moment of the thread, for which the caller's thread waits."""

    @wraps(method)
    def crossing(self: Any, /, *args: P.args, **options: P.kwargs) -> R:
        found: R = self._thread.do(self._bound(method, args, options))
        return found

    return crossing


class ThreadTaskFacts(ThreadProxy, TaskFacts):
    """A task of the thread, whose facts can be read at any time."""

    _there: Task

    def __repr__(self) -> str:
        return repr(self._there)

    @property
    @override
    def info(self) -> TaskInfo:
        return self._there.info

    @property
    def is_over(self) -> bool:
        """True if `result` does not wait."""
        return self._there.is_over


class ThreadTaskBlock(Generic[T]):
    """A task of the thread for as long as a block lasts; `handle` makes the caller's handle."""

    def __init__(self, thread: TrioThread, block: TaskBlock, handle: Callable[[Task], T]) -> None:
        self._thread = thread
        self._block = block
        self._handle = handle

    def _leave(self) -> None:
        """Have the thread leave the block, also if it has just been entered for a caller that was cancelled. Never
        waits."""
        self._thread.begin(self._block.leave)


class KnownOffers(ThreadProxy):
    """All that is known of servers without asking them, for callers of any kind."""

    @property
    def skills(self) -> tuple[Skill, ...]:
        """As of `Supervisor`."""
        return self._thread.do(lambda: self._there.skills)

    @property
    def resources(self) -> tuple[Resource, ...]:
        """As of `Supervisor`."""
        return self._thread.do(lambda: self._there.resources)

    @property
    def resource_templates(self) -> tuple[ResourceTemplate, ...]:
        """As of `Supervisor`."""
        return self._thread.do(lambda: self._there.resource_templates)

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """As of `Supervisor`."""
        return self._thread.do(lambda: self._there.prompts)

    @property
    def definition_changes(self) -> tuple[DefinitionChange, ...]:
        """As of `Supervisor`."""
        return self._thread.do(lambda: self._there.definition_changes)

    @property
    def unlisted(self) -> tuple[str, ...]:
        """As of `Supervisor`."""
        return self._thread.do(lambda: self._there.unlisted)

    status: Final = moment(Supervisor.status)
    status_of: Final = moment(Supervisor.status_of)
    statistics: Final = moment(Supervisor.statistics)
    recent_calls: Final = moment(Supervisor.recent_calls)
    redact: Final = moment(Supervisor.redact)
    spec: Final = moment(Supervisor.spec)
    hello: Final = moment(Supervisor.hello)
    offers: Final = moment(Supervisor.offers)
    for_models: Final = moment(Supervisor.for_models)
    app_tools: Final = moment(Supervisor.app_tools)
    declares_extension: Final = moment(Supervisor.declares_extension)
    protocol_version: Final = moment(Supervisor.protocol_version)
