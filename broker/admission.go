package broker

import (
	"container/list"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// Why a socket is closed as soon as it is accepted. Each error names the
// setting to raise.
var (
	errNodeFull    = errors.New("the node has as many connections as stream.connections allows")
	errAddressFull = errors.New("the address has as many connections as stream.connections_per_address allows")
	errAddressFast = errors.New("the address opens more connections a second than stream.new_connections_per_address allows")
)

// admission counts connections and decides which may come in. It knows nothing
// of sockets: whoever must go is named by the caller's own drop function.
type admission struct {
	limits Config

	// mu guards everything below: one short critical section an accepted, an
	// opened and an ended connection.
	mu        sync.Mutex
	total     int
	unopened  *list.List // of *ticket, oldest first
	addresses map[netip.Addr]*addressLoad
	sweepAt   time.Time
}

// addressLoad is what one peer address has now. Loopback has none.
type addressLoad struct {
	connections int
	unopened    int
	windowStart time.Time
	windowCount int
}

// ticket is one admitted connection's place in the counts.
type ticket struct {
	address netip.Addr
	load    *addressLoad  // nil for an exempt address
	waiting *list.Element // in unopened; nil once opened or gone
	drop    func()
}

func newAdmission(limits Config) *admission {
	return &admission{limits: limits, unopened: list.New(), addresses: map[netip.Addr]*addressLoad{}}
}

// admit counts a new connection in, or says which limit refuses it. Where a
// limit of connections that are not open yet is reached, the oldest of them is
// dropped instead: its drop function is called, without any lock held.
func (a *admission) admit(address netip.Addr, now time.Time, drop func()) (*ticket, error) {
	t, victims, err := a.decide(address, now, drop)
	for _, victim := range victims {
		victim()
	}
	return t, err
}

func (a *admission) decide(address netip.Addr, now time.Time, drop func()) (*ticket, []func(), error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.total >= a.limits.Connections {
		return nil, nil, fmt.Errorf("%w (%d)", errNodeFull, a.limits.Connections)
	}
	load, err := a.chargeLocked(address, now)
	if err != nil {
		return nil, nil, err
	}
	var victims []func()
	if load != nil && load.unopened >= a.limits.UnopenedPerAddress {
		victims = append(victims, a.evictLocked(load))
	}
	if a.unopened.Len() >= a.limits.Unopened {
		victims = append(victims, a.evictLocked(nil))
	}
	t := &ticket{address: address, load: load, drop: drop}
	t.waiting = a.unopened.PushBack(t)
	a.total++
	if load != nil {
		load.connections++
		load.unopened++
	}
	return t, victims, nil
}

// chargeLocked counts one more connection attempt of the address.
func (a *admission) chargeLocked(address netip.Addr, now time.Time) (*addressLoad, error) {
	key, exempt := addressKey(address)
	if exempt {
		return nil, nil
	}
	a.sweepLocked(now)
	load := a.addresses[key]
	if load == nil {
		load = &addressLoad{windowStart: now}
		a.addresses[key] = load
	}
	if now.Sub(load.windowStart) >= time.Second {
		load.windowStart, load.windowCount = now, 0
	}
	load.windowCount++
	switch {
	case load.windowCount > a.limits.NewConnectionsPerAddress:
		return nil, fmt.Errorf("%w (%d)", errAddressFast, a.limits.NewConnectionsPerAddress)
	case load.connections >= a.limits.ConnectionsPerAddress:
		return nil, fmt.Errorf("%w (%d)", errAddressFull, a.limits.ConnectionsPerAddress)
	}
	return load, nil
}

// evictLocked takes the oldest waiting connection, of one address or of all,
// out of the waiting ones. It stays counted until it has really ended.
func (a *admission) evictLocked(load *addressLoad) func() {
	for element := a.unopened.Front(); element != nil; element = element.Next() {
		t := element.Value.(*ticket)
		if load == nil || t.load == load {
			a.leaveWaitingLocked(t)
			return t.drop
		}
	}
	return func() {}
}

// counts returns how many connections there are, and how many of them are not
// open yet.
func (a *admission) counts() (total, unopened int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total, a.unopened.Len()
}

// opened takes a connection that got through Open out of the waiting ones.
func (a *admission) opened(t *ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaveWaitingLocked(t)
}

// ended counts a connection out. It is called once for each ticket.
func (a *admission) ended(t *ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaveWaitingLocked(t)
	a.total--
	if t.load != nil {
		t.load.connections--
	}
}

func (a *admission) leaveWaitingLocked(t *ticket) {
	if t.waiting == nil {
		return
	}
	a.unopened.Remove(t.waiting)
	t.waiting = nil
	if t.load != nil {
		t.load.unopened--
	}
}

// sweepLocked forgets addresses without connections whose second is over, so
// that the map is bounded by the connections and one second's attempts.
func (a *admission) sweepLocked(now time.Time) {
	if now.Before(a.sweepAt) {
		return
	}
	a.sweepAt = now.Add(time.Second)
	for key, load := range a.addresses {
		if load.connections == 0 && now.Sub(load.windowStart) >= time.Second {
			delete(a.addresses, key)
		}
	}
}

// addressKey is what limits for an address count by: IPv4 by the address, IPv6
// by its /64, which one host can choose from freely. Loopback and unknown
// addresses are exempt.
func addressKey(address netip.Addr) (key netip.Addr, exempt bool) {
	address = address.Unmap()
	if !address.IsValid() || address.IsLoopback() {
		return netip.Addr{}, true
	}
	if address.Is6() {
		prefix, err := address.WithZone("").Prefix(64)
		if err == nil {
			return prefix.Addr(), false
		}
	}
	return address, false
}
