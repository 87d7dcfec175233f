#!/bin/sh
# Run once, by the image of PostgreSQL, when it has made a new cluster. The platform's two roles and its database: one
# role owns the tables and migrates them, the other serves requests and owns nothing (docs/operations/audit.md).
set -eu
psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\getenv runtime_password RUNTIME_PASSWORD
\getenv migration_password MIGRATION_PASSWORD
CREATE ROLE athanor LOGIN PASSWORD :'runtime_password';
CREATE ROLE athanor_migration LOGIN PASSWORD :'migration_password';
CREATE DATABASE athanor OWNER athanor_migration;
SQL
