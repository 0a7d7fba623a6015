-- Records are updated far more often than they are listed by key: a rowid table with an index writes fewer pages than
-- WITHOUT ROWID, above all for new keys in random order (measured: a third of the time).
CREATE TABLE records (
    kind     TEXT NOT NULL,
    key      TEXT NOT NULL,
    revision INTEGER NOT NULL,  -- of the commit that wrote the row
    checksum INTEGER NOT NULL,  -- crc32 of the value, starting from the revision: SQLite itself does not notice a flipped bit in them
    value    BLOB NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT;

-- The store's revision is the largest one in `records` or this one, whichever is larger. It is written only by a commit
-- that leaves no row behind to carry its revision, so the common commit touches one page less.
CREATE TABLE meta (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    revision INTEGER NOT NULL,
    epoch    INTEGER NOT NULL
) STRICT;

INSERT INTO meta (one, revision, epoch) VALUES (1, 0, 0);
