"""Published configurations as plans: what a table's row would take by our costs."""
