"""Where clients and audits compute: in this process, or on Ray, here or on a cluster."""
