-- The pages after number $1, up to the first that makes them more than $2 bytes.
SELECT number, content FROM (
    SELECT number, content, sum(size) OVER (ORDER BY number) - size AS before
    FROM (SELECT number, size, content FROM history WHERE number > $1 ORDER BY number LIMIT 1000) AS following
) AS summed
WHERE before <= $2
ORDER BY number
