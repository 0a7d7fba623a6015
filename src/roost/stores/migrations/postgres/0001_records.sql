-- Kinds and keys are UTF-8 in bytea: they may hold any character, and text cannot hold NUL.
-- To read them: SELECT convert_from(kind, 'UTF8'), convert_from(key, 'UTF8'), version FROM records.
-- A fifth of each page stays free, so that a changed row finds room beside the old one and no index is touched.
CREATE TABLE records (
    kind     bytea  NOT NULL,
    key      bytea  NOT NULL,
    version  bigint NOT NULL,  -- the revision of the commit that wrote the row
    checksum bigint NOT NULL,  -- crc32 of the value, starting from the version
    value    bytea  NOT NULL,
    PRIMARY KEY (kind, key)
) WITH (fillfactor = 80);

-- Values are mostly small and packed already; looking for what to compress costs more than it saves.
ALTER TABLE records ALTER COLUMN value SET STORAGE EXTERNAL;

-- One row: who leads, and the newest revision. Whoever writes anything changes this row first and so waits for its turn.
CREATE TABLE lead (
    one      integer PRIMARY KEY CHECK (one = 1),
    revision bigint  NOT NULL,
    epoch    bigint  NOT NULL,
    identity text    NOT NULL,
    renewals     bigint  NOT NULL,
    successor     text    NOT NULL
) WITH (fillfactor = 10);

INSERT INTO lead (one, revision, epoch, identity, renewals, successor) VALUES (1, 0, 0, '', 0, '');

-- The newest commits, for those who follow: one row each without a gap. The leader cuts off the oldest now and then.
CREATE TABLE log (
    revision bigint PRIMARY KEY,
    changes  bytea  NOT NULL  -- MessagePack: [[kind, key, value or nil], ...]
);

ALTER TABLE log ALTER COLUMN changes SET STORAGE EXTERNAL;

-- Commits of one leader as one transaction: all of them or none. Not `done`: nothing was changed, and the other columns
-- say who leads and what is the newest revision. A row that has another version than expected undoes everything (RS001).
-- `expected` is 0 for a row that must not be there yet; a content of NULL removes the row.
CREATE FUNCTION commit_group(
    leader bigint, known bigint, logged bytea[],
    kinds bytea[], keys bytea[], expected bigint[], versions bigint[], checksums bigint[], contents bytea[],
    added integer, changed integer, removed integer,
    OUT done boolean, OUT leads bigint, OUT leads_as text, OUT newest bigint
) LANGUAGE plpgsql AS $$
DECLARE
    met integer;
BEGIN
    UPDATE lead SET revision = known + cardinality(logged)
        WHERE epoch = leader AND epoch > 0 AND revision = known;
    done := FOUND;
    IF NOT done THEN
        SELECT epoch, identity, revision INTO STRICT leads, leads_as, newest FROM lead;
        RETURN;
    END IF;

    IF changed > 0 THEN
        UPDATE records SET version = new.version, checksum = new.checksum, value = new.content
            FROM unnest(kinds, keys, expected, versions, checksums, contents)
                AS new (kind, key, expected, version, checksum, content)
            WHERE records.kind = new.kind AND records.key = new.key AND records.version = new.expected
                AND new.expected > 0 AND new.content IS NOT NULL;
        GET DIAGNOSTICS met = ROW_COUNT;
        IF met <> changed THEN
            RAISE EXCEPTION 'a changed record has another version' USING ERRCODE = 'RS001';
        END IF;
    END IF;

    IF added > 0 THEN
        INSERT INTO records (kind, key, version, checksum, value)
            SELECT new.kind, new.key, new.version, new.checksum, new.content
            FROM unnest(kinds, keys, expected, versions, checksums, contents)
                AS new (kind, key, expected, version, checksum, content)
            WHERE new.expected = 0 AND new.content IS NOT NULL
            ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS met = ROW_COUNT;
        IF met <> added THEN
            RAISE EXCEPTION 'a new record is there already' USING ERRCODE = 'RS001';
        END IF;
    END IF;

    IF removed > 0 THEN
        DELETE FROM records
            USING unnest(kinds, keys, expected, contents) AS old (kind, key, expected, content)
            WHERE records.kind = old.kind AND records.key = old.key AND records.version = old.expected
                AND old.content IS NULL;
        GET DIAGNOSTICS met = ROW_COUNT;
        IF met <> removed THEN
            RAISE EXCEPTION 'a removed record has another version' USING ERRCODE = 'RS001';
        END IF;
    END IF;

    INSERT INTO log (revision, changes)
        SELECT known + place, changes FROM unnest(logged) WITH ORDINALITY AS one (changes, place);
    PERFORM pg_notify(current_schema(), '');
END
$$;
