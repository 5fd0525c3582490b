"""What the tests ask of every client, by python-sdk 2.x: client.py ERA TARGET…

The target is a URL or a command.

Says on stdout, as one JSON object, what it was told.
"""

import json
import sys

import anyio
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import ElicitResult, ToolListChangedNotification

era, *target = sys.argv[1:]
heard = []


async def hear(message) -> None:
    if isinstance(message, ToolListChangedNotification):
        heard.append(message)


async def elicit(context, params) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": params.message})


async def text(client, name, **arguments) -> str:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result
    return result.content[0].text


async def change(client) -> bool:
    """Whether the client hears that the tools changed; the stream for that may not be there at first."""
    with anyio.fail_after(20):
        if era == "modern":
            async with client.listen(tools_list_changed=True) as changes:
                await text(client, "test_trigger_tool_change")
                await anext(changes)
            return True
        while not heard:
            await text(client, "test_trigger_tool_change")
            await anyio.sleep(0.01)
    return True


async def progress(client) -> list:
    steps = []

    async def step(at, total, message) -> None:
        steps.append(at)

    await client.call_tool("work", {"steps": 3, "hold": False}, progress_callback=step)
    return steps


async def error(client) -> dict:
    try:
        result = await client.call_tool("fail", {})
        return {"isError": result.is_error, "text": result.content[0].text}
    except MCPError as err:
        return err.error.model_dump(exclude_none=True)


async def cancel(client) -> bool:
    """Whether the server hears of a call that is given up."""
    before = int(await text(client, "cancelled"))
    async with anyio.create_task_group() as group:

        async def step(at, total, message) -> None:
            group.cancel_scope.cancel()

        await client.call_tool("work", {"steps": 1, "hold": True}, progress_callback=step)
    with anyio.fail_after(20):
        while int(await text(client, "cancelled")) == before:
            await anyio.sleep(0.01)
    return True


async def main() -> None:
    mode = "legacy" if era == "legacy" else "2026-07-28"
    server = target[0] if len(target) == 1 else StdioServerParameters(command=target[0], args=target[1:])
    async with Client(server, mode=mode, elicitation_callback=elicit, message_handler=hear) as client:
        said = {
            "tools": [tool.name for tool in (await client.list_tools()).tools if tool.name != "appears"],
            "changed": await change(client),
            "said": await text(client, "echo", text="h\u00e9 \U0001f44b"),
            "asked": json.loads(await text(client, "ask", message="Who?")),
            "steps": await progress(client),
            "error": await error(client),
            "cancelled": await cancel(client),
        }
    print(json.dumps(said))


anyio.run(main)
