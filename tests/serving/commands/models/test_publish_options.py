from tests.attacks.test_options import options


def test_publishing_on_ray_takes_what_publishing_takes_but_parts_changes_and_modules() -> None:
    of = {
        words: {(one.name, one.kinds) for one in options() if one.words == words}
        for words in (("publish",), ("cluster", "publish"))
    }
    alone = {"--part", "--join"}
    # Changed rows are published by one process.
    alone |= {"--changed", "--base", "--model", "--tower", "--follow", "--every", "--nice"}
    # A module is the user's own code, which other machines do not have.
    alone |= {"--module", "--example", "--name", "--method", "--columns", "--user", "--dry-run"}
    own = {one for one in of["publish",] if one[0] in alone}
    assert {name for name, _ in own} == alone
    assert of["publish",] - own <= of["cluster", "publish"]
