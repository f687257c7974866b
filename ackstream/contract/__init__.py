"""The wire contract for programs in any language: what each topic carries, as an AsyncAPI document."""
