"""Results for people: tables, statistics, pictures, comparisons, HTML pages."""
