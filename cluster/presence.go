package cluster

import (
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

const (
	// gonePatience is how long a node may be without a link before it counts as
	// gone. A link that broke comes back within it where the node is well.
	gonePatience = 300 * time.Millisecond
	// firstPatience is the same for one that has not been linked yet since this
	// process began.
	firstPatience = 2 * time.Second
	// presenceTick is how often that is looked at.
	presenceTick = 100 * time.Millisecond
)

// presence is which nodes are linked, and since when.
type presence struct {
	mu    sync.Mutex // guards all
	all   map[protocol.NodeID]*linkage
	watch func(protocol.NodeID, catalog.Presence)
}

type linkage struct {
	up    bool
	back  chan struct{} // closed when it is up again, or forgotten; nil: nobody waits
	was   bool          // it has been up
	since time.Time
	said  catalog.Presence
}

func newPresence(watch func(protocol.NodeID, catalog.Presence)) *presence {
	return &presence{all: make(map[protocol.NodeID]*linkage), watch: watch}
}

// Linked is one of Host's.
func (c *Cluster) Linked(node protocol.NodeID, up bool) {
	c.presence.set(node, up)
	if up {
		c.presence.look(time.Now())
		c.voters.nudge()
	}
}

func (p *presence) set(node protocol.NodeID, up bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[node] == nil && !up {
		return // the end of a link to a node that is no member any more
	}
	l := p.of(node)
	if up {
		l.release()
	}
	l.was = l.was || up
	l.up, l.since = up, time.Now()
}

// of expects mu to be held.
func (p *presence) of(node protocol.NodeID) *linkage {
	l := p.all[node]
	if l == nil {
		l = &linkage{since: time.Now()}
		p.all[node] = l
	}
	return l
}

// doubt has a node that is not linked count as gone without further patience.
func (p *presence) doubt(node protocol.NodeID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.all[node]; l != nil && !l.up {
		l.since = time.Time{}
	}
}

func (p *presence) expect(node protocol.NodeID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(node)
}

// forget drops a node that is no member any more, and tells whether it was said
// to be gone.
func (p *presence) forget(node protocol.NodeID) (wasGone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.all[node]
	delete(p.all, node)
	if l == nil {
		return false
	}
	l.release()
	return l.said == catalog.Gone
}

// release ends all waits. It expects mu to be held.
func (l *linkage) release() {
	if l.back != nil {
		close(l.back)
		l.back = nil
	}
}

// await waits until a node that was linked is so again, or is no member any more;
// at most for a while, and until quit. For one that has not been linked yet it
// does not wait.
func (p *presence) await(node protocol.NodeID, atMost time.Duration, quit <-chan struct{}) {
	p.mu.Lock()
	l := p.all[node]
	if l == nil || l.up || !l.was {
		p.mu.Unlock()
		return
	}
	if l.back == nil {
		l.back = make(chan struct{})
	}
	back := l.back
	p.mu.Unlock()
	late := time.NewTimer(atMost)
	defer late.Stop()
	select {
	case <-back:
	case <-late.C:
	case <-quit:
	}
}

func (p *presence) linked(node protocol.NodeID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.all[node]
	return l != nil && l.up
}

// broken tells whether a node's link is down that was up.
func (p *presence) broken(node protocol.NodeID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.all[node]
	return l != nil && l.was && !l.up
}

// unseen returns the nodes that have not been linked since this process began.
func (p *presence) unseen() []protocol.NodeID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []protocol.NodeID
	for node, l := range p.all {
		if !l.was {
			list = append(list, node)
		}
	}
	return list
}

// look tells who has come or gone.
func (p *presence) look(now time.Time) {
	type news struct {
		node protocol.NodeID
		is   catalog.Presence
	}
	var list []news
	p.mu.Lock()
	for node, l := range p.all {
		is := catalog.Up
		if patience := l.patience(); !l.up && now.Sub(l.since) >= patience {
			is = catalog.Gone
		} else if !l.up {
			is = l.said
		}
		if is != l.said {
			l.said = is
			list = append(list, news{node, is})
		}
	}
	p.mu.Unlock()
	for _, n := range list {
		p.watch(n.node, n.is)
	}
}

func (l *linkage) patience() time.Duration {
	if l.was {
		return gonePatience
	}
	return firstPatience
}

// names returns the nodes that are linked, or those that are not.
func (p *presence) names(up bool) []protocol.NodeID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []protocol.NodeID
	for node, l := range p.all {
		if l.up == up {
			list = append(list, node)
		}
	}
	slices.Sort(list)
	return list
}
