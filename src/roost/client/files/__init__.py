"""Files of this machine to the servers and back: scanned, sent without what is there already, fetched and verified."""
