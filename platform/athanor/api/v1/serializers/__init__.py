"""Serializers of the REST API: what requests accept and what responses contain, one module per resource."""
