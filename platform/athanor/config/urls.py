"""The URLs of the server."""

from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import RedirectView, TemplateView

from athanor.api import docs_pages, document, metrics, site

urlpatterns = [
    path("healthz", site.healthz),
    path("readyz", site.readyz),
    path("metrics", metrics.metrics),
    path("admin/", admin.site.urls),
    path("sso/", include("athanor.api.sign_on_urls")),
    path("api/v1/", include("athanor.api.v1.urls")),
    path("api/agent/v1/", include("athanor.api.agent.urls")),
    path("api/schema/", document.openapi, name="schema"),
    path("api/docs/", TemplateView.as_view(template_name="athanor/api_docs.html")),
    re_path("^docs$", RedirectView.as_view(url="/docs/", permanent=True)),
    path("docs/", docs_pages.page),
    path("docs/<path:name>", docs_pages.page, name="docs"),
    re_path(site.DASHBOARD_ROUTES, site.dashboard, name="dashboard"),
    re_path("", site.unknown),
]
