"""Every exception of the project, under one root. Each message is one line: what, where, what to do."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from mcp_nursery.actors.records import field, frozen

from .enums import Delivery, ServerState

if TYPE_CHECKING:
    from .outcomes import Challenge


def one_line(text: object, limit: int = 300) -> str:
    """The text with white space folded, cut at `limit` characters.

    Not for a server's text that may still hold secrets: redaction does not find a secret that was cut.
    """
    line = folded(text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def folded(text: object) -> str:
    """The text with white space folded."""
    return " ".join(str(text).split())


def unforeseen(error: BaseException) -> str:
    """An error that no code expects, for people: a file with its path, and no name of a library's class."""
    if isinstance(error, OSError) and error.strerror:
        return one_line(": ".join(filter(None, (error.strerror, error.filename and repr(error.filename)))))
    kind = type(error).__name__ if type(error).__module__ == "builtins" else ""
    return one_line(": ".join(filter(None, (kind, str(error)))) or "no reason is known")


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, however nested; an exception that is no group is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(inner)
    else:
        yield error


class NurseryError(Exception):
    """Root of all errors raised on purpose by mcp-nursery. The message is one line."""

    def __init__(self, fact: str = "", *, advice: str = "") -> None:
        self.fact = fact
        """The event, in words for anybody: the beginning of the message."""
        self.advice = advice
        """The advice to a program that uses this library: the end of the message, and not for others, such as the user
        of a command or the client of a gateway. May be empty."""
        super().__init__("; ".join(filter(None, (fact, advice))))


class ConfigError(NurseryError):
    """A configuration cannot work. Names the file, server and field where they are known."""

    def __init__(
        self, problem: str, *, file: str | None = None, server: str | None = None, field: str | None = None
    ) -> None:
        self.problem = problem
        """The fault, without the place."""
        self.file = file
        """The file's path, if it is in one."""
        self.server = server
        """The server's name, if it is about one."""
        self.field = field
        """The field or key, if it is in one."""
        where = [file, server and f"server {server!r}", field and f"field {field!r}"]
        super().__init__(one_line(": ".join([*(part for part in where if part), problem]), 1000))


class UnknownServer(NurseryError):
    """No server of that name is configured."""

    def __init__(self, name: str, near: Sequence[str] = ()) -> None:
        self.name = name
        """The name that was asked for."""
        self.near: tuple[str, ...] = tuple(near)
        """Names that may have been meant."""
        super().__init__(f"no server named {name!r}{did_you_mean(near)}")


class UnknownTool(NurseryError):
    """No server offers a tool of that name, now that all first attempts are settled."""

    def __init__(
        self, name: str, *, server: str | None = None, near: Sequence[str] = (), down: Sequence[str] = ()
    ) -> None:
        self.name = name
        """The name that was asked for."""
        self.server = server
        """The server that was named; None if none was."""
        self.near: tuple[str, ...] = tuple(near)
        """Names that may have been meant."""
        self.down: tuple[str, ...] = tuple(down)
        """Servers that are not connected, one of which may have it."""
        super().__init__(_nobody_has("tool", name, server, near, down))


class UnknownResource(NurseryError):
    """No server lists a resource of that URI, or has a template for it, now that all first attempts are settled."""

    def __init__(
        self, uri: str, *, server: str | None = None, near: Sequence[str] = (), down: Sequence[str] = ()
    ) -> None:
        self.uri = uri
        """The URI that was asked for."""
        self.server = server
        """The server that was named; None if none was."""
        self.near: tuple[str, ...] = tuple(near)
        """URIs that may have been meant."""
        self.down: tuple[str, ...] = tuple(down)
        """Servers that are not connected, one of which may have it."""
        super().__init__(_nobody_has("resource", uri, server, near, down))


class ContestedResource(NurseryError):
    """Several servers claim that URI, or one does and nothing is known of another, and none was named. Nothing was
    sent."""

    def __init__(self, uri: str, servers: Sequence[str], *, uris: Sequence[str] = ()) -> None:
        self.uri = uri
        """The URI that was asked for."""
        self.servers: tuple[str, ...] = tuple(servers)
        """The servers that may be meant."""
        self.uris: tuple[str, ...] = tuple(uris)
        """The URIs that name one of them, behind a gateway."""
        way = f"read {' or '.join(map(repr, uris))}" if uris else f"name one of {', '.join(servers)}"
        super().__init__(one_line(f"the URI {uri!r:.300} does not show which server is meant: {way}", 1000))


