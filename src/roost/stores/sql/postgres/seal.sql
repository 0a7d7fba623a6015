-- An empty commit. A commit of this epoch that may still be on its way finds another revision than it knows and does
-- nothing; of any other epoch it does nothing anyway.
WITH sealed AS (
    UPDATE lead SET revision = revision + 1
    WHERE epoch = $1 AND epoch > 0
    RETURNING revision
), logged AS (
    INSERT INTO log (revision, changes) SELECT revision, $2 FROM sealed
)
SELECT revision, pg_notify(current_schema(), '') FROM sealed
