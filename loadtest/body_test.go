package loadtest

import (
	"bytes"
	"testing"

	"github.com/strandmq/strandmq/internal/check"
)

// A body is whole only if stamping what it says gives the same bytes.
func FuzzReadBody(f *testing.F) {
	body := make([]byte, 40)
	stampBody(body, 7, check.Sent{Key: 3, Producer: 1, Number: 9}, 12345)
	f.Add(body, "key-3")
	f.Add(body[:MinSize], "key-3")
	f.Add([]byte{}, "")
	f.Fuzz(func(t *testing.T, b []byte, key string) {
		m, due, ours, whole := readBody(b, key, 7, len(b))
		if !ours && whole {
			t.Fatal("whole, and not ours")
		}
		if !whole {
			return
		}
		again := bytes.Clone(b)
		stampBody(again, 7, m, due)
		if !bytes.Equal(again, b) || key != keyName(m.Key) {
			t.Fatalf("%x under %q is taken for %+v due at %d", b, key, m, due)
		}
	})
}
