"""Models on servers: files of which no more is fetched than somebody looks at."""
