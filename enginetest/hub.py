#!/usr/bin/env python3
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
"""hub.py FOLDER - serve the part of the Hugging Face hub that vLLM asks before it loads a
model from its cache. FOLDER/owner/model/COMMIT/ has the files of a commit; the file
FOLDER/owner/model/main names the commit of main. Prints its URL, and serves until its
standard input ends.

As on the hub, a file's ETag is its content hash, which names its blob in a cache.
"""
import hashlib
import http.server
import json
import os
import sys
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit


def etag(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path

    def log_message(self, *_):
        pass

    def give(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def commit(self, repository, revision):
        """Returns the commit of a revision and its folder, or None for both."""
        try:
            commit = (repository / "main").read_text() if revision == "main" else revision
        except OSError:
            return None, None
        folder = repository / commit
        return (commit, folder) if len(commit) == 40 and folder.is_dir() else (None, None)

    def do_GET(self):
        part = [unquote(p) for p in urlsplit(self.path).path.strip("/").split("/")]
        api = part[:2] == ["api", "models"]
        if api:
            part = part[2:]
        if len(part) < 2 or any(p in ("", ".", "..") for p in part):
            return self.give(404, X_Error_Code="RepoNotFound")
        repository, rest = self.root / part[0] / part[1], part[2:]
        commit, folder = self.commit(repository, rest[1] if len(rest) > 1 else "main")
        if not commit:
            return self.give(404, X_Error_Code="RevisionNotFound")
        files = sorted(folder.iterdir())
        what = rest[0] if rest else "revision"
        if api and what == "revision":
            about = dict(id="/".join(part[:2]), sha=commit, siblings=[dict(rfilename=f.name) for f in files])
            return self.give(200, json.dumps(about).encode(), Content_Type="application/json")
        if api and what == "tree":
            tree = [dict(type="file", path=f.name, size=f.stat().st_size, oid=etag(f)) for f in files]
            return self.give(200, json.dumps(tree).encode(), Content_Type="application/json")
        if not api and what == "resolve" and len(rest) == 3 and (folder / rest[2]) in files:
            body = (folder / rest[2]).read_bytes()
            return self.give(200, body, ETag=f'"{etag(folder / rest[2])}"', X_Repo_Commit=commit, Content_Length=str(len(body)))
        return self.give(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)

    do_HEAD = do_GET


def main():
    Handler.root = Path(sys.argv[1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
