"""The settings of the service, and how JSON and YAML documents are read."""
