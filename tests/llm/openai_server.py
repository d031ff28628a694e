"""A loopback HTTP server that speaks OpenAI's chat completions and does what a test tells it to.

    server = OpenAIServer([completion("Hello"), status(429, retry_after="2"), cut_stream("Hel")])
    with server:
        ... server.base_url ...

Each request takes the next behaviour; after the last one the server answers 500 and says so. A behaviour may
also be a function of the request's JSON that returns a behaviour. Nothing waits for longer than the server
lives: closing it releases every handler.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

import pytest

__all__ = [
    "Behaviour",
    "OpenAIServer",
    "chunks",
    "completion",
    "cut_stream",
    "hang",
    "openai_server",
    "raw",
    "status",
    "streamed",
    "tool_call",
]

Json: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the server does with one request: a status, headers, body pieces, and how it ends.

    ``framing``: ``length`` (Content-Length), ``chunked``, or ``close`` (the body ends with the connection).
    ``ending``: ``clean``, ``cut`` (the connection ends before the body is complete), or ``hang`` (the
    server says no more until it is closed). ``announced`` overrides the Content-Length.
    """

    code: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: tuple[bytes, ...] = ()
    framing: str = "length"
    ending: str = "clean"
    announced: int | None = None


Script: TypeAlias = Sequence[Behaviour | Callable[[Json], Behaviour]]


def tool_call(name: str, arguments: Json, tool_call_id: str = "call_1") -> dict[str, Json]:
    """A tool call as the protocol writes it; ``arguments`` that are a text are sent as they are."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": tool_call_id, "type": "function", "function": {"name": name, "arguments": text}}


def completion(
    text: str | None = None,
    *,
    tool_calls: Sequence[Json] = (),
    finish_reason: str | None = None,
    refusal: str | None = None,
    usage: tuple[int, int] = (11, 7),
    **replaced: Json,
) -> Behaviour:
    """A whole answer. Keyword arguments replace members of the top-level object (``choices=[]``)."""
    message: dict[str, Json] = {"role": "assistant", "content": text, "refusal": refusal}
    if tool_calls:
        message["tool_calls"] = list(tool_calls)
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish_reason or ("tool_calls" if tool_calls else "stop"),
    }
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "local-model",
        "choices": [choice],
        "usage": {
            "prompt_tokens": usage[0],
            "completion_tokens": usage[1],
            "total_tokens": sum(usage),
        },
        **replaced,
    }
    return Behaviour(headers={"Content-Type": "application/json"}, pieces=(json.dumps(body).encode(),))


def raw(body: bytes, *, content_type: str = "application/json", code: int = 200) -> Behaviour:
    """Any bytes with any status."""
    return Behaviour(code=code, headers={"Content-Type": content_type}, pieces=(body,))


def status(
    code: int, message: str = "no", *, retry_after: str | None = None, error_code: str | None = None
) -> Behaviour:
    """An error answer with the protocol's error object."""
    headers = {"Content-Type": "application/json"}
    if retry_after is not None:
        headers["Retry-After"] = retry_after
    body = {"error": {"message": message, "type": "error", "param": None, "code": error_code}}
    return Behaviour(code=code, headers=headers, pieces=(json.dumps(body).encode(),))


def chunks(
    *deltas: Mapping[str, Json], finish_reason: str | None = "stop", usage: tuple[int, int] = (11, 7)
) -> list[bytes]:
    """The server-sent events of a streamed answer: one for each delta, then finish, usage and end."""
    shell = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000}
    shell["model"] = "local-model"
    events: list[Json] = [
        {**shell, "choices": [{"index": 0, "delta": dict(delta), "finish_reason": None}]} for delta in deltas
    ]
    if finish_reason is not None:
        last = {"index": 0, "delta": {}, "finish_reason": finish_reason}
        events.append({**shell, "choices": [last]})
        counted = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
        events.append({**shell, "choices": [], "usage": counted})
    lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return [*lines, b"data: [DONE]\n\n"] if finish_reason is not None else lines


