package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// lowDisk is a node on a disk of 48 MiB: low below 15 MiB, alarm below 12 MiB,
// floor at 3 MiB.
type lowDisk struct {
	*retained
	disk string
}

const (
	mib        = 1 << 20
	alarmBelow = 12 * mib
	lowBelow   = 15 * mib
)

func newLowDisk(t *testing.T, args ...string) *lowDisk {
	t.Helper()
	disk := smallDisk(t, "48m")
	args = append([]string{"--disk-free-min", fmt.Sprint(alarmBelow), "--disk-free-min-percent", "0"}, args...)
	d := &lowDisk{&retained{t: t, node: harness.StartIn(t, filepath.Join(disk, "data"), args...), next: map[string]int{}}, disk}
	d.connect()
	return d
}

// leave lets a ballast leave so many bytes free.
func (d *lowDisk) leave(bytes int64) {
	d.t.Helper()
	var st syscall.Statfs_t
	d.must(syscall.Statfs(d.disk, &st))
	name := filepath.Join(d.disk, "ballast")
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	d.must(err)
	defer file.Close()
	info, err := file.Stat()
	d.must(err)
	size := info.Size() + int64(st.Bavail)*st.Bsize - bytes
	if size <= info.Size() {
		d.must(file.Truncate(max(size, 0)))
		return
	}
	d.must(syscall.Fallocate(int(file.Fd()), 0, 0, size))
}

func (d *lowDisk) level() string {
	d.t.Helper()
	var s admin.Status
	d.must(d.node.Call("GET", "/api/v1/status", nil, &s))
	return s.Disk.Level
}

func (d *lowDisk) wantMetric(series string, want float64) {
	d.t.Helper()
	got, err := d.node.Metric("/metrics", series)
	d.must(err)
	if got != want {
		d.t.Errorf("%s is %v, want %v", series, got, want)
	}
}

// Where streams are above their limits, retention makes room before anybody is
// stopped (RT-08, the first half).
func TestLowDisk_retentionFreesSpaceFirst(t *testing.T) {
	t.Parallel()
	d := newLowDisk(t, "--retention-interval", "1h") // nothing but the disk has it run
	d.create("s", "max-age", "1s")
	d.units("s", 120) // 8 MB
	eventually(t, "all but the newest is too old", func() bool {
		var r admin.Retention
		d.must(d.node.Call("GET", "/api/v1/streams/%2F/s/retention", nil, &r))
		return r.Goes.Units == len(r.Units)-1
	})
	// And yet it stays, as nobody has looked.
	if first, _ := d.stats("s"); first != 0 {
		t.Fatalf("retention has run: the first offset is %d", first)
	}
	d.leave(lowBelow - mib)
	eventually(t, "retention has made room", func() bool { return d.describe("s").FirstOffset > 0 && d.level() == "ok" })
	d.publish("s", 1)
	if log := d.node.Log(); !strings.Contains(log, "retention runs now") || strings.Contains(log, "disk alarm") {
		t.Error("the log does not tell of retention alone")
	}
	d.wantMetric("millrace_disk_alarm", 0)
}

// Where streams are within their limits, publishers are stopped; readers,
// queries, stored offsets and deletions go on; a stream that is deleted ends the
// alarm, and what was sent meanwhile is confirmed (RT-08, the second half).
func TestLowDisk_alarm(t *testing.T) {
	t.Parallel()
	d := newLowDisk(t)
	d.create("s")
	d.create("doomed")
	d.units("s", 5)
	d.units("doomed", 120)
	pub, err := d.conn.DeclarePublisher(d.context(), client.PublisherConfig{Stream: "s"})
	d.must(err)
	d.leave(alarmBelow - mib)
	eventually(t, "the alarm is there", func() bool { return d.level() == "alarm" })
	d.wantMetric("millrace_disk_alarm", 1)
	d.wantMetric("millrace_disk_low", 1)
	d.wantMetric("millrace_disk_alarm_below_bytes", alarmBelow)

	// Publishers: a new one is refused, one that is there is not read any more.
	other := dialNode(t, d.node)
	defer other.Abort()
	if _, err := other.DeclarePublisher(d.context(), client.PublisherConfig{Stream: "s"}); client.Code(err) != wire.CodePreconditionFailed {
		t.Errorf("declared during the alarm: %v", err)
	}
	_, err = pub.Publish(message(d.next["s"]))
	d.must(err)
	d.must(pub.Flush())
	d.next["s"]++
	eventually(t, "the publisher's connection is blocked", func() bool {
		n, err := d.node.Metric("/metrics", "millrace_blocked_connections")
		d.must(err)
		return n == 1
	})
	if _, next := (&retained{t: t, node: d.node, conn: other}).stats("s"); next != d.next["s"]-1 || pub.Unconfirmed() != 1 {
		t.Errorf("%d messages are there, %d are unconfirmed", next, pub.Unconfirmed())
	}

	// All others go on.
	if first, _, err := readDense(d.context(), other, "s", fromFirst, d.next["s"]-1); err != nil || first != 0 {
		t.Errorf("read from %d: %v", first, err)
	}
	d.must(other.StoreOffset("r", "s", 7))
	if stored, err := other.QueryOffset(d.context(), "r", "s"); err != nil || stored != 7 {
		t.Errorf("stored offset %d: %v", stored, err)
	}
	d.must(other.Create(d.context(), "new", nil))
	d.must(other.Delete(d.context(), "new"))

	d.must(other.Delete(d.context(), "doomed")) // 8 MB
	eventually(t, "the alarm is over", func() bool { return d.level() == "ok" })
	d.must(pub.Drain(d.context()))
	d.publish("s", 10)
	d.read("s", fromFirst)
	d.wantMetric("millrace_disk_alarm", 0)
	d.wantMetric("millrace_blocked_connections", 0)
	log := d.node.Log()
	for _, line := range []string{"disk alarm: publishers are stopped", "disk alarm is over: publishers go on", "disk.free_min"} {
		if strings.Count(log, line) == 0 {
			t.Errorf("the log does not say %q", line)
		}
	}
	if n := strings.Count(log, "disk alarm:"); n != 1 {
		t.Errorf("the log tells %d times of one alarm", n)
	}
}

// A stop and a start during the alarm work, and the alarm is there again.
func TestLowDisk_restart(t *testing.T) {
	t.Parallel()
	d := newLowDisk(t)
	d.create("s")
	d.units("s", 5)
	blocked := dialNode(t, d.node)
	defer blocked.Abort()
	pub, err := blocked.DeclarePublisher(d.context(), client.PublisherConfig{Stream: "s"})
	d.must(err)
	d.leave(alarmBelow - mib)
	eventually(t, "the alarm is there", func() bool { return d.level() == "alarm" })
	_, err = pub.Publish(message(d.next["s"])) // which the node does not read
	d.must(err)
	d.must(pub.Flush())
	d.restart(func() {
		if code := d.node.Stop(); code != 0 {
			t.Errorf("stopped with %d", code)
		}
	})
	eventually(t, "the alarm is there again", func() bool { return d.level() == "alarm" })
	d.read("s", fromFirst)
	if _, err := d.conn.DeclarePublisher(d.context(), client.PublisherConfig{Stream: "s"}); client.Code(err) != wire.CodePreconditionFailed {
		t.Errorf("declared during the alarm: %v", err)
	}
	d.leave(lowBelow + mib)
	eventually(t, "the alarm is over", func() bool { return d.level() == "ok" })
	d.publish("s", 10)
}
