"""Recovery with real processes: they are killed while logs, inputs and outputs are on their way. Bytes are compared."""
