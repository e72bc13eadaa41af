package protocol

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocument holds PROTOCOL.md against the code: every message, rule and
// script is in it, and it names no script that is not there.
func TestDocument(t *testing.T) {
	b, err := os.ReadFile("../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for k := MsgHello; k <= MsgRefuse; k++ {
		if !strings.Contains(text, "\n| "+k.String()+" |") {
			t.Errorf("message %v is not in the table", k)
		}
	}
	for group, n := range map[string]int{"A": 7, "B": 7, "C": 5, "D": 5, "E": 4, "F": 9} {
		for i := 1; i <= n; i++ {
			if rule := group + string(rune('0'+i)); !strings.Contains(text, "\n**"+rule+".** ") {
				t.Errorf("rule %s is missing", rule)
			}
		}
	}
	there := map[string]bool{}
	for _, s := range scripts(t) {
		there[s.name] = true
		if !strings.Contains(text, "`"+s.name+"`") {
			t.Errorf("script %s is not mentioned", s.name)
		}
	}
	rules := text[strings.Index(text, "## 5."):strings.Index(text, "## 6.")]
	for _, m := range regexp.MustCompile("`([a-z]+(?:_[a-z]+)+)`").FindAllStringSubmatch(rules, -1) {
		if !there[m[1]] {
			t.Errorf("script %s is mentioned and not there", m[1])
		}
	}
}
