from django.contrib import admin
from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from athanor.api import site

urlpatterns = [
    path("healthz", site.healthz),
    path("readyz", site.readyz),
    path("admin/", admin.site.urls),
    path("sso/", include("athanor.api.sign_on_urls")),
    path("api/v1/", include("athanor.api.v1.urls")),
    path("api/agent/v1/", include("athanor.api.agent.urls")),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerView.as_view(url_name="schema")),
    re_path(r"^api/", site.unknown_api),
    re_path(r"^(?!static/).*$", site.dashboard),
]
