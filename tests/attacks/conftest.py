"""The model whose servers are attacked."""

import pytest

from tests.support.servers import Ranker, publish_ranker


@pytest.fixture(scope="session")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_ranker(tmp_path_factory.mktemp("attacked") / "repository")
