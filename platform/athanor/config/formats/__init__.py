"""How the admin writes times: as the API and the dashboard do, the same whatever the browser's language."""
