import pytest

from serving.config.version_policy import Follow, VersionPolicy, parse_policy
from sharded_infer.errors import InputError


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("latest", VersionPolicy(Follow.LATEST, count=1)),
        ("latest:3", VersionPolicy(Follow.LATEST, count=3)),
        ("labels:stable", VersionPolicy(Follow.LABELS, labels=("stable",))),
        ("labels:b,a,b", VersionPolicy(Follow.LABELS, labels=("b", "a"))),
        ("versions:3,5", VersionPolicy(Follow.VERSIONS, versions=(3, 5))),
    ],
)
def test_a_policy_is_read_as_it_is_written(text: str, policy: VersionPolicy) -> None:
    assert parse_policy(text) == policy
    assert parse_policy(str(policy)) == policy


@pytest.mark.parametrize(
    "text",
    ["", "newest", "latest:0", "latest:-1", "latest:1,2", "latest:x", "labels", "labels:",
     "labels:a,,b", "labels:7", "labels: a", "versions", "versions:0", "versions:a", "Latest"],
)  # fmt: skip
def test_what_is_no_policy_is_refused_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(InputError, match="expected latest, latest:N, labels:NAME,NAME"):
        parse_policy(text)
