#!/usr/bin/env python3
"""Makes packages for npm and PyPI of a binary: registries.py VERSION GOOS GOARCH BINARY SHARE OUT

OUT/npm gets the folder mcp-proxy, which is the same for all platforms, and one with the
binary, which is an optional dependency of it: npm installs the one that fits, and nothing
is downloaded or run when it is installed. OUT gets the wheel, in which the binary itself is
the script that pip installs. SHARE is what packaging/share has written: npm install -g takes
over the manual, and pip all of it. VERSION is X.Y.Z, X.Y.Z-rc.N or X.Y.Z-dev.N.
"""
import base64
import hashlib
import json
import pathlib
import re
import shutil
import sys
import zipfile

# For each GOOS/GOARCH: what npm calls os and cpu, and the platforms of the wheel. The binary
# of Linux is static, so it runs with glibc and with musl.
PLATFORMS = {
    "linux/amd64": ("linux", "x64", "manylinux2014_x86_64.musllinux_1_1_x86_64"),
    "linux/arm64": ("linux", "arm64", "manylinux2014_aarch64.musllinux_1_1_aarch64"),
    "darwin/amd64": ("darwin", "x64", "macosx_12_0_x86_64"),
    "darwin/arm64": ("darwin", "arm64", "macosx_12_0_arm64"),
    "windows/amd64": ("win32", "x64", "win_amd64"),
    "windows/arm64": ("win32", "arm64", "win_arm64"),
}
HERE = pathlib.Path(__file__).parent
ABOUT = "Connects MCP clients to several MCP servers through one address, and loses nothing on the way"
HOME = "https://github.com/mcp-proxy/mcp-proxy"


def npm(version, goos, goarch, binary, share, out):
    def package(folder, **more):
        (out / folder / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE.parent / "LICENSE", out / folder)
        (out / folder / "package.json").write_text(json.dumps({
            "version": version, "license": "Apache-2.0", "repository": f"git+{HOME}.git", **more}, indent=2) + "\n")

    system, cpu, _ = PLATFORMS[f"{goos}/{goarch}"]
    folder = f"{system}-{cpu}"
    package(folder, name=f"@mcp-proxy/{folder}", description=f"The binary of @mcp-proxy/mcp-proxy for {folder}",
            os=[system], cpu=[cpu], preferUnplugged=True)
    shutil.copy(share / "doc" / "mcp-proxy" / "LICENSES.gz", out / folder)
    shutil.copy(binary, out / folder / "bin" / name(goos))
    (out / folder / "bin" / name(goos)).chmod(0o755)

    package("mcp-proxy", name="@mcp-proxy/mcp-proxy", description=ABOUT, mcpName="io.github.mcp-proxy/mcp-proxy",
            bin={"mcp-proxy": "bin/mcp-proxy.js"}, engines={"node": ">=18"}, directories={"man": "man"},
            optionalDependencies={f"@mcp-proxy/{s}-{c}": version for s, c, _ in PLATFORMS.values()})
    shutil.copy(HERE / "npm" / "mcp-proxy.js", out / "mcp-proxy" / "bin")
    (out / "mcp-proxy" / "bin" / "mcp-proxy.js").chmod(0o755)
    shutil.copy(HERE.parent / "README.md", out / "mcp-proxy")
    shutil.copytree(share / "man" / "man1", out / "mcp-proxy" / "man", dirs_exist_ok=True)


def name(goos):
    return "mcp-proxy.exe" if goos == "windows" else "mcp-proxy"


def wheel(version, goos, goarch, binary, share, out):
    tags = PLATFORMS[f"{goos}/{goarch}"][2]
    base = f"mcp_proxy_go-{version}"
    files = {
        f"{base}.data/scripts/{name(goos)}": binary.read_bytes(),
        f"{base}.dist-info/licenses/LICENSE": (HERE.parent / "LICENSE").read_bytes(),
        f"{base}.dist-info/METADATA": (
            f"Metadata-Version: 2.4\nName: mcp-proxy-go\nVersion: {version}\nSummary: {ABOUT}\n"
            "License-Expression: Apache-2.0\nLicense-File: LICENSE\n"
            f"Project-URL: Repository, {HOME}\nRequires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n"
            + (HERE.parent / "README.md").read_text()).encode(),
        f"{base}.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: registries.py\nRoot-Is-Purelib: false\n"
            + "".join(f"Tag: py3-none-{tag}\n" for tag in tags.split("."))).encode(),
    }
    for path in sorted(p for p in share.rglob("*") if p.is_file()):
        files[f"{base}.data/data/share/{path.relative_to(share).as_posix()}"] = path.read_bytes()
    record = f"{base}.dist-info/RECORD"
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    with zipfile.ZipFile(out / f"{base}-py3-none-{tags}.whl", "w", zipfile.ZIP_DEFLATED) as z:
        for path, data in files.items():
            info = zipfile.ZipInfo(path)  # of 1980: the same input makes the same bytes
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if "/scripts/" in path else 0o100644) << 16
            z.writestr(info, data)


def main():
    if len(sys.argv) != 7:
        sys.exit(__doc__)
    version, goos, goarch, binary, share, out = sys.argv[1:]
    parts = re.fullmatch(r"(\d+\.\d+\.\d+)(?:-(rc|dev)\.(\d+))?", version)
    if not parts or f"{goos}/{goarch}" not in PLATFORMS:
        sys.exit(f"registries.py: no package for {version} on {goos}/{goarch}\n{__doc__}")
    binary, share, out = map(pathlib.Path, (binary, share, out))
    npm(version, goos, goarch, binary, share, out / "npm")
    pre = {None: "", "rc": f"rc{parts[3]}", "dev": f".dev{parts[3]}"}[parts[2]]  # as PEP 440 writes it
    wheel(parts[1] + pre, goos, goarch, binary, share, out)


main()
