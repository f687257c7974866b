'use strict';
SwaggerUIBundle({
  url: '/doc/openapi.json',
  dom_id: '#operations',
  deepLinking: true,
  docExpansion: 'list',
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  filter: true,
  // nobody else learns of this document
  validatorUrl: null,
});