class UnknownPrompt(NurseryError):
    """No server offers a prompt of that name, now that all first attempts are settled."""

    def __init__(
        self, name: str, *, server: str | None = None, near: Sequence[str] = (), down: Sequence[str] = ()
    ) -> None:
        self.name = name
        """The name that was asked for."""
        self.server = server
        """The server that was named; None if none was."""
        self.near: tuple[str, ...] = tuple(near)
        """Names that may have been meant."""
        self.down: tuple[str, ...] = tuple(down)
        """Servers that are not connected, one of which may have it."""
        super().__init__(_nobody_has("prompt", name, server, near, down))


class InvalidArguments(NurseryError, TypeError):
    """The arguments of a call are not a JSON object, or not what a prompt takes. Nothing was sent."""

    def __init__(self, problem: str, *, server: str | None = None, tool: str | None = None) -> None:
        self.server = server
        """The server's name, if the call named it or it was known."""
        self.tool = tool
        """The tool as it was named, or by the server's own name."""
        super().__init__(one_line(": ".join(part for part in (server, tool, problem) if part), 1000))


class NotApproved(NurseryError):
    """A call was denied, there was nobody to ask, or what was agreed to has changed. It was not executed; a server that
    has asked in the middle of it gets no answer. A read may be refused for its answer."""

    delivery: Delivery = Delivery.NOT_SENT
    """`not_sent`; `answered` if the server's answer is refused."""

    def __init__(self, server: str, tool: str | None, why: str, *, advice: str = "") -> None:
        self.server = server
        """The server's name."""
        self.tool = tool
        """The server's own name of the tool; None if the error is about the server itself."""
        said = [*filter(None, (server, tool)), "not approved", why]
        super().__init__(one_line(": ".join(said), 1000), advice=advice)


class AuthorizationFailed(NurseryError):
    """A login got no token. Tokens that were stored before are kept."""

    def __init__(self, server: str, why: str) -> None:
        self.server = server
        """The server's name."""
        super().__init__(one_line(f"{server}: not authorised: {why}", 1000))


class SupervisorClosed(NurseryError):
    """The supervisor's block is being left or has been left."""

    def __init__(self) -> None:
        super().__init__("the supervisor is closed")


class CallError(NurseryError):
    """A call got no result. `delivery` says whether the server may have acted on it."""

    retry_in: float | None = None
    """Seconds until the server can be asked again; None if nobody knows."""

    def __init__(
        self,
        problem: str,
        *,
        server: str,
        tool: str | None = None,
        incarnation: int | None = None,
        delivery: Delivery = Delivery.NOT_SENT,
        advice: str = "",
    ) -> None:
        self.server = server
        """The server's name."""
        self.tool = tool
        """The server's own name of the tool or prompt, or the URI of the resource; None for any other call."""
        self.incarnation = incarnation
        """The number of the server's connection that it was sent to, from 1; None if to none."""
        self.delivery = delivery
        """`not_sent`, `unknown` or `answered`."""
        super().__init__(one_line(": ".join(part for part in (server, tool, problem) if part), 1000), advice=advice)


class ServerDown(CallError):
    """The server is not connected, and the call did not wait for it."""

    def __init__(
        self,
        *,
        server: str,
        state: ServerState,
        tool: str | None = None,
        retry_in: float | None = None,
        error: str | None = None,
        stderr_tail: str = "",
        challenge: "Challenge | None" = None,
        revived_by_calls: bool = False,
    ) -> None:
        self.challenge = challenge
        """In `needs_auth`: what the server said was missing, if it did."""
        self.state = state
        """The state the server was in."""
        self.retry_in = retry_in
        """Seconds until the next restart; None if none is due."""
        self.revived_by_calls = revived_by_calls
        """True if the next call of one of its tools starts it again."""
        self.error = error
        """The server's last failure, one line."""
        self.stderr_tail = stderr_tail
        """The last lines its process wrote to stderr; may span lines, so it is not in the message."""
        problem = f"the server is {state}"
        if retry_in is not None:
            problem += f", restarts in {retry_in:.1f} s"
        if error:
            problem += f" ({error})"
        super().__init__(problem, server=server, tool=tool, advice=self._advice())

    def _advice(self) -> str:
        if self.retry_in is not None:
            return ""
        if self.revived_by_calls:
            return "the next call of one of its tools starts it again"
        return _ADVICE_BY_STATE.get(self.state, "")


_ADVICE_BY_STATE = {
    ServerState.FAILED: "reconnect starts it again, `revive` in its entry brings it back by itself",
    ServerState.STOPPED: "reconnect starts it again",
    ServerState.NEEDS_AUTH: "reconnect once it is authorised",
}


