package broker

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

func TestJSONValueSurvives(t *testing.T) {
	for body, want := range map[string]bool{
		`{}`: true, `[]`: true, `null`: true, `true`: true, `"x"`: true, `0`: true, `12`: true, ` { "a" : [1, 2.50, -3e2] } `: true,
		`0.1`: true, `1e21`: false, `9007199254740991`: true, `9007199254740992`: false, `9007199254740993`: false,
		`-9007199254740993`: false, `-0`: true, `-0.0`: true, `0.10000000000000000001`: false, `1e400`: false, `1e-400`: false,
		`1e999999999999999999999`: false, `12345678901234.5`: true, `123456789012345.678`: false, `{"a":1,"a":2}`: false, `{"a":1,"b":2}`: true,
		`"\ud83d\ude00"`: true, `"\ud83d"`: false, `"\ude00"`: false, `"\\ud83d"`: true, `"\ud83d\u0041"`: false,
		``: false, ` `: false, `{`: false, `{}{}`: false, `nul`: false, `[1,]`: false, `01`: false, "\"\xff\"": false, "\"a\nb\"": false,
		strings.Repeat("[", maxJSONDepth) + strings.Repeat("]", maxJSONDepth):     true,
		strings.Repeat("[", maxJSONDepth+2) + strings.Repeat("]", maxJSONDepth+2): false,
		strings.Repeat("[", 100_000): false,
		strings.Repeat(`{"a":`, maxJSONDepth+2) + "1" + strings.Repeat("}", maxJSONDepth+2): false,
	} {
		if _, got := jsonValue([]byte(body)); got != want {
			t.Errorf("jsonValue(%.60q) = %v, want %v", body, got, want)
		}
	}
}

func TestAppendJSONRefusesWhatWouldChange(t *testing.T) {
	for name, v := range map[string]*structpb.Value{
		"2^53": structpb.NewNumberValue(1 << 53), "-2^53": structpb.NewNumberValue(-(1 << 53)), "1e300": structpb.NewNumberValue(1e300), "no kind": {},
	} {
		if out, err := appendJSON(nil, v, 0); err == nil {
			t.Errorf("%s: stored as %s", name, out)
		}
	}
	deep := structpb.NewNullValue()
	for range maxJSONDepth + 1 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	if _, err := appendJSON(nil, deep, 0); err == nil {
		t.Error("a value nested too deep was stored")
	}
}

