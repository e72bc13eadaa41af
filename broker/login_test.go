package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func amqField(name string, kind byte, value string) string {
	return string([]byte{byte(len(name))}) + name + string(kind) +
		string([]byte{0, 0, byte(len(value) >> 8), byte(len(value))}) + value
}

func TestParseCredentials(t *testing.T) {
	login, password := amqField("LOGIN", 'S', "ann"), amqField("PASSWORD", 'S', "pw")
	for _, row := range []struct {
		name, mechanism, data string
		user, password        string
		err                   error
	}{
		{name: "plain", mechanism: "PLAIN", data: "\x00ann\x00pw", user: "ann", password: "pw"},
		{name: "plain empty password", mechanism: "PLAIN", data: "\x00ann\x00", user: "ann"},
		{name: "plain empty user", mechanism: "PLAIN", data: "\x00\x00pw", password: "pw"},
		{name: "plain nothing", mechanism: "PLAIN", err: errMalformed},
		{name: "plain no separator", mechanism: "PLAIN", data: "annpw", err: errMalformed},
		{name: "plain one separator", mechanism: "PLAIN", data: "\x00ann", err: errMalformed},
		{name: "plain three separators", mechanism: "PLAIN", data: "\x00ann\x00p\x00w", err: errMalformed},
		{name: "plain 100 separators", mechanism: "PLAIN", data: strings.Repeat("\x00", 100), err: errMalformed},
		{name: "plain authorization id", mechanism: "PLAIN", data: "eve\x00ann\x00pw", err: errMalformed},
		{name: "amqplain", mechanism: "AMQPLAIN", data: login + password, user: "ann", password: "pw"},
		{name: "amqplain other order", mechanism: "AMQPLAIN", data: password + amqField("x", 'S', "y") + login, user: "ann", password: "pw"},
		{name: "amqplain no password", mechanism: "AMQPLAIN", data: login, err: errMalformed},
		{name: "amqplain wrong type", mechanism: "AMQPLAIN", data: login + amqField("PASSWORD", 'x', "pw"), err: errMalformed},
		{name: "amqplain cut", mechanism: "AMQPLAIN", data: (login + password)[:len(login+password)-1], err: errMalformed},
		{name: "external", mechanism: "EXTERNAL", err: errMechanism},
		{name: "anonymous", mechanism: "ANONYMOUS", err: errMechanism},
		{name: "lower case", mechanism: "plain", data: "\x00ann\x00pw", err: errMechanism},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := parseCredentials(row.mechanism, []byte(row.data))
			if !errors.Is(err, row.err) || got.user != row.user || string(got.password) != row.password {
				t.Fatalf("%q %q %v, want %q %q %v", got.user, got.password, err, row.user, row.password, row.err)
			}
		})
	}
}

func FuzzParseCredentials(f *testing.F) {
	f.Add("PLAIN", []byte("\x00ann\x00pw"))
	f.Add("AMQPLAIN", []byte(amqField("LOGIN", 'S', "ann")+amqField("PASSWORD", 'S', "pw")))
	f.Fuzz(func(t *testing.T, mechanism string, data []byte) {
		c, err := parseCredentials(mechanism, data)
		if err == nil && !bytes.Contains(data, c.password) {
			t.Fatalf("password %q is not in %q", c.password, data)
		}
	})
}

// prover counts proofs and accepts one password.
type prover struct{ count int }

var errWrong = errors.New("wrong")

func (p *prover) prove(_ context.Context, _ string, password []byte) error {
	p.count++
	if string(password) != "right" {
		return errWrong
	}
	return nil
}

func (p *prover) try(g *loginGuard, peer netip.Addr, user, password string) error {
	return g.login(context.Background(), peer, credentials{user: user, password: []byte(password)}, p.prove)
}

func TestLoginGuard_failuresAreLimited(t *testing.T) {
	g, p := newLoginGuard(Config{FailedLogins: 3}.withDefaults()), &prover{}
	for i := range 10 {
		want := errCredentials
		if i >= 3 {
			want = errTooManyLogins
		}
		if err := p.try(g, stranger, "ann", "guess"); !errors.Is(err, want) {
			t.Fatalf("guess %d: %v, want %v", i, err, want)
		}
	}
	if p.count != 3 {
		t.Fatalf("%d proofs, want none past the limit", p.count)
	}
	if err := p.try(g, stranger, "bob", "right"); !errors.Is(err, errTooManyLogins) {
		t.Fatalf("the address under another name: %v", err)
	}
	if err := p.try(g, other, "ann", "right"); !errors.Is(err, errTooManyLogins) {
		t.Fatalf("the user from another address: %v", err)
	}
	if err := p.try(g, home, "ann", "right"); err != nil {
		t.Fatalf("the user from loopback: %v", err)
	}
}

func TestLoginGuard_guessesElsewhereDoNotLockAKnownClientOut(t *testing.T) {
	g, p := newLoginGuard(Config{FailedLogins: 3}.withDefaults()), &prover{}
	if err := p.try(g, other, "ann", "right"); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		_ = p.try(g, stranger, "ann", "guess")
	}
	if err := p.try(g, other, "ann", "right"); err != nil {
		t.Fatalf("a client known under its address: %v", err)
	}
}

