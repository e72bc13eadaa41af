package cluster

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// provenFor is how long a proven credential needs no proof again. A changed
	// password ends it at once, since the stored hash is part of the key.
	provenFor = 5 * time.Minute
	// provenMax bounds the proven credentials that are remembered.
	provenMax = 4_096
	// proofRest is how long after the last proof its memory is given back. Those
	// who connect at once are proven by then.
	proofRest = 2 * time.Second
	// heapOwnMax is the heap up to which that is worth it; a bigger one is busy,
	// and collected soon.
	heapOwnMax = 256 << 20
)

// Authenticate proves a password. A wrong one and an unknown user are both
// ErrCredentials, after the same work.
func (c *Cluster) Authenticate(ctx context.Context, user string, password []byte) error {
	stored := ""
	if u, ok := c.View().User(user); ok {
		stored = u.Hash
	}
	return c.prover.prove(ctx, user, password, stored)
}

// prover proves passwords. A proof is costly by intent, so that at most one
// runs for each core, and what was proven is remembered for a while: a thousand
// clients that connect again after a restart must not stall the node.
type prover struct {
	running chan struct{} // one place for each core
	key     [32]byte      // of this process: what is remembered is of no use elsewhere
	decoy   argonHash     // proven against when there is nothing to prove
	now     func() time.Time
	free    func() // gives memory back

	mu     sync.Mutex // guards the three below
	proven map[[sha256.Size]byte]time.Time
	oldest [][sha256.Size]byte // keys of proven in the order they came
	rest   *time.Timer         // calls free; nil before the first proof
}

func newProver() *prover {
	p := &prover{
		running: make(chan struct{}, runtime.GOMAXPROCS(0)),
		decoy: argonHash{
			memoryKiB: argonMemoryKiB, passes: argonPasses, lanes: argonLanes, salt: make([]byte, saltBytes), sum: make([]byte, keyBytes),
		},
		now:    time.Now,
		free:   freeMemory,
		proven: make(map[[sha256.Size]byte]time.Time),
	}
	rand.Read(p.key[:]) // never fails
	rand.Read(p.decoy.sum)
	return p
}

// prove compares a password with its stored hash; "" is none.
func (p *prover) prove(ctx context.Context, user string, password []byte, stored string) error {
	name := p.name(user, password, stored)
	if p.remembers(name) {
		return nil
	}
	select {
	case p.running <- struct{}{}:
		defer func() { <-p.running }()
	case <-ctx.Done():
		return fmt.Errorf("prove password: %w", ctx.Err())
	}
	if p.remembers(name) { // proven while we waited
		return nil
	}
	defer p.tire()
	h, err := parseHash(stored)
	_, argon := h.(argonHash)
	ok := err == nil && h.proves(password)
	if !argon {
		p.decoy.proves(password) // whoever measures learns nothing about the user
	}
	if !ok {
		return ErrCredentials
	}
	p.remember(name)
	return nil
}

// tire has the memory of a proof given back once there was none for a while: it
// is most of what an idle node has, and nothing else there would have it
// collected.
func (p *prover) tire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rest == nil {
		p.rest = time.AfterFunc(proofRest, p.free)
		return
	}
	p.rest.Reset(proofRest)
}

func freeMemory() {
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	if heap.HeapAlloc <= heapOwnMax {
		debug.FreeOSMemory()
	}
}

// name stands for a credential without holding it.
func (p *prover) name(user string, password []byte, stored string) (name [sha256.Size]byte) {
	m := hmac.New(sha256.New, p.key[:])
	for _, part := range [][]byte{[]byte(user), []byte(stored), password} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		m.Write(size[:])
		m.Write(part)
	}
	m.Sum(name[:0])
	return name
}

func (p *prover) remembers(name [sha256.Size]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	until, ok := p.proven[name]
	return ok && p.now().Before(until)
}

func (p *prover) remember(name [sha256.Size]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.proven[name]; !ok {
		p.oldest = append(p.oldest, name)
	}
	p.proven[name] = p.now().Add(provenFor)
	if len(p.oldest) > provenMax {
		delete(p.proven, p.oldest[0])
		p.oldest = p.oldest[1:]
	}
}
