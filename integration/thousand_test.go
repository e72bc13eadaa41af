package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// Three real processes and many streams, nearly all of them idle: what each costs
// when it is made, while nothing happens, and when nodes come and go. Times and
// shares of a processor are figures, printed beside their goals: these tests fail
// only far beyond them, since a machine may be busy.

const (
	// creatorConns is how many creates are in flight at once: a connection has its
	// commands answered one after the other.
	creatorConns = 16
	// fewStreams is what a cluster has before the many come; what it needs with
	// these is what it needs without streams.
	fewStreams = 10
	// farBeyond is how many times a goal in time must be missed to fail a test.
	farBeyond = 10
	// attemptMax bounds one attempt to write to a stream.
	attemptMax = 2 * time.Second
)

// thousandTest is a cluster and its many streams.
type thousandTest struct {
	t       *testing.T
	cluster *harness.Cluster
	names   []string
}

// newThousandTest starts three nodes. The count of streams comes from the
// environment; without it, the test is skipped.
func newThousandTest(t *testing.T, args ...string) (c *thousandTest, streams int) {
	t.Helper()
	streams = number(t, "THOUSAND", 0)
	if streams == 0 {
		t.Skip("many streams take long; make thousand-long has them")
	}
	return &thousandTest{t: t, cluster: harness.StartCluster(t, 3, args...)}, streams
}

// balanced has leaders chosen by what nodes lead already, whichever node a client is
// connected to.
var balanced = map[string]string{"queue-leader-locator": "balanced"}

// create makes streams until there are so many, by several connections, and
// returns how long that took.
func (c *thousandTest) create(upTo int) time.Duration {
	c.t.Helper()
	var conns []*client.Conn
	for i := range creatorConns {
		conns = append(conns, c.dial(c.cluster.Nodes[i%len(c.cluster.Nodes)]))
		defer conns[i].Close()
	}
	fresh := make([]string, 0, upTo)
	for i := len(c.names); i < upTo; i++ {
		fresh = append(fresh, fmt.Sprintf("stream-%04d", i))
	}
	begin := time.Now()
	work := make(chan string)
	errs := make(chan error, len(fresh))
	var all sync.WaitGroup
	for i := range creatorConns {
		all.Go(func() {
			for name := range work {
				if err := conns[i].Create(c.t.Context(), name, balanced); err != nil {
					errs <- fmt.Errorf("create %s: %w", name, err)
				}
			}
		})
	}
	for _, name := range fresh {
		work <- name
	}
	close(work)
	all.Wait()
	close(errs)
	for err := range errs {
		c.t.Fatal(err)
	}
	c.names = append(c.names, fresh...)
	return time.Since(begin)
}

func (c *thousandTest) dial(n *harness.Node) *client.Conn {
	c.t.Helper()
	conn, err := client.Dial(c.t.Context(), client.Config{Addr: n.Stream, Name: "thousand"})
	if err != nil {
		c.t.Fatalf("dial node %s: %v", n.Name, err)
	}
	return conn
}

// leaders counts what each node leads, as one that runs says; streams without a
// leader count for "".
func (c *thousandTest) leaders() map[string]int {
	c.t.Helper()
	led := map[string]int{}
	for _, leader := range c.ledBy() {
		led[leader]++
	}
	return led
}

// ledBy is the name of each stream's leader.
func (c *thousandTest) ledBy() map[string]string {
	c.t.Helper()
	i := slices.IndexFunc(c.cluster.Nodes, (*harness.Node).Running)
	conn := c.dial(c.cluster.Nodes[i])
	defer conn.Close()
	by, err := c.ask(conn)
	if err != nil {
		c.t.Fatal(err)
	}
	return by
}

// ask is ledBy of a connection's node.
func (c *thousandTest) ask(conn *client.Conn) (map[string]string, error) {
	answer, err := conn.Metadata(c.t.Context(), c.names...)
	if err != nil {
		return nil, err
	}
	brokers := map[uint16]string{}
	for b := range answer.Brokers.All() {
		for _, n := range c.cluster.Nodes {
			if strings.HasSuffix(n.Stream, fmt.Sprintf(":%d", b.Port)) {
				brokers[b.Reference] = n.Name
			}
		}
	}
	by := map[string]string{}
	for s := range answer.Streams.All() {
		by[s.Stream] = ""
		if s.Code == wire.CodeOK {
			by[s.Stream] = brokers[s.Leader]
		}
	}
	return by, nil
}

// even fails unless each node leads its part of all streams, within ten parts of
// a hundred.
func (c *thousandTest) even(when string) {
	c.t.Helper()
	var led map[string]int
	c.until("leaders are even "+when, time.Minute, func() bool { // some may be on their way
		led = c.leaders()
		return c.isEven(led, c.cluster.Nodes...)
	})
	c.t.Logf("FIGURE thousand: leaders %s: %v; goal within 10 %% of %d", when, led, len(c.names)/len(c.cluster.Nodes))
}

func (c *thousandTest) isEven(led map[string]int, nodes ...*harness.Node) bool {
	part := float64(len(c.names)) / float64(len(nodes))
	for _, n := range nodes {
		if got := float64(led[n.Name]); got < 0.9*part || got > 1.1*part {
			return false
		}
	}
	return led[""] == 0
}

// doors are open connections to every node, as clients have them before a node
// dies.
type doors struct {
	t *testing.T
	// at is by the port that metadata names.
	at map[string][]*client.Conn
}

const doorsEach = 4

func (c *thousandTest) open() *doors {
	c.t.Helper()
	d := &doors{t: c.t, at: map[string][]*client.Conn{}}
	for _, n := range c.cluster.Nodes {
		if !n.Running() {
			continue
		}
		_, port, _ := net.SplitHostPort(n.Stream)
		for range doorsEach {
			d.at[port] = append(d.at[port], c.dial(n))
		}
	}
	return d
}

