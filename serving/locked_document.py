"""A shared text that every process of a server may change, one after another."""

import fcntl
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from serving.shared_document import SharedDocument

Value = TypeVar("Value")


class LockedDocument(Generic[Value]):
    """A value in shared memory that forks inherit; made before any fork.

    The lock is the kernel's: a process that is killed while it holds it lets go of it.
    """

    def __init__(self, capacity: int, adapter: TypeAdapter[Value], value: Value) -> None:
        """Begins with a value.

        Args:
            capacity: bytes that its JSON may take.
            adapter: reads and writes it.
            value: the first one.
        """
        self._adapter = adapter
        self._document = SharedDocument(capacity)
        self._document.write(adapter.dump_json(value))
        self._file = os.memfd_create("sharded-infer-lock")
        weakref.finalize(self, os.close, self._file)
        # Locks of files are by process: threads need one of their own. By process too, as a thread
        # of the parent may have held it at the fork.
        self._locks: dict[int, threading.Lock] = {}

    @property
    def sequence(self) -> int:
        """Changes whenever the value does; cheap."""
        return self._document.sequence

    def read(self) -> tuple[int, Value]:
        """The sequence and the value."""
        sequence, text = self._document.read()
        return sequence, self._adapter.validate_json(text)

    def change(self, edit: Callable[[Value], Value]) -> int:
        """Replaces the value by what is made of it; what `edit` raises leaves it as it was.

        Args:
            edit: given the value; no other process or thread changes it meanwhile.

        Returns:
            The sequence of the new one.

        Raises:
            InternalError: it is too long.
        """
        with self._locked():
            self._document.write(self._adapter.dump_json(edit(self.read()[1])))
            return self._document.sequence

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)
