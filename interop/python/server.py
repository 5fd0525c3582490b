"""A server whose tools are still at work when their client goes away.

Runs on python-sdk 1.x and 2.x. What a tool says first, as progress or in its
question, is the server's process id.
"""

import os

import anyio
from pydantic import BaseModel

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context
except ImportError:
    from mcp.server.fastmcp import Context, FastMCP as MCPServer

server = MCPServer("closing")


class Answer(BaseModel):
    go_on: bool


@server.tool()
async def work(ctx: Context) -> str:
    await ctx.report_progress(1, 2, str(os.getpid()))
    await anyio.sleep(600)
    return "done"


@server.tool()
async def ask(ctx: Context) -> str:
    answer = await ctx.elicit(str(os.getpid()), Answer)
    return answer.action


server.run("stdio")
