from collections.abc import Iterator
from typing import Any

import pytest

from athanor.accounts.roles import parse_group_roles
from tests.control_plane.accounts import oidc_provider
from tests.control_plane.accounts.oidc_provider import CLIENT_ID, CLIENT_SECRET, Provider


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    with oidc_provider.running() as found:
        app = {
            "provider_id": "oidc",
            "name": "Example",
            "client_id": CLIENT_ID,
            "secret": CLIENT_SECRET,
            "settings": {"server_url": found.issuer, "scope": ["openid", "groups"]},
        }
        settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [app]}}
        settings.SIGN_ON = True
        settings.ATHANOR_GROUP_ROLES = parse_group_roles("ml=red:member, ml-leads=red:admin, ops=platform:auditor")
        yield found
