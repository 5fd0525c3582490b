"""A server whose handlers wait, and have something to clear up: waiting.py [PORT]

Runs on python-sdk 1.x and 2.x, over stdio, or over Streamable HTTP at a port.

What becomes of it stands in the file that RECORD names, as lines of JSON: when
a call waits, what woke it, when it has cleared up, how the server ended. The
name of a call is an argument of its. Whatever Python itself has to say, on
stderr, is in RECORD.stderr.
"""

import gc

gc.disable()  # while all is imported: a fifth of the time that a start takes

import json
import os
import sys
from contextlib import asynccontextmanager

import anyio
from pydantic import BaseModel

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context
except ImportError:
    from mcp.server.fastmcp import Context, FastMCP as MCPServer
from mcp.types import ElicitRequest, ElicitRequestFormParams, SamplingMessage, TextContent

try:
    from mcp.types import InputRequiredResult

    Elicited = str | InputRequiredResult
except ImportError:
    Elicited = str

gc.enable()

CLEARING_UP = 0.4  # s, in which nothing may disturb a handler

record = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(os.open(os.environ["RECORD"] + ".stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)


def note(event: str, **more) -> None:
    line = {"pid": os.getpid(), "event": event, **more}
    os.write(record, json.dumps(line).encode() + b"\n")


class Answer(BaseModel):
    name: str


@asynccontextmanager
async def waiting(call: str, ctx: Context):
    """What a careful handler does: it clears up, whatever wakes it."""
    request = ctx.request_context.request  # over HTTP
    note("waits", call=call, session=request and request.headers.get("mcp-session-id"))
    try:
        yield
        note("answered", call=call)
    except BaseException as err:
        note("woken", call=call, by=type(err).__name__)
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(CLEARING_UP)
        note("cleared", call=call)


def suspended(call: str):
    """A call of the modern era waits nowhere: the client comes back."""
    note("waits", call=call)
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    params = ElicitRequestFormParams(message=call, requested_schema=schema)
    note("cleared", call=call)
    return InputRequiredResult(input_requests={"name": ElicitRequest(params=params)})


server = MCPServer("waiting")
released = {}


@server.tool()
async def sleep(call: str, ctx: Context) -> str:
    async with waiting(call, ctx):
        await ctx.report_progress(1, 2)
        await anyio.sleep(600)
    return "rested"


@server.tool()
async def sample(call: str, ctx: Context) -> str:
    async with waiting(call, ctx):
        message = SamplingMessage(role="user", content=TextContent(type="text", text=call))
        result = await ctx.session.create_message([message], max_tokens=10)
    return result.content.text


@server.tool()
async def elicit(call: str, ctx: Context) -> Elicited:
    if getattr(ctx, "protocol_version", "") == "2026-07-28":
        return suspended(call)
    async with waiting(call, ctx):
        result = await ctx.elicit(call, Answer)
    return result.data.name


@server.tool()
async def roots(call: str, ctx: Context) -> str:
    async with waiting(call, ctx):
        result = await ctx.session.list_roots()
    return result.roots[0].name


@server.tool()
async def hold(call: str, ctx: Context) -> str:
    """Is at work until it is released."""
    released[call] = anyio.Event()
    async with waiting(call, ctx):
        await ctx.report_progress(1, 2)
        await released[call].wait()
    return "released"


@server.tool()
async def release(call: str) -> str:
    released[call].set()
    return "done"


def run(port: int | None = None) -> None:
    if port is None:
        server.run("stdio")
    elif hasattr(server.settings, "port"):  # 1.x
        server.settings.port = port
        server.run("streamable-http")
    else:
        server.run("streamable-http", port=port)


try:
    run(*map(int, sys.argv[1:]))
except BaseException as err:
    note("ended", error=repr(err))
    raise
note("ended", error=None)
