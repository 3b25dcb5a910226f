"""The expression language `{{ thing:id | fn:lower() }}`."""
