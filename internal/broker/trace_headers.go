package broker

import (
	"strings"

	"github.com/strandmq/strandmq/internal/record"
)

// calledBy is what a message's headers say of the call that it came with: its trace, and
// what its caller named it. Of two headers of a name the first counts.
func calledBy(headers []record.Header) (trace, request string) {
	first := func(name string) string {
		for _, h := range headers {
			if strings.EqualFold(h.Name, name) {
				return string(h.Value)
			}
		}
		return ""
	}
	if parent := first(storedParent); validParent(parent) {
		trace = parent[versionEnd+1 : traceEnd]
	}
	return trace, valid(first(storedRequest))
}
