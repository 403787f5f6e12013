"""The page without Grafana: what a server does now and did lately, in any browser."""
