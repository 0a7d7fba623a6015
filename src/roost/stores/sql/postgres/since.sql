-- Everything after revision $1 and who leads, as of one moment. More than $2 bytes are not read, only counted.
SELECT lead.epoch, lead.identity, lead.renewals, lead.successor, lead.revision, kept.commits, kept.bytes,
    CASE WHEN kept.bytes <= $2 THEN ARRAY(SELECT changes FROM log WHERE revision > $1 ORDER BY revision) END AS changes
FROM lead, (
    SELECT count(*) AS commits, coalesce(sum(octet_length(changes)), 0)::bigint AS bytes FROM log WHERE revision > $1
) AS kept
