"""The two steps of single sign-on, and the page that allauth redirects to when it fails."""

from allauth.socialaccount.providers.openid_connect.views import callback, login
from django.urls import path
from django.views.decorators.http import require_POST

from athanor.accounts.sign_on import refused

urlpatterns = [
    # By POST with the CSRF token, so that a link cannot sign a user in.
    path("<slug:provider_id>/login", require_POST(login), name="openid_connect_login"),
    path("<slug:provider_id>/callback", callback, name="openid_connect_callback"),
    path("cancelled", refused, {"problem": "cancelled"}, name="socialaccount_login_cancelled"),
    path("refused", refused, name="socialaccount_signup"),
    path("account", refused, name="socialaccount_connections"),
]
