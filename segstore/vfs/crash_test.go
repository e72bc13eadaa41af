package vfs

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

// picture draws a tree on one line: names with contents, sorted.
func picture(t testing.TB, fsys FS) string {
	t.Helper()
	var parts []string
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := fsys.List(dir)
		must(t, err)
		for _, e := range entries {
			name := path.Join(dir, e.Name)
			if e.IsDir() {
				parts = append(parts, name+"/")
				walk(name)
				continue
			}
			content, err := ReadFile(fsys, name)
			must(t, err)
			parts = append(parts, name+"="+short(content))
		}
	}
	walk("/")
	return strings.Join(parts, " ")
}

// short writes runs of one byte as byte×length.
func short(content []byte) string {
	if len(content) < 64 {
		return strings.ReplaceAll(string(content), "\x00", "0")
	}
	var b strings.Builder
	for len(content) > 0 {
		n := 1
		for n < len(content) && content[n] == content[0] {
			n++
		}
		c := content[0]
		if c == 0 {
			c = '0'
		}
		if c >= 0x80 { // garbage: its length is enough
			fmt.Fprintf(&b, "?×%d", len(content))
			break
		}
		fmt.Fprintf(&b, "%c×%d", c, n)
		content = content[n:]
	}
	return b.String()
}

// states returns every picture that a crash may leave under a policy.
func states(t testing.TB, m *Mem, policy Policy) []string {
	t.Helper()
	var all []string
	_, complete := Enumerate(100_000, func(choose Choose) {
		all = append(all, picture(t, m.Crash(policy, choose)))
	})
	if !complete {
		t.Fatal("too many states")
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestCrash_states(t *testing.T) {
	// synced makes a durable file.
	synced := func(t *testing.T, m *Mem, name, content string) File {
		f := create(t, m, name, content)
		must(t, f.Datasync())
		must(t, m.SyncDir(path.Dir(name)))
		return f
	}
	write := func(t *testing.T, f File, content string, at int64) {
		_, err := f.WriteAt([]byte(content), at)
		must(t, err)
	}
	twoWrites := func(t *testing.T, m *Mem) {
		f := synced(t, m, "/a", "....")
		write(t, f, "1", 1)
		write(t, f, "23", 2)
	}
	twoFiles := func(t *testing.T, m *Mem) {
		a, b := synced(t, m, "/a", ""), synced(t, m, "/b", "")
		write(t, a, "1", 0)
		write(t, b, "2", 0)
	}
	replaced := func(t *testing.T, m *Mem) {
		synced(t, m, "/a", "old")
		f := create(t, m, "/a.tmp", "new")
		must(t, f.Sync())
		must(t, m.Rename("/a.tmp", "/a"))
	}
	for _, c := range []struct {
		name   string
		script func(t *testing.T, m *Mem)
		policy Policy
		want   []string
	}{
		{"unsynced bytes go", twoWrites, Policy{}, []string{"/a=...."}},
		{"all may stay", twoWrites, Policy{Writes: KeepAll}, []string{"/a=.123"}},
		{"none or all", twoWrites, Policy{Writes: KeepNoneOrAll}, []string{"/a=....", "/a=.123"}},
		{"a prefix", twoWrites, Policy{Writes: KeepPrefix}, []string{"/a=....", "/a=.1..", "/a=.123"}},
		{"any subset", twoWrites, Policy{Writes: KeepAny}, []string{"/a=....", "/a=..23", "/a=.1..", "/a=.123"}},
		{"files are independent", twoFiles, Policy{Writes: KeepNoneOrAll},
			[]string{"/a= /b=", "/a= /b=2", "/a=1 /b=", "/a=1 /b=2"}},
		{"one moment for all files", twoFiles, Policy{Ordered: true},
			[]string{"/a= /b=", "/a=1 /b=", "/a=1 /b=2"}},
		{"a truncation is a change", func(t *testing.T, m *Mem) {
			f := synced(t, m, "/a", "abcd")
			must(t, f.Truncate(1))
			write(t, f, "x", 2)
		}, Policy{Writes: KeepAny}, []string{"/a=a", "/a=a0x", "/a=abcd", "/a=abxd"}},
		{"size grows before the bytes come", func(t *testing.T, m *Mem) {
			write(t, synced(t, m, "/a", "ab"), "cd", 2)
		}, Policy{Writes: KeepAll, Grown: true}, []string{"/a=ab00", "/a=abcd"}},
		{"a new name goes, its bytes synced or not", func(t *testing.T, m *Mem) {
			must(t, create(t, m, "/a", "x").Sync())
		}, Policy{Writes: KeepAll}, []string{""}},
		{"a new name may stay without its bytes", func(t *testing.T, m *Mem) {
			create(t, m, "/a", "x")
		}, Policy{Writes: KeepNoneOrAll, Names: KeepNoneOrAll}, []string{"", "/a=", "/a=x"}},
		{"a renaming is whole or not", replaced, Policy{Names: KeepPrefix},
			[]string{"/a=new", "/a=old", "/a=old /a.tmp=new"}},
		{"a renaming may outrun the creation", replaced, Policy{Names: KeepAny},
			[]string{"/a=new", "/a=old", "/a=old /a.tmp=new"}},
		{"a synced renaming stays", func(t *testing.T, m *Mem) {
			replaced(t, m)
			must(t, m.SyncDir("/"))
		}, Policy{Names: KeepAny}, []string{"/a=new"}},
		{"a renaming may keep the name of lost bytes", func(t *testing.T, m *Mem) {
			synced(t, m, "/a", "old")
			create(t, m, "/a.tmp", "new")
			must(t, m.Rename("/a.tmp", "/a"))
			must(t, m.SyncDir("/"))
		}, Policy{}, []string{"/a="}},
		{"a removal may be undone", func(t *testing.T, m *Mem) {
			synced(t, m, "/a", "x")
			must(t, m.Remove("/a"))
		}, Policy{Names: KeepPrefix}, []string{"", "/a=x"}},
		{"a directory goes with all in it", func(t *testing.T, m *Mem) {
			must(t, m.MkdirAll("/d", 0o755))
			synced(t, m, "/d/a", "x")
		}, Policy{Names: KeepPrefix}, []string{"", "/d/ /d/a=x"}},
		{"between directories a renaming is whole or not", func(t *testing.T, m *Mem) {
			must(t, m.MkdirAll("/d", 0o755))
			must(t, m.SyncDir("/"))
			synced(t, m, "/a", "x")
			must(t, m.Rename("/a", "/d/a"))
		}, Policy{Names: KeepAny}, []string{"/a=x /d/", "/d/ /d/a=x"}},
		{"syncing one directory brings the renaming to both", func(t *testing.T, m *Mem) {
			must(t, m.MkdirAll("/d", 0o755))
			must(t, m.SyncDir("/"))
			synced(t, m, "/a", "x")
			create(t, m, "/b", "")
			must(t, m.Rename("/a", "/d/a"))
			must(t, m.SyncDir("/d"))
		}, Policy{}, []string{"/b= /d/ /d/a=x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := NewMem()
			c.script(t, m)
			if got := states(t, m, c.policy); !slices.Equal(got, c.want) {
				t.Fatalf("states\n  %q\nwant\n  %q", got, c.want)
			}
		})
	}
}

// A tear in a write over durable bytes never harms those behind it: FORMAT.md
// builds on that.
func TestCrash_tearsAtSectorBorders(t *testing.T) {
	m := NewMem()
	f := create(t, m, "/a", strings.Repeat("o", 1200))
	must(t, f.Sync())
	must(t, m.SyncDir("/"))
	_, err := f.WriteAt([]byte(strings.Repeat("n", 1000)), 500) // over 512 and 1,024
	must(t, err)
	got := states(t, m, Policy{Writes: KeepAll, Tears: TearAny})
	want := []string{
		"/a=o×500n×1000",
		"/a=o×500n×12o×688",      // cut at 512, as long as before
		"/a=o×500n×12o×6880×300", // longer: what is new is zeros
		"/a=o×500n×12o×688?×300",
		"/a=o×500n×524o×176", // cut at 1,024
		"/a=o×500n×524o×1760×300",
		"/a=o×500n×524o×176?×300",
	}
	if !slices.Equal(got, want) {
		t.Fatalf("states\n  %q\nwant\n  %q", got, want)
	}
	if got := states(t, m, Policy{Writes: KeepAll, Tears: TearOld, BordersMax: 1}); len(got) != 2 {
		t.Fatalf("with one border: %q", got)
	}
}

func TestCrash_leavesTheFileSystemAlone(t *testing.T) {
	m := NewMem()
	f := create(t, m, "/a", "abc")
	must(t, f.Sync())
	must(t, m.SyncDir("/"))
	after := m.Crash(Policy{}, nil)
	g := create(t, after, "/a", "XYZW") // shares its bytes with m until it writes
	must(t, g.Sync())
	_, err := f.WriteAt([]byte("!"), 0)
	must(t, err)
	must(t, f.Sync())
	wantContent(t, m, "/a", "!bc")
	wantContent(t, after, "/a", "XYZW")
	wantContent(t, after.Crash(Policy{}, nil), "/a", "XYZW")
}

func TestObserve_seesTheStateBeforeEachChange(t *testing.T) {
	m := NewMem()
	var got []string
	m.Observe(func(op Op, name string) {
		got = append(got, op.String()+" "+name+": "+picture(t, m.Crash(Policy{}, nil)))
	})
	f := create(t, m, "/a", "x")
	must(t, m.SyncDir("/"))
	must(t, f.Sync())
	must(t, m.Remove("/a"))
	want := []string{
		"open|create /a: ", "write /a: ", "syncdir /: ", "sync /a: /a=", "remove /a: /a=x",
	}
	if !slices.Equal(got, want) {
		t.Fatalf("seen\n  %q\nwant\n  %q", got, want)
	}
}

func TestEnumerate_walksEachPathOnce(t *testing.T) {
	var got []string
	n, complete := Enumerate(100, func(choose Choose) {
		s := fmt.Sprint(choose(2))
		if s == "1" {
			s += fmt.Sprint(choose(3))
		}
		got = append(got, s)
	})
	if want := []string{"0", "10", "11", "12"}; !slices.Equal(got, want) || n != 4 || !complete {
		t.Fatalf("walked %q (%d, %v), want %q", got, n, complete, want)
	}
	if n, complete := Enumerate(3, func(choose Choose) { choose(4) }); n != 3 || complete {
		t.Fatalf("bounded walk made %d runs, complete %v", n, complete)
	}
	defer func() {
		if recover() == nil {
			t.Fatal("a walk that changes its choices passed")
		}
	}()
	width := 3
	Enumerate(10, func(choose Choose) { choose(width); width-- })
}

func TestSeeded_repeats(t *testing.T) {
	draw := func(seed uint64) (s []int) {
		choose := Seeded(seed)
		for range 20 {
			s = append(s, choose(1000))
		}
		return s
	}
	if !slices.Equal(draw(7), draw(7)) || slices.Equal(draw(7), draw(8)) {
		t.Fatal("draws do not follow the seed")
	}
}

func TestFailedSync_modes(t *testing.T) {
	for _, c := range []struct {
		how                      SyncFailure
		seen, crashed, afterNext string
	}{
		{BytesStayDirty, "new", "old", "new"},
		{BytesLostAtCrash, "new", "old", "old"},
		{BytesDropped, "old", "old", "old"},
	} {
		m := NewMem()
		faulty := NewFaulty(m)
		f := create(t, faulty, "/a", "old")
		must(t, f.Sync())
		must(t, m.SyncDir("/"))
		_, err := f.WriteAt([]byte("new"), 0)
		must(t, err)
		faulty.Add(Rule{Ops: OpSync, Times: 1, Fault: Fault{Err: errDisk, Sync: c.how}})
		if err := f.Datasync(); !errors.Is(err, errDisk) {
			t.Fatalf("mode %d: sync: %v", c.how, err)
		}
		wantContent(t, m, "/a", c.seen)
		wantContent(t, m.Crash(Policy{}, nil), "/a", c.crashed)
		must(t, f.Datasync())
		wantContent(t, m.Crash(Policy{}, nil), "/a", c.afterNext)
	}
}
