package cluster

import (
	"context"
	"fmt"
	"strings"
)

// Founding together. Several empty nodes must not make several clusters, be they
// started at the same moment, cut off from each other, or killed in between. So
// one of them founds, and only with the word of all that are expected: a word is
// durable, and no node gives it to two. Then the others join.
//
//	waiting ── enough seen, least name ──► pledged to itself ── the word of all ──► founds
//	   └────── asked by a founder ───────► pledged to it ─────── it is a member ──► joins
//
// A founder that meets one of a lesser name gives up; whoever was pledged to it
// asks it, hears so, and is free.

// found takes one step towards a founding; true once this node has founded.
func (g *gathering) found(ctx context.Context) (bool, error) {
	c := g.c
	me := c.introduce()
	var company []introduction // who could found together with this node
	for _, x := range c.neighbours.present() {
		if x.Cluster == "" && x.Node != me.Node {
			company = append(company, x)
		}
	}
	switch {
	case me.Pledge == nil:
		return false, g.stand(me, company)
	case me.Pledge.Founder != me.Node:
		return false, g.await(me, company)
	}
	for _, x := range company {
		if x.Node < me.Node && founder(x) {
			g.lacking = fmt.Sprintf("leaving the founding to %s", x.Node)
			return false, c.changeIdentity(func(id *identity) { id.Pledge = nil })
		}
	}
	return g.collect(ctx, me, company)
}

func founder(x introduction) bool { return x.Pledge != nil && x.Pledge.Founder == x.Node }

// stand makes this node the founder if it sees enough others and has the least
// name among those that are free.
func (g *gathering) stand(me introduction, company []introduction) error {
	g.lacking = fmt.Sprintf("%d of %d expected nodes are here (%s)", len(company)+1, me.Expect, names(me, company))
	if len(company)+1 < me.Expect {
		return nil
	}
	for _, x := range company {
		if x.Node < me.Node || founder(x) {
			g.lacking = fmt.Sprintf("waiting for %s to found the cluster", x.Node)
			return nil
		}
	}
	return g.c.changeIdentity(func(id *identity) { id.Pledge = &pledge{me.Node, me.Disk} })
}

// await looks whether the founder that has this node's word still founds.
func (g *gathering) await(me introduction, company []introduction) error {
	g.lacking = fmt.Sprintf("waiting for %s to found the cluster; if that node is lost for good, empty this one's data directory", me.Pledge.Founder)
	for _, x := range company {
		if x.Node == me.Pledge.Founder && !founder(x) && x.Disk == me.Pledge.Disk {
			return g.c.changeIdentity(func(id *identity) { id.Pledge = nil })
		}
	}
	return nil
}

// collect asks the others for their word and founds once it has enough.
func (g *gathering) collect(ctx context.Context, me introduction, company []introduction) (bool, error) {
	c := g.c
	with := []introduction{}
	for _, x := range company {
		if w, err := c.knock(ctx, x.Address, question{Ask: askPledge}); err == nil && w.Pledged {
			with = append(with, x)
		}
	}
	if len(with)+1 < me.Expect {
		g.lacking = fmt.Sprintf("%d of %d expected nodes agree to a founding by this one (%s)", len(with)+1, me.Expect, names(me, with))
		return false, nil
	}
	cluster, err := c.config.Network.Certified()
	if err != nil {
		return false, err
	}
	if cluster == "" {
		cluster = draw()
	}
	err = c.changeIdentity(func(id *identity) {
		id.Cluster, id.Founding, id.Joining, id.Pledge, id.Together = cluster, true, false, nil, true
	})
	if err != nil {
		return false, err
	}
	c.log.Info("founding a cluster", "cluster", cluster, "with", names(me, with))
	c.config.Network.Belong(cluster)
	return true, nil
}

// givePledge gives this node's word to a founder, unless somebody has it.
func (c *Cluster) givePledge(to introduction) (bool, error) {
	given := false
	err := c.changeIdentity(func(id *identity) {
		if !id.Joining || id.Cluster != "" {
			return
		}
		if id.Pledge == nil {
			id.Pledge = &pledge{to.Node, to.Disk}
		}
		given = *id.Pledge == pledge{to.Node, to.Disk}
	})
	return given && err == nil, err
}

func names(me introduction, others []introduction) string {
	list := []string{string(me.Node)}
	for _, x := range others {
		list = append(list, string(x.Node))
	}
	return strings.Join(list, ", ")
}

// changeIdentity changes what this node knows of itself, durably; a change that
// changes nothing writes nothing.
func (c *Cluster) changeIdentity(change func(*identity)) error {
	c.idMu.Lock()
	defer c.idMu.Unlock()
	next := c.id
	if next.Pledge != nil {
		p := *next.Pledge
		next.Pledge = &p
	}
	change(&next)
	if same(next, c.id) {
		return nil
	}
	if err := next.write(c.config.Dir); err != nil {
		return err
	}
	c.id = next
	return nil
}

func same(a, b identity) bool {
	p, q := a.Pledge, b.Pledge
	a.Pledge, b.Pledge = nil, nil
	return a == b && (p == nil) == (q == nil) && (p == nil || *p == *q)
}

func (c *Cluster) identity() identity {
	c.idMu.Lock()
	defer c.idMu.Unlock()
	return c.id
}
