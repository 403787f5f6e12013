import pytest


@pytest.fixture(autouse=True)
def _poisoned(poisoned_memory: None) -> None:
    """Makes missing writes visible in every test here."""
