package coordinator

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	storagev1 "github.com/strandmq/strandmq/proto/storage/v1"
)

// Whoever writes a tool by the page finds every field of every row on it, and
// every command, and none that is not there.
func TestFormatPageIsComplete(t *testing.T) {
	raw, err := os.ReadFile("../docs/format/metadata.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	quoted := regexp.MustCompile("`([a-z_]+)`")
	for _, m := range []proto.Message{
		&storagev1.ClusterRow{}, &storagev1.TopicRow{}, &storagev1.PartitionRow{},
		&storagev1.GroupRow{}, &storagev1.MemberRow{}, &storagev1.ShareRow{},
		&storagev1.AuthorityRow{}, &storagev1.NodeRow{}, &storagev1.NodeAddress{}, &storagev1.JoinTokenRow{}, &storagev1.LeavingRow{}, &storagev1.RebuildRow{},
		&storagev1.EventTotalRow{}, &storagev1.EventRow{}, &storagev1.EventSourceRow{},
	} {
		d := m.ProtoReflect().Descriptor()
		_, after, ok := strings.Cut(page, "\n| `"+string(d.Name())+"` |")
		if !ok {
			t.Errorf("docs/format/metadata.md has no line for %s", d.Name())
			continue
		}
		line, _, _ := strings.Cut(after, "\n")
		var have, want []string
		for _, f := range quoted.FindAllStringSubmatch(line, -1) {
			have = append(have, f[1])
		}
		for i := range d.Fields().Len() {
			want = append(want, string(d.Fields().Get(i).Name()))
		}
		slices.Sort(have)
		slices.Sort(want)
		if !slices.Equal(have, want) {
			t.Errorf("%s: docs/format/metadata.md has %v, the message %v", d.Name(), have, want)
		}
	}
	commands := (&storagev1.MetadataCommand{}).ProtoReflect().Descriptor().Oneofs().ByName("command").Fields()
	for i := range commands.Len() {
		if name := string(commands.Get(i).Message().Name()); !strings.Contains(page, "\n| `"+name+"` |") {
			t.Errorf("docs/format/metadata.md does not say what %s does", name)
		}
	}
}
