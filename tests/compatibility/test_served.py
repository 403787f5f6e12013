"""A server serves the versions of every release over gRPC."""

from collections.abc import Iterator

import grpc
import pytest

from sharded_infer import Repository
from sharded_infer.client.prediction import read_prediction
from sharded_infer.v1.predictor_pb2 import PredictResponse
from tests.compatibility.corpus import Corpus, copied, releases
from tests.compatibility.test_artifacts import check_scores
from tests.support.servers import RunningServer, infer_request, running_server, scores_of

METHOD = "/sharded_infer.v1.Predictor/Predict"
# Of each model the server follows so many of the newest versions: all.
MOST_VERSIONS = 4


@pytest.fixture(scope="module", params=releases())
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A copy: servers lock the files of what they serve."""
    return copied(request.param, tmp_path_factory.mktemp("served") / "corpus")


@pytest.fixture(scope="module")
def server(corpus: Corpus) -> Iterator[RunningServer]:
    # In the published precision, whatever is faster here.
    options = ("--follow", f"latest:{MOST_VERSIONS}", "--strict", "--precision", "published")
    log = corpus.folder / "log"
    with running_server(corpus.models, log, *options, "--workers", 1) as running:
        yield running


def test_a_server_scores_as_a_versions_release(corpus: Corpus, server: RunningServer) -> None:
    repository = Repository(corpus.models)
    with server.stub() as stub:
        for model, version in corpus.versions():
            request = infer_request(corpus.request(model), model=model)
            request.model_version = str(version)
            response = stub.ModelInfer(request, timeout=60)
            assert (response.model_name, response.model_version) == (model, str(version))
            # The server takes the first plan.
            first, *_ = repository.manifest(model, version).plans
            scores = {f"{first}/{name}": one for name, one in scores_of(response).items()}
            expected = corpus.scores(model, version)
            check_scores(model, scores, {name: expected[name] for name in scores})
            assert len(scores) == len(expected) // len(repository.manifest(model, version).plans)


def test_a_server_answers_the_releases_client(corpus: Corpus, server: RunningServer) -> None:
    repository = Repository(corpus.models)
    with grpc.insecure_channel(server.grpc_url) as channel:
        predict = channel.unary_unary(METHOD, response_deserializer=PredictResponse.FromString)
        for model in repository.models():
            prediction = read_prediction(predict(corpus.message_path(model).read_bytes()))
            # The latest version by its first plan.
            first, *_ = repository.manifest(model, prediction.version).plans
            assert prediction.version == max(repository.versions(model))
            scores = {f"{first}/{name}": one for name, one in prediction.scores.items()}
            expected = corpus.scores(model, prediction.version)
            check_scores(model, scores, {name: expected[name] for name in scores})
            assert scores
