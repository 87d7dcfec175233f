"""Single sign-on by OpenID Connect, when a provider is named."""

from urllib.parse import urlsplit

from athanor.accounts.roles import parse_group_roles
from athanor.config.env import EnvironmentProblem
from athanor.config.settings.base import ATHANOR

OIDC_PROVIDER_ID = "oidc"
SOCIALACCOUNT_ADAPTER = "athanor.accounts.sign_on.SignOnAdapter"
ACCOUNT_ADAPTER = "athanor.accounts.sign_on.AccountAdapter"
# allauth's pages for local accounts are not routed (api/sign_on_urls.py). SOCIALACCOUNT_ONLY would refuse allauth.mfa,
# whose models accounts/second_factors.py uses.
ACCOUNT_EMAIL_VERIFICATION = "none"
SOCIALACCOUNT_AUTO_SIGNUP = True
# A local account is never taken over by who claims its address or name at the provider.
SOCIALACCOUNT_EMAIL_AUTHENTICATION = False
SOCIALACCOUNT_STORE_TOKENS = False
SOCIALACCOUNT_REQUESTS_TIMEOUT = 10
SOCIALACCOUNT_OPENID_CONNECT_URL_PREFIX = ""
LOGIN_REDIRECT_URL = "/jobs"

_named = {
    "ATHANOR_OIDC_ISSUER": ATHANOR.oidc_issuer,
    "ATHANOR_OIDC_CLIENT_ID": ATHANOR.oidc_client_id,
    "ATHANOR_OIDC_CLIENT_SECRET": ATHANOR.oidc_client_secret,
}
SIGN_ON = all(_named.values())
if any(_named.values()) and not SIGN_ON:
    _missing = ", ".join(name for name, value in _named.items() if not value)
    raise EnvironmentProblem(f"athanor: single sign-on needs {_missing} too")
_issuer = urlsplit(ATHANOR.oidc_issuer)
if SIGN_ON and _issuer.scheme != "https" and _issuer.hostname not in ("127.0.0.1", "localhost"):
    raise EnvironmentProblem(f"athanor: ATHANOR_OIDC_ISSUER={ATHANOR.oidc_issuer!r}: give an https address")

try:
    ATHANOR_GROUP_ROLES = parse_group_roles(ATHANOR.oidc_group_roles)
except ValueError as _error:
    raise EnvironmentProblem(f"athanor: environment variable ATHANOR_OIDC_GROUP_ROLES: {_error}") from _error

SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": OIDC_PROVIDER_ID,
                "name": ATHANOR.oidc_name,
                "client_id": ATHANOR.oidc_client_id,
                "secret": ATHANOR.oidc_client_secret,
                "settings": {
                    "server_url": ATHANOR.oidc_issuer.rstrip("/"),
                    "scope": ATHANOR.oidc_scopes.split(),
                },
            }
        ]
        if SIGN_ON
        else [],
    }
}
