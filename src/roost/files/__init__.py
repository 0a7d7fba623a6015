"""Files that travel with work: a directory as a manifest, packs of small files, a safe unpack, a cache of inputs."""
