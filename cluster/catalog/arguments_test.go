package catalog

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

type given = map[string]string

func TestParseArguments(t *testing.T) {
	for _, row := range []struct {
		name  string
		given given
		want  Arguments
	}{
		{"nothing", nil, Arguments{}},
		{"unknown keys do not count", given{"x-max-age": "rubbish", "max-len": "1"}, Arguments{}},
		{"bytes", given{"max-length-bytes": "20000000000"}, Arguments{MaxLengthBytes: Given(20_000_000_000)}},
		{"leading zeros", given{"max-length-bytes": "01000"}, Arguments{MaxLengthBytes: Given(1000)}},
		{"age is kept as text", given{"max-age": "060m"}, Arguments{MaxAge: "060m"}},
		{"smallest segment is kept", given{"stream-max-segment-size-bytes": "1"}, Arguments{SegmentBytes: Given(1)}},
		{"largest segment", given{"stream-max-segment-size-bytes": "3000000000"}, Arguments{SegmentBytes: Given(3_000_000_000)}},
		{"more replicas than nodes", given{"initial-cluster-size": "99"}, Arguments{InitialClusterSize: Given(99)}},
		{"locator of .NET", given{"queue-leader-locator": "least-leaders"}, Arguments{LeaderLocator: "least-leaders"}},
		{"filter", given{"stream-filter-size-bytes": "255"}, Arguments{FilterBytes: Given(255)}},
		{"explicit defaults are given", given{
			"stream-max-segment-size-bytes": "500000000", "queue-leader-locator": "client-local", "stream-filter-size-bytes": "16",
		}, Arguments{SegmentBytes: Given(500_000_000), LeaderLocator: "client-local", FilterBytes: Given(16)}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := ParseArguments(row.given)
			if err != nil || got != row.want {
				t.Fatalf("got %+v, %v", got, err)
			}
			if again, err := ParseArguments(got.Map()); err != nil || again != got {
				t.Errorf("through Map: %+v, %v", again, err)
			}
			b, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			var back Arguments
			if err := json.Unmarshal(b, &back); err != nil || back != got {
				t.Errorf("through %s: %+v, %v", b, back, err)
			}
		})
	}
}

func TestParseArguments_refuses(t *testing.T) {
	bad := map[string][]string{
		"max-length-bytes":              {"", "0", "-1", "20gb", "1.5", " 1", "0x10", "9223372036854775808"},
		"max-age":                       {"", "10", "s", "0s", "0.5s", "abc", "PT1H", "1H", "1d", "1 h", "+1h", "-1h", "1hh", "9223372036854775807Y", "300000000Y"},
		"stream-max-segment-size-bytes": {"", "0", "-1", "3000000001", "1e6"},
		"initial-cluster-size":          {"", "0", "-3", "three"},
		"queue-leader-locator":          {"", "Balanced", "client_local", "nearest"},
		"stream-filter-size-bytes":      {"", "15", "256", "-16", "x"},
	}
	for key, values := range bad {
		for _, v := range values {
			_, err := ParseArguments(given{key: v})
			if !errors.Is(err, ErrBadArgument) {
				t.Errorf("%s = %q: %v", key, v, err)
				continue
			}
			if text := err.Error(); !strings.Contains(text, key) || !strings.Contains(text, "must be") {
				t.Errorf("%s = %q: the error does not say what is allowed: %s", key, v, text)
			}
		}
	}
}

// Absent is not the default, numbers compare as numbers, texts as texts.
func TestArguments_comparison(t *testing.T) {
	for _, row := range []struct {
		name string
		a, b given
		same bool
	}{
		{"nothing given", given{}, nil, true},
		{"numbers", given{"max-length-bytes": "01000"}, given{"max-length-bytes": "1000"}, true},
		{"ages as texts", given{"max-age": "60m"}, given{"max-age": "1h"}, false},
		{"locators as texts", given{"queue-leader-locator": "least-leaders"}, given{"queue-leader-locator": "balanced"}, false},
		{"absent and default segment", given{}, given{"stream-max-segment-size-bytes": "500000000"}, false},
		{"absent and default locator", given{}, given{"queue-leader-locator": "client-local"}, false},
		{"absent and default filter", given{}, given{"stream-filter-size-bytes": "16"}, false},
		{"other filter", given{"stream-filter-size-bytes": "17"}, given{"stream-filter-size-bytes": "16"}, false},
		{"other size", given{"initial-cluster-size": "1"}, given{"initial-cluster-size": "3"}, false},
		{"unknown keys", given{"foo": "1"}, given{"bar": "2"}, true},
	} {
		a, errA := ParseArguments(row.a)
		b, errB := ParseArguments(row.b)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if (a == b) != row.same {
			t.Errorf("%s: %v and %v same: %v", row.name, row.a, row.b, a == b)
		}
	}
}

