"""Writes docker/requirements.txt: what the images install, as it is installed here.

All that sharded-infer needs with the extra `s3`, found by following requirements;
torch and FBGEMM are pinned in the Dockerfile, by device.
"""

from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TARGET = Path(__file__).parent / "requirements.txt"
EXTRAS = ("s3",)
# Installed by the Dockerfile itself.
PAIR = {"torch", "fbgemm-gpu-cpu"}
HEAD = "# Written by docker/pin_requirements.py from an environment that passes the tests.\n"


def pinned() -> dict[str, str]:
    """The version of each package, by name."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [("sharded-infer", extra) for extra in ("", *EXTRAS)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        package = distribution(name)
        if name != "sharded-infer":
            found[name] = package.version
        for line in package.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(needed.name), e) for e in ("", *needed.extras)]
    return {name: version for name, version in sorted(found.items()) if name not in PAIR}


if __name__ == "__main__":
    lines = (f"{name}=={version}\n" for name, version in pinned().items())
    TARGET.write_text(HEAD + "".join(lines))
