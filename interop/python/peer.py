"""What server.mjs is, on python-sdk 2.x over Streamable HTTP: peer.py [PORT]."""

import sys

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import Completion, SamplingMessage, TextContent
from pydantic import BaseModel

server = MCPServer("interop-python")
cancelled = 0


class Answer(BaseModel):
    name: str


@server.tool()
async def echo(text: str) -> str:
    return text


@server.tool(name="cancelled")
async def count() -> str:
    return str(cancelled)


@server.tool()
async def sample(prompt: str, ctx: Context) -> str:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    result = await ctx.session.create_message([message], max_tokens=10)
    return result.model_dump_json(exclude_none=True)


@server.tool()
async def ask(message: str, ctx: Context) -> str:
    return (await ctx.elicit(message, Answer)).model_dump_json()


@server.tool()
async def work(steps: int, hold: bool, ctx: Context) -> str:
    """Reports `steps` times; a held one then stays at work until it is cancelled."""
    global cancelled
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps)
    try:
        if hold:
            await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        cancelled += 1
        raise
    return "done"


@server.resource("interop://motto")
def motto() -> str:
    return "lose nothing"


@server.resource("interop://greeting/{name}")
def greeting(name: str) -> str:
    return f"Hello, {name}"


@server.prompt()
def greet(name: str) -> str:
    return f"Greet {name}."


@server.completion()
async def complete(ref, argument, context) -> Completion:
    return Completion(values=[n for n in ("Ada", "Alan", "Grace") if n.startswith(argument.value)])


server.run("streamable-http", port=int(sys.argv[1]) if len(sys.argv) > 1 else 0)
