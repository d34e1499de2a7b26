"""Where clients and audits compute: in this process (`inline`), or on Ray (`cluster`)."""
