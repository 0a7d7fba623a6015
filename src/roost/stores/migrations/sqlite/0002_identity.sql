-- Which database this is, so that one that takes the place of another is noticed (sqlite/mark.py).
ALTER TABLE meta ADD COLUMN identity TEXT NOT NULL DEFAULT '';
UPDATE meta SET identity = lower(hex(randomblob(16)));
