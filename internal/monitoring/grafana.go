package monitoring

import (
	"encoding/json"
	"strings"
)

// object is one of Grafana's JSON.
type object = map[string]any

// Grafana writes the dashboard as JSON to be imported. Which Prometheus, job, topics and
// groups are shown is chosen there.
func Grafana() string {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	var all []object
	id, y := 0, 0
	add := func(p object, x, w, h int) {
		id++
		p["id"], p["gridPos"] = id, object{"x": x, "y": y, "w": w, "h": h}
		all = append(all, p)
	}
	const width, height = 24, 8
	for _, r := range panels() {
		add(object{"type": "row", "title": r.title, "collapsed": false, "panels": []object{}}, 0, width, 1)
		y++
		x := 0
		for _, p := range r.panels {
			w := width / 2
			if p.wide {
				w = width
			}
			if x+w > width {
				x, y = 0, y+height
			}
			var targets []object
			for i, q := range p.show {
				targets = append(targets, object{"refId": string(rune('A' + i)), "expr": q.expr, "legendFormat": q.legend, "datasource": source})
			}
			look := object{"unit": p.unit, "min": lowest(p), "custom": object{"fillOpacity": 10}}
			if p.none != "" {
				look["noValue"] = p.none
			}
			add(object{
				"type": "timeseries", "title": p.title, "description": p.help, "datasource": source, "targets": targets,
				"fieldConfig": object{"defaults": look, "overrides": []object{}},
				"options":     object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi"}},
			}, x, w, height)
			x += w
		}
		y += height
	}
	values := func(name, label, metric string) object {
		return object{
			"type": "query", "name": name, "label": label, "datasource": source, "query": "label_values(" + metric + ", " + name + ")",
			"multi": true, "includeAll": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"}, "refresh": 2, "sort": 1,
		}
	}
	d := object{
		"title": "StrandMQ", "uid": "strandmq", "tags": []string{"strandmq"}, "schemaVersion": 39, "editable": true,
		"time": object{"from": "now-6h", "to": "now"}, "refresh": "30s", "panels": all,
		"templating": object{"list": []object{
			{"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
			values("job", "Job", "strandmq_build_info"),
			values("topic", "Topic", "strandmq_partitions_damaged"),
			values("group", "Group", "strandmq_group_lag_messages"),
		}},
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	_ = enc.Encode(d) // maps of strings and numbers always can be
	return b.String()
}

// lowest is where a chart begins: at 0 but for what can be below.
func lowest(p panel) any {
	if p.title == "Clocks" {
		return nil
	}
	return 0
}
