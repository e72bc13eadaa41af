package segstore

import "testing"

// Files that nobody uses are closed, but neither one that a reader holds nor one
// with bytes that are not synced; and the log goes on as if nothing had been.
func TestHandles_unusedAreClosed(t *testing.T) {
	bothFS(t, func(t *testing.T, f *fixture) {
		f.barrier()
		f.publish(3, 100)
		f.sync()
		open := func(want int, when string) {
			t.Helper()
			if n := f.store.handles.count(); n != want {
				t.Errorf("%d files are open %s, want %d", n, when, want)
			}
		}
		f.store.CloseUnused()
		open(1, "right behind a use")
		f.store.CloseUnused()
		open(0, "when nobody has used it since")

		f.publish(1, 100)
		f.store.CloseUnused()
		f.store.CloseUnused()
		open(1, "with bytes that are not synced")
		f.sync()
		h, err := f.store.handles.acquire(f.log.active)
		must(t, err)
		f.store.CloseUnused()
		f.store.CloseUnused()
		open(1, "while a reader holds it")
		f.store.handles.release(h)
		f.store.CloseUnused()
		open(0, "when it was let go")

		f.elect()
		f.publish(1, 100)
		f.sync()
		f.restart()
		f.wantAll(0, 10)
	})
}
