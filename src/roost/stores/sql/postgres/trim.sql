-- Keep the newest $1 commits, and of these no more than $2 bytes.
DELETE FROM log
WHERE revision <= (SELECT revision FROM lead) - $1
    OR revision <= (
        SELECT max(revision)
        FROM (SELECT revision, sum(octet_length(changes)) OVER (ORDER BY revision DESC) AS bytes FROM log) AS summed
        WHERE bytes > $2
    )
