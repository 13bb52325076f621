-- What a listener says about its agent to everybody who looks (`listen --status`); empty: nothing.

ALTER TABLE lease ADD COLUMN status TEXT NOT NULL DEFAULT '';
