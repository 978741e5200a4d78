// Package monitoring is what to watch of a broker, for those who have Prometheus and
// Grafana: alert rules and a dashboard over the metrics that /metrics has, as values, and
// how they are written.
//
//	Rules()  ─Prometheus(runbooks)─► rules.yml: each with a severity and a runbook
//	panels() ─Grafana()────────────► dashboard.json
//
// Rules name what somebody has to do something about; why it is so is `strandmq doctor`'s
// to say. Tests of the command hold that everything named here is in what a real broker
// tells, and that planted faults set the rules off.
package monitoring
