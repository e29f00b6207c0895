"""What a type checker has to refuse: mypy reports every comment here that silences nothing. It is never run."""

from mcp_nursery.supervisor import Call, HttpTransport, ServerSpec, StdioTransport, Supervisor

ServerSpec("x", 42)  # type: ignore[arg-type]
ServerSpec("x", "npx -y foo")  # type: ignore[arg-type]
ServerSpec("x", StdioTransport)  # type: ignore[arg-type]
ServerSpec("x", StdioTransport("server"), call_timeout="30")  # type: ignore[arg-type]
StdioTransport(["server"])  # type: ignore[arg-type]
HttpTransport(8080)  # type: ignore[arg-type]
Call("tool", resend="often")  # type: ignore[arg-type]


async def calls_it(supervisor: Supervisor) -> None:
    """What a method is given, and what it is not there for."""
    await supervisor.call_tool("tool", [])  # type: ignore[arg-type]
    async with supervisor.fan_out([], until="some") as fan_out:  # type: ignore[arg-type]
        await fan_out.start([])  # type: ignore[attr-defined]
