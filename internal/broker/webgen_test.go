package broker

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// The JavaScript that the web test runs with, and the client's TypeScript, are
// generated from the same protocol files as the Go code.
func TestJavaScriptIsCurrent(t *testing.T) {
	isCurrent(t, filepath.Join("testdata", "web", "gen"), "js", "npm install && npm run generate in internal/broker/testdata/web")
	isCurrent(t, filepath.Join(typeScript, "src", "gen"), "ts", "make ts-deps ts-generate")
}

// typeScript is the folder of the TypeScript client.
var typeScript = filepath.Join("..", "..", "clients", "typescript")

// TestTypeScriptReasons: the client knows every reason, in the table's order.
func TestTypeScriptReasons(t *testing.T) {
	var want strings.Builder
	for _, r := range table {
		fmt.Fprintf(&want, "  %q,\n", r.reason)
	}
	src, err := os.ReadFile(filepath.Join(typeScript, "src", "reasons.ts"))
	if err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(string(src), "= [\n")
	got, _, _ = strings.Cut(got, "]")
	if got != want.String() {
		t.Fatalf("clients/typescript/src/reasons.ts does not have the reasons of errors.go: put these between its brackets:\n%s", want.String())
	}
}

func isCurrent(t *testing.T, dir, ext, how string) {
	t.Helper()
	embedded := regexp.MustCompile(`fileDesc\("([A-Za-z0-9+/=]+)"`)
	for name, file := range map[string]protoreflect.FileDescriptor{
		"publish": strandmqv1.File_strandmq_v1_publish_proto, "consume": strandmqv1.File_strandmq_v1_consume_proto,
		"message": strandmqv1.File_strandmq_v1_message_proto, "admin": strandmqv1.File_strandmq_v1_admin_proto,
		"cluster": strandmqv1.File_strandmq_v1_cluster_proto,
	} {
		src, err := os.ReadFile(filepath.Join(dir, "strandmq", "v1", name+"_pb."+ext))
		if err != nil {
			t.Fatal(err)
		}
		m := embedded.FindSubmatch(src)
		if m == nil {
			t.Fatalf("%s_pb.%s has no descriptor", name, ext)
		}
		raw, err := base64.RawStdEncoding.DecodeString(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		var js descriptorpb.FileDescriptorProto
		if err := proto.Unmarshal(raw, &js); err != nil {
			t.Fatal(err)
		}
		goFile := protodesc.ToFileDescriptorProto(file)
		for _, f := range []*descriptorpb.FileDescriptorProto{&js, goFile} {
			// What the generators keep or drop as they like.
			f.Options, f.Dependency, f.SourceCodeInfo = nil, nil, nil
			stripped(f.GetMessageType())
		}
		if !proto.Equal(&js, goFile) {
			t.Errorf("%s_pb.%s is not what %s generates: run %s", name, ext, file.Path(), how)
		}
	}
}

// stripped drops the JSON names, which follow from the others.
func stripped(ms []*descriptorpb.DescriptorProto) {
	for _, m := range ms {
		for _, f := range m.GetField() {
			f.JsonName = nil
		}
		stripped(m.GetNestedType())
	}
}
