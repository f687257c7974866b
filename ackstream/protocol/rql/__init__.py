"""RQL, Ditto's filter language: parse a filter, write it, evaluate it on a thing."""
