"""The league: every method on many problems, with the same seeds, at equal budgets; a study that is data."""
