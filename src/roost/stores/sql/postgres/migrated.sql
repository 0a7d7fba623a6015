-- Whether the schema is there, and whether its migrations are.
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1) AS schema,
    EXISTS (
        SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations'
    ) AS migrations
