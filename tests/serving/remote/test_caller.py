import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from serving.bench.load.library import load_generator_refusal
from serving.bench.workloads.named import WORKLOADS
from serving.remote.caller import TOKEN_VARIABLE, CallerFiles, read_caller
from sharded_infer.errors import InputError
from tests.end_to_end.test_security import private_file
from tests.serving.commands.bench.test_bench_serve import SMALL
from tests.support.servers import DENSE_WIDTH, MODEL, Command, Ranker, RunningServer, running_server
from tests.support.tls import IssuedFiles, issue_files

ALL, METRICS = "all-0123456789abcdef", "metrics-0123456789ab"
PREDICT = "predict-0123456789ab"
TOKENS = f"{ALL} predict,metrics # all\n{METRICS} metrics # page\n"
SAMPLE = json.dumps({"dense": [0] * DENSE_WIDTH})


class Guarded:
    """A server with TLS, client certificates and tokens; and its authorized clients."""

    def __init__(self, running: RunningServer, files: IssuedFiles, folder: Path) -> None:
        self.address = running.grpc_url.replace("127.0.0.1", "localhost")
        self.page = running.metrics_url.replace("127.0.0.1", "localhost")
        self.ca = files.ca
        self.folder = folder
        self.token = private_file(folder / "token", f"{ALL}\n")
        self.pair = self.certificate_of(files.authority, "caller")
        self.stranger_ca = folder / "stranger.ca"
        trustme.CA().cert_pem.write_to_path(str(self.stranger_ca))

    def certificate_of(self, authority: trustme.CA, name: str) -> tuple[object, ...]:
        issued = authority.issue_cert(name)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        private_file(key, issued.private_key_pem.bytes().decode())
        return ("--tls-certificate", certificate, "--tls-key", key)

    @property
    def options(self) -> tuple[object, ...]:
        return ("--tls-ca", self.ca, *self.pair, "--token-file", self.token)


