// The documentation of the API. Requests that are tried out use the login session.
"use strict";
window.addEventListener("load", () => {
  SwaggerUIBundle({
    url: "/openapi.json",
    dom_id: "#api",
    deepLinking: true,
    docExpansion: "none",
    defaultModelsExpandDepth: -1,
    syntaxHighlight: { activated: false },
    validatorUrl: null,
    requestInterceptor: (request) => {
      request.headers["X-Towpath-CSRF"] = document.body.dataset.csrf;
      return request;
    },
  });
});
