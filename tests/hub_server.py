"""A server that speaks as much of the hub's protocol as the real clients use, over folders."""

import atexit
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

# The clients read HF_ENDPOINT when they are imported, so the port is kept from then on; nothing
# listens at it but while a test serves.
KEPT = socket.socket()
KEPT.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
KEPT.bind(("127.0.0.1", 0))
atexit.register(KEPT.close)
ENDPOINT = "http://{}:{}".format(*KEPT.getsockname())
CDN = ENDPOINT.replace("127.0.0.1", "localhost")  # another host, as the files of the hub have
TOKEN = "hf_accepted"  # of an account that may read the gated repositories
LFS = (".safetensors", ".parquet", ".bin", ".gguf")  # stored apart: found by a redirect
API = re.compile(
    r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)/?(.*))?"
)
RESOLVE = re.compile(r"/(?:(datasets)/)?([^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)")


@dataclass
class Hub:
    """The repositories of a hub, what it refuses, and what it was asked."""

    root: Path
    gated: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def folder(self, name: str, kind: str = "models") -> Path:
        """Return the folder of a repository's files."""
        return self.root / kind / name

    def commit(self, name: str, kind: str = "models") -> str:
        """Return the commit of a repository's only branch, main: a hash of its files."""
        digest = hashlib.sha1(name.encode())
        for path in self.files(name, kind):
            digest.update(path.encode() + (self.folder(name, kind) / path).read_bytes())
        return digest.hexdigest()

    def files(self, name: str, kind: str) -> dict[str, int]:
        """Return the size of every file of a repository by its path."""
        folder = self.folder(name, kind)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}

    def requests(self, *parts: str) -> list[str]:
        """Return the requests made that contain every one of these."""
        return [line for line in self.asked if all(part in line for part in parts)]


def serve(hub: Hub) -> Callable[[], None]:
    """Answer at ENDPOINT from another thread; return what ends it."""

    class Handler(_Handler):
        content = hub

    server = ThreadingHTTPServer(KEPT.getsockname(), Handler)
    server.daemon_threads = True
    threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True).start()

    def end() -> None:
        server.shutdown()
        server.server_close()

    return end


class _Handler(BaseHTTPRequestHandler):
    content: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Say nothing: the hub keeps what it was asked."""

    def _answer(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, hub = unquote(urlsplit(self.path).path), self.content
        line = f"{self.command} {path} {self.headers.get('Range', '')}".rstrip()
        hub.asked.append(line)
        if found := re.fullmatch(r"/cdn/(models|datasets)/([^/]+/[^/]+)/(.+)", path):
            return self._file(hub.folder(found[2], found[1]) / found[3], {})
        if found := RESOLVE.fullmatch(path):
            kind, name, revision, file = found[1] or "models", found[2], found[3], found[4]
            if self._known(kind, name, revision, gate=True):
                self._resolve(kind, name, file)
            return None
        if found := API.fullmatch(path):
            kind, name, what, revision, below = found.groups()
            if self._known(kind, name, revision or "main"):
                self._api(kind, name, what, below or "")
            return None
        return self._refuse(404, "", "Sorry, we can't find the page you are looking for.")

    def _known(self, kind: str, name: str, revision: str, *, gate: bool = False) -> bool:
        """Tell whether a request may be answered; else answer with what is wrong.

        A gated repository shows what it has, and keeps the files themselves.
        """
        hub, token = self.content, self.headers.get("Authorization", "")
        if not hub.folder(name, kind).is_dir():
            self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        elif gate and name in hub.gated and token != f"Bearer {TOKEN}":
            told = f"Access to {kind[:-1]} {name} is restricted."
            self._refuse(403 if token else 401, "GatedRepo", told)
        elif revision not in ("main", hub.commit(name, kind)):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return True
        return False

    def _api(self, kind: str, name: str, what: str | None, below: str) -> None:
        hub, sizes = self.content, self.content.files(name, kind)
        if what == "paths-info":
            wanted = parse_qs(self.body.decode())["paths"]
            self._json([self._entry(path, sizes) for path in wanted if path in sizes])
        elif what == "tree":
            inside = [path for path in sizes if path.startswith(f"{below}/" if below else "")]
            if below and not inside:
                return self._refuse(404, "EntryNotFound", f"{below} does not exist")
            folders = {str(p) for path in inside for p in Path(path).parents if str(p) > below}
            listed = {*inside, *(folder for folder in folders if folder != ".")}
            if "recursive=true" not in self.path.lower():
                depth = below.count("/") + 1 if below else 0
                listed = {path for path in listed if path.count("/") == depth}
            self._json([self._entry(path, sizes) for path in sorted(listed)])
        else:
            self._json(
                {
                    "id": name, "_id": name, "sha": hub.commit(name, kind), "private": False,
                    "gated": "manual" if name in hub.gated else False, "tags": [],
                    "downloads": 0, "likes": 0, "siblings": [{"rfilename": path} for path in sizes],
                }
            )  # fmt: skip
        return None

    def _entry(self, path: str, sizes: dict[str, int]) -> dict[str, Any]:
        oid = hashlib.sha1(path.encode()).hexdigest()
        if path not in sizes:
            return {"type": "directory", "oid": oid, "size": 0, "path": path}
        return {"type": "file", "oid": oid, "size": sizes[path], "path": path}

    def _resolve(self, kind: str, name: str, file: str) -> None:
        hub, path = self.content, self.content.folder(name, kind) / file
        headers = {"X-Repo-Commit": hub.commit(name, kind)}
        if not path.is_file():
            return self._refuse(404, "EntryNotFound", "Entry not found", headers)
        tag = f'"{hashlib.sha256(path.read_bytes()).hexdigest()}"'
        if file.endswith(LFS):
            size = str(path.stat().st_size)
            headers |= {"X-Linked-Size": size, "X-Linked-ETag": tag, "ETag": '"other"'}
            headers |= {"Location": f"{CDN}/cdn/{kind}/{name}/{file}"}
            return self._send(302, b"", headers)
        return self._file(path, {**headers, "ETag": tag})

    def _file(self, path: Path, headers: dict[str, str]) -> None:
        """Send a file, or the part of it that is asked for."""
        data, status = path.read_bytes(), 200
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(part[1]), min(int(part[2] or len(data)), len(data) - 1)
            headers |= {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
            data, status = data[first : last + 1], 206
        self._send(status, data, {**headers, "Accept-Ranges": "bytes"})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(
        self, status: int, code: str, told: str, headers: dict[str, str] | None = None
    ) -> None:
        named = {"X-Error-Code": code, "X-Error-Message": told}
        self._send(status, json.dumps({"error": told}).encode(), {**(headers or {}), **named})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status, HTTPStatus(status).phrase)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
