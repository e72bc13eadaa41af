package broker

import (
	"context"
	"errors"
	"fmt"
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
	if g.failedTooOften(peer, c.user, time.Now()) {
		return fmt.Errorf("%w: user %q from %s", errTooManyLogins, c.user, peer)
	}
	if err := prove(ctx, c.user, c.password); err != nil {
		if ctx.Err() == nil {
			g.countFailure(peer, c.user, time.Now())
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
	if len(g.trusted) >= countedMax {
		clear(g.trusted)
	}
	g.trusted[address.String()+" "+user] = now.Add(trustTime)
}

// failedTooOften says whether the address has used up its failures of this
// minute, or the user those from anywhere but loopback and known addresses.
func (g *loginGuard) failedTooOften(peer netip.Addr, user string, now time.Time) bool {
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
	known := now.Before(g.trusted[address.String()+" "+user])
	return tooOften(byAddress(address)) || !known && tooOften(byUser(user))
}

func (g *loginGuard) countFailure(peer netip.Addr, user string, now time.Time) {
	address, exempt := addressKey(peer)
	if exempt {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.failures) >= countedMax {
		clear(g.failures)
	}
	for _, name := range []string{byAddress(address), byUser(user)} {
		f := g.failures[name]
		if now.Sub(f.since) >= failureWindow {
			f = failureCount{since: now}
		}
		f.count++
		g.failures[name] = f
	}
}

func byAddress(address netip.Addr) string { return "address " + address.String() }
func byUser(user string) string           { return "user " + user }
