"""The software bill of materials, in CycloneDX 1.6."""

import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.parser import Parser
from hashlib import sha256
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

from release.bundled import bundled_parts

PROJECT = "https://pypi.org/project/sharded-infer"


def sbom_text(wheels: Iterable[Path], epoch: int) -> str:
    """Wheels of one version (at least one), their contents, and their requirements of pip.

    `epoch` is the SBOM's time, in seconds since 1970.
    """
    wheels = sorted(wheels)
    version, needed = _metadata(wheels[0])
    ours = _of_pypi("sharded-infer", version)
    ours.licenses.add(LicenseExpression("Apache-2.0"))
    files = list(map(_file, wheels))
    inside = list(_inside())
    bom = Bom(
        serial_number=uuid5(NAMESPACE_URL, f"{PROJECT}/{version}/{epoch}"),
        components=[*files, *inside, *needed],
    )
    bom.metadata.component = ours
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.register_dependency(ours, [*files, *needed])
    for file in files:
        bom.register_dependency(file, inside)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _file(wheel: Path) -> Component:
    digest = sha256(wheel.read_bytes()).hexdigest()
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest)]
    return Component(name=wheel.name, type=ComponentType.FILE, bom_ref=wheel.name, hashes=hashes)


def _inside() -> Iterator[Component]:
    for part in bundled_parts():
        vendor, product = part.cpe or ("", "")
        yield Component(
            name=part.name,
            version=part.version,
            type=ComponentType.LIBRARY,
            bom_ref=f"{part.purl}@{part.version}",
            purl=PackageURL.from_string(f"{part.purl}@{part.version}"),
            cpe=f"cpe:2.3:a:{vendor}:{product}:{part.version}:*:*:*:*:*:*:*" if part.cpe else None,
            licenses=[LicenseExpression(part.licence)],
            properties=[Property(name="sharded-infer:licence-file", value=part.licence_file)],
        )


def _metadata(wheel: Path) -> tuple[str, list[Component]]:
    """Version and requirements of a wheel, without versions, which each environment chooses."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(archive.read(name).decode())
    needed = []
    for line in told.get_all("Requires-Dist", ()):
        requirement = Requirement(line)
        if requirement.marker is None:
            one = _of_pypi(requirement.name)
            one.scope = ComponentScope.REQUIRED
            one.properties.add(Property(name="sharded-infer:requirement", value=line))
            needed.append(one)
    return told["Version"], needed


def _of_pypi(name: str, version: str | None = None) -> Component:
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"pkg:pypi/{name}",
        purl=PackageURL("pypi", name=name, version=version),
    )
