"""Every page of the dashboard has a route, and every route a link."""

import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "frontend" / "src"
ROUTER = SOURCE / "app" / "router.tsx"
# Addresses that people get from elsewhere: a redirect, a link in a message, a form of the address itself.
WITHOUT_LINK = {"/sign-in", "/invitation", "/reset-password", "*"}


def pages() -> set[str]:
    """Return the modules of pages, such as `features/jobs/components/jobs-page`."""
    return {str(path.relative_to(SOURCE).with_suffix("")) for path in SOURCE.glob("features/*/components/*-page.tsx")}


def routes() -> set[str]:
    return set(re.findall(r'path: "([^"]+)"', ROUTER.read_text()))


def links() -> str:
    """Return everything but the router, in which a link is an address in quotes or backquotes."""
    files = [path for path in SOURCE.rglob("*.ts*") if path != ROUTER and ".test." not in path.name]
    return "\n".join(path.read_text() for path in files if not path.name.endswith("gen.ts"))


def test_every_page_has_a_route() -> None:
    router = ROUTER.read_text()
    assert len(pages()) > 20
    assert {page for page in pages() if f'"@/{page}"' not in router} == set(), (
        "add a route to frontend/src/app/router.tsx"
    )


def test_every_route_is_linked() -> None:
    text = links()
    unlinked = set()
    for route in routes() - WITHOUT_LINK:
        start, _, parameter = route.partition("/:")
        address = rf"{re.escape(start)}/\$\{{" if parameter else rf"{re.escape(start)}[\"`?]"
        if not re.search(rf"[\"`]{address}", text):
            unlinked.add(route)
    assert unlinked == set(), "link it from a page, or from the sections in frontend/src/app/shell.tsx"
