import re

from serving.config.shard_host_settings import SHARD_HOST_SETTINGS

# Of servers, which alone have them.
OTHERS = re.compile(r"worker|batch|REST|live page|GPU|serve\b", re.IGNORECASE)


def test_help_speaks_only_of_what_a_shard_host_has() -> None:
    spoken = {name: one.said.help for name, one in SHARD_HOST_SETTINGS.items()}
    assert {name: words for name, words in spoken.items() if OTHERS.search(words)} == {}