func (d *doors) close() {
	for _, conns := range d.at {
		for _, conn := range conns {
			conn.Abort()
		}
	}
}

// any returns a connection that lives.
func (d *doors) any(i int) *client.Conn {
	for _, port := range slices.Sorted(maps.Keys(d.at)) {
		if conn := d.at[port][i%doorsEach]; conn.Err() == nil {
			return conn
		}
	}
	return nil
}

// write writes one message to a stream, at its leader's, and returns once it is
// confirmed.
func (d *doors) write(ctx context.Context, i int, stream string) error {
	ctx, cancel := context.WithTimeout(ctx, attemptMax)
	defer cancel()
	asked := d.any(i)
	if asked == nil {
		return errors.New("no node answers")
	}
	leader, err := asked.Leader(ctx, stream)
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(leader)
	if len(d.at[port]) == 0 {
		return fmt.Errorf("no connection to %s", leader)
	}
	var confirmed atomic.Int32
	pub, err := d.at[port][i%doorsEach].DeclarePublisher(ctx, client.PublisherConfig{
		Stream: stream, Confirmed: func(ids []uint64) { confirmed.Add(int32(len(ids))) },
	})
	if err != nil {
		return err
	}
	_, err = pub.Publish(harness.AppendMessage(nil, 1, 1, 100))
	if err == nil {
		err = pub.Drain(ctx)
	}
	err = errors.Join(err, pub.Close(ctx))
	if err == nil && confirmed.Load() != 1 {
		err = errors.New("the message was refused")
	}
	return err
}

// writeAll writes one message to each stream, again and again where it fails, and
// returns how long after begin the last was confirmed.
func (c *thousandTest) writeAll(d *doors, begin time.Time, most time.Duration) time.Duration {
	c.t.Helper()
	ctx, cancel := context.WithDeadline(c.t.Context(), begin.Add(most))
	defer cancel()
	work := make(chan string, len(c.names))
	for _, name := range c.names {
		work <- name
	}
	left := make(chan struct{}, len(c.names))
	var last atomic.Value
	var all sync.WaitGroup
	for i := range 4 * doorsEach {
		all.Go(func() {
			for name := range work {
				err := d.write(ctx, i, name)
				for err != nil && ctx.Err() == nil {
					last.Store(fmt.Errorf("%s: %w", name, err))
					time.Sleep(20 * time.Millisecond)
					err = d.write(ctx, i, name)
				}
				if err != nil {
					left <- struct{}{}
				}
			}
		})
	}
	close(work)
	all.Wait()
	took := time.Since(begin)
	if len(left) > 0 {
		c.t.Fatalf("%d of %d streams can't be written after %v, the last: %v", len(left), len(c.names), took, last.Load())
	}
	return took
}

// status is the cluster's, as a node that runs says.
func (c *thousandTest) status() (now admin.Cluster) {
	c.t.Helper()
	for _, n := range c.cluster.Nodes {
		if n.Running() && n.Call("GET", "/api/v1/cluster", nil, &now) == nil {
			break
		}
	}
	return now
}

// until waits for something, and returns how long it took.
func (c *thousandTest) until(what string, most time.Duration, ok func() bool) time.Duration {
	c.t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > most {
			c.t.Fatalf("not within %v: %s", most, what)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return time.Since(begin)
}

// goal prints a time beside its goal, and fails far beyond it.
func (c *thousandTest) goal(what string, took, goal time.Duration) {
	c.t.Helper()
	c.t.Logf("FIGURE thousand: %s: %d ms; goal %d ms", what, took.Milliseconds(), goal.Milliseconds())
	if took > farBeyond*goal {
		c.t.Errorf("%s: %v", what, took)
	}
}

// TestThousand_kill has a node die that leads a third of all streams, and come
// back.
func TestThousand_kill(t *testing.T) {
	c, streams := newThousandTest(t)
	c.create(streams)
	c.even("after the creates")
	d := c.open()
	c.writeAll(d, time.Now(), time.Minute)
	victim := c.cluster.MetaLeader() // which makes it the hardest
	led := c.leaders()[victim.Name]
	begin := time.Now()
	victim.Kill()
	took := c.writeAll(d, begin, 100*time.Second)
	d.close()
	c.goal(fmt.Sprintf("kill -9 of the metadata's leader, which led %d of %d streams: all are writable again", led, streams), took, 10*time.Second)

	begin = time.Now()
	c.cluster.Restart(victim)
	c.goal("the node is ready again", time.Since(begin), 10*time.Second)
	c.until("all replicas count again", 100*time.Second, func() bool {
		now := c.status()
		return now.Seen && now.UnderReplicated == 0 && now.WithoutLeader == 0
	})
	t.Logf("FIGURE thousand: all replicas count again %d ms after the node's start", time.Since(begin).Milliseconds())
	t.Logf("FIGURE thousand: leaders after the node has come back: %v", c.leaders())
	begin = time.Now()
	c.balance()
	c.even("after the node has come back and a balance")
	t.Logf("FIGURE thousand: one command has evened out leaders after %d ms", time.Since(begin).Milliseconds())
	d = c.open()
	defer d.close()
	c.writeAll(d, time.Now(), time.Minute)
	if err := c.cluster.SameReplicas(); err != nil {
		t.Error(err)
	}
}

// balance evens out leaders by the operator's command.
func (c *thousandTest) balance() {
	c.t.Helper()
	if err := c.cluster.Nodes[0].Call("POST", "/api/v1/cluster/balance", nil, nil); err != nil {
		c.t.Fatal(err)
	}
}