class ServerBusy(CallError):
    """The server's mailbox is full: too many calls wait for it."""

    def __init__(
        self, *, server: str, tool: str, incarnation: int | None, delivery: Delivery = Delivery.NOT_SENT
    ) -> None:
        more = "max_in_flight and mailbox_size, or maxInFlight and mailboxSize in a file, take more"
        problem = f"too many calls are waiting for this server ({more})"
        super().__init__(problem, server=server, tool=tool, incarnation=incarnation, delivery=delivery)


class InstancesTaken(CallError):
    """Each session has a server instance of its own, and there are as many as allowed, in all or for one client's
    sessions."""

    def __init__(self, *, server: str, most: int, retry_in: float | None, own: bool = False) -> None:
        self.retry_in = retry_in
        """Seconds until an unused one ends, if it stays unused; None: all are in use."""
        when = "when a session has ended" if retry_in is None else f"in {retry_in:.0f} s"
        problem = f"all {most} instances that it may have are other sessions': try again {when}"
        if own:
            problem = (
                f"other sessions of yours have {most} instances, all that those of one client may: try again {when}"
            )
        problem += " (max_instances, or maxInstances in a file, allows more)"
        super().__init__(problem, server=server, tool=None)


class BreakerOpen(CallError):
    """The server is connected, and its last calls were not answered: its circuit breaker lets none through."""

    def __init__(self, *, server: str, tool: str, failures: int, retry_in: float) -> None:
        self.failures = failures
        """The number of calls in a row that have failed."""
        self.retry_in: float | None = retry_in
        """Seconds until one call may probe; 0 while one does."""
        problem = f"the circuit breaker is open: {failures} calls in a row failed; "
        problem += f"one may try in {retry_in:.1f} s" if retry_in else "another call is trying"
        super().__init__(problem, server=server, tool=tool, advice="reconnect starts the server afresh")


class ConnectionLost(CallError):
    """The connection ended before the answer."""

    def __init__(
        self,
        problem: str,
        *,
        server: str,
        tool: str,
        incarnation: int | None,
        delivery: Delivery,
        exit_code: int | None = None,
        stderr_tail: str = "",
        retry_in: float | None = None,
    ) -> None:
        self.retry_in = retry_in
        """Seconds for which the server, or the issuer of its tokens, wants to be asked nothing; None if neither said
        so."""
        self.exit_code = exit_code
        """The process's exit code, negative for a signal; None if unknown or no process."""
        self.stderr_tail = stderr_tail
        """The last lines the process wrote to stderr; may span lines, so it is not in the message."""
        acted = "the server may have acted" if delivery is Delivery.UNKNOWN else "the server has not acted"
        super().__init__(
            f"connection lost: {problem}; {acted}",
            server=server,
            tool=tool,
            incarnation=incarnation,
            delivery=delivery,
        )


class CallTimeout(CallError):
    """The time limit of the call was over. A limit that the caller did not name counts the server's time alone: it
    stands still while somebody is asked about the call."""

    def __init__(
        self,
        *,
        server: str,
        tool: str,
        incarnation: int | None,
        delivery: Delivery,
        timeout: float,
        idle: bool = False,
        raised_by: str = "",
    ) -> None:
        self.timeout = timeout
        """The seconds that elapsed."""
        what = "no progress for" if idle else "no answer within"
        how = raised_by and f" ({raised_by} gives it more)"
        super().__init__(
            f"{what} {timeout:g} s{how}", server=server, tool=tool, incarnation=incarnation, delivery=delivery
        )


@frozen
class RawError:
    """The message and data of a JSON-RPC error, as they came."""

    message: str = field(repr=False)
    data: Any = field(repr=False)


class ServerError(CallError):
    """The server answered with a JSON-RPC error, or with an HTTP status that is one; `delivery` is `unknown` if the
    status may come from a gateway, which does not know whether the server has acted."""

    def __init__(
        self,
        *,
        server: str,
        tool: str | None,
        incarnation: int | None,
        code: int,
        message: str,
        data: Any = None,
        delivery: Delivery = Delivery.ANSWERED,
        way_out: str = "",
        raw: RawError | None = None,
        retry_in: float | None = None,
    ) -> None:
        self.code = code
        """The JSON-RPC error code, or the HTTP status (400 to 599) of an answer without one."""
        self.message = message
        """The server's words without secrets; where it asked the host for input and was refused, the callback's."""
        self.data = data
        """The error's `data`."""
        self.retry_in = retry_in
        """Seconds for which the server wants to be asked nothing (`Retry-After`), at most an hour; None if it did not
        say."""
        self.raw = raw
        """Both as they came, including secrets that the server quotes: for the client on whose behalf it was asked
        (`Supervisor.request`), and for nobody else. None for a host's own call, and for an error not sent by the
        server."""
        acted = "the server may have acted" if delivery is Delivery.UNKNOWN else ""
        problem = "; ".join(filter(None, (f"error {code}: {message}", acted, way_out)))
        super().__init__(problem, server=server, tool=tool, incarnation=incarnation, delivery=delivery)


