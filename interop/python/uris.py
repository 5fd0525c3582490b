"""What Python makes of URIs, as ../uris.mjs does for Node."""

import json
import posixpath
import sys
from urllib.parse import unquote, urlparse


def place(uri):
    try:
        url = urlparse(uri)  # it also cuts off ;parameters, of some schemes
    except ValueError:
        return "error"
    path = unquote(url.path)
    slashes = "//" if url.netloc or path.startswith("/") else ""
    return (url.scheme + ":" if url.scheme else "") + slashes + url.netloc + (posixpath.normpath(path) if path else "")


json.dump([place(uri) for uri in json.load(sys.stdin)], sys.stdout)
