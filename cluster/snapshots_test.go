package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A damaged snapshot is never an empty or an older catalog (5.5): either the log
// and the snapshots before it hold the same, or the node does not start and names
// the file.
func TestSnapshots_damaged(t *testing.T) {
	harms := map[string]func(snapshot string) error{
		"state flipped": func(s string) error { return flipIn(filepath.Join(s, "state.bin"), "/") },
		"state cut":     func(s string) error { return os.Truncate(filepath.Join(s, "state.bin"), 10) },
		"state missing": func(s string) error { return os.Remove(filepath.Join(s, "state.bin")) },
		"meta flipped":  func(s string) error { return flipIn(filepath.Join(s, "meta.json"), `"Index":`) },
		"meta cut":      func(s string) error { return os.Truncate(filepath.Join(s, "meta.json"), 20) },
		"meta empty":    func(s string) error { return os.Truncate(filepath.Join(s, "meta.json"), 0) },
		"meta missing":  func(s string) error { return os.Remove(filepath.Join(s, "meta.json")) },
		"all missing":   os.RemoveAll,
	}
	for _, log := range []string{"whole", "begins behind the older snapshot", "begins behind the newer", "empty", "lost"} {
		for _, older := range []bool{true, false} {
			t.Run(fmt.Sprintf("log %s, older snapshot %v", log, older), func(t *testing.T) {
				t.Parallel()
				dir, newest, before := snapshotted(t, log, older)
				for name, harm := range harms {
					if name == "all missing" && log == "empty" && older {
						continue // nothing is left that knows of it
					}
					copied := t.TempDir()
					if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
						t.Fatal(err)
					}
					folder := filepath.Join(copied, raftFolder)
					if err := harm(filepath.Join(folder, snapshotsFolder, newest)); err != nil {
						t.Fatal(err)
					}
					again, err := Open(context.Background(), Config{Dir: copied, Node: "n1", Fencer: newReplicas(newDisk(), 1), Log: nullLog})
					can := log == "whole" || log == "begins behind the older snapshot"
					switch {
					case err == nil:
						if now := streams(again); now != before || !can {
							t.Errorf("%s: it starts with %s, was %s", name, now, before)
						}
						again.Close()
					case can:
						t.Errorf("%s: it does not start: %v", name, err)
					case !errors.Is(err, ErrIdentity) && !strings.Contains(err.Error(), folder) || !strings.Contains(err.Error(), "backup"):
						t.Errorf("%s: not said what to do: %v", name, err)
					}
				}
			})
		}
	}
}

// What is left of a snapshot that a crash cut short is not taken for one, though
// its name is the newest (EL-19).
func TestSnapshots_halfWritten(t *testing.T) {
	dir, newest, before := snapshotted(t, "begins behind the newer", true)
	folder := filepath.Join(dir, raftFolder, snapshotsFolder)
	half := filepath.Join(folder, "9-999999-9999999999999.tmp")
	if err := os.CopyFS(half, os.DirFS(filepath.Join(folder, newest))); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(half, "state.bin"), 7); err != nil {
		t.Fatal(err)
	}
	c := open(t, dir, newReplicas(newDisk(), 1))
	if now := streams(c); now != before {
		t.Errorf("it starts with %s, was %s", now, before)
	}
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the half snapshot is still there: %v", err)
	}
}

// A snapshot that is lost or damaged while the node runs is made anew: a follower
// that needs one gets it (EL-03).
func TestSnapshots_lostWhileRunning(t *testing.T) {
	for name, harm := range map[string]func(folder, newest string) error{
		"folder removed": func(folder, _ string) error { return os.RemoveAll(folder) },
		"all removed": func(folder, newest string) error {
			return os.RemoveAll(filepath.Join(folder, newest))
		},
		"state flipped": func(folder, newest string) error {
			return flipIn(filepath.Join(folder, newest, "state.bin"), "/")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, newest, before := snapshotted(t, "begins behind the newer", false)
			w := newTown(t)
			n1 := w.site("n1")
			n1.dir = dir
			n1.start(Joins{Expect: 1})
			if err := harm(filepath.Join(dir, raftFolder, snapshotsFolder), newest); err != nil {
				t.Fatal(err)
			}
			n2 := w.site("n2")
			n2.start(Joins{Addresses: []string{n1.addr}})
			if now := streams(n2.Cluster); now != before {
				t.Errorf("the follower has %s, and the leader %s", now, before)
			}
			if lacks, err := n1.meta.store.lacksSnapshot(); lacks || err != nil {
				t.Errorf("the leader lacks a snapshot still: %v, %v", lacks, err)
			}
		})
	}
}

// snapshotted makes a stopped node whose catalog has three streams, the last of
// them behind the newest snapshot unless the log is empty.
func snapshotted(t *testing.T, log string, older bool) (dir, newest, before string) {
	dir = t.TempDir()
	c := open(t, dir, newReplicas(newDisk(), 1))
	snapshot := func() uint64 {
		if err := c.meta.instance().Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		list, err := c.meta.store.snapshots.List()
		if err != nil || len(list) == 0 {
			t.Fatalf("snapshots: %v, %v", list, err)
		}
		newest = list[0].ID
		return list[0].Index
	}
	create(t, c, "a")
	var cut uint64 // the log's last entry that is gone
	if older {
		first := snapshot()
		if log == "begins behind the older snapshot" {
			cut = first
		}
	}
	create(t, c, "b")
	second := snapshot()
	if log == "begins behind the newer" {
		cut = second
	}
	if log != "empty" {
		create(t, c, "c")
	}
	before = streams(c)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := openStore(dir, nullLog, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	if log == "empty" {
		cut, err = s.bolt.LastIndex()
	}
	if err == nil && cut > 0 {
		err = s.bolt.DeleteRange(1, cut)
	}
	if err := errors.Join(err, s.close()); err != nil {
		t.Fatal(err)
	}
	if log == "lost" {
		if err := os.Remove(filepath.Join(dir, raftFolder, raftFile)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, newest, before
}

func streams(c *Cluster) (all string) {
	for _, name := range []string{"a", "b", "c"} {
		if s, ok := c.View().Stream("/", name); ok {
			all += fmt.Sprint(name, s.Incarnation, " ")
		}
	}
	return all
}

// flipIn changes the byte behind a text.
func flipIn(path, behind string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	at := bytes.Index(b, []byte(behind))
	if at < 0 {
		return fmt.Errorf("%s has no %q", path, behind)
	}
	b[at+len(behind)] ^= 1
	return os.WriteFile(path, b, 0o600)
}