@pytest.fixture(scope="module")
def guarded(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    files = issue_files(folder, ["localhost"])
    tokens = private_file(folder / "tokens", TOKENS)
    options = (*files.options(), "--tls-client-ca", files.ca, "--tokens-file", tokens)
    with running_server(ranker.repository, folder / "log", *options) as running:
        yield Guarded(running, files, folder)


@pytest.fixture(autouse=True)
def _no_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def watch(guarded: Guarded, *options: object) -> tuple[object, ...]:
    return ("repo", "watch", guarded.address, "--json", "--until", 1, "--timeout", 30, *options)


def test_repo_watch_shows_a_server_its_certificate_and_token(
    guarded: Guarded, sharded_infer: Command
) -> None:
    words = watch(guarded, "--metrics", guarded.page, *guarded.options)
    [version] = sharded_infer(*words).json()["versions"]
    assert (version["model"], version["state"]) == (MODEL, "READY")
    assert version["names"] == ["default"]


def test_predict_shows_them_too(
    guarded: Guarded, ranker: Ranker, sharded_infer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = sharded_infer("predict", "-", "-r", ranker.repository, stdin=SAMPLE)
    remote = ("predict", "-", "-a", guarded.address, "-m", MODEL)
    assert sharded_infer(*remote, *guarded.options, stdin=SAMPLE).out == here.out
    monkeypatch.setenv(TOKEN_VARIABLE, ALL)
    of_variable = guarded.options[:-2]
    assert sharded_infer(*remote, *of_variable, stdin=SAMPLE).out == here.out


REFUSED: dict[str, tuple[Callable[[Guarded], tuple[object, ...]], tuple[str, ...]]] = {
    "no TLS": (lambda g: (), ("it speaks TLS", "--tls-ca")),
    "another authority": (
        lambda g: ("--tls-ca", g.stranger_ca, *g.pair),
        ("its certificate is refused",),
    ),
    "a public authority": (lambda g: ("--tls", *g.pair), ("its certificate is refused",)),
    "no certificate of its own": (lambda g: ("--tls-ca", g.ca), ("--tls-certificate",)),
    "a certificate of another authority": (
        lambda g: ("--tls-ca", g.ca, *g.certificate_of(trustme.CA(), "stranger")),
        ("--tls-certificate",),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_tls_refuses_is_named_with_the_option_for_it(
    guarded: Guarded, sharded_infer: Command, case: str
) -> None:
    options, words = REFUSED[case]
    sharded_infer(*watch(guarded, *options(guarded))).refused(guarded.address, *words)


def test_a_certificate_of_another_name_is_named(guarded: Guarded, sharded_infer: Command) -> None:
    address = guarded.address.replace("localhost", "127.0.0.1")
    done = sharded_infer("repo", "watch", address, *guarded.options)
    done.refused(address, "its certificate is refused", "127.0.0.1")


def test_tokens_that_are_refused_are_said_to_be(
    guarded: Guarded, sharded_infer: Command, tmp_path: Path
) -> None:
    tls = guarded.options[:-2]
    sharded_infer(*watch(guarded, *tls)).refused("asks for a token", "--token-file", TOKEN_VARIABLE)
    unknown = private_file(tmp_path / "unknown", "no-such-token-at-all")
    done = sharded_infer(*watch(guarded, *tls, "--token-file", unknown))
    done.refused("refuses the token", "UNAUTHENTICATED")
    assert "no-such-token-at-all" not in done.err
    lesser = private_file(tmp_path / "lesser", METRICS)
    remote = ("predict", "-", "-a", guarded.address, "-m", MODEL, *tls, "--token-file", lesser)
    sharded_infer(*remote, stdin=SAMPLE).refused("PERMISSION_DENIED", "'page'", "'predict'")


class Plain(NamedTuple):
    running: RunningServer
    log: Path
    folder: Path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    folder = tmp_path_factory.mktemp("plain")
    SMALL.publish(folder / "models")
    tokens = private_file(folder / "tokens", f"{TOKENS}{PREDICT} predict\n")
    log = folder / "log"
    with running_server(folder / "models", log, "--tokens-file", tokens) as running:
        yield Plain(running, log, folder)


def test_a_metrics_page_that_refuses_the_token_is_named(
    plain: Plain, sharded_infer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = plain.running
    monkeypatch.setenv(TOKEN_VARIABLE, PREDICT)
    words = ("repo", "watch", running.grpc_url, "--metrics", running.metrics_url, "--json")
    sharded_infer(*words).refused(running.metrics_url, "the scope metrics", "403")
    # TLS with a server that has none.
    done = sharded_infer("repo", "watch", running.grpc_url, "--tls")
    done.refused(running.grpc_url, "no TLS with it")
    # A command's variable is none of a server's settings, and not a slip.
    assert TOKEN_VARIABLE not in plain.log.read_text()


@pytest.mark.skipif(load_generator_refusal() is not None, reason=str(load_generator_refusal()))
def test_bench_serve_sends_a_token(
    plain: Plain, sharded_infer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORKLOADS, "ranking", SMALL)
    token = private_file(plain.folder / "token", ALL)
    figures, url = plain.folder / "figures.json", plain.running.grpc_url
    where = ("bench", "serve", "--address", url, "--duration", 0.3)
    words = (*where, "--metrics-url", plain.running.metrics_url, "--deadline-ms", 20_000)
    done = sharded_infer(*words, "--token-file", token, "--json", figures)
    assert done.code == 0, done.err
    fields = json.loads(figures.read_text())
    assert fields["errors"] == {} and fields["requests_per_second"] > 0
    assert fields["mean_batch"] > 0
    sharded_infer(*where).refused(url, "UNAUTHENTICATED", "got none")


def test_files_that_cannot_be_used_are_named(tmp_path: Path, guarded: Guarded) -> None:
    _, certificate, _, key = guarded.pair
    garbage = tmp_path / "garbage"
    garbage.write_text("no certificate")
    assert isinstance(certificate, Path) and isinstance(key, Path)
    for files, words in (
        (CallerFiles(ca=tmp_path / "none"), r"--tls-ca .*none: cannot be read: No such file"),
        (CallerFiles(ca=garbage), "--tls-ca .*garbage: expected certificates as PEM"),
        (CallerFiles(certificate=certificate), "--tls-key: expected both or neither"),
        (CallerFiles(tls=True, key=key), "--tls-key: expected both or neither"),
        (CallerFiles(certificate=certificate, key=tmp_path), "--tls-key .*cannot be read"),
        (CallerFiles(certificate=certificate, key=garbage), "garbage: expected a certificate and"),
        (CallerFiles(certificate=key, key=certificate), "expected a certificate and its key"),
        (CallerFiles(token=tmp_path / "none"), "--token-file .*none: cannot be read"),
    ):
        with pytest.raises(InputError, match=words):
            read_caller(files, {})


@pytest.mark.parametrize("text", ["", " \n", "two words", "a\ntoken and more", "h\u00e4h"])
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(InputError, match="--token-file .*: expected one token") as refused:
        read_caller(CallerFiles(token=file), {})
    assert not text.strip() or text not in str(refused.value)
    if text:
        with pytest.raises(InputError, match=f"{TOKEN_VARIABLE}: expected one token"):
            read_caller(CallerFiles(), {TOKEN_VARIABLE: text})


def test_a_token_stays_out_of_what_is_printed() -> None:
    caller = read_caller(CallerFiles(), {TOKEN_VARIABLE: ALL})
    assert caller.headers == {"authorization": f"Bearer {ALL}"}
    assert caller.tls_context() is None and caller.channel_credentials() is None
    assert ALL not in repr(caller)


def test_options_that_say_nothing_are_refused(sharded_infer: Command, ranker: Ranker) -> None:
    done = sharded_infer("predict", "-", "-r", ranker.repository, "--tls", stdin=SAMPLE)
    done.refused("--tls", "--address")
