"""The jobs as programs: `python -m distlog.jobs.append`. Those in `jobs/` are the same, for spark-submit."""
