"""The language of the specs: variants, terms and declarations, from YAML to typed objects."""
