package cli

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A command that waits says so once for each wait, and only one that waits too
// long is ended.
func TestVigil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told strings.Builder
		var came atomic.Uint64
		var idle atomic.Bool
		v := vigil{t: &terminal{err: &told}, limit: 10 * time.Second, look: func() (uint64, string) {
			if idle.Load() {
				return came.Load(), ""
			}
			return came.Load(), "a confirm"
		}}
		ctx, end := v.keep(t.Context())
		lines := func(after time.Duration, want int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := strings.Count(told.String(), "waiting for a confirm\n"); got != want || ctx.Err() != nil {
				t.Fatalf("%d lines, %v; want %d", got, context.Cause(ctx), want)
			}
		}
		lines(2*time.Second, 0)
		came.Add(1)
		lines(2*time.Second, 0)
		lines(7*time.Second, 1)
		came.Add(1)
		lines(4*time.Second, 2)
		idle.Store(true) // for as long as it likes
		lines(time.Hour, 2)
		idle.Store(false)
		lines(4*time.Second, 3)
		time.Sleep(7 * time.Second)
		synctest.Wait()
		var p *problem
		if !errors.As(context.Cause(ctx), &p) || p.code != exitUnreachable || !strings.Contains(p.what, "10s: waited for a confirm") {
			t.Errorf("ended by %v", context.Cause(ctx))
		}
		end()
	})
}
