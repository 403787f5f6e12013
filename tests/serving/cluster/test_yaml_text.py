from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from serving.cluster.yaml_text import yaml_text

# YAML's readers refuse control characters, also escaped ones of JSON's that are no pairs.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["yes", "No", "null", "1e3", "0x1", "12:30", "~", "-", "a: b", "#", "a\nb\n"])
    | TEXTS
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(st.dictionaries(TEXTS, below, max_size=3) | SCALARS, max_size=3)
        | st.dictionaries(TEXTS, below, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4))
def test_what_is_written_is_read_back(value: dict[str, Any]) -> None:
    assert yaml.safe_load(yaml_text(value)) == value


def test_files_are_literal_blocks_and_texts_are_quoted_where_they_look_like_others() -> None:
    value = {"a.toml": "x = 1\n\n[y]\nz = 2\n", "on": "off", "port": "8001", "url": "s3://b/m"}
    assert yaml_text(value) == (
        'a.toml: |\n  x = 1\n\n  [y]\n  z = 2\n"on": "off"\nport: "8001"\nurl: "s3://b/m"\n'
    )
    assert yaml.safe_load(yaml_text(value)) == value
