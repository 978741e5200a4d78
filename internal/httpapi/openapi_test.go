package httpapi

import (
	"encoding/json"
	"strings"
	"testing"
)

// The page that describes the API has every route, and no other.
func TestOpenAPIIsTheRoutes(t *testing.T) {
	var page struct {
		Paths map[string]map[string]struct {
			OperationID string
			Parameters  []struct{ Name, In string }
			Responses   map[string]any
		}
	}
	if err := json.Unmarshal(openapi, &page); err != nil {
		t.Fatal(err)
	}
	ids, described := map[string]bool{}, 0
	for _, r := range routes {
		op, ok := page.Paths[r.path][strings.ToLower(r.method)]
		if !ok {
			t.Errorf("openapi.json does not describe %s %s", r.method, r.path)
			continue
		}
		if ids[op.OperationID] || op.OperationID == "" || op.Responses["default"] == nil {
			t.Errorf("%s %s has the id %q, and responses %v", r.method, r.path, op.OperationID, op.Responses)
		}
		ids[op.OperationID] = true
		for _, p := range op.Parameters {
			if p.In == "path" && !strings.Contains(r.path, "{"+p.Name+"}") {
				t.Errorf("%s %s has no %s", r.method, r.path, p.Name)
			}
		}
	}
	for _, of := range page.Paths {
		described += len(of)
	}
	if described != len(routes) {
		t.Errorf("openapi.json describes %d routes, and there are %d", described, len(routes))
	}
}
