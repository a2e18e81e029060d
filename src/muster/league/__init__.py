"""The league: every method on many problems, with the same seeds, at equal budgets; the study is a data file."""
