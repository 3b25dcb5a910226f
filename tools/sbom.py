"""What the installed environment consists of, as a CycloneDX document: `build/sbom.cdx.json`.

Every distribution with version, licence and package URL, and who needs whom. What the service does not need at run time
(tests, linters) is marked `excluded`. Places are left out: neither paths of this machine nor addresses of registries.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
FILE = ROOT / "build" / "sbom.cdx.json"
OURS = "broker-connectivity"

LONGEST_LICENCE = 80
"""Some packages put the whole text where its name belongs."""


def needs(distribution: Distribution, extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """What a distribution needs here at run time, with these extras of it."""
    for requirement in map(Requirement, distribution.requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def runtime(installed: Mapping[str, Distribution], root: str = OURS) -> set[str]:
    """The names of everything that the service needs."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(root, frozenset({"all"}))]
    while waiting:
        name, extras = each = waiting.pop()
        if each not in found and name in installed:
            found.add(each)
            waiting += ((canonicalize_name(it.name), frozenset(it.extras)) for it in needs(installed[name], extras))
    return {name for name, _ in found}


def component(distribution: Distribution, *, is_needed: bool) -> Component:
    """A distribution as CycloneDX has it."""
    metadata, name = distribution.metadata, canonicalize_name(distribution.name)
    licence = str(metadata["License-Expression"] or metadata["License"] or "")
    if "\n" in licence or not 0 < len(licence) < LONGEST_LICENCE:
        named = [text for text in metadata.get_all("Classifier", ()) if text.startswith("License ::")]
        licence = " AND ".join(re.sub(r".*:: ", "", text) for text in named)
    purl = PackageURL("pypi", name=name, version=distribution.version)
    return Component(
        type=ComponentType.APPLICATION if name == OURS else ComponentType.LIBRARY,
        name=name,
        version=distribution.version,
        bom_ref=str(purl),
        purl=purl,
        scope=ComponentScope.REQUIRED if is_needed else ComponentScope.EXCLUDED,
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
    )


def document(installed: Mapping[str, Distribution]) -> str:
    """The environment as CycloneDX 1.6, JSON."""
    needed = runtime(installed)
    made = {name: component(each, is_needed=name in needed) for name, each in installed.items()}
    bom = Bom(components=[each for name, each in made.items() if name != OURS])
    bom.metadata.component = made[OURS]
    for name, each in made.items():
        names = {canonicalize_name(requirement.name) for requirement in needs(installed[name])}
        bom.register_dependency(each, [made[other] for other in sorted(names & made.keys() - {name})])
    return JsonV1Dot6(bom).output_as_string(indent=2)


def environment() -> dict[str, Distribution]:
    """What is installed beside this interpreter, by canonical name."""
    return {canonicalize_name(each.name): each for each in distributions(path=[path for path in sys.path if path])}


def main() -> int:
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(document(environment()) + "\n", encoding="utf-8")
    print(f"{FILE.relative_to(ROOT)}: {len(environment())} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