class InvalidResult(CallError):
    """The server answered with something that cannot be read, or that the tool's own output schema does not allow."""

    def __init__(
        self, problem: str, *, server: str, tool: str, incarnation: int | None, delivery: Delivery = Delivery.ANSWERED
    ) -> None:
        super().__init__(problem, server=server, tool=tool, incarnation=incarnation, delivery=delivery)


class TaskLost(CallError):
    """The server made a task of the call, and nobody can say any more what becomes of it: its server does not know it,
    has failed for good, or has cancelled it, or its time is over. `delivery` is `unknown`."""

    def __init__(
        self,
        why: str,
        *,
        server: str,
        tool: str,
        incarnation: int | None,
        task_id: str,
        status: str,
        said: str | None,
        for_good: bool = True,
    ) -> None:
        self.why = why
        """The reason."""
        self.for_good = for_good
        """False if its server may yet know it: `Supervisor.task` goes on with a recorded task once the server is
        back."""
        self.task_id = task_id
        """The server's id of the task, as it came: the words of the error leave it out."""
        self.status = status
        """The last known status: `working`, `input_required`, `completed`, `failed` or `cancelled`."""
        last = f"{status}: {said:.200}" if said else status
        super().__init__(
            f"its task is lost: {why} (last known: {last}); the server may have acted",
            server=server,
            tool=tool,
            incarnation=incarnation,
            delivery=Delivery.UNKNOWN,
        )


class UnknownTask(NurseryError):
    """No task of that id is recorded. A finished one is recorded for an hour."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The id that was asked for."""
        super().__init__(f"no task {name!r:.80} is recorded")


class SkillMismatch(InvalidResult):
    """A file is not as its server's entry for the skill says, or is not in it. Its content must not be used. The skill
    may have changed: `get_skill` brings the entry of now."""

    def __init__(
        self, what: str, *, expected: str, found: str, server: str, uri: str, incarnation: int | None = None
    ) -> None:
        self.uri = uri
        """The URI of the file."""
        self.what = what
        """`size`, `digest` or `frontmatter`; or `unlisted`: the skill has no such file, and the server was not
        asked."""
        self.expected = expected
        """The size, the digest or the field as the entry has it; if `unlisted`, the URI of the skill."""
        self.found = found
        """The same as the file has it; if `unlisted`, the URI of the file."""
        unlisted = what == "unlisted"
        problem = f"its {what} is {found:.200}, but by the entry of its skill {expected:.200}"
        super().__init__(
            f"the skill {expected:.200} does not list this file" if unlisted else problem,
            server=server,
            tool=uri,
            incarnation=incarnation,
            delivery=Delivery.NOT_SENT if unlisted else Delivery.ANSWERED,
        )


def delivery_of(error: NurseryError) -> Delivery:
    """The delivery of the call that failed with this error."""
    if isinstance(error, CallError | NotApproved):
        return error.delivery
    # A call may have been on its way when the block was left; all other errors come before a server is asked.
    return Delivery.UNKNOWN if isinstance(error, SupervisorClosed) else Delivery.NOT_SENT


class StartFailed(NurseryError):
    """An incarnation could not be opened. Ends the attempt; hosts see it as the server's `error`."""

    def __init__(
        self, problem: str, *, retriable: bool, needs_auth: bool = False, retry_in: float | None = None
    ) -> None:
        self.retriable = retriable
        """True if another try may succeed."""
        self.retry_in = retry_in
        """Seconds for which the server wants to be asked nothing; None if it did not say."""
        self.needs_auth = needs_auth
        """True if authorisation is missing; then `retriable` does not matter."""
        super().__init__(one_line(problem))


def _nobody_has(what: str, name: str, server: str | None, near: Sequence[str], down: Sequence[str]) -> str:
    where = f" on server {server!r}" if server else ""
    unasked = f" (not connected: {', '.join(down)})" if down else ""
    return one_line(f"no {what} named {name!r}{where}{did_you_mean(near)}{unasked}", 1000)


def did_you_mean(near: Sequence[str]) -> str:
    """The end of a message that names what may have been meant; empty if there is nothing to name."""
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
