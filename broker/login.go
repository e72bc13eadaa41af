package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Why a login is refused. What the client is told never says more than the
// code; the text is for the log.
var (
	errCredentials   = errors.New("user or password is wrong")
	errLoopbackOnly  = errors.New("user may log in from loopback only: see stream.loopback_users")
	errTooManyLogins = errors.New("too many failed logins: see stream.failed_logins_per_minute")
)

const (
	failureWindow = time.Minute
	// trustTime is how long a user who has logged in from an address is not held
	// up there by the failures that others have elsewhere under its name.
	trustTime = 10 * time.Minute
	// countedMax bounds the counted failures, and what is trusted.
	countedMax = 16 << 10
	// userBytesMax is the longest name that a user can have. Longer ones are not
	// counted, so that who guesses does not choose how much is kept.
	userBytesMax = 255
)

// loginGuard stands before the proof of a password, which costs tens of
// milliseconds of a core: who has failed too often is refused without one.
type loginGuard struct {
	failuresMax   int
	loopbackUsers []string

	// mu guards the maps: short look-ups at a login.
	mu       sync.Mutex
	failures map[string]failureCount
	trusted  map[string]time.Time // until when, by address and user
}

type failureCount struct {
	since time.Time
	count int
}

func newLoginGuard(config Config) *loginGuard {
	return &loginGuard{
		failuresMax:   config.FailedLogins,
		loopbackUsers: config.LoopbackUsers,
		failures:      map[string]failureCount{},
		trusted:       map[string]time.Time{},
	}
}

// login decides about credentials that came from peer; prove compares the
// password.
func (g *loginGuard) login(ctx context.Context, peer netip.Addr, c credentials,
	prove func(ctx context.Context, user string, password []byte) error,
) error {
	if len(c.user) > userBytesMax {
		return fmt.Errorf("%w: user name of %d bytes from %s", errCredentials, len(c.user), peer)
	}
	if g.failedTooOften(peer, c, time.Now()) {
		return fmt.Errorf("%w: user %q from %s", errTooManyLogins, c.user, peer)
	}
	if err := prove(ctx, c.user, c.password); err != nil {
		if ctx.Err() == nil {
			g.countFailure(peer, c, time.Now())
		}
		return fmt.Errorf("%w: user %q from %s: %w", errCredentials, c.user, peer, err)
	}
	g.trust(peer, c.user, time.Now())
	if !peer.Unmap().IsLoopback() && slices.Contains(g.loopbackUsers, c.user) {
		return fmt.Errorf("%w: user %q from %s", errLoopbackOnly, c.user, peer)
	}
	return nil
}

func (g *loginGuard) trust(peer netip.Addr, user string, now time.Time) {
	address, exempt := addressKey(peer)
	if exempt {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	name := address.String() + " " + user
	makeRoom(g.trusted, name, func(until time.Time) bool { return !now.Before(until) })
	g.trusted[name] = now.Add(trustTime)
}

// makeRoom has a full map take the name: what has expired goes, else any one. To
// forget all would give every guesser a new minute.
func makeRoom[V any](counted map[string]V, name string, expired func(V) bool) {
	if _, has := counted[name]; has || len(counted) < countedMax {
		return
	}
	maps.DeleteFunc(counted, func(_ string, v V) bool { return expired(v) })
	for name := range counted {
		if len(counted) < countedMax {
			return
		}
		delete(counted, name)
	}
}

// failedTooOften says whether the address has used up its failures of this
// minute, or the user those from anywhere but loopback and known addresses. Who
// shows a certificate does not guess: passwords that others guess do not hold it up.
func (g *loginGuard) failedTooOften(peer netip.Addr, c credentials, now time.Time) bool {
	address, exempt := addressKey(peer)
	if exempt {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	tooOften := func(name string) bool {
		f := g.failures[name]
		return f.count >= g.failuresMax && now.Sub(f.since) < failureWindow
	}
	known := c.mechanism == mechanismExternal || now.Before(g.trusted[address.String()+" "+c.user])
	return tooOften(byAddress(address)) || !known && tooOften(byUser(c.user))
}

func (g *loginGuard) countFailure(peer netip.Addr, c credentials, now time.Time) {
	address, exempt := addressKey(peer)
	if exempt {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	expired := func(f failureCount) bool { return now.Sub(f.since) >= failureWindow }
	names := []string{byAddress(address)}
	if c.mechanism != mechanismExternal {
		names = append(names, byUser(c.user))
	}
	for _, name := range names {
		makeRoom(g.failures, name, expired)
		f := g.failures[name]
		if expired(f) {
			f = failureCount{since: now}
		}
		f.count++
		g.failures[name] = f
	}
}

func byAddress(address netip.Addr) string { return "address " + address.String() }
func byUser(user string) string           { return "user " + user }
