package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/monitoring"
)

func (a *app) generateCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:     "generate",
		Short:   "Print alert rules and a dashboard for monitoring",
		Example: "  strandmq generate prometheus > strandmq-rules.yml\n  strandmq generate grafana > strandmq-dashboard.json",
	}, a.generatePrometheus(), a.generateGrafana())
}

func (a *app) generatePrometheus() *cobra.Command {
	var runbooks string
	c := command(&cobra.Command{
		Use:   "prometheus",
		Short: "Print alert rules for Prometheus",
		Long: `Prints a file of alert rules over the metrics that each node has at /metrics. Each rule
has a severity, critical or warning, and a link to what to do about it. No broker is
asked. Have Prometheus scrape every node, all nodes of a cluster under one job.`,
		Example: `  strandmq generate prometheus > strandmq-rules.yml
  strandmq generate prometheus --runbooks https://wiki.example.org/strandmq`,
		Args: exact(),
	}, func(*cobra.Command, []string) error {
		_, err := io.WriteString(a.out, monitoring.Prometheus(runbooks))
		return err
	})
	c.Flags().StringVar(&runbooks, "runbooks", monitoring.DefaultRunbooks, "the page that the alerts link to, with its anchors")
	return c
}

func (a *app) generateGrafana() *cobra.Command {
	return command(&cobra.Command{
		Use:   "grafana",
		Short: "Print a dashboard for Grafana",
		Long: `Prints a dashboard as JSON, to be imported into Grafana: groups, failures, traffic,
storage and nodes, for the job, topics and groups that are chosen there. No broker is
asked.`,
		Example: "  strandmq generate grafana > strandmq-dashboard.json",
		Args:    exact(),
	}, func(*cobra.Command, []string) error {
		_, err := io.WriteString(a.out, monitoring.Grafana())
		return err
	})
}