func TestLoginGuard_guessedPasswordsDoNotLockACertificateOut(t *testing.T) {
	g, p := newLoginGuard(Config{FailedLogins: 3}.withDefaults()), &prover{}
	external := func(peer netip.Addr, password string) error {
		return g.login(context.Background(), peer, credentials{mechanism: mechanismExternal, user: "ann", password: []byte(password)}, p.prove)
	}
	for range 10 {
		_ = p.try(g, stranger, "ann", "guess")
	}
	if err := external(other, "right"); err != nil {
		t.Fatalf("by certificate: %v", err)
	}
	if err := external(stranger, "right"); !errors.Is(err, errTooManyLogins) {
		t.Fatalf("by certificate from where the guesses come: %v", err)
	}
	// The other way round: nor do certificates that are refused lock passwords out.
	g = newLoginGuard(Config{FailedLogins: 3}.withDefaults())
	for range 10 {
		_ = external(stranger, "guess")
	}
	if err := p.try(g, other, "ann", "right"); err != nil {
		t.Fatalf("by password: %v", err)
	}
}

func TestLoginGuard_failuresAreForgottenAfterAWhile(t *testing.T) {
	g := newLoginGuard(Config{FailedLogins: 1}.withDefaults())
	g.countFailure(stranger, credentials{user: "ann"}, noon)
	if !g.failedTooOften(stranger, credentials{user: "ann"}, noon.Add(59*time.Second)) {
		t.Fatal("forgotten within the minute")
	}
	if g.failedTooOften(stranger, credentials{user: "ann"}, noon.Add(61*time.Second)) {
		t.Fatal("remembered past the minute")
	}
}

func TestLoginGuard_namesThatNoUserHasAreNotKept(t *testing.T) {
	g, p := newLoginGuard(Config{FailedLogins: 3}.withDefaults()), &prover{}
	for range 10 {
		if err := p.try(g, stranger, strings.Repeat("x", userBytesMax+1), "right"); !errors.Is(err, errCredentials) || len(err.Error()) > userBytesMax {
			t.Fatalf("a name too long: %v, want a short %v", err, errCredentials)
		}
	}
	if len(g.failures) > 0 || p.count > 0 {
		t.Fatalf("%d failures are kept after %d proofs, want none", len(g.failures), p.count)
	}
	if err := p.try(g, stranger, strings.Repeat("x", userBytesMax), "right"); err != nil {
		t.Fatalf("the longest name: %v", err)
	}
}

func TestLoginGuard_aFullMapForgetsWhatHasExpired(t *testing.T) {
	for _, row := range []struct {
		name  string
		later time.Duration // when the map is full and one more fails
		kept  int
	}{
		{"all expired but one", failureWindow, 1 + 2},
		{"none expired", failureWindow - 1, countedMax},
	} {
		t.Run(row.name, func(t *testing.T) {
			g := newLoginGuard(Config{FailedLogins: 1}.withDefaults())
			for i := range countedMax - 2 {
				g.countFailure(stranger, credentials{user: fmt.Sprint(i)}, noon)
			}
			now := noon.Add(row.later)
			g.failures[byUser("guessed")] = failureCount{since: now, count: 1}
			g.countFailure(other, credentials{user: "ann"}, now)
			if len(g.failures) != row.kept {
				t.Fatalf("%d are kept, want %d", len(g.failures), row.kept)
			}
			if row.kept < countedMax && !g.failedTooOften(other, credentials{user: "guessed"}, now) {
				t.Fatal("a failure of this minute is forgotten")
			}
		})
	}
}

func TestLoginGuard_aFullMapForgetsTrustThatHasEnded(t *testing.T) {
	g := newLoginGuard(Config{FailedLogins: 1}.withDefaults())
	for i := range countedMax - 1 {
		g.trust(stranger, fmt.Sprint(i), noon)
	}
	g.trust(stranger, "ann", noon.Add(time.Second))
	g.trust(stranger, "bob", noon.Add(trustTime))
	if len(g.trusted) != 2 {
		t.Fatalf("%d are trusted, want ann and bob", len(g.trusted))
	}
}

func TestLoginGuard_loopbackHasNoLimit(t *testing.T) {
	g, p := newLoginGuard(Config{FailedLogins: 3}.withDefaults()), &prover{}
	for i := range 10 {
		if err := p.try(g, home, "ann", "guess"); !errors.Is(err, errCredentials) {
			t.Fatalf("loopback guess %d: %v", i, err)
		}
	}
}

func TestLoginGuard_loopbackUsers(t *testing.T) {
	g, p := newLoginGuard(Config{}.withDefaults()), &prover{}
	if err := p.try(g, home, "guest", "right"); err != nil {
		t.Fatal(err)
	}
	if err := p.try(g, stranger, "guest", "right"); !errors.Is(err, errLoopbackOnly) {
		t.Fatalf("guest from elsewhere: %v, want %v", err, errLoopbackOnly)
	}
	g = newLoginGuard(Config{LoopbackUsers: []string{}}.withDefaults())
	if err := p.try(g, stranger, "guest", "right"); err != nil {
		t.Fatalf("guest from elsewhere with the restriction lifted: %v", err)
	}
}