def streamed(*deltas: Mapping[str, Json] | str, finish_reason: str = "stop") -> Behaviour:
    """A streamed answer; a delta that is a text is a piece of content."""
    parts = [{"content": delta} if isinstance(delta, str) else delta for delta in deltas]
    return Behaviour(
        headers={"Content-Type": "text/event-stream"},
        pieces=tuple(chunks(*parts, finish_reason=finish_reason)),
        framing="chunked",
    )


def cut_stream(*deltas: Mapping[str, Json] | str, framing: str = "chunked", ending: str = "cut") -> Behaviour:
    """A streamed answer that breaks off after ``deltas``; with framing ``close`` HTTP cannot tell."""
    parts = [{"content": delta} if isinstance(delta, str) else delta for delta in deltas]
    return Behaviour(
        headers={"Content-Type": "text/event-stream"},
        pieces=tuple(chunks(*parts, finish_reason=None)),
        framing=framing,
        ending=ending,
    )


def hang(*, after: Sequence[bytes] = (), framing: str = "chunked") -> Behaviour:
    """No answer (or none after ``after``) until the server is closed; with no pieces not even headers."""
    return Behaviour(
        headers={"Content-Type": "text/event-stream"}, pieces=tuple(after), framing=framing, ending="hang"
    )


class OpenAIServer:
    """See the module. ``bodies`` and ``headers`` hold what was received, in order of arrival."""

    def __init__(self, script: Script = ()) -> None:
        self._script: list[Behaviour | Callable[[Json], Behaviour]] = list(script)
        self._lock = threading.Lock()
        self.closing = threading.Event()
        self.bodies: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="openai-server"
        )

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def then(self, *behaviours: Behaviour | Callable[[Json], Behaviour]) -> OpenAIServer:
        """Add behaviours for the requests to come."""
        with self._lock:
            self._script.extend(behaviours)
        return self

    def __enter__(self) -> OpenAIServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release every handler, stop listening and wait for all threads."""
        self.closing.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def connected(self) -> None:
        with self._lock:
            self.connections += 1

    def received(self, body: Json, headers: dict[str, str]) -> Behaviour:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            behaviour = (
                self._script.pop(0)
                if self._script
                else status(500, f"the script of the test server ended before request {len(self.bodies)}")
            )
        return behaviour(body) if callable(behaviour) else behaviour


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    owner: OpenAIServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what several tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(0.05)
        self.server.owner.connected()

    def handle(self) -> None:
        """Serve requests of this connection until it ends or the server closes; an idle one is polled."""
        while not self.server.owner.closing.is_set():
            try:
                if not self.connection.recv(1, socket.MSG_PEEK):
                    return
            except TimeoutError:
                continue
            except OSError:
                return
            self.connection.settimeout(10)
            self.close_connection = True
            self.handle_one_request()
            if self.close_connection:
                return
            self.connection.settimeout(0.05)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length) or b"null")
        self._do(
            self.server.owner.received(body, {key.lower(): value for key, value in self.headers.items()})
        )

    def _do(self, behaviour: Behaviour) -> None:
        if behaviour.ending == "hang" and not behaviour.pieces:
            self.server.owner.closing.wait()
            self.close_connection = True
            return
        self.send_response(behaviour.code)
        for key, value in behaviour.headers.items():
            self.send_header(key, value)
        match behaviour.framing:
            case "length":
                total = sum(len(piece) for piece in behaviour.pieces)
                announced = total if behaviour.announced is None else behaviour.announced
                self.send_header("Content-Length", str(announced))
            case "chunked":
                self.send_header("Transfer-Encoding", "chunked")
            case _:
                self.send_header("Connection", "close")
                self.close_connection = True
        self.end_headers()
        for piece in behaviour.pieces:
            self.wfile.write(
                b"%x\r\n%b\r\n" % (len(piece), piece) if behaviour.framing == "chunked" else piece
            )
            self.wfile.flush()
        match behaviour.ending:
            case "clean" if behaviour.framing == "chunked":
                self.wfile.write(b"0\r\n\r\n")
            case "hang":
                self.server.owner.closing.wait()
                self.close_connection = True
            case "cut":
                self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """A test's output is not a log."""


@pytest.fixture
def openai_server() -> Iterator[OpenAIServer]:
    """A running server without a script: give it one with ``then``."""
    with OpenAIServer() as server:
        yield server
