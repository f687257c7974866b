"""The wire contract for programs in any language: the records of each topic, as an AsyncAPI document."""
