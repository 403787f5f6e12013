"""The thread that writes recorded calls."""

import importlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from kernels.wording import listed
from serving.config.server_config import ServerConfig
from serving.inference.predict_calls import PredictCalls
from serving.metrics.families.server_families import RECORD_OUTCOMES
from serving.recording.record_files import RecordFiles, destination_of
from serving.recording.record_table import keyed_hash, record_table
from serving.recording.waiting_calls import RecordedCalls, WaitingCalls
from sharded_infer.errors import InputError
from sharded_infer.files.regular_file import read_regular
from sharded_infer.samples.parquet import parquet_module

_log = logging.getLogger("sharded_infer")
# Of messages and scores in compiled code.
MOST_WAITING_BYTES = 32 * 2**20
_MOST_TABLE_BYTES = 64 * 2**20
_SECONDS = 0.5  # between two looks at what waits
_LEAST_KEY, _MOST_KEY = 16, 64  # bytes
WRITTEN, FULL, UNUSUAL, FAILED = RECORD_OUTCOMES


class Recorder:
    """Records a share of a process's calls."""

    def __init__(
        self, config: ServerConfig, calls: PredictCalls, count: Callable[[str, int], None]
    ) -> None:
        """Chooses calls from now on; `start` writes them.

        Args:
            count: takes one of `RECORD_OUTCOMES`, and a number of requests.

        Raises InputError without pyarrow, for an unreadable key, or for a folder that cannot be
        created.
        """
        self._arrow, parquet = _arrow_modules()
        self._without = frozenset(config.record_without)
        self._hashed = dict.fromkeys(config.record_hash, keyed_hash(_key(config)))
        try:
            destination = destination_of(config.record or "")
        except OSError as error:
            raise InputError(f"record: {config.record}: {error.strerror}") from error
        self._files = RecordFiles(destination, self._arrow, parquet)
        self._calls = WaitingCalls(calls, config.record_share, MOST_WAITING_BYTES)
        self._count = count
        self._counted = dict.fromkeys(RECORD_OUTCOMES, 0)
        self._unread = self._beyond = 0
        self._checked: set[tuple[str, int]] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self) -> None:
        """Starts to write."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Writes what waits, within some seconds."""
        self._closed.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closed.wait(_SECONDS)
            try:
                self._look()
                if is_last:
                    self._files.write_all()
                self._report()
            except Exception:
                # A bug of ours must not end the thread.
                _log.exception("internal error in recording")

    def _look(self) -> None:
        for taken in self._calls.take():
            if isinstance(taken, int):
                self._unread += taken
            elif self._files.waiting_bytes >= _MOST_TABLE_BYTES:
                self._beyond += len(taken.samples)
            else:
                table = record_table(self._arrow, taken, without=self._without, hashed=self._hashed)
                model = taken.version.model
                self._check_names(model.name, model.version, taken)
                self._files.add(model.name, model.version, table)
                self._files.write_full(monotonic())
        self._files.write_full(monotonic())

    def _check_names(self, model: str, version: int, taken: RecordedCalls) -> None:
        """Logs names of settings that are no inputs of a version, or none that can be hashed."""
        if (model, version) in self._checked:
            return
        self._checked.add((model, version))
        ids = {n for n, values in taken.values.items() if values.numbers.dtype.kind != "f"}
        for setting, names, known in (
            ("record_without", self._without, {*taken.values, *taken.dense}),
            ("record_hash", self._hashed, ids),
        ):
            if unknown := sorted(set(names) - known):
                what = "no input" if setting == "record_without" else "no sparse input"
                _log.warning(
                    "%s: %s version %d has %s %s", setting, model, version, what, listed(unknown)
                )

    def _report(self) -> None:
        totals = {
            WRITTEN: self._files.written,
            FULL: self._calls.dropped + self._beyond,
            UNUSUAL: self._unread,
            FAILED: self._files.lost,
        }
        for outcome, total in totals.items():
            if more := total - self._counted[outcome]:
                self._count(outcome, more)
        self._counted = totals


def _arrow_modules() -> tuple[Any, Any]:
    parquet = parquet_module("record")
    arrow = importlib.import_module("pyarrow")
    # Its first conversion imports pandas, which takes a second of requests' time later.
    arrow.array(np.zeros(1)).dictionary_encode()
    return arrow, parquet


def _key(config: ServerConfig) -> bytes:
    if not config.record_hash:
        return b""
    path = Path(config.record_hash_key or "")
    try:
        key = read_regular(path, _MOST_KEY, follow=True).strip()
    except OSError as error:
        raise InputError(f"record_hash_key: {path}: {error.strerror}") from error
    if len(key) < _LEAST_KEY:
        raise InputError(
            f"record_hash_key: {path}: expected {_LEAST_KEY} to {_MOST_KEY} bytes, got {len(key)}"
        )
    return key
