package cli

import (
	"testing"
	"time"
)

func TestParsePeriod(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"1ms": time.Millisecond, "90s": 90 * time.Second, "5m": 5 * time.Minute, "12h": 12 * time.Hour, "7d": 7 * day, "7D": 7 * day,
		"2w": 14 * day, "1M": 30 * day, "1Y": 365 * day, "1h30m": 90 * time.Minute, "1w2d": 9 * day, "060m": time.Hour,
		"": 0, "0s": 0, "7": 0, "d": 0, "-1d": 0, "1.5h": 0, "1W": 0, "1H": 0, "1 d": 0, "1d ": 0, "300Y": 0, "200Y200Y": 0, "99999999999999999999s": 0,
	} {
		if got, ok := parsePeriod(text); got != want && ok || ok != (want > 0) {
			t.Errorf("%q is %v (%v), want %v", text, got, ok, want)
		}
	}
}

func TestProtocolAge(t *testing.T) {
	for text, want := range map[string]string{
		"2w": "14D", "7d": "7D", "7D": "7D", "1Y": "1Y", "36h": "36h", "24h": "24h", "060m": "060m", "1d12h": "36h", "": "", "1h30m": "90m", "90s": "90s", "60s": "60s", "1500ms": "", "soon": "",
	} {
		if got, err := protocolAge(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q (%v), want %q", text, got, err, want)
		}
	}
}
