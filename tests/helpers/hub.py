"""A hub on 127.0.0.1 that speaks the protocol of huggingface_hub for downloads.

    with LocalHub() as hub:
        hub.put("model", "someone/small", {"config.json": b"{}", "model.safetensors": content})
        pretend(monkeypatch, hub, cache_folder)
"""

import hashlib
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_tests"


@dataclass
class Repo:
    """A repository: its commits, newest last, which is the branch main."""

    name: str
    is_private: bool = False
    is_gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes]) -> str:
        sha = hashlib.sha1(f"{self.name} {len(self.commits)}".encode()).hexdigest()
        self.commits[sha] = files
        return sha


class LocalHub:
    """The server, in threads of this process."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.sent: list[str] = []  # the paths of the files
        self.delay = 0.0  # seconds before each file
        self.status: int | None = None  # of every answer, if set
        self.odd: tuple[str, bytes] | None = None  # part of an address, and what is answered there with status 200
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        self._server.handle_error = lambda request, client_address: None  # some tests break connections
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> "LocalHub":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def put(self, kind: str, name: str, files: dict[str, bytes], **about: Any) -> str:
        """A new commit that holds these files alone; returns its hash."""
        return self.repos.setdefault((kind, name), Repo(name, **about)).commit(dict(files))

    def files(self, kind: str, name: str) -> dict[str, bytes]:
        return [*self.repos[kind, name].commits.values()][-1]


class Refused(Exception):
    """An answer that is an error of the hub, by its code in X-Error-Code."""

    def __init__(self, status: int, code: str = "", message: str = ""):
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


class Handler(BaseHTTPRequestHandler):
    """One request. The protocol is read from huggingface_hub 0.30 to 2.4: hf_api, file_download."""

    hub: LocalHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the acknowledgement of its first half

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self) -> None:
        try:
            if self.hub.status:
                raise Refused(self.hub.status)
            if self.hub.odd and self.hub.odd[0] in self.path:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                return self._send(200, self.hub.odd[1])
            self._get(unquote(urlsplit(self.path).path))
        except Refused as error:
            self._send(error.status, json.dumps({"error": error.message}).encode(),
                       {"X-Error-Code": error.code, "X-Error-Message": error.message})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_HEAD = do_POST = answer

    # ------------------------------------------------------------ parts of a request

    @property
    def _has_token(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repo(self, kind: str, name: str) -> Repo:
        given = self.headers.get("Authorization")
        if given and not self._has_token:
            raise Refused(401, "", "Invalid credentials in Authorization header")
        repo = self.hub.repos.get((kind, name))
        if repo is None or (repo.is_private and not self._has_token):
            raise Refused(404 if self._has_token else 401, "RepoNotFound", "Repository not found")
        return repo

    def _sha(self, repo: Repo, revision: str) -> str:
        sha = [*repo.commits][-1] if revision == "main" else revision
        if sha not in repo.commits:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha

    def _send(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, fields: Any, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(fields).encode(), {"Content-Type": "application/json", **(headers or {})})

    # ------------------------------------------------------------ reading

    def _get(self, path: str) -> None:
        words = path.strip("/").split("/")
        if words[0] == "api" and words[1] in ("models", "datasets"):
            self._about(words[1][:-1], "/".join(words[2:4]), words[4:])
        elif "resolve" in words:
            kind = "dataset" if words[0] == "datasets" else "model"
            words = words[1:] if kind == "dataset" else words
            self._resolve(self._repo(kind, "/".join(words[:2])), words[3:])
        else:
            raise Refused(404)

    def _about(self, kind: str, name: str, rest: list[str]) -> None:
        repo = self._repo(kind, name)
        sha = self._sha(repo, rest[1] if rest else "main")
        if rest[:1] == ["tree"]:  # all files, as snapshot_download asks for them
            self._json([{"type": "file", "oid": "0" * 40, "size": len(content), "path": path}
                        for path, content in repo.commits[sha].items()])
            return
        self._json({"_id": "0", "id": name, "sha": sha, "private": repo.is_private, "tags": [],
                    "siblings": [{"rfilename": path} for path in repo.commits[sha]]})

    def _resolve(self, repo: Repo, words: list[str]) -> None:
        if repo.is_gated and not self._has_token:
            raise Refused(401, "GatedRepo", "Access to this repository is restricted")
        sha, path = self._sha(repo, words[0]), "/".join(words[1:])
        content = repo.commits[sha].get(path)
        if content is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
            return
        if self.command == "GET":
            self.hub.sent.append(path)
            threading.Event().wait(self.hub.delay)  # time.sleep is replaced
        self._send(200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": sha})


def pretend(monkeypatch: Any, hub: LocalHub, home: Path) -> None:
    """Lets this process take the server for the hub, with a cache of its own and no token; it never waits to retry.

    Xet, of which this server knows nothing, is off.
    """
    _set_constants(monkeypatch, **_addresses(hub.url), HF_HUB_CACHE=str(home / "hub"),
                   HF_TOKEN_PATH=str(home / "token"), HF_HUB_OFFLINE=False, HF_HUB_DISABLE_XET=True)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_TOKEN": "",
                        "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "",
                        "TRANSFORMERS_OFFLINE": "", "NO_PROXY": "127.0.0.1,localhost"}.items():
        monkeypatch.setenv(name, value)


def unplug(monkeypatch: Any) -> None:
    """From now on nobody answers this process: connections that are open could go on after the server is closed."""
    _set_constants(monkeypatch, **_addresses("http://127.0.0.1:9"))


def forbid(monkeypatch: Any) -> None:
    """HF_HUB_OFFLINE, from now on."""
    from huggingface_hub import utils

    _set_constants(monkeypatch, HF_HUB_OFFLINE=True)
    getattr(utils, "reset_sessions", lambda: None)()  # older releases look at it when a session begins


def _addresses(url: str) -> dict[str, str]:
    return {"ENDPOINT": url, "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}"}


def _set_constants(monkeypatch: Any, **values: Any) -> None:
    """Sets constants of the library, in all of its modules that copied them, as older releases do."""
    import huggingface_hub.hf_api  # noqa: F401 - newer releases load their modules one by one

    modules = [module for name, module in sys.modules.items() if name.startswith("huggingface_hub") and module]
    for module in modules:
        for name in values.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, values[name])
