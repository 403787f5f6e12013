"""Accepts connections of listening sockets, on an event loop of its own."""

import asyncio
import errno
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address

from serving.http_api.connections.body_budget import BodyBudget
from serving.http_api.connections.connection import HttpConnection
from serving.http_api.connections.connection_context import Answering, ConnectionContext
from serving.http_api.connections.connection_table import ConnectionTable, Drop
from serving.http_api.connections.limits import HttpLimits

_STOP_SECONDS = 5.0
_TICK_SECONDS = 0.1
# In one turn of the loop. A client that sends its request at once is read a few turns later: it
# must not be evicted before.
_MOST_ACCEPTED, _TURNS = 8, 8
# Unread bytes of all answers together.
_MOST_UNREAD_BYTES = 256 * 2**20
# Descriptors given up when all are in use, so that probes are still answered.
_SPARE_DESCRIPTORS = 8
# Process, user and group: `struct ucred` (unix(7)).
_CREDENTIALS = struct.Struct("=iII")
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class HttpListener:
    """Serves listening sockets on a thread of its own."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        limits: HttpLimits,
        answer: Answering,
        *,
        keeps_open: bool,
        drop: Callable[[Drop], None],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Starts accepting on nonblocking `listeners`, which close with this object.

        The event loop calls `answer`, and `drop` for each dropped connection or request.
        """
        self._listeners = tuple(listeners)
        self._tls = tls
        self._handshake_seconds = limits.header_seconds
        self._loop = asyncio.new_event_loop()
        self._context = ConnectionContext(
            self._loop,
            limits,
            answer,
            keeps_open,
            drop,
            ConnectionTable(limits),
            BodyBudget(limits),
        )
        self._most_accepted = max(1, min(_MOST_ACCEPTED, limits.max_connections // _TURNS))
        self._is_accepting = True
        self._spares: list[int] = []
        self._refill()
        for listener in self._listeners:
            self._resume(listener)
        self._loop.call_later(_TICK_SECONDS, self._tick)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def stop_accepting(self) -> None:
        """Leaves new connections to other processes with the socket; keeps the open ones."""
        done = threading.Event()

        def stop() -> None:
            self._stop_accepting()
            done.set()

        self._loop.call_soon_threadsafe(stop)
        done.wait(_STOP_SECONDS)

    def close(self) -> None:
        """Stops accepting; returns when all requests are answered or a time limit has passed."""
        with suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self._finish(), self._loop)
        self._thread.join(2 * _STOP_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            # Aborted connections get their callbacks.
            self._loop.run_until_complete(asyncio.sleep(0))
        finally:
            for spare in self._spares:
                os.close(spare)
            self._loop.close()

    async def _finish(self) -> None:
        self._stop_accepting()
        table = self._context.table
        for member in table:
            member.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                while len(table):
                    await asyncio.sleep(_TICK_SECONDS / 10)
        for member in table:
            member.abort()
        self._loop.call_soon(self._loop.stop)

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            for listener in self._listeners:
                self._loop.remove_reader(listener)
                listener.close()

    def _tick(self) -> None:
        self._refill()
        for member, stage in self._context.table.late(self._loop.time()):
            member.late(stage)
        for member in self._context.table.unread(_MOST_UNREAD_BYTES):
            self._context.drop(Drop.UNREAD)
            member.abort()
        self._loop.call_later(_TICK_SECONDS, self._tick)

    def _refill(self) -> None:
        with suppress(OSError):
            while len(self._spares) < _SPARE_DESCRIPTORS:
                self._spares.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _accept(self, listener: socket.socket) -> None:
        left = self._most_accepted
        while left > 0:
            try:
                accepted, peer = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS or not self._make_room(listener):
                    return
                left = 1
            else:
                self._enter(accepted, peer)
                left -= 1

    def _make_room(self, listener: socket.socket) -> bool:
        """Frees descriptors for a waiting client; True if one is free at once."""
        # The system needs a descriptor before it checks whether a client waits.
        pending = select.poll()
        pending.register(listener, select.POLLIN)
        if not pending.poll(0):
            return False
        table = self._context.table
        self._context.drop(Drop.DESCRIPTORS)
        waiting = table.next_to_go(Drop.DESCRIPTORS, "")
        if waiting is not None:
            waiting.abort()
        if self._spares:
            os.close(self._spares.pop())
            return True
        # The socket stays readable, so the loop would spin.
        self._loop.remove_reader(listener)
        self._loop.call_later(0 if waiting is not None else _TICK_SECONDS, self._resume, listener)
        return False

    def _resume(self, listener: socket.socket) -> None:
        if self._is_accepting:
            self._loop.add_reader(listener, self._accept, listener)

    def _enter(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
        name, address = _names(accepted, peer)
        table = self._context.table
        reason = table.too_many(address)
        only_probes = False
        if reason is not None:
            self._context.drop(reason)
            waiting = table.next_to_go(reason, address)
            if waiting is not None:
                waiting.abort()
            else:
                only_probes = True
                if not table.has_probe_place:
                    waiting = table.probe_to_go()
                    if waiting is None:
                        accepted.close()
                        return
                    waiting.abort()
        accepted.setblocking(False)
        connection = HttpConnection(self._context, address, name, only_probes=only_probes)
        connection.connecting = self._loop.create_task(self._connect(connection, accepted))

    async def _connect(self, connection: HttpConnection, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_seconds if self._tls else None,
            )
        except (OSError, asyncio.CancelledError):
            # The client has left, has no valid certificate, or took too long.
            accepted.close()
            self._context.table.leave(connection)


def _names(accepted: socket.socket, peer: tuple[str, int]) -> tuple[str, str]:
    """A client as `address:port`, and what identifies it: on a Unix socket, its user."""
    if accepted.family == socket.AF_UNIX:
        found = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        user = f"uid {_CREDENTIALS.unpack(found)[1]}"
        return f"{user}:", user
    return f"{peer[0]}:{peer[1]}", _network(peer[0])


def _network(address: str) -> str:
    """An IPv4 address, or the /64 network of an IPv6 address, which one client may own."""
    parsed = ip_address(address.partition("%")[0])
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped is not None else parsed.packed[:8].hex()
