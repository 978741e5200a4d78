package broker

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// The JavaScript that the web test runs with is generated from the same
// protocol files as the Go code.
func TestJavaScriptIsCurrent(t *testing.T) {
	embedded := regexp.MustCompile(`fileDesc\("([A-Za-z0-9+/=]+)"`)
	for name, file := range map[string]protoreflect.FileDescriptor{
		"publish": strandmqv1.File_strandmq_v1_publish_proto, "consume": strandmqv1.File_strandmq_v1_consume_proto,
		"message": strandmqv1.File_strandmq_v1_message_proto, "admin": strandmqv1.File_strandmq_v1_admin_proto,
	} {
		src, err := os.ReadFile(filepath.Join("testdata", "web", "gen", "strandmq", "v1", name+"_pb.js"))
		if err != nil {
			t.Fatal(err)
		}
		m := embedded.FindSubmatch(src)
		if m == nil {
			t.Fatalf("%s_pb.js has no descriptor", name)
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
			t.Errorf("%s_pb.js is not what %s generates: run npm install && npm run generate in internal/broker/testdata/web", name, file.Path())
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
