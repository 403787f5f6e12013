"""The model whose servers are attacked."""

import pytest

from tests.serving.conftest import Ranker, publish_ranker
from tests.serving.conftest import sharded_infer as sharded_infer  # the fixture


@pytest.fixture(scope="session")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_ranker(tmp_path_factory.mktemp("attacked") / "repository")
