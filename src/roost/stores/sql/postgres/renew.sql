-- The lead is still there, or with an heir is given up. No row: somebody else has it.
WITH renewed AS (
    UPDATE lead SET beat = beat + 1, heir = $2
    WHERE epoch = $1 AND epoch > 0
    RETURNING beat
)
SELECT beat, pg_notify(current_schema(), '') FROM renewed
