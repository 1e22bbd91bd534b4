"""The jobs: `python -m distlog.jobs.append`, or `spark-submit jobs/append.py`."""
