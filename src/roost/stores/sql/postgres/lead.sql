-- Take the lead; with $2, only if it is still exactly as it was seen. No row: it is not.
WITH taken AS (
    UPDATE lead SET epoch = epoch + 1, identity = $1, renewals = 0, successor = ''
    WHERE $2::bigint IS NULL OR (epoch = $2 AND identity = $3::text AND renewals = $4::bigint AND successor = $5::text)
    RETURNING epoch
)
SELECT epoch, pg_notify(current_schema(), '') FROM taken
