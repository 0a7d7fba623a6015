-- The first record that is not in the version we expected.
SELECT ours.kind, ours.key, ours.expected, coalesce(records.version, 0) AS version
FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) AS ours (kind, key, expected)
LEFT JOIN records ON records.kind = ours.kind AND records.key = ours.key
WHERE coalesce(records.version, 0) <> ours.expected
LIMIT 1
