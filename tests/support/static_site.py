"""A server of a folder's files, compressed as by static servers."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_COMPRESSED = (".css", ".html", ".js", ".json", ".svg")
# nginx's and Apache's modules have 1 to 6.
_LEVEL = 6


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.suffix not in _COMPRESSED or not path.is_file():
            return super().do_GET()
        body = gzip.compress(path.read_bytes(), _LEVEL)
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(path))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, *words: object) -> None:
        """Silent."""


@contextmanager
def static_site(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=folder))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
