"""The jobs as programs: `python -m distlog.jobs.append`. The programs in `jobs/` are the same, for spark-submit."""