func TestArguments_effective(t *testing.T) {
	none := Arguments{}
	if _, ok := none.MaxLength(); ok {
		t.Error("a stream has no bound of its size by default")
	}
	if _, ok := none.MaxAgeSeconds(); ok {
		t.Error("a stream has no bound of age by default")
	}
	if none.SegmentSize() != 500_000_000 || none.FilterSize() != 16 || none.Locator() != ClientLocal {
		t.Errorf("defaults: %d, %d, %s", none.SegmentSize(), none.FilterSize(), none.Locator())
	}
	for value, want := range map[int64]int64{1: 65_536, 65_535: 65_536, 65_536: 65_536, 100_000: 100_000} {
		if got := (Arguments{SegmentBytes: Given(value)}).SegmentSize(); got != want {
			t.Errorf("segment size %d acts as %d, want %d", value, got, want)
		}
	}
	for text, want := range map[string]int64{
		"1Y": 31_536_000, "2M": 5_184_000, "7D": 604_800, "12h": 43_200, "5m": 300, "9s": 9, "007s": 7,
	} {
		if got, ok := (Arguments{MaxAge: text}).MaxAgeSeconds(); !ok || got != want {
			t.Errorf("age %s is %d s, want %d", text, got, want)
		}
	}
	for text, want := range map[string]Locator{
		"client-local": ClientLocal, "balanced": Balanced, "random": Balanced, "least-leaders": Balanced, "min-masters": Balanced,
	} {
		if got := (Arguments{LeaderLocator: text}).Locator(); got != want {
			t.Errorf("locator %s means %s", text, got)
		}
	}
}

func TestStreamName(t *testing.T) {
	for name, want := range map[string]string{
		"orders": "orders", "a\r\nb\n": "ab", strings.Repeat("n", 255): strings.Repeat("n", 255),
		"../../x": "../../x", "a/b": "a/b", `a\b`: `a\b`, "CON": "CON", "Ä日本": "Ä日本", "amq": "amq", "AMQ.x": "AMQ.x",
	} {
		if got, err := StreamName(name); err != nil || got != want {
			t.Errorf("%q became %q, %v", name, got, err)
		}
	}
	for _, bad := range []string{
		"", "\r\n", "amq.x", "am\nq.x", strings.Repeat("n", 256), "a\x00b", "tab\t", "\x7f", "\u0085", "bad \xff utf", "\xc3",
	} {
		if got, err := StreamName(bad); !errors.Is(err, ErrBadArgument) {
			t.Errorf("%q became %q, %v", bad, got, err)
		}
	}
}

func FuzzParseArguments(f *testing.F) {
	f.Add("max-age", "7D", "max-length-bytes", "1000")
	f.Add("queue-leader-locator", "balanced", "stream-filter-size-bytes", "16")
	f.Add("initial-cluster-size", "3", "stream-max-segment-size-bytes", "01")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		a, err := ParseArguments(given{k1: v1, k2: v2})
		if err != nil {
			if !errors.Is(err, ErrBadArgument) || a != (Arguments{}) {
				t.Fatalf("%v, %+v", err, a)
			}
			return
		}
		if b, err := ParseArguments(a.Map()); err != nil || b != a {
			t.Fatalf("%+v became %+v, %v", a, b, err)
		}
		if s, ok := a.MaxAgeSeconds(); ok && s <= 0 || a.SegmentSize() < MinSegmentBytes || a.FilterSize() < 16 {
			t.Fatalf("%+v acts as %d s, %d B, %d B", a, s, a.SegmentSize(), a.FilterSize())
		}
	})
}
