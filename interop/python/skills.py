"""Skills by fastmcp: skills.py serve DIRECTORY [PORT], and skills.py ask TARGET…

A server has a skill for each directory in DIRECTORY, on stdio or on a port. The
client says on stdout, as one JSON object, what the server at a target, a URL or
a command, tells it of skills, and the digests of what it reads.
"""

import asyncio
import base64
import hashlib
import json
import sys

from fastmcp import Client, FastMCP
from fastmcp.client.transports import StdioTransport
from fastmcp.server.providers.skills import SkillsDirectoryProvider
from fastmcp.skills import SkillsClientExtension
from fastmcp.skills.extension import SkillsExtension


def serve(directory, port=None) -> None:
    server = FastMCP("skills")
    provider = SkillsDirectoryProvider(roots=directory, experimental_skills=True)
    server.add_provider(provider)
    server.add_extension(SkillsExtension(providers=[provider]))
    where = {"transport": "http", "port": int(port)} if port else {"transport": "stdio"}
    server.run(show_banner=False, **where)


async def ask(*target) -> None:
    server = target[0] if len(target) == 1 else StdioTransport(command=target[0], args=list(target[1:]))
    async with Client(server, extensions=[SkillsClientExtension()]) as client:
        skills = await client.list_skills()
        said = {
            "extensions": client.server_capabilities.extensions,
            "skills": [skill.model_dump() for skill in skills],
            "got": [(await client.get_skill(skill.uri)).model_dump() for skill in skills],
            "read": {file.uri: await digest(client, file.uri) for skill in skills for file in skill.resources},
        }
    print(json.dumps(said))


async def digest(client, uri) -> str:
    [content] = await client.read_resource(uri)
    data = content.text.encode() if hasattr(content, "text") else base64.b64decode(content.blob)
    return "sha256:" + hashlib.sha256(data).hexdigest()


verb, *args = sys.argv[1:]
serve(*args) if verb == "serve" else asyncio.run(ask(*args))
