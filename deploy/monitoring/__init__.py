"""Alert rules for Prometheus and dashboards for Grafana, written by `python -m deploy.monitoring`."""
