"use strict";

// Requests that are tried on the page go by the session of whoever is signed in, with its CSRF token.
const csrfToken = () => (/(?:^|; )csrftoken=([^;]*)/.exec(document.cookie) || [])[1];

SwaggerUIBundle({
  url: document.getElementById("swagger-ui").dataset.document,
  dom_id: "#swagger-ui",
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  deepLinking: true,
  docExpansion: "none", // the resources first: they are 27, and their operations 170
  requestInterceptor: (request) => {
    const token = csrfToken();
    if (token && !["GET", "HEAD", undefined].includes(request.method)) request.headers["X-CSRFToken"] = token;
    return request;
  },
});
