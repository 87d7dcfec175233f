#!/bin/sh
# Run the command; as PostgreSQL, make the cluster first and run /docker-entrypoint-initdb.d/*.sh in it.
set -eu
[ "$1" = postgres ] || exec "$@"
export PGDATA=/var/lib/postgresql/data
as_postgres() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    mkdir -p "$PGDATA" /run/postgresql
    chown -R postgres /var/lib/postgresql /run/postgresql
    printf %s "$POSTGRES_PASSWORD" > /tmp/password
    chown postgres /tmp/password
    as_postgres initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256
    rm /tmp/password
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    as_postgres pg_ctl -w start -o "-c listen_addresses= -k /tmp"
    export PGHOST=/tmp
    for script in /docker-entrypoint-initdb.d/*.sh; do as_postgres "$script"; done
    as_postgres pg_ctl -w stop
fi
exec setpriv --reuid=postgres --regid=postgres --clear-groups postgres -c 'listen_addresses=*' -k /tmp
