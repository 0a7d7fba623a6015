-- The history of finished work, in pages that the leader writes: see server/history/pages.py. Every server reads them.
-- No key refers to other tables, and nothing locks them: a slow history does not delay a commit.
CREATE TABLE history (
    number  bigint PRIMARY KEY,
    epoch   bigint NOT NULL,
    size    bigint NOT NULL,  -- before it was compressed
    content bytea  NOT NULL   -- zstandard
);

ALTER TABLE history ALTER COLUMN content SET STORAGE EXTERNAL;
