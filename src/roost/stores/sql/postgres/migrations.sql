CREATE TABLE IF NOT EXISTS migrations (
    version integer PRIMARY KEY,
    name    text NOT NULL,
    applied timestamptz NOT NULL DEFAULT now()
)
