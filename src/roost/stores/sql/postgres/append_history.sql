-- Pages after number $2, if that is the newest and epoch $1 leads; the number of rows says whether they were written.
WITH newest AS (SELECT coalesce(max(number), 0) AS number FROM history), leads AS (SELECT epoch FROM lead)
INSERT INTO history (number, epoch, size, content)
SELECT $2 + page.place, $1, page.size, page.content
FROM unnest($3::bigint[], $4::bytea[]) WITH ORDINALITY AS page (size, content, place), newest, leads
WHERE newest.number = $2 AND leads.epoch = $1
RETURNING number
