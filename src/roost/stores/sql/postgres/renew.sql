-- The lead is still there, or with a successor is given up. No row: somebody else has it.
WITH renewed AS (
    UPDATE lead SET renewals = renewals + 1, successor = $2
    WHERE epoch = $1 AND epoch > 0
    RETURNING renewals
)
SELECT renewals, pg_notify(current_schema(), '') FROM renewed
