package broker

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
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
		if err := checkJSONRequest(text); err != nil {
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

func TestCheckJSONRequest(t *testing.T) {
	for body, want := range map[string]bool{
		`{"offset":18446744073709551615}`: true, `{"x":0.1}`: true, `{"x":0.12345678901234567890}`: false, `{"x":"0.12345678901234567890"}`: true,
		`{"x":"\"[[[["}`: true, `{"x":"a\\"}`: true, strings.Repeat("[", 69): false, ``: true,
		`{"x":1.2345678901234567890e400}`: false,
	} {
		if err := checkJSONRequest([]byte(body)); (err == nil) != want {
			t.Errorf("checkJSONRequest(%.60q) = %v", body, err)
		}
	}
}

func FuzzJSONValue(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,"x",null,true]}`, `"\ud83d\ude00"`, `-0`, `1e9`, `{"a":{"a":{}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_ = checkJSONRequest(body)
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
