package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
)

// A store that was cut anywhere is refused by name, or opened as a whole; bbolt
// alone would end the process by a signal.
func TestStore_cut(t *testing.T) {
	dir := t.TempDir()
	s, err := openStore(dir, nullLog, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= 20; i++ {
		if err := s.logs.StoreLog(&raft.Log{Index: i, Term: 1, Data: make([]byte, 3000)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, raftFolder, raftFile)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for size := len(good); size > 0; size -= 4096 {
		if err := os.WriteFile(path, good[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := openStore(dir, nullLog, func(error) {})
		if err != nil {
			refused++
			if size > 2*4096 && !errors.Is(err, errStoreCut) {
				t.Errorf("%d of %d bytes: %v", size, len(good), err)
			}
			continue
		}
		if last, err := s.logs.LastIndex(); err != nil || last != 20 || refused > 0 {
			t.Errorf("%d of %d bytes: opened, with %d entries, %v", size, len(good), last, err)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
	if refused < 5 {
		t.Errorf("only %d cuts were refused", refused)
	}
}
