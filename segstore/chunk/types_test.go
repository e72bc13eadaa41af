package chunk

import (
	"encoding/json"
	"testing"
)

func TestIncarnation_text(t *testing.T) {
	for _, i := range []Incarnation{0, 1, 0xfedcba9876543210, 1<<64 - 1} {
		b, err := json.Marshal(i)
		if err != nil {
			t.Fatal(err)
		}
		var back Incarnation
		if err := json.Unmarshal(b, &back); err != nil || back != i {
			t.Errorf("%s came back as %s: %v", b, back, err)
		}
	}
	for _, bad := range []string{`""`, `"1"`, `"00000000000000001"`, `"000000000000000g"`, `12`} {
		var i Incarnation
		if err := json.Unmarshal([]byte(bad), &i); err == nil {
			t.Errorf("%s was read as %s", bad, i)
		}
	}
}
