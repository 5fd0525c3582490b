"""A client of python-sdk that finds out for itself how to log in: login.py URL BROWSER…

BROWSER is a command that takes a URL and where to stop, and says where it got.
Says on stdout, as one JSON object, what it was told.
"""

import json
import sys
from urllib.parse import parse_qs, urlsplit

import anyio
from mcp.client.auth import OAuthClientProvider
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.auth import OAuthClientMetadata

try:
    from mcp.shared.auth import AuthorizationCodeResult
except ImportError:  # 1.x
    AuthorizationCodeResult = None

url, *browser = sys.argv[1:]
back = "http://127.0.0.1:1/callback"  # nobody is there: the browser stops before it


class Storage:
    tokens = None
    client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


answer = {}


async def redirect(to: str) -> None:
    page = await anyio.run_process([*browser, to, back], stderr=sys.stderr)
    answer.update(parse_qs(urlsplit(page.stdout.decode().strip()).query))


async def callback():
    code, state, iss = (answer.get(name, [None])[0] for name in ("code", "state", "iss"))
    return AuthorizationCodeResult(code=code, state=state, iss=iss) if AuthorizationCodeResult else (code, state)


async def text(session, name, **arguments) -> str:
    result = await session.call_tool(name, arguments)
    return result.content[0].text


async def main() -> None:
    metadata = OAuthClientMetadata(
        client_name="interop",
        redirect_uris=[back],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
    )
    auth = OAuthClientProvider(url, metadata, Storage(), redirect, callback)
    async with create_mcp_http_client(auth=auth) as http:
        async with streamable_http_client(url, http_client=http) as (read, write, *_):
            async with ClientSession(read, write) as session:
                await session.initialize()
                said = await text(session, "echo", text="h\u00e9")
                stepped = await text(session, "work", steps=0, hold=False)
    print(json.dumps({"said": said, "stepped": stepped}))


anyio.run(main)
