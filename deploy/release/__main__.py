"""`python -m deploy.release VERSION --key FILE`, or `make release`: build a release into build/release/VERSION.

Built is what is committed, on a clean checkout. The tag is made last, when everything else is there. Nothing is pushed.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from deploy.images.__main__ import IMAGES
from deploy.local.environment import REPOSITORY
from deploy.local.errors import StackError
from deploy.release import contents, signing
from deploy.release.checkout import Checkout


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="deploy.release", description=__doc__)
    parser.add_argument("version", metavar="VERSION", help="as in pyproject.toml and CHANGELOG.md, for example 1.2.0")
    parser.add_argument("--key", type=Path, required=True, help="the private SSH key that signs checksums and tag")
    parser.add_argument(
        "--images", nargs="*", default=list(IMAGES), metavar="NAME",
        help=f"images to include, built by `make images` of this commit (default: {' '.join(IMAGES)})",
    )  # fmt: skip
    parser.add_argument("--no-tag", action="store_true", help="make no tag: a rehearsal")
    chosen = parser.parse_args()
    began = time.monotonic()
    try:
        folder = build(Checkout(REPOSITORY), chosen.version, chosen.key, chosen.images, tag=not chosen.no_tag)
    except StackError as error:
        print(f"{error.log}\nrelease: {error}".strip(), file=sys.stderr)
        return 1
    print(f"{folder} in {time.monotonic() - began:.0f} s")
    for file in sorted(folder.iterdir()):
        print(f"{file.stat().st_size / 1e6:9.2f} MB  {file.name}")
    return 0


def build(checkout: Checkout, version: str, key: Path, images: list[str], *, tag: bool) -> Path:
    """Return the folder with all files of the release. Raises StackError if something is missing or does not fit."""
    signing.require_key(key)
    checkout.require_releasable(version, tag=tag)
    notes = contents.notes(checkout.folder, version)
    layouts = {name: contents.image_layout(checkout, name, version) for name in images}
    target = checkout.folder / "build" / "release" / version
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    (target / "RELEASE_NOTES.md").write_text(notes, encoding="utf-8")
    contents.build_wheel(checkout, target)
    contents.pack_pages(checkout, target, version)
    contents.pack_chart(checkout, target, version)
    for name, layout in layouts.items():
        contents.pack(layout, target / f"athanor-{name}-{version}.oci.tar", f"athanor-{name}", checkout.committed)
    signing.sign(target, key)
    if tag:
        checkout.tag(version, key)
    return target


if __name__ == "__main__":
    sys.exit(main())