// Whatever value is stored is given back equal: what goes in as JSON comes out
// as JSON.
func TestJSONValueRoundTrip(t *testing.T) {
	var value func(depth int) *rapid.Generator[*structpb.Value]
	value = func(depth int) *rapid.Generator[*structpb.Value] {
		return rapid.Custom(func(t *rapid.T) *structpb.Value {
			kind := rapid.IntRange(0, 5).Draw(t, "kind")
			if depth == 0 {
				kind %= 4
			}
			switch kind {
			case 0:
				return structpb.NewNullValue()
			case 1:
				return structpb.NewBoolValue(rapid.Bool().Draw(t, "bool"))
			case 2:
				return structpb.NewStringValue(rapid.String().Draw(t, "string"))
			case 3:
				return structpb.NewNumberValue(rapid.Float64().Draw(t, "number"))
			case 4:
				return structpb.NewListValue(&structpb.ListValue{Values: rapid.SliceOfN(value(depth-1), 0, 3).Draw(t, "list")})
			default:
				return structpb.NewStructValue(&structpb.Struct{Fields: rapid.MapOfN(rapid.String(), value(depth-1), 0, 3).Draw(t, "object")})
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		v := value(3).Draw(t, "value")
		text, err := appendJSON(nil, v, 0)
		if err != nil {
			return // refused: a number that JSON tools would change
		}
		if err := checkText(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		back, ok := jsonValue(text)
		if !ok {
			t.Fatalf("stored as %s, which does not survive", text)
		}
		again, err := appendJSON(nil, back, 0)
		if err != nil || string(again) != string(text) || (!proto.Equal(back, v)) {
			t.Fatalf("%s came back as %s (%v)", text, again, err)
		}
	})
}

func TestCheckText(t *testing.T) {
	for body, want := range map[string]string{
		`{"offset":18446744073709551615}`: "", `{"x":0.1}`: "", `{"x":"0.12345678901234567890"}`: "", `{"x":"\"[[[["}`: "", `{"x":"a\\"}`: "", ``: "",
		`{"x":0.12345678901234567890}`: "the number 0.12345678901234567890 at line 1, column 6 ", "{\n \"x\": 1e400}": "the number 1e400 at line 2, column 7 ",
		`{"x":1.2345678901234567890e400}`: "the number ", `{"a":"ok","text":"\ud800"}`: `the escape \ud800 at line 1, column 19 `,
	} {
		err := checkText([]byte(body))
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("checkText(%.60q) = %v", body, err)
		}
	}
	if !tooDeep([]byte(strings.Repeat("[", 69)), 68) || tooDeep([]byte(`["[[[[[[[["]`), 1) || tooDeep([]byte(`[[],[],[]]`), 2) {
		t.Error("depth is what is open at once, outside of strings")
	}
}

// What JSON tools would change refuses the message that holds it, by the same
// reason whatever it is, and not its neighbours.
func TestBadJSONBodies(t *testing.T) {
	b := start(t, t.TempDir())
	newAPI(t, b.URL()).topic(t, "t", 1)
	call := func(body string) *http.Response {
		t.Helper()
		res, err := http.Post(b.URL()+"/strandmq.v1.PublishService/Publish", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	deep := strings.Repeat("[", maxJSONDepth+2) + strings.Repeat("]", maxJSONDepth+2)
	bad := []string{`9007199254740993`, `{"n":0.1234567890123456789}`, `{"n":1e400}`, `{"a":1,"a":2}`, `"\ud800"`, deep}
	var messages []string
	for i, v := range bad {
		messages = append(messages, fmt.Sprintf(`{"key":"k","id":"bad-%d","json":%s}`, i, v), fmt.Sprintf(`{"key":"k","id":"good-%d","json":{"n": %d}}`, i, i))
	}
	res := call(`{"topic":"t","messages":[` + strings.Join(messages, ",\n") + `]}`)
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%d %s %v", res.StatusCode, raw, err)
	}
	var answer strandmqv1.PublishResponse
	if err := protojson.Unmarshal(raw, &answer); err != nil {
		t.Fatal(err)
	}
	for i, r := range answer.GetResults() {
		p := r.GetProblem()
		switch {
		case i%2 == 1 && (p != nil || r.GetReceipt().GetOffset() != uint64(i/2)):
			t.Errorf("a good neighbour: %v", r)
		case i%2 == 0 && (p.GetReason() != "BAD_BODY" || p.GetField() != fmt.Sprintf("messages[%d].json", i)):
			t.Errorf("%s: %v", bad[i/2], r)
		}
	}
	// Anywhere else it is the request that is wrong, and so it is when something
	// else is wrong with it too.
	for _, body := range []string{
		`{"topic":"t","messages":[{"key":"a","text":"\ud800"}]}`,
		`{"topic":"t","messages":[{"key":"a","json":{"a":1,"a":2},"colour":"red"}]}`,
		`{"topic":"t","messages":[{"json":{"a":1,"a":2}}]`,
		`{"topic":"t","messages":[{"json":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}]}`,
		`{"topic":"t","topic":"u","messages":[{"json":{"a":1,"a":2}}]}`,
	} {
		if got := wireReason(t, call(body)); got != "BAD_REQUEST" {
			t.Errorf("%s: %s", body, got)
		}
	}
}

func FuzzJSONValue(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,"x",null,true]}`, `"\ud83d\ude00"`, `-0`, `1e9`, `{"a":{"a":{}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_ = decodeJSON(body, &strandmqv1.PublishRequest{})
		v, ok := jsonValue(body)
		if !ok {
			return
		}
		text, err := appendJSON(nil, v, 0)
		if err != nil {
			t.Fatalf("%q is a value that cannot be stored: %v", body, err)
		}
		if again, ok := jsonValue(text); !ok || !proto.Equal(v, again) {
			t.Fatalf("%q does not survive as %s", body, text)
		}
	})
}
