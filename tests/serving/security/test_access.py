import hashlib

import pytest

from serving.security.access import Access, access_of, parse_tokens
from sharded_infer.errors import InputError

TOKEN, OTHER = "a-token-0123456789", "b-token-0123456789"


def test_of_a_token_only_its_digest_is_kept() -> None:
    known = parse_tokens(f"{TOKEN} predict,metrics # caller\n\n# nothing\n{OTHER} admin", "file")
    found, _ = known
    assert (found.name, found.scopes) == ("caller", {Access.PREDICT, Access.METRICS})
    assert found.digest == hashlib.sha256(TOKEN.encode()).digest()
    assert TOKEN not in repr(known)


def test_tokens_without_names_have_names_of_their_own() -> None:
    names = {one.name for one in parse_tokens(f"{TOKEN} predict; {OTHER} admin", "variable")}
    assert len(names) == 2 and all(len(name) == 8 for name in names)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "file: expected lines"),
        (TOKEN, "line 1: expected TOKEN SCOPE,SCOPE, got 1 words"),
        (f"# x\n{TOKEN} predict metrics", "line 2: .* got 3 words"),
        (f"{TOKEN} predict,root", "predict, admin, metrics, got 'root'"),
        ("short predict", "at least 16 characters, got 5"),
        (f"{TOKEN} predict # first\n{TOKEN} admin", "line 2: the token of first stands there"),
    ],
)
def test_lines_that_are_none_are_refused_without_their_tokens(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        parse_tokens(text, "file")
    assert TOKEN not in str(refused.value)


def test_rpcs_that_nobody_has_thought_of_need_the_scope_admin() -> None:
    assert access_of("/inference.GRPCInferenceService/CudaSharedMemoryRegister") is Access.ADMIN
